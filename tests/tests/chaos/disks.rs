//! A file system of its own for each node: a small one in memory, or one in an image that holds only what was synced.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tests::cluster::Cluster;
use tests::small_disk::SmallDisk;

use crate::run::Kit;

/// Size of a file system, in MiB. A node needs some of it as a reserve.
const MIB: u32 = 400;
/// Longest time until a killed process has closed its files.
const PATIENCE: Duration = Duration::from_secs(20);

/// The file systems of a cluster's nodes.
#[derive(Debug)]
pub(crate) enum Disks {
    None,
    Small(Vec<SmallDisk>),
    Loop(Vec<LoopDisk>),
}

impl Disks {
    /// Makes the file systems that a row needs, and puts the data directories of the nodes there.
    pub(crate) fn mount(kit: Kit, cluster: &Cluster) -> Self {
        let nodes = 1..=cluster.shape().nodes;
        let disks = match kit {
            Kit::SmallDisks => Self::Small(nodes.map(|_| SmallDisk::mount("chaos", MIB).expect("a tmpfs")).collect()),
            Kit::LoopDisks => Self::Loop(nodes.map(|_| LoopDisk::new()).collect()),
            Kit::Plain | Kit::Network | Kit::Clocks | Kit::MemoryLimits => Self::None,
        };
        for (id, path) in (1..).zip(disks.paths()) {
            let data = path.join("data");
            fs::create_dir(&data).unwrap();
            symlink(data, cluster.folder().join(format!("node-{id}"))).unwrap();
        }
        disks
    }

    fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::None => Vec::new(),
            Self::Small(disks) => disks.iter().map(|disk| disk.path().to_owned()).collect(),
            Self::Loop(disks) => disks.iter().map(LoopDisk::path).collect(),
        }
    }

    /// Returns the mount point of a node's small file system.
    pub(crate) fn small(&self, node: usize) -> PathBuf {
        let Self::Small(disks) = self else { panic!("the row has no small disks") };
        disks[node - 1].path().to_owned()
    }

    /// Returns the file system of a node that is in an image.
    pub(crate) fn of_image(&mut self, node: usize) -> &mut LoopDisk {
        let Self::Loop(disks) = self else { panic!("the row has no disks in images") };
        &mut disks[node - 1]
    }
}

/// An ext4 file system in an image. The image is written without the page cache of this machine, so a copy of the image
/// has what a disk has after a power cut.
#[derive(Debug)]
pub(crate) struct LoopDisk {
    folder: TempDir,
    device: String,
}

impl LoopDisk {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("varve-loop-disk-").tempdir().unwrap();
        let mut disk = Self { folder, device: String::new() };
        fs::create_dir(disk.path()).unwrap();
        let image = fs::File::create(disk.image()).unwrap();
        image.set_len(u64::from(MIB) << 20).unwrap();
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), disk.image().as_ref()]);
        disk.mount();
        disk
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn copied(&self) -> PathBuf {
        self.folder.path().join("copy")
    }

    fn mount(&mut self) {
        let options = ["--direct-io=on", "--find", "--show"].map(AsRef::<Path>::as_ref);
        let device = run("losetup", &[options[0], options[1], options[2], &self.image()]);
        device.trim().clone_into(&mut self.device);
        run("mount", &[self.device.as_ref(), &self.path()]);
    }

    fn unmount(&self) {
        let began = Instant::now();
        let is_unmounted = || Command::new("umount").arg(self.path()).output().is_ok_and(|done| done.status.success());
        // The threads of a killed process close its files a moment after the process has become a zombie.
        while !is_unmounted() {
            assert!(began.elapsed() < PATIENCE, "{} is in use", self.path().display());
            std::thread::sleep(Duration::from_millis(20));
        }
        run("losetup", &["--detach".as_ref(), self.device.as_ref()]);
    }

    /// Copies the image in its present state.
    pub(crate) fn copy(&self) {
        run("cp", &["--sparse=always".as_ref(), &self.image(), &self.copied()]);
    }

    /// Replaces the file system by the copy. No process may use the file system.
    pub(crate) fn restore_copy(&mut self) {
        self.unmount();
        fs::rename(self.copied(), self.image()).unwrap();
        self.mount();
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // The unmount is lazy, because a process may still be ending.
        drop(Command::new("umount").arg("--lazy").arg(self.path()).status());
        drop(Command::new("losetup").args(["--detach", &self.device]).status());
    }
}

/// Runs a tool that must succeed. Returns its output.
fn run(tool: &str, arguments: &[&Path]) -> String {
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.as_os_str()).collect();
    tests::program::output_of(tool, &arguments)
}
