//! The sorted index of the functions of a file (`.eh_frame_hdr`), which is there whether or not the file has symbols.
//!
//! ```text
//! version u8 = 1 | encodings u8 x 3 | address of .eh_frame i32 | count u32 | (start i32, description i32) x count
//! ```
//!
//! With the encodings that all linkers write, a start is relative to the address of the index itself.

use std::fs::File;
use std::ops::Range;

use super::ElfError;
use super::call_frames::native;
use crate::limits;

/// Version and encodings: `.eh_frame` is relative to its field, the count is a u32, and entries are relative i32.
const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const HEAD_BYTES: usize = 12;
const ENTRY_BYTES: usize = 8;

/// The starts of the functions of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionIndex {
    /// Virtual addresses, ascending.
    starts: Vec<u64>,
}

impl FunctionIndex {
    /// Reads the index of a 64-bit file in this machine's byte order. It is empty if the file has none.
    ///
    /// # Errors
    /// Any [`ElfError`].
    pub fn read(file: &File) -> Result<Self, ElfError> {
        let Some(header) = native(file)? else { return Ok(Self::default()) };
        let section = header.loaded_section(file, b".eh_frame_hdr", limits::CALL_FRAME_BYTES_MAX);
        Ok(section.and_then(|(address, bytes)| Self::parse(address, &bytes)).unwrap_or_default())
    }

    fn parse(address: u64, bytes: &[u8]) -> Option<Self> {
        let (head, entries) = bytes.split_at_checked(HEAD_BYTES)?;
        let count = u32::from_ne_bytes(*head.last_chunk()?) as usize;
        let entries = entries.as_chunks::<ENTRY_BYTES>().0.get(..count).filter(|_| head.starts_with(&HEAD))?;
        let start = |entry: &[u8; ENTRY_BYTES]| {
            let offset = i32::from_ne_bytes(std::array::from_fn(|index| entry[index]));
            address.wrapping_add_signed(offset.into())
        };
        let starts: Vec<u64> = entries.iter().map(start).collect();
        starts.is_sorted().then_some(Self { starts })
    }

    /// Returns the addresses from the start of a function to that of the next one. `None` if no function begins at
    /// `start`, or if it is the last one.
    #[must_use]
    pub fn function_at(&self, start: u64) -> Option<Range<u64>> {
        let at = self.starts.binary_search(&start).ok()?;
        let end = self.starts.get(at..)?.iter().find(|next| start < **next)?;
        Some(start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(starts: &[i32]) -> Vec<u8> {
        let entries = starts.iter().flat_map(|start| [*start, 7]).flat_map(i32::to_ne_bytes);
        let count = u32::try_from(starts.len()).unwrap().to_ne_bytes();
        [HEAD, [9; 4], count].into_iter().flatten().chain(entries).collect()
    }

    #[test]
    fn functions_end_at_the_next_start() {
        let bytes = index(&[-0x200, -0x100, -0x100, 0x40]);
        let index = FunctionIndex::parse(0x1000, &bytes).unwrap();
        assert_eq!(index.function_at(0xe00), Some(0xe00..0xf00));
        assert_eq!(index.function_at(0xf00), Some(0xf00..0x1040));
        assert_eq!((index.function_at(0x1040), index.function_at(0xe01)), (None, None));
    }

    #[test]
    fn damaged_indices_are_refused() {
        let bytes = index(&[-0x200, -0x100]);
        assert!((0..bytes.len()).all(|length| FunctionIndex::parse(0x1000, &bytes[..length]).is_none()));
        assert!(FunctionIndex::parse(0x1000, &index(&[5, 4])).is_none());
        for at in [0, 1, 2, 3, 11] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(FunctionIndex::parse(0x1000, &damaged).is_none(), "{at}");
        }
    }

    #[test]
    fn this_program_has_an_index_of_its_functions() {
        let file = File::open("/proc/self/exe").unwrap();
        let index = FunctionIndex::read(&file).unwrap();
        let entry = super::super::entry(&file).unwrap();
        assert!(index.function_at(entry).is_some_and(|function| function.end - entry < 4096), "{entry:#x}");
    }
}
