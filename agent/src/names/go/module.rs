//! The module data of a program: a structure of pointers, in writable memory, by which Go's runtime finds its tables.
//!
//! ```text
//! word | 0: the table | ... | 20: first address of code | 21: its end | 22: base of function starts | ...
//!      | data of functions | ...
//! ```
//!
//! Since Go 1.26, the module data is a section of its own. In other programs, it is found by its content: the address
//! of the table, followed by the expected addresses. In a position-independent program, the words are in the
//! relocations, and most bytes in the file are zeros.
//!
//! The index of the word with the address of the functions' data depends on the version. All words at the possible
//! indices are tried. The first one with which the inline trees of some functions are plausible is used (`table`).

use std::fs::File;
use std::ops::Range;

use host_files::elf::{FileRange, GoLayout};

use super::GoError;
use super::reader::FileReader;

/// Number of words of the module data that are read.
const WORDS: usize = 48;
const FIRST_CODE: usize = 20;
const END_OF_CODE: usize = 21;
const TEXT: usize = 22;
/// Indices of the words that may hold the address of the functions' data.
const FUNCTION_DATA: Range<usize> = 36..46;

/// Largest number of possible addresses of the module data that are examined.
const CANDIDATES_MAX: usize = 16;
/// Largest number of bytes that are searched in each range of writable memory, and in the relocations.
const SEARCH_BYTES_MAX: u64 = 128 << 20;
const SEARCH_READ_BYTES: usize = 64 << 10;
const RELOCATION_BYTES: u64 = 24;
/// Type of a relocation that adds the load address to its addend.
const RELATIVE: u64 = if cfg!(target_arch = "aarch64") { 1027 } else { 8 };

/// The words of the module data that are used.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) text: u64,
    /// Possible base addresses of the data of functions. One of them is right.
    pub(super) function_data: Vec<u64>,
}

/// Finds the module data of the table at address `table`. `code` is the range of the table's functions, relative to the
/// start of the code.
pub(super) fn find(file: &File, layout: &GoLayout, table: u64, code: Range<u64>) -> Result<Module, GoError> {
    let mut reader = FileReader::new(file, SEARCH_READ_BYTES);
    let mut candidates = Vec::new();
    if let Some(module) = layout.module {
        candidates.push(module.address);
    } else {
        for range in &layout.writable {
            let within = pointers(&mut reader, *range, table)?;
            candidates.extend(within.into_iter().map(|offset| range.address.wrapping_add(offset)));
        }
        for_each_relocation(&mut reader, layout, |place, value| {
            if value == table && candidates.len() < CANDIDATES_MAX {
                candidates.push(place);
            }
        })?;
    }
    candidates.truncate(CANDIDATES_MAX);
    let mut read = Vec::new();
    for place in candidates {
        let Some(offset) = layout.file_offset(place) else { continue };
        let bytes = reader.bytes(offset, WORDS * 8)?.as_chunks::<8>().0;
        read.push((place, bytes.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>()));
    }
    for_each_relocation(&mut reader, layout, |at, value| {
        for (place, words) in &mut read {
            let within = at.wrapping_sub(*place);
            let word = usize::try_from(within / 8).ok().filter(|_| within % 8 == 0).and_then(|at| words.get_mut(at));
            word.into_iter().for_each(|word| *word = value);
        }
    })?;
    let is_right = |words: &Vec<u64>| {
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let text = word(TEXT);
        let expected = [table, text.wrapping_add(code.start), text.wrapping_add(code.end)];
        text != 0 && [word(0), word(FIRST_CODE), word(END_OF_CODE)] == expected
    };
    let words = read.into_iter().map(|(_, words)| words).find(is_right).ok_or(GoError::NoModule)?;
    let text = words.get(TEXT).copied().unwrap_or_default();
    Ok(Module { text, function_data: words.get(FUNCTION_DATA).unwrap_or_default().to_vec() })
}

/// Returns the offsets, in `range`, of the words with the value `wanted`.
fn pointers(reader: &mut FileReader<'_>, range: FileRange, wanted: u64) -> Result<Vec<u64>, GoError> {
    let mut found = Vec::new();
    let mut at = range.address.wrapping_neg() % 8;
    let end = range.size.min(SEARCH_BYTES_MAX);
    while at + 8 <= end && found.len() < CANDIDATES_MAX {
        let words = reader.some(range.offset.saturating_add(at))?.as_chunks::<8>().0;
        if words.is_empty() {
            break;
        }
        for word in words {
            if u64::from_ne_bytes(*word) == wanted && at + 8 <= end {
                found.push(at);
            }
            at += 8;
        }
    }
    Ok(found)
}

/// Calls `visit` with the address and the value of every relocation that adds the load address.
fn for_each_relocation(
    reader: &mut FileReader<'_>,
    layout: &GoLayout,
    mut visit: impl FnMut(u64, u64),
) -> Result<(), GoError> {
    let Some(range) = layout.relocations else { return Ok(()) };
    let mut at = 0;
    let end = range.size.min(SEARCH_BYTES_MAX);
    while at + RELOCATION_BYTES <= end {
        let bytes = reader.some(range.offset.saturating_add(at))?;
        let fit = (end - at) / RELOCATION_BYTES;
        let relocations = bytes.as_chunks::<8>().0.as_chunks::<3>().0;
        let relocations = relocations.get(..usize::try_from(fit).unwrap_or_default()).unwrap_or(relocations);
        if relocations.is_empty() {
            // The buffer holds less than one relocation: the next read begins here.
            if reader.bytes(range.offset.saturating_add(at), RELOCATION_BYTES as usize).is_err() {
                break;
            }
            continue;
        }
        for [place, kind, addend] in relocations {
            if u64::from_ne_bytes(*kind) & 0xffff_ffff == RELATIVE {
                visit(u64::from_ne_bytes(*place), u64::from_ne_bytes(*addend));
            }
            at += RELOCATION_BYTES;
        }
    }
    Ok(())
}
