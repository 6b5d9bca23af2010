//! The heaps of the C library's allocator: how many there are, how long they keep what is free, and that it goes back to the system.
//!
//! It gives threads heaps of their own, up to eight for each core, and each keeps what its largest moment took: under load from many clients a
//! fifth of all memory. And a heap gives back only what is free at its end: of the memory of a node that takes in samples two fifths
//! lay free between what was in use. That end, on the other hand, it gives back at once by limits which it works out from what was
//! allocated before: by chance the same query had to have none of its memory made anew by the system, or 900 pages each time, which
//! took a fourth of its time.

use std::io;

/// One for each of two cores' worth of contention; with more, memory grows and CPU time does not fall.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Between two times that free memory is given back: that takes 5 to 70 ms, in which whoever asks a heap for memory waits.
#[cfg(target_env = "gnu")]
const GIVE_BACK_INTERVAL: std::time::Duration = std::time::Duration::from_secs(60);

/// Smaller allocations are of a heap, and may be used again: nearly all lists of a flame graph of everything are smaller.
#[cfg(target_env = "gnu")]
const KEPT_ALLOCATION_BYTES: libc::c_int = 8 << 20;

/// So much may be free at the end of a heap until it is given back with the rest. Four times as much would take 30 MB more of a store
/// of a month under queries.
#[cfg(target_env = "gnu")]
const KEPT_AT_END_BYTES: libc::c_int = 16 << 20;

/// Before any thread is started.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "mallopt is a C call; libc has no safe form of it")]
pub(crate) fn bound() {
    // SAFETY: it takes no pointers. That it is refused (0) only costs memory.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
}

/// Of a server: free memory is kept for the next request, and given back now and then, on a thread of its own, for as long as the process
/// lives.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_for_a_while() -> io::Result<()> {
    keep();
    let forever = || {
        loop {
            std::thread::sleep(GIVE_BACK_INTERVAL);
            let started = std::time::Instant::now();
            trim();
            tracing::debug!(took = ?started.elapsed(), "free memory was given back");
        }
    };
    std::thread::Builder::new().name("varve-heaps".to_owned()).spawn(forever).map(drop)
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "mallopt is a C call; libc has no safe form of it")]
fn keep() {
    // SAFETY: it takes no pointers. That it is refused (0) only costs time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_ALLOCATION_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_AT_END_BYTES);
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "malloc_trim is a C call; libc has no safe form of it")]
fn trim() {
    // SAFETY: it takes no pointers, and only touches memory that is free.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries have one heap.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn bound() {}

/// And give back by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_for_a_while() -> io::Result<()> {
    Ok(())
}
