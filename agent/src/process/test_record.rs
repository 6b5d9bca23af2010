//! Records as BPF sends them, for tests without BPF.

use std::mem::offset_of;

use ebpf::{Link, SampleHeader};

/// The fields of a sample that a test sets. By default, the sample is of this process.
pub(crate) struct TestRecord<'a> {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) exec_id: u64,
    pub(crate) ktime_ns: u64,
    pub(crate) comm: &'a str,
    pub(crate) kernel: &'a [u64],
    pub(crate) user: &'a [u64],
    pub(crate) labels: &'a [(&'a [u8], &'a [u8])],
    pub(crate) link: Option<Link>,
    /// Number that encodes the end of the user part: 0 none, 1 root, 2 broken, 3 truncated, 4 compat.
    pub(crate) user_end: u8,
}

impl Default for TestRecord<'_> {
    fn default() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            tid: 7,
            exec_id: 0,
            ktime_ns: 1_000,
            comm: "thread",
            kernel: &[],
            user: &[],
            labels: &[],
            link: None,
            user_end: 1,
        }
    }
}

impl TestRecord<'_> {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<SampleHeader>()];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(SampleHeader, ktime_ns), &self.ktime_ns.to_ne_bytes());
        put(offset_of!(SampleHeader, start_boottime_ns), &start_boottime_ns(self.pid).to_ne_bytes());
        put(offset_of!(SampleHeader, exec_id), &self.exec_id.to_ne_bytes());
        put(offset_of!(SampleHeader, pid), &self.pid.to_ne_bytes());
        put(offset_of!(SampleHeader, tid), &self.tid.to_ne_bytes());
        put(offset_of!(SampleHeader, kernel_frames), &u16::try_from(self.kernel.len()).unwrap().to_ne_bytes());
        put(offset_of!(SampleHeader, user_words), &u16::try_from(self.user.len()).unwrap().to_ne_bytes());
        put(offset_of!(SampleHeader, labels), &u16::try_from(self.labels.len()).unwrap().to_ne_bytes());
        put(offset_of!(SampleHeader, links), &u16::from(self.link.is_some()).to_ne_bytes());
        put(offset_of!(SampleHeader, user_end), &[self.user_end]);
        put(offset_of!(SampleHeader, comm), self.comm.as_bytes());
        bytes.extend(self.kernel.iter().chain(self.user).flat_map(|address| address.to_ne_bytes()));
        for (name, value) in self.labels {
            let mut label = [0; 96];
            (label[0], label[1]) = (u8::try_from(name.len()).unwrap(), u8::try_from(value.len()).unwrap());
            label[2..2 + name.len()].copy_from_slice(name);
            label[32..32 + value.len()].copy_from_slice(value);
            bytes.extend(label);
        }
        bytes.extend(self.link.iter().flat_map(|link| link.trace_id.iter().chain(&link.span_id)));
        bytes
    }
}

/// Returns the start of a process, rounded as in /proc, because the agent compares it with /proc; 0 if there is no
/// process.
pub(crate) fn start_boottime_ns(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(19)?.parse::<u64>().ok());
    ticks.unwrap_or(0) * 10_000_000
}
