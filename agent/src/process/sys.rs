//! System calls of the agent that are missing from the standard library.

#![allow(unsafe_code, reason = "each system call is wrapped once, here, in a safe function")]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// Clocks of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The clock of BPF samples. It is never set, and stands still while the machine sleeps.
    Monotonic,
    /// UTC since the Unix epoch. It may be set at any moment.
    Realtime,
    /// CPU time of the calling thread.
    Thread,
}

/// Returns the time on `clock`, in nanoseconds.
pub(crate) fn clock_ns(clock: Clock) -> u64 {
    let id = match clock {
        Clock::Monotonic => libc::CLOCK_MONOTONIC,
        Clock::Realtime => libc::CLOCK_REALTIME,
        Clock::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
    };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the whole call; the clocks exist on every Linux.
    unsafe { libc::clock_gettime(id, &mut time) };
    // No clock is ever negative.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Waits until `fd` is readable, `timeout` has passed, or a signal arrives.
///
/// # Errors
/// Any error of poll(2) except EINTR.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `entry` is one valid pollfd for the whole call.
    if unsafe { libc::poll(&mut entry, 1, timeout_ms) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Opens the clock event of one CPU for all processes, as sampling does, without starting it.
///
/// # Errors
/// Any error of perf_event_open(2); EACCES or EPERM if it is not permitted.
pub(crate) fn try_clock_event(cpu: u32) -> io::Result<()> {
    const PERF_TYPE_SOFTWARE: u64 = 1;
    const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
    const PERF_ATTR_SIZE_VER0: u64 = 64;
    const DISABLED: u64 = 1;
    const PERIOD_NS: u64 = 1_000_000_000;
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
    // struct perf_event_attr: type and size, config, sample_period, sample_type, read_format, flags, wakeup,
    // breakpoint.
    let attributes: [u64; 8] =
        [PERF_TYPE_SOFTWARE | PERF_ATTR_SIZE_VER0 << 32, PERF_COUNT_SW_CPU_CLOCK, PERIOD_NS, 0, 0, DISABLED, 0, 0];
    let all_processes = -1;
    let no_group = -1;
    // SAFETY: `attributes` is as long as its size field says.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            all_processes,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(fd).map(drop)
}

/// True if a process has this pid now. It may be another process than the one that had the pid before.
pub(crate) fn exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 only checks that the process exists.
    let result = unsafe { libc::kill(pid, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Returns an anonymous file in memory with these bytes.
///
/// # Errors
/// Any error of memfd_create(2) or write(2).
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a string that ends with 0.
    let fd = unsafe { libc::memfd_create(c"varve".as_ptr(), libc::MFD_CLOEXEC) };
    let mut file = File::from(owned(fd.into())?);
    file.write_all(bytes)?;
    Ok(file)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(fd) if 0 <= fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
