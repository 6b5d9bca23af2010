//! Files that processes run, as the programs and user space speak of them: the layouts are `bpf/tables.h`, and a test holds the
//! two together.
//!
//! BPF gives each file that it meets for the first time a number and tells so ([`NewFile`]). User space answers with where the file
//! has its unwind table ([`FileEntry`]).

use crate::RecordError;

/// Which file it is, and which state of it: opaque, as BPF wrote it.
pub type FileKey = [u8; 40];

/// That of the vdso: the kernel's own code in every process.
pub const VDSO_KEY: FileKey = [0; 40];

/// Bytes of a block of an unwind table.
pub const BLOCK_BYTES: usize = 4096;
/// Parts of a file that a [`FileEntry`] has.
pub const FILE_PARTS: usize = 2;

const NEW_FILE_BYTES: usize = 72;
const FILE_ENTRY_BYTES: usize = 32 + 24 * FILE_PARTS;

/// A file that was met for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// What the map of files knows it by.
    pub key: FileKey,
    /// Its number in frames, from 1 on.
    pub number: u32,
    /// A process, in the initial pid namespace, that has it mapped...
    pub pid: u32,
    /// ...from this address...
    pub start: u64,
    /// ...up to this...
    pub end: u64,
    /// ...from this offset of the file on.
    pub offset: u64,
}

impl NewFile {
    /// Reads one record.
    ///
    /// # Errors
    /// It has another length.
    pub fn read(record: &[u8]) -> Result<Self, RecordError> {
        let error = RecordError::TooShort { bytes: record.len(), header_bytes: NEW_FILE_BYTES };
        let (key, rest) = record.split_first_chunk::<40>().ok_or(error)?;
        let (numbers, rest) = rest.split_first_chunk::<8>().ok_or(error)?;
        let [start, end, offset] = rest.first_chunk::<24>().map(words).ok_or(error)?;
        let number = |at: usize| u32::from_ne_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]);
        Ok(Self { key: *key, number: number(0), pid: number(4), start, end, offset })
    }
}

fn words(bytes: &[u8; 24]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// A part of a file that is loaded to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePart {
    /// The offset at which it begins.
    pub start: u64,
    /// The offset behind it.
    pub end: u64,
    /// What is to be added to an offset to have the address as the file numbers it; may wrap around.
    pub bias: u64,
}

/// How an unwind table is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableLayout {
    /// Number of the first page of 4 KiB that it knows, by the file's addresses.
    pub first_page: u32,
    /// How many there are.
    pub pages: u32,
    /// Where its rules begin, in bytes.
    pub rules_at: u32,
    /// Where its rows begin, in bytes.
    pub rows_at: u32,
}

/// What BPF is told of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileEntry {
    /// As [`NewFile`] said.
    pub number: u32,
    /// Number of its table in the map of tables, and its layout; `None`: it has none.
    pub table: Option<(u32, TableLayout)>,
    /// Its parts; those of no length are none.
    pub parts: [FilePart; FILE_PARTS],
}

impl FileEntry {
    /// As the map of files has it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; FILE_ENTRY_BYTES] {
        let mut bytes = [0; FILE_ENTRY_BYTES];
        let (table, layout) = self.table.unwrap_or_default();
        let TableLayout { first_page, pages, rules_at, rows_at } = layout;
        let has_table = u32::from(self.table.is_some());
        let head = [self.number, has_table, table, 0, first_page, pages, rules_at, rows_at];
        for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(head) {
            *to = number.to_ne_bytes();
        }
        let parts = self.parts.iter().flat_map(|part| [part.start, part.end, part.bias]);
        for (to, number) in bytes[32..].as_chunks_mut::<8>().0.iter_mut().zip(parts) {
            *to = number.to_ne_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES_H: &str = include_str!("../bpf/tables.h");

    #[test]
    fn layouts_are_those_that_the_c_compiler_checked() {
        for (what, bytes) in [("new_file", NEW_FILE_BYTES), ("file_entry", FILE_ENTRY_BYTES), ("file_key", 40)] {
            let assertion = format!("_Static_assert(sizeof(struct {what}) == {bytes}, \"\");");
            assert!(TABLES_H.contains(&assertion), "{assertion}");
        }
        assert!(TABLES_H.contains(&format!("#define BLOCK_BYTES {BLOCK_BYTES}\n")));
        assert!(TABLES_H.contains(&format!("#define FILE_PARTS {FILE_PARTS}\n")));
    }

    #[test]
    fn a_new_file_is_read_as_it_was_written() {
        let mut record = [7; 40].to_vec();
        record.extend([3_u32, 4].iter().flat_map(|number| number.to_ne_bytes()));
        record.extend([5_u64, 6, 8].iter().flat_map(|number| number.to_ne_bytes()));
        let wanted = NewFile { key: [7; 40], number: 3, pid: 4, start: 5, end: 6, offset: 8 };
        assert_eq!(NewFile::read(&record), Ok(wanted));
        assert!((0..record.len()).all(|bytes| NewFile::read(&record[..bytes]).is_err()));
    }
}
