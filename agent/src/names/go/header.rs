//! The header of the Go table, and its offset in the file.
//!
//! ```text
//! | magic u32 | 0 0 | bytes of the shortest instruction u8 | bytes of a pointer u8 |
//! | functions | files | start of the code | offsets of: names | units | file names | values | functions |
//! ```
//!
//! The fields of the second line have the size of a pointer.

use std::fs::File;

use host_files::elf::{FileRange, GoLayout};

use super::GoError;
use super::reader::{FileReader, READ_BYTES_MAX};
use super::version::Version;

const HEADER_BYTES: usize = 72;
/// Largest number of functions in a table. The largest known programs have 300,000.
const FUNCTIONS_MAX: u64 = 1 << 22;
/// Largest number of bytes of a file that are searched for the table if no section header locates it.
const SEARCH_BYTES_MAX: u64 = 64 << 20;
const SEARCH_READ_BYTES: usize = 64 << 10;
/// Alignment of the table, in bytes.
const ALIGNMENT: u64 = 8;

/// A decoded header. The fields from `names` on are file offsets at which the parts of the table begin. Code that adds
/// an offset within a part must saturate, because the sum may lie outside of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) version: Version,
    pub(super) address: u64,
    pub(super) functions_count: u32,
    /// Length of the shortest instruction, in bytes: 1 on x86-64, and 4 on arm64.
    pub(super) quantum: u8,
    /// Address of the code; 0 in a position-independent program, and since Go 1.26.
    pub(super) text: u64,
    pub(super) names: u64,
    pub(super) units: u64,
    pub(super) file_names: u64,
    pub(super) values: u64,
    pub(super) functions: u64,
}

impl Header {
    /// Finds and decodes the header of a file's table.
    pub(super) fn find(file: &File, layout: &GoLayout) -> Result<Self, GoError> {
        if let Some(table) = layout.table {
            let mut reader = FileReader::new(file, READ_BYTES_MAX);
            return Self::parse(reader.bytes(table.offset, HEADER_BYTES)?, table).ok_or(GoError::Unknown);
        }
        let mut left = SEARCH_BYTES_MAX;
        let mut reader = FileReader::new(file, SEARCH_READ_BYTES);
        for segment in layout.segments.iter().filter(|segment| !segment.executable) {
            let size = segment.file_size.min(left);
            left -= size;
            let range = FileRange { offset: segment.offset, size, address: segment.address };
            if let Some(found) = Self::search(&mut reader, range)? {
                return Ok(found);
            }
        }
        Err(GoError::Unknown)
    }

    fn search(reader: &mut FileReader<'_>, range: FileRange) -> Result<Option<Self>, GoError> {
        let mut at = range.address.wrapping_neg() % ALIGNMENT;
        while at.saturating_add(HEADER_BYTES as u64) < range.size {
            let rest = FileRange {
                offset: range.offset.saturating_add(at),
                size: range.size - at,
                address: range.address.wrapping_add(at),
            };
            let bytes = reader.bytes(rest.offset, HEADER_BYTES)?;
            if let Some(found) = Self::parse(bytes, rest) {
                return Ok(Some(found));
            }
            at += ALIGNMENT;
        }
        Ok(None)
    }

    /// Decodes the header at the start of `table`. Returns `None` if the bytes are not a header.
    fn parse(bytes: &[u8], table: FileRange) -> Option<Self> {
        let (start, words) = bytes.split_first_chunk::<8>()?;
        let [magic @ .., 0, 0, quantum, pointer_bytes] = *start else { return None };
        let version = Version::of_magic(u32::from_ne_bytes(magic))?;
        let words = words.as_chunks::<8>().0.first_chunk::<8>()?;
        let [functions_count, _files, text, parts @ ..] = words.map(u64::from_ne_bytes);
        if !matches!(quantum, 1 | 2 | 4) || pointer_bytes != 8 || !(1..=FUNCTIONS_MAX).contains(&functions_count) {
            return None;
        }
        let part = |within: u64| (within < table.size).then(|| table.offset.checked_add(within))?;
        let [names, units, file_names, values, functions] = parts.map(part);
        // Each function has a start and an offset. The end of the last function follows them.
        let functions_bytes = functions_count * 8 + 4;
        let end = functions?.checked_add(functions_bytes)?;
        (end <= table.offset.checked_add(table.size)?).then_some(())?;
        Some(Self {
            version,
            address: table.address,
            functions_count: u32::try_from(functions_count).ok()?,
            quantum,
            text,
            names: names?,
            units: units?,
            file_names: file_names?,
            values: values?,
            functions: functions?,
        })
    }
}
