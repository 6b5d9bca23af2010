//! A limit on the memory of a process: a control group of the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Folder of the groups of the memory controller.
const GROUPS: &str = "/sys/fs/cgroup/memory";
/// Longest time until the kernel has removed an ended process from its group.
const PATIENCE: Duration = Duration::from_secs(5);

/// A group of processes. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    folder: PathBuf,
}

/// Returns true if this process may make groups.
pub(crate) fn is_allowed() -> bool {
    let folder = Path::new(GROUPS).join(format!("varve-chaos-probe-{}", std::process::id()));
    let is_made = fs::create_dir(&folder).is_ok();
    let is_limit = folder.join("memory.limit_in_bytes").exists();
    is_made && fs::remove_dir(&folder).is_ok() && is_limit
}

impl MemoryLimit {
    /// Makes a group without a limit.
    pub(crate) fn new() -> Self {
        let made = (0..).map(|number| Path::new(GROUPS).join(format!("varve-chaos-{}-{number}", std::process::id())));
        let folder = made.take(100).find(|folder| fs::create_dir(folder).is_ok()).expect("a group can be made");
        Self { folder }
    }

    /// Returns the line of shell that puts the shell into the group.
    pub(crate) fn prelude(&self) -> String {
        format!("echo $$ > {}/cgroup.procs\n", self.folder.display())
    }

    /// Limits the memory of the group, with the files that the kernel caches for it. Returns false if the group has
    /// more memory that the kernel cannot take away.
    pub(crate) fn set(&self, bytes: u64) -> bool {
        fs::write(self.folder.join("memory.limit_in_bytes"), bytes.to_string()).is_ok()
    }

    /// Removes the limit.
    pub(crate) fn lift(&self) {
        fs::write(self.folder.join("memory.limit_in_bytes"), "-1").unwrap();
    }

    /// Returns the memory of the processes of the group, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.number("memory.stat", "total_rss")
    }

    /// Returns the number of processes that the kernel has killed because the group was over its limit.
    pub(crate) fn kills(&self) -> u64 {
        self.number("memory.oom_control", "oom_kill")
    }

    fn number(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{file} has no {name}: {text}")).parse().unwrap()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let began = Instant::now();
        // The processes of the group end when the cluster is dropped, which happens before.
        while fs::remove_dir(&self.folder).is_err() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
