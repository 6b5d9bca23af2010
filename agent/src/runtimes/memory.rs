//! Reads of the memory of another process.
//!
//! Invariant: every read has a length that the caller bounds, and no read follows a pointer by itself.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::process::key::ProcessKey;

/// Size of a block, in bytes. A page has whole blocks.
const BLOCK_BYTES: usize = 256;
/// Largest number of blocks that are kept. The description of a function is in about ten of them.
const BLOCKS_MAX: usize = 16;

/// A part of the memory that was read at once, and its address.
type Block = (u64, [u8; BLOCK_BYTES]);

/// The memory of a process, as it was when it was opened: if the process runs another program later, all reads fail.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    file: File,
    /// Blocks that were read, oldest first; `None` if none are kept.
    blocks: RefCell<Option<Vec<Block>>>,
}

impl ProcessMemory {
    /// Opens the memory of a process. `None` if the process has ended, or if its memory may not be read.
    pub(crate) fn open(key: ProcessKey) -> Option<Self> {
        let file = File::open(format!("/proc/{}/mem", key.pid)).ok()?;
        // The file may be that of another process that has the same pid by now.
        key.is_running().then_some(Self { file, blocks: RefCell::default() })
    }

    /// Opens the memory of the process that has a pid now. `None` if it may not be read.
    pub(crate) fn of_process(pid: u32) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/mem")).ok()?;
        Some(Self { file, blocks: RefCell::default() })
    }

    /// Takes a file for the memory: each address is an offset in the file.
    #[cfg(test)]
    pub(crate) fn of_file(file: File) -> Self {
        Self { file, blocks: RefCell::default() }
    }

    /// Reads an object that the program may change at any moment. Returns it only if `is_same` holds before `read`, and
    /// also after it, with what the memory has then.
    pub(crate) fn read_same<T>(&self, is_same: impl Fn() -> bool, read: impl FnOnce() -> Option<T>) -> Option<T> {
        self.in_blocks(|| {
            let result = is_same().then(read)??;
            self.forget_blocks();
            is_same().then_some(result)
        })
    }

    /// Runs `read`, for which small parts of the memory are read in blocks: a description of many small fields takes
    /// few system calls then. What was read is read again after [`Self::forget_blocks`].
    pub(crate) fn in_blocks<T>(&self, read: impl FnOnce() -> T) -> T {
        let is_outermost = self.blocks.borrow().is_none();
        if is_outermost {
            self.blocks.replace(Some(Vec::with_capacity(BLOCKS_MAX)));
        }
        let result = read();
        if is_outermost {
            self.blocks.replace(None);
        }
        result
    }

    /// Forgets all blocks. The next reads see what the memory has then.
    pub(crate) fn forget_blocks(&self) {
        if let Some(blocks) = self.blocks.borrow_mut().as_mut() {
            blocks.clear();
        }
    }

    /// Fills `bytes` from an address. Returns false if not all of them can be read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.read_in_block(address, bytes).is_some() || self.file.read_exact_at(bytes, address).is_ok()
    }

    /// Fills `bytes` from a block that is kept. `None` if the bytes are not in one block that can be read, or if no
    /// blocks are kept.
    fn read_in_block(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        let mut blocks = self.blocks.borrow_mut();
        let blocks = blocks.as_mut()?;
        let within = (address % BLOCK_BYTES as u64) as usize;
        let range = within..within + bytes.len();
        if BLOCK_BYTES < range.end {
            return None;
        }
        let start = address - within as u64;
        if !blocks.iter().any(|(at, _)| *at == start) {
            let mut block = [0; BLOCK_BYTES];
            self.file.read_exact_at(&mut block, start).ok()?;
            if blocks.len() == BLOCKS_MAX {
                blocks.remove(0);
            }
            blocks.push((start, block));
        }
        let (_, block) = blocks.iter().find(|(at, _)| *at == start)?;
        bytes.copy_from_slice(block.get(range)?);
        Some(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_once_until_they_are_forgotten() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..16 * BLOCK_BYTES).map(|at| (at / 3) as u8).collect();
        file.as_file().write_all_at(&content, 0).unwrap();
        let memory = ProcessMemory::of_file(file.reopen().unwrap());
        let expected = |at: usize| Some(*content[at..].first_chunk::<8>().unwrap());
        memory.in_blocks(|| {
            // The reads begin in blocks that are kept, and in more than are kept, and cross from one into the next.
            for at in (0..content.len() - 8).chain((0..content.len() - 8).rev().step_by(101)) {
                assert_eq!(memory.array(at as u64), expected(at), "{at}");
            }
            assert_eq!(memory.array::<8>(content.len() as u64 - 7), None);
            assert_eq!(memory.array(8), expected(8));
            file.as_file().write_all_at(&[0xee; 8], 8).unwrap();
            assert_eq!(memory.array(8), expected(8));
            memory.forget_blocks();
            assert_eq!(memory.array(8), Some([0xee; 8]));
            memory.in_blocks(|| file.as_file().write_all_at(&[0xcc; 8], 8).unwrap());
            assert_eq!(memory.array(8), Some([0xee; 8]), "the blocks are kept");
        });
        file.as_file().write_all_at(&[0xdd; 8], 8).unwrap();
        assert_eq!(memory.array(8), Some([0xdd; 8]));
    }

    #[test]
    fn bytes_of_a_block_that_ends_early_are_read() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; BLOCK_BYTES + 9], 0).unwrap();
        let memory = ProcessMemory::of_file(file);
        memory.in_blocks(|| {
            assert_eq!(memory.array(BLOCK_BYTES as u64 + 1), Some([7; 8]));
            assert_eq!(memory.array::<8>(BLOCK_BYTES as u64 + 2), None);
        });
    }

    #[test]
    fn an_object_that_changes_while_it_is_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 64], 0).unwrap();
        let memory = ProcessMemory::of_file(file.reopen().unwrap());
        let is_same = || memory.array(0) == Some([1; 4]);
        assert_eq!(memory.read_same(is_same, || memory.array(8)), Some([1; 4]));
        let changes = || {
            let read = memory.array::<4>(8);
            file.as_file().write_all_at(&[2; 4], 0).unwrap();
            read
        };
        assert_eq!(memory.read_same(is_same, changes), None);
        let is_read = std::cell::Cell::new(false);
        let read = || {
            is_read.set(true);
            Some(())
        };
        assert_eq!((memory.read_same(is_same, read), is_read.get()), (None, false), "another object");
    }
}
