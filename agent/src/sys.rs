//! The few system calls that the agent needs and the standard library does not offer.

#![allow(unsafe_code, reason = "system calls; each is wrapped once, here, in a safe function")]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

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

/// Gives back what only a start needs, a first export, or the unwind tables of new files: memory, and pages of files, together half of
/// all that it would keep.
pub(crate) fn release_unused() {
    release_free_memory();
    release_file_pages();
}

/// Takes code and constants of this program and its libraries out of its memory until they are used again: most of what a start uses
/// nothing else does.
fn release_file_pages() {
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for (start, end) in unchanged_file_mappings(&smaps) {
        // SAFETY: nothing may write to these mappings, and no page of them is other than in the file, from where each is read again when it
        // is touched.
        unsafe {
            libc::madvise(start as *mut libc::c_void, end.saturating_sub(start), libc::MADV_DONTNEED);
        }
    }
}

/// Start and end of the private mappings of files in `/proc/<pid>/smaps` that may not be written to and have no page of their own:
/// neither of a relocation, which is made before a mapping becomes read-only, nor of a breakpoint or uprobe.
fn unchanged_file_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let (mut found, mut mapping, mut zeros) = (Vec::new(), None, 0);
    for line in smaps.lines() {
        match line.split_once(':').map(|(name, value)| (name, value.trim_ascii_start())) {
            Some(("Anonymous" | "Swap", "0 kB")) => zeros += 1,
            // The last line of a mapping.
            Some(("VmFlags", _)) => found.extend(mapping.take().filter(|_| zeros == 2)),
            Some((name, _)) if !name.contains(' ') => {}
            _ => (mapping, zeros) = (file_mapping(line), 0),
        }
    }
    found
}

/// Start and end, if the mapping is a private one of a file that may not be written to.
fn file_mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let may = fields.next()?;
    let is_file = fields.nth(3)?.trim_start().starts_with('/');
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    (is_file && matches!(may, "r--p" | "r-xp")).then_some((address(start)?, address(end)?))
}

/// Gives freed memory back to the kernel: what only a start needs would stay in the allocator for ever.
fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_the_same_in_the_file_is_taken_out_of_memory() {
        let mapping = |line: &str, anonymous: u32, swap: u32| {
            format!(
                "{line}\nRss: 8 kB\nAnonymous:   {anonymous} kB\nSwap:    {swap} kB\nSwapPss: 0 kB\nVmFlags: rd ex\n"
            )
        };
        let smaps = [
            mapping("1000-2000 r--p 00000000 fe:00 24                     /usr/lib/a b.so", 0, 0),
            mapping("2000-3000 r-xp 00001000 fe:00 24                     /usr/lib/a b.so", 0, 0),
            mapping("3000-4000 r--p 00002000 fe:00 24                     /usr/lib/a b.so", 4, 0),
            mapping("4000-5000 r--p 00003000 fe:00 24                     /usr/lib/a b.so", 0, 4),
            mapping("5000-6000 rw-p 00004000 fe:00 24                     /usr/lib/a b.so", 0, 0),
            mapping("6000-7000 r--p 00000000 00:00 0", 0, 0),
            mapping("7000-8000 r--s 00001000 00:10 26                     anon_inode:bpf-map", 0, 0),
            mapping("8000-9000 r-xp 00000000 00:00 0                      [vdso]", 0, 0),
            mapping("fffff000-100000000 r-xp 00000000 fe:00 25            /bin/c (deleted)", 0, 0),
        ];
        assert_eq!(
            unchanged_file_mappings(&smaps.concat()),
            [(0x1000, 0x2000), (0x2000, 0x3000), (0xffff_f000, 0x1_0000_0000)]
        );
    }

    #[test]
    fn this_program_goes_on_without_its_pages_of_files_and_reads_them_again() {
        let resident_bytes = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let own = std::env::current_exe().unwrap();
            let of_own = smaps.split("VmFlags").filter(|mapping| mapping.contains(own.to_str().unwrap()));
            let rss = |mapping: &str| {
                let (_, rest) = mapping.split_once("\nRss:").unwrap();
                rest.trim_start().split(' ').next().unwrap().parse::<u64>().unwrap() * 1024
            };
            of_own.map(rss).sum::<u64>()
        };
        let before = resident_bytes();
        release_file_pages();
        let after = resident_bytes();
        assert!(after < before, "{after} of {before} bytes are left");
    }

    #[test]
    fn what_was_changed_in_memory_before_it_became_read_only_stays() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let bytes = 4096;
        // SAFETY: a private mapping of its own, which nothing else knows; written to while it may be, read until it is unmapped.
        unsafe {
            let may = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(std::ptr::null_mut(), bytes, may, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
            assert_ne!(page, libc::MAP_FAILED);
            page.cast::<u8>().write_volatile(b'!');
            assert_eq!(libc::mprotect(page, bytes, libc::PROT_READ), 0);
            release_file_pages();
            assert_eq!(page.cast::<u8>().read_volatile(), b'!');
            libc::munmap(page, bytes);
        }
    }
}
