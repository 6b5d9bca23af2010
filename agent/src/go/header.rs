//! The header of the table, and where in the file it is.
//!
//! ```text
//! | magic u32 | 0 0 | bytes of the shortest instruction u8 | bytes of a pointer u8 | functions | files | start of the code |
//! | where the names begin | units | file names | values | functions |                     all but the first four: a pointer's size
//! ```

use std::fs::File;

use symbol_store::elf::{FileRange, GoLayout};

use super::GoError;
use super::version::Version;
use super::window::{ASK_BYTES_MAX, Window};

const HEADER_BYTES: usize = 72;
/// Functions that a table may have. The largest programs known here have 300,000.
const FUNCTIONS_MAX: u64 = 1 << 22;
/// How far a file is searched where no section says where the table is.
const SEARCH_BYTES_MAX: u64 = 64 << 20;
const SEARCH_WINDOW_BYTES: usize = 64 << 10;
/// Tables begin at a multiple of this.
const ALIGNMENT: u64 = 8;

/// See the module. The parts are file offsets, each in the file's bytes as far as the table's section goes: but what is at an offset
/// behind one of them may be nowhere, so that offsets saturate, at what no file has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) version: Version,
    pub(super) address: u64,
    pub(super) functions_count: u32,
    /// Bytes of the shortest instruction: 1 or 4.
    pub(super) quantum: u8,
    /// 0 in a program that may be loaded anywhere, and since Go 1.26.
    pub(super) text: u64,
    pub(super) names: u64,
    pub(super) units: u64,
    pub(super) file_names: u64,
    pub(super) values: u64,
    pub(super) functions: u64,
}

impl Header {
    /// Finds the table of a file.
    pub(super) fn find(file: &File, layout: &GoLayout) -> Result<Self, GoError> {
        if let Some(table) = layout.table {
            let mut window = Window::new(file, ASK_BYTES_MAX);
            return Self::parse(window.bytes(table.offset, HEADER_BYTES)?, table).ok_or(GoError::Unknown);
        }
        let mut left = SEARCH_BYTES_MAX;
        let mut window = Window::new(file, SEARCH_WINDOW_BYTES);
        for segment in layout.segments.iter().filter(|segment| !segment.executable) {
            let size = segment.file_size.min(left);
            left -= size;
            let range = FileRange { offset: segment.offset, size, address: segment.address };
            if let Some(found) = Self::search(&mut window, range)? {
                return Ok(found);
            }
        }
        Err(GoError::Unknown)
    }

    fn search(window: &mut Window<'_>, range: FileRange) -> Result<Option<Self>, GoError> {
        let mut at = range.address.wrapping_neg() % ALIGNMENT;
        while at.saturating_add(HEADER_BYTES as u64) < range.size {
            let rest = FileRange {
                offset: range.offset.saturating_add(at),
                size: range.size - at,
                address: range.address.wrapping_add(at),
            };
            let bytes = window.bytes(rest.offset, HEADER_BYTES)?;
            if let Some(found) = Self::parse(bytes, rest) {
                return Ok(Some(found));
            }
            at += ALIGNMENT;
        }
        Ok(None)
    }

    /// Reads the header at the start of `table`, unless it is none.
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
        // Of each function a start and an offset, and of the last one the end.
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
