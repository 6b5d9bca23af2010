//! How many heaps the C library's allocator keeps. It gives threads heaps of their own, up to eight for each core, and each keeps what
//! its largest moment took: under load from many clients a fifth of all memory.

/// One for each of two cores' worth of contention; with more, memory grows and CPU time does not fall.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Before any thread is started.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "mallopt is a C call; libc has no safe form of it")]
pub(crate) fn bound() {
    // SAFETY: it takes no pointers. That it is refused (0) only costs memory.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
}

/// Other C libraries have one heap.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn bound() {}
