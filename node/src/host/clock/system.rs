//! Readings of the system's clocks.

#![allow(unsafe_code, reason = "neither clock_gettime nor adjtimex is in the standard library")]

use std::mem::MaybeUninit;
use std::time::SystemTime;

use super::accepted_time::Reading;

/// The kernel's time and this process's system clock are the same clock if they differ by fewer seconds than this. They
/// differ if a library shows the process another time.
const SAME_SECONDS: i64 = 2;

/// Reads the clocks. With `with_synchronization`, one more system call asks the kernel if the clock is synchronized.
pub(super) fn read(with_synchronization: bool) -> Reading {
    let elapsed_ns = elapsed_ns();
    let system_ns = system_ns();
    Reading { system_ns, elapsed_ns, is_synchronized: with_synchronization && is_synchronized(system_ns) }
}

/// Returns the time of the system clock in nanoseconds since 1970. It is never negative, and never past the year 2262,
/// where an i64 ends.
fn system_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the time since the system booted, in nanoseconds. Suspended time counts, unlike in the monotonic clock of
/// the standard library.
fn elapsed_ns() -> i64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is large enough for what clock_gettime writes.
    if unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, time.as_mut_ptr()) } != 0 {
        // Linux has this clock since 2.6.39. Without it no time elapses, which is safe.
        return 0;
    }
    // SAFETY: clock_gettime returned 0, so it has written all of `time`.
    let time = unsafe { time.assume_init() };
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// Returns whether the kernel reports that a time server keeps its clock right. After the clock is set by hand, the
/// kernel does not report this until the next correction by a time server.
fn is_synchronized(system_ns: i64) -> bool {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut state: libc::timex = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: with no modes set adjtimex changes nothing; it writes `state`, which has the size that it expects.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    let is_same = state.time.tv_sec.abs_diff(system_ns / 1_000_000_000) < SAME_SECONDS.unsigned_abs();
    result >= 0 && result != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0 && is_same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance() {
        let first = read(true);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = read(true);
        for passed_ns in [second.elapsed_ns - first.elapsed_ns, second.system_ns - first.system_ns] {
            assert!((10_000_000..20_000_000_000).contains(&passed_ns), "{passed_ns}");
        }
    }

    #[test]
    fn a_clock_that_is_not_the_kernels_is_not_synchronized() {
        assert!(!is_synchronized(system_ns() + 365 * 86_400 * 1_000_000_000));
    }
}
