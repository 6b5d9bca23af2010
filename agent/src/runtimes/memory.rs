//! Reads of the memory of another process.
//!
//! Invariant: every read has a length that the caller bounds, and no read follows a pointer by itself.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::process::key::ProcessKey;

/// The memory of a process, as it was when it was opened: if the process runs another program later, all reads fail.
#[derive(Debug)]
pub(crate) struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory of a process. `None` if the process has ended, or if its memory may not be read.
    pub(crate) fn open(key: ProcessKey) -> Option<Self> {
        let memory = File::open(format!("/proc/{}/mem", key.pid)).ok()?;
        // The file may be that of another process that has the same pid by now.
        key.is_running().then_some(Self(memory))
    }

    /// Takes a file for the memory: each address is an offset in the file.
    #[cfg(test)]
    pub(crate) fn of_file(file: File) -> Self {
        Self(file)
    }

    /// Fills `bytes` from an address. Returns false if not all of them can be read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.0.read_exact_at(bytes, address).is_ok()
    }

    /// Returns `N` bytes at an address; `None` if they cannot be read.
    pub(crate) fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes).then_some(bytes)
    }
}

/// Factor of BPF's hash.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the identity of an object by words of it, as BPF computes it.
pub(crate) fn fold(words: impl IntoIterator<Item = u64>) -> u32 {
    let mixed = words.into_iter().fold(0_u64, |mixed, word| (mixed ^ word).wrapping_mul(HASH_FACTOR));
    (mixed >> 32) as u32 | 1
}
