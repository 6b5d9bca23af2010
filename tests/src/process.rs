//! Processes: their memory, and signals to them.

use std::fs;

/// Returns the largest resident memory that a process has had since its start, in bytes.
#[must_use]
pub fn memory_peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    peak.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Sends a signal to a process, or to a process group if `pid` is negative.
#[allow(unsafe_code, reason = "kill is a C call")]
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: kill takes numbers and touches no memory of ours.
    unsafe { libc::kill(pid, signal) };
}
