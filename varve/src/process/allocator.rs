//! Settings of the C library's allocator: the number of arenas, and the free memory that the arenas keep. An arena is a
//! pool of memory from which some of the threads allocate.
//!
//! By default, glibc has up to eight arenas for each core, and each arena keeps as much memory as it had at its peak.
//! Under load from many clients, this kept memory was a fifth of all memory. Glibc returns free memory to the kernel
//! only from the end of an arena. In a node that ingests, two fifths of the memory were free between blocks in use, and
//! were not returned. By default, glibc adapts the limits for returning memory to earlier allocations. So by chance, a
//! query either reused the memory of an earlier query, or needed 900 new pages from the kernel, which took a fourth of
//! its time.
//!
//! So the number of arenas and the limits are fixed here. A server also trims its memory at an interval: it returns all
//! free pages to the kernel, also those between blocks in use.

use std::io;

/// Largest number of arenas. Two are enough for two cores: more arenas need more memory, and save no CPU time.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Interval at which a server returns its free memory to the kernel. A trim takes 5 to 70 ms. During this time, threads
/// that allocate from the arena wait.
#[cfg(target_env = "gnu")]
const TRIM_INTERVAL: std::time::Duration = std::time::Duration::from_secs(60);

/// Size above which an allocation gets its own mapping, in bytes. Smaller allocations are made in an arena, whose
/// memory is reused. Nearly all lists are smaller, even those of the largest flame graphs.
#[cfg(target_env = "gnu")]
const ARENA_ALLOCATION_BYTES_MAX: libc::c_int = 8 << 20;

/// Largest number of free bytes that an arena keeps at its end. With a limit four times as high, a node with a month of
/// data needs 30 MB more memory under queries.
#[cfg(target_env = "gnu")]
const KEPT_AT_END_BYTES: libc::c_int = 16 << 20;

/// Limits the number of arenas. Must be called before any thread starts.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "mallopt is a C call; libc has no safe form of it")]
pub(crate) fn limit_arenas() {
    // SAFETY: it takes no pointers. A refusal (0) only costs memory.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
}

/// Sets the limits for servers, so that free memory is kept for the next request. Starts a thread that trims free
/// memory at an interval until the process ends.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_free_memory() -> io::Result<()> {
    set_limits();
    let forever = || {
        loop {
            std::thread::sleep(TRIM_INTERVAL);
            let started = std::time::Instant::now();
            trim();
            tracing::debug!(took = ?started.elapsed(), "free memory was trimmed");
        }
    };
    std::thread::Builder::new().name("varve-trim".to_owned()).spawn(forever).map(drop)
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "mallopt is a C call; libc has no safe form of it")]
fn set_limits() {
    // SAFETY: it takes no pointers. A refusal (0) only costs time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, ARENA_ALLOCATION_BYTES_MAX);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_AT_END_BYTES);
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "malloc_trim is a C call; libc has no safe form of it")]
fn trim() {
    // SAFETY: it takes no pointers, and only touches free memory.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing, because other C libraries have one arena.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn limit_arenas() {}

/// Does nothing, because other C libraries return free memory by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_free_memory() -> io::Result<()> {
    Ok(())
}
