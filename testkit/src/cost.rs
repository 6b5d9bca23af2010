//! CPU time and memory that a part of a test takes.
//!
//! Memory is counted only in a test program whose allocator is [`CountingAllocator`]. Both are those of the calling
//! thread, so other tests that run at the same time change nothing.

#![allow(unsafe_code, reason = "only an allocator can count what is allocated, and the clock is a system call")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::{self, Display};
use std::time::Duration;

/// The allocator of the system, which counts the bytes that each thread has allocated.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed. Another thread may have allocated these.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let now = NOW.get().wrapping_add(bytes);
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: every call goes to the system's allocator as it is. A block that grows is a new one, which is copied, so that
// both are counted.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the conditions of this function, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size().cast_signed().wrapping_neg());
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// CPU time and memory of a piece of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of the thread.
    pub cpu: Duration,
    /// Most memory that the thread had allocated at one time, in bytes, beyond what it had before.
    pub bytes: usize,
}

impl Cost {
    /// Does the work. Returns its result and its cost.
    pub fn of<T>(work: impl FnOnce() -> T) -> (T, Self) {
        let before = NOW.get();
        PEAK.set(before);
        let began = thread_cpu();
        let result = work();
        let cpu = thread_cpu().saturating_sub(began);
        let bytes = usize::try_from(PEAK.get().wrapping_sub(before)).unwrap_or_default();
        (result, Self { cpu, bytes })
    }
}

/// CPU time that the calling thread has used so far.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the whole call; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Limit on the cost of each case of a test, and the largest cost so far.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    max: Cost,
    largest: Cost,
}

impl Limit {
    /// Makes a limit for each case.
    #[must_use]
    pub fn new(cpu: Duration, bytes: usize) -> Self {
        Self { max: Cost { cpu, bytes }, largest: Cost::default() }
    }

    /// Does the work of one case. If it takes too much time, it is done once more, since the time of the kernel counts,
    /// too.
    ///
    /// # Panics
    /// The work panics, or it takes more than the limit, which a message with the name of the case says.
    pub fn check<T>(&mut self, case: impl Display, mut work: impl FnMut() -> T) -> T {
        let (mut result, mut cost) = Cost::of(&mut work);
        if self.max.cpu < cost.cpu {
            (result, cost) = Cost::of(&mut work);
        }
        assert!(cost.cpu <= self.max.cpu, "{case} takes {:?}", cost.cpu);
        assert!(cost.bytes <= self.max.bytes, "{case} takes {} bytes", cost.bytes);
        self.largest.cpu = self.largest.cpu.max(cost.cpu);
        self.largest.bytes = self.largest.bytes.max(cost.bytes);
        result
    }
}

/// Prints the largest cost.
impl Display for Limit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {:?} and {} KiB", self.largest.cpu, self.largest.bytes.div_ceil(1024))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn the_peak_of_memory_is_counted_even_if_it_is_freed() {
        let (kept, cost) = Cost::of(|| {
            drop(vec![1_u8; 3 << 20]);
            vec![0_u8; 1 << 20]
        });
        assert_eq!((kept.len(), cost.bytes), (1 << 20, 3 << 20));
        let ((), cost) = Cost::of(move || drop(kept));
        assert_eq!(cost.bytes, 0);
    }

    #[test]
    fn time_is_that_of_the_cpu() {
        let busy = || {
            let began = thread_cpu();
            while thread_cpu().saturating_sub(began) < Duration::from_millis(20) {}
        };
        let ((), cost) = Cost::of(|| std::thread::sleep(Duration::from_millis(50)));
        assert!(cost.cpu < Duration::from_millis(20), "{cost:?}");
        assert!(Duration::from_millis(20) <= Cost::of(busy).1.cpu);
    }

    #[test]
    #[should_panic = "case 7 takes 2097152 bytes"]
    fn a_case_that_takes_too_much_memory_fails() {
        let mut limit = Limit::new(Duration::from_secs(1), 1 << 20);
        limit.check("case 6", || vec![0_u8; 1 << 20]);
        limit.check("case 7", || vec![0_u8; 2 << 20]);
    }

    #[test]
    #[should_panic = "case 1 takes"]
    fn a_case_that_takes_too_much_time_fails() {
        let mut limit = Limit::new(Duration::from_millis(1), 1 << 20);
        limit.check("case 1", || {
            let began = thread_cpu();
            while thread_cpu().saturating_sub(began) < Duration::from_millis(5) {}
        });
    }
}
