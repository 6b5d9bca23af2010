//! Symbols that a 64-bit ELF file exports, found by their names in `.dynsym`.
//!
//! Names are searched in the string table first, and then the symbols that have these names. So the memory does not
//! depend on the number of symbols, of which a large program has hundreds of thousands.

use std::fs::File;
use std::ops::Range;

use super::header::{Header, read_range};
use super::{ElfError, FileRange};
use crate::limits;

/// Size of a symbol in the file, in bytes.
const SYMBOL_BYTES: usize = 24;
/// Number of bytes that are read at once: a multiple of the size of a symbol.
const PIECE_BYTES: usize = SYMBOL_BYTES << 12;
/// Number of the section of an undefined symbol.
const SHN_UNDEF: u16 = 0;

/// A symbol that a file exports.
pub(super) struct Symbol {
    /// Index in `.dynsym`.
    pub(super) index: u64,
    /// Type of the symbol, such as `STT_FUNC`.
    pub(super) kind: u8,
    /// Value of the symbol, and the value plus the size.
    pub(super) range: Range<u64>,
}

/// Returns the virtual addresses of the symbols with these names, in the order of the names. `None` stands for a symbol
/// that the file does not export, and an empty range for one without a size.
///
/// # Errors
/// Any [`ElfError`].
pub fn exported<const N: usize>(file: &File, names: [&str; N]) -> Result<[Option<Range<u64>>; N], ElfError> {
    Ok(exported_symbols(file, &Header::read(file)?, names).map(|symbol| symbol.map(|symbol| symbol.range)))
}

/// Returns the symbols with these names, in the order of the names. `header` is that of the file.
pub(super) fn exported_symbols<const N: usize>(file: &File, header: &Header, names: [&str; N]) -> [Option<Symbol>; N] {
    let mut found = [const { None }; N];
    if !header.wide || header.big_endian != cfg!(target_endian = "big") {
        return found;
    }
    let [table, strings] = header.find_sections(file, [b".dynsym", b".dynstr"]).unwrap_or_default();
    if let (Some(table), Some(strings)) = (table, strings) {
        let named = find_names(file, strings, &names);
        find_symbols(file, table, &named, &mut found);
    }
    found
}

/// Name in a string table: the offset of its first byte, and the index of the searched name.
type Named = (u32, usize);

/// Returns where the names are in a string table, ascending by offset.
fn find_names(file: &File, strings: FileRange, names: &[&str]) -> Vec<Named> {
    let mut named = Vec::new();
    let longest = names.iter().map(|name| name.len() + 1).max().unwrap_or_default();
    let size = strings.size.min(limits::SYMBOL_NAMES_BYTES_MAX);
    let mut start = 0;
    while start < size {
        // Pieces overlap, so that no name is cut.
        let bytes = (PIECE_BYTES + longest).min(usize::try_from(size - start).unwrap_or(usize::MAX));
        let Some(piece) = read_range(file, strings.offset.saturating_add(start), bytes as u64) else { break };
        for (index, name) in names.iter().enumerate() {
            let starts = memchr::memmem::find_iter(&piece, name.as_bytes()).filter(|at| *at < PIECE_BYTES);
            for at in starts.filter(|at| piece.get(at + name.len()) == Some(&0)) {
                if let Ok(at) = u32::try_from(start + at as u64) {
                    named.push((at, index));
                }
            }
        }
        start += PIECE_BYTES as u64;
        if limits::SYMBOLS_FOUND_MAX < named.len() {
            break;
        }
    }
    named.sort_unstable();
    named
}

/// Sets the first symbols with these names.
fn find_symbols(file: &File, table: FileRange, named: &[Named], found: &mut [Option<Symbol>]) {
    let size = table.size.min(limits::SYMBOL_TABLE_BYTES_MAX);
    let mut start = 0;
    while start < size && !named.is_empty() {
        let bytes = (PIECE_BYTES as u64).min(size - start);
        let Some(piece) = read_range(file, table.offset.saturating_add(start), bytes) else { return };
        for (index, symbol) in (start / SYMBOL_BYTES as u64..).zip(piece.as_chunks::<SYMBOL_BYTES>().0) {
            // Layout of Elf64_Sym: name u32, type and binding u8, visibility u8, section u16, value u64, size u64.
            let name = u32::from_ne_bytes(std::array::from_fn(|index| symbol[index]));
            let section = u16::from_ne_bytes([symbol[6], symbol[7]]);
            let Ok(at) = named.binary_search_by_key(&name, |(at, _)| *at) else { continue };
            if section != SHN_UNDEF {
                let [value, size] =
                    [8, 16].map(|at| u64::from_ne_bytes(std::array::from_fn(|index| symbol[at + index])));
                let range = value..value.saturating_add(size);
                found[named[at].1].get_or_insert(Symbol { index, kind: symbol[4] & 0xf, range });
            }
        }
        start += PIECE_BYTES as u64;
    }
}
