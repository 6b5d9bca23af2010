//! The allocator of the process: jemalloc, for Rust and for the C and C++ libraries.
//!
//! Decision 0021 has the measurements: glibc's allocator took a fourth of the CPU time of an ingest, and returned free
//! memory to the kernel only from the end of its arenas. An arena is a pool of memory from which some of the threads
//! allocate.

use anyhow::anyhow;
use tikv_jemalloc_ctl::background_thread;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Settings that jemalloc reads when the process starts:
///
/// - One arena for each CPU. With four, jemalloc's default, a node needs a seventh more memory and no less CPU time.
/// - Free pages return to the kernel within a second, and not within ten.
///
/// The text ends with a zero byte, because C reads it.
#[used]
#[allow(unsafe_code, reason = "jemalloc finds its settings by the name of this variable")]
// SAFETY: only jemalloc has a variable of this name, a weak one of the same type, a pointer to a text.
#[unsafe(export_name = "malloc_conf")]
static SETTINGS: &[u8; 53] = b"narenas_ratio:1,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Starts the threads that return free memory to the kernel also while nothing is allocated. For servers: a command
/// ends soon. Must be called after the process dropped its privileges, which the threads would keep.
pub(crate) fn return_free_memory() -> anyhow::Result<()> {
    background_thread::write(true).map_err(|error| anyhow!("starting the threads of the allocator: {error}"))
}

#[cfg(test)]
mod tests {
    use tikv_jemalloc_ctl::{Access as _, AsName as _};

    #[test]
    fn jemalloc_reads_its_settings() {
        let milliseconds: isize = b"opt.dirty_decay_ms\0"[..].name().read().unwrap();
        assert_eq!(milliseconds, 1000);
    }
}
