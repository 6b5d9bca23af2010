//! A small file system in memory, for tests in which the disk is full.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::report::skipped;

/// A mounted tmpfs, which is unmounted when this value is dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts a tmpfs of `mib` MiB. If mounting is not allowed, reports that `test` is skipped, and returns `None`.
    #[must_use]
    pub fn mount(test: &str, mib: u32) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("varve-small-disk-").tempdir().unwrap();
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        let refusal = match mounted {
            Ok(output) if output.status.success() => return Some(Self(folder)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        skipped(test, format!("a tmpfs cannot be mounted (root is needed), so no disk was filled: {refusal}"));
        None
    }

    /// Changes the size of the file system to `mib` MiB.
    pub fn resize(&self, mib: u32) {
        let size = format!("remount,size={mib}m");
        let resized = Command::new("mount").args(["-o", &size]).arg(self.path()).status();
        assert!(resized.is_ok_and(|status| status.success()), "{} is not resized", self.path().display());
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, because a database that is being closed in the background may still have files open.
        let unmounted = Command::new("umount").arg("--lazy").arg(self.path()).status();
        let is_unmounted = unmounted.is_ok_and(|status| status.success());
        assert!(is_unmounted || std::thread::panicking(), "{} stays mounted", self.path().display());
    }
}
