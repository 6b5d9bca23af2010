//! The identity of a program that runs in a process.

use ebpf::Sample;

use super::procfs;

/// The identity of a program that runs: a reused pid, or a new program in the same process, has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    pub(crate) start_boottime_ns: u64,
    /// Number of execve calls of the process.
    pub(crate) exec_id: u64,
}

impl ProcessKey {
    /// Returns the key of the program that was sampled.
    pub(crate) fn of(sample: &Sample<'_>) -> Self {
        let header = &sample.header;
        Self { pid: header.pid, start_boottime_ns: header.start_boottime_ns, exec_id: header.exec_id }
    }

    /// True while the process exists; false once its pid belongs to another process.
    pub(crate) fn is_running(self) -> bool {
        procfs::is_same_process(self.pid, self.start_boottime_ns)
    }
}
