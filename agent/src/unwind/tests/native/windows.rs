//! Windows of memory (`ebpf/bpf/window.h`), through which BPF reads stacks, compared with the memory itself.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::kernel::Kernel;

/// Bytes that can be read, between pages that cannot.
const BYTES: usize = 4096;
/// Largest number of bytes that a read asks for.
const ASKED_MAX: usize = 128;
/// Number of sides on which a window has more words than a read asks for: above, below, none.
const SIDES: u32 = 3;

/// Memory that begins and ends at pages that cannot be read.
struct Memory {
    start: u64,
}

impl Memory {
    fn new() -> Self {
        // SAFETY: no memory is passed.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let length = 2 * page + BYTES.next_multiple_of(page);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new, and is never removed.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the pages are within the mapping.
        let start = unsafe { start.byte_add(page) };
        let readable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(start, length - 2 * page, readable) }, 0);
        // SAFETY: the memory can be written, and nothing else refers to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), BYTES) };
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = Self::byte(at));
        Self { start: start.addr() as u64 }
    }

    fn byte(at: usize) -> u8 {
        (at * 31 + at / 256) as u8
    }
}

fn kernel() -> Kernel {
    let mut kernel = Kernel::new();
    kernel.run(std::process::id(), &[]);
    kernel
}

/// Each read is one of several through the same window, so most of them find words of earlier reads.
#[test]
fn words_of_a_window_are_those_of_the_memory() {
    let (memory, kernel) = (Memory::new(), kernel());
    let address = -32_i64..BYTES as i64 / 8 + 32;
    let reads = prop::collection::vec((address, 1..=ASKED_MAX, 0..SIDES), 1..40);
    let checked = TestRunner::default().run(&reads, |reads| {
        for (word, bytes, side) in reads {
            let at = word * 8;
            let can_be_read = 0 <= at && at as usize + bytes <= BYTES;
            let expected = can_be_read.then(|| (at as usize..at as usize + bytes).map(Memory::byte).collect());
            let read = kernel.read_window(memory.start.wrapping_add_signed(at), bytes, side);
            prop_assert_eq!(read, expected, "{} bytes at {}, side {}", bytes, at, side);
        }
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn addresses_and_lengths_that_fit_no_window_are_refused() {
    let (memory, kernel) = (Memory::new(), kernel());
    assert!(kernel.read_window(memory.start, ASKED_MAX, 0).is_some());
    for (address, bytes) in [(memory.start + 4, 8), (memory.start, ASKED_MAX + 1), (0, 8), (u64::MAX - 7, 8)] {
        for side in 0..SIDES {
            assert_eq!(kernel.read_window(address, bytes, side), None, "{bytes} bytes at {address:#x}, side {side}");
        }
    }
}
