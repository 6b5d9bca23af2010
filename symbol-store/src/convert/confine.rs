//! Limits of the child process that the kernel enforces.

#![allow(unsafe_code, reason = "limits and inherited descriptors are set by system calls between fork and exec")]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::limits::Limits;

/// Prepares `command` so that its process inherits the descriptors in `inherited` (-1 for none), and has limits of
/// memory, CPU time and output.
///
/// The process also runs with the configured niceness, writes no core file, and cannot gain privileges by exec. The
/// kernel kills it when the thread that started it ends. A Ctrl-C for the parent does not reach it.
pub(super) fn before_exec(command: &mut Command, limits: &Limits, input_bytes: u64, inherited: [RawFd; 3]) {
    let cpu_seconds = limits.conversion_cpu_max.as_secs().max(1);
    let values = [
        // The mapped input counts as memory of the process.
        (libc::RLIMIT_AS, limits.conversion_memory_bytes_max.saturating_add(input_bytes), 0),
        // The soft limit sends SIGXCPU, which names the reason. The hard limit sends SIGKILL.
        (libc::RLIMIT_CPU, cpu_seconds, 5),
        (libc::RLIMIT_FSIZE, limits.table_bytes_max, 0),
        (libc::RLIMIT_CORE, 0, 0),
    ];
    let niceness = limits.conversion_niceness;
    let set_up = move || {
        if niceness != 0 {
            // A failure is ignored, because the niceness is not a limit.
            // SAFETY: takes integers only.
            let _lower_priority = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
        }
        for (resource, soft, more) in values {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: soft.saturating_add(more) };
            // SAFETY: `limit` is a valid structure that outlives the call.
            check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
        }
        // This is set before exec, because exec would otherwise grant the capabilities of the program file.
        // SAFETY: takes integers only.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: takes integers only.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        for descriptor in inherited.into_iter().filter(|descriptor| *descriptor >= 0) {
            // SAFETY: takes integers only; clears the flag that closes the descriptor at exec, in the child alone.
            check(unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) })?;
        }
        Ok(())
    };
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes system calls that POSIX allows there; it neither allocates nor
    // takes a lock.
    unsafe {
        command.pre_exec(set_up);
    }
}

/// Makes this process the first one that the kernel kills when the host has too little memory. Errors are ignored,
/// because the limits of the process are already set.
pub(super) fn raise_oom_score() {
    let _may_fail = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Returns the inherited descriptor whose number is `argument`, as a file. `None` if it is not open, or is a standard
/// stream.
pub(super) fn inherited(argument: &str) -> Option<File> {
    let descriptor: RawFd = argument.parse().ok().filter(|descriptor| *descriptor > 2)?;
    // SAFETY: takes integers only; fails if the descriptor is not open.
    check(unsafe { libc::fcntl(descriptor, libc::F_GETFD) }).ok()?;
    // SAFETY: the descriptor is open, and the parent passed it to be owned here: nothing else in this process uses it.
    Some(unsafe { File::from_raw_fd(descriptor) })
}

pub(super) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
