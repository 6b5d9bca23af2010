//! The few system calls that the agent needs and the standard library does not offer.

#![allow(unsafe_code, reason = "system calls; each is wrapped once, here, in a safe function")]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

use crate::maps::{Backing, Maps};

/// The clocks that samples are timed with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// What BPF stamps samples with; never set, stands still while the machine sleeps.
    Monotonic,
    /// UTC since the epoch; may be set at any moment.
    Realtime,
}

/// Nanoseconds on `clock`.
pub(crate) fn clock_ns(clock: Clock) -> u64 {
    let id = match clock {
        Clock::Monotonic => libc::CLOCK_MONOTONIC,
        Clock::Realtime => libc::CLOCK_REALTIME,
    };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the whole call; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(id, &mut time) };
    // Neither clock is ever negative.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Waits until `fd` is readable, `timeout` has passed, or a signal came.
///
/// # Errors
/// What poll(2) says, except EINTR.
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

/// Opens, without ever starting it, the clock event of one CPU for all processes: what sampling needs.
///
/// # Errors
/// What perf_event_open(2) says: EACCES or EPERM where it is not permitted.
pub(crate) fn try_clock_event(cpu: u32) -> io::Result<()> {
    const PERF_TYPE_SOFTWARE: u64 = 1;
    const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
    const PERF_ATTR_SIZE_VER0: u64 = 64;
    const DISABLED: u64 = 1;
    const PERIOD_NS: u64 = 1_000_000_000;
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
    // struct perf_event_attr: type and size, config, sample_period, sample_type, read_format, flags, wakeup, breakpoint.
    let attributes: [u64; 8] =
        [PERF_TYPE_SOFTWARE | PERF_ATTR_SIZE_VER0 << 32, PERF_COUNT_SW_CPU_CLOCK, PERIOD_NS, 0, 0, DISABLED, 0, 0];
    let (all_processes, no_group) = (-1, -1);
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

/// Whether a process with this number exists; it may be another than before.
pub(crate) fn exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 is only a question.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// A file that is in memory alone, and in no folder.
///
/// # Errors
/// What memfd_create(2) or write(2) says.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a string that ends with 0.
    let fd = unsafe { libc::memfd_create(c"varve".as_ptr(), libc::MFD_CLOEXEC) };
    let mut file = File::from(owned(fd.into())?);
    file.write_all(bytes)?;
    Ok(file)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, and nobody else has it.
        Ok(fd) if 0 <= fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives back what only a start needs, a first export, or the unwind tables of new files: memory, and code of this program, together half of
/// all that it would keep.
pub(crate) fn release_unused() {
    release_free_memory();
    release_own_code();
}

/// Takes this program's own code out of its memory until it runs again: most of what a start runs never does.
fn release_own_code() {
    let (Ok(path), Ok(maps)) = (std::env::current_exe(), Maps::of_process(std::process::id())) else { return };
    let own = maps.iter().filter(|mapping| match &mapping.backing {
        Backing::File { path: of, .. } => path.as_os_str() == &**of,
        Backing::Vdso | Backing::Anonymous => false,
    });
    for mapping in own {
        let bytes = usize::try_from(mapping.end.saturating_sub(mapping.start)).unwrap_or_default();
        // SAFETY: these are executable mappings of this program's own file, which are there for as long as it runs and which nothing writes
        // to, so every page is read again from the file when it is touched.
        unsafe {
            libc::madvise(mapping.start as *mut libc::c_void, bytes, libc::MADV_DONTNEED);
        }
    }
}

/// Gives freed memory back to the kernel: what only a start needs would stay in the allocator for ever.
fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}
