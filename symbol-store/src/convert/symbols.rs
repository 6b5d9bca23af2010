//! Functions from the ELF symbols of a file: `.symtab`, `.gnu_debugdata`, `.dynsym`. They are split into pieces, which
//! are address ranges with a name.
//!
//! Invariant: the pieces are disjoint, and each lies in one executable section. Where symbols overlap, an address
//! belongs to the symbol that begins last. After the end of that symbol, addresses belong to the outer symbol again.

use std::cmp::Reverse;
use std::io::Read as _;

use object::read::elf::{ElfFile32, ElfFile64, FileHeader};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SectionFlags, SymbolFlags, elf};

use super::coverage::{Coverage, flatten};
use crate::limits;
use crate::source::Source;

/// Address range of a function, or of a part of a function that belongs to no other function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) name: String,
    pub(super) source: Source,
}

#[derive(Debug)]
struct Symbol {
    start: u64,
    /// Address after the symbol; equal to `start` if the symbol has no size.
    end: u64,
    name: String,
    source: Source,
    /// Rank of the symbol. Of all symbols at one address, the one with the lowest rank is used: functions before
    /// labels, global before weak and local names, `malloc` before `__libc_malloc`.
    rank: (u8, u8, usize),
}

/// The ELF symbols of a file and its debug file, and the executable sections of both.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    symbols: Vec<Symbol>,
    sections: Vec<(u64, u64)>,
    /// Address ranges of the sections of the PLT; `sections` contains them, too.
    plt: Vec<(u64, u64)>,
}

impl Symbols {
    /// Adds the symbols of an ELF file. `None` if the headers of the file cannot be read.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Option<()> {
        match object::FileKind::parse(bytes).ok()? {
            object::FileKind::Elf32 => {
                self.add_elf(&ElfFile32::<Endianness>::parse(bytes).ok()?, Source::Symtab);
            }
            object::FileKind::Elf64 => {
                self.add_elf(&ElfFile64::<Endianness>::parse(bytes).ok()?, Source::Symtab);
            }
            _ => return None,
        }
        Some(())
    }

    fn add_elf<H: FileHeader>(&mut self, file: &object::read::elf::ElfFile<'_, H>, source: Source) {
        for section in file.sections() {
            if is_code(section.flags()) {
                let range = (section.address(), section.address().saturating_add(section.size()));
                self.sections.push(range);
                let name = section.name_bytes().unwrap_or_default();
                if [&b".plt"[..], b".plt.sec", b".plt.got", b".plt.bnd", b".iplt"].contains(&name) {
                    self.plt.push(range);
                }
            }
        }
        self.symbols.extend(file.symbols().filter_map(|symbol| read(file, &symbol, source)));
        self.symbols.extend(file.dynamic_symbols().filter_map(|symbol| read(file, &symbol, Source::Dynsym)));
        let debugdata = file.section_by_name(".gnu_debugdata").and_then(|section| section.uncompressed_data().ok());
        if let Some(unpacked) = debugdata.and_then(|packed| unpack(&packed)) {
            // The section holds an ELF file with a `.symtab` and the section headers that its symbols refer to.
            if let Ok(inner) = ElfFile64::<Endianness>::parse(unpacked.as_slice()) {
                let inner_symbols = inner.symbols();
                self.symbols.extend(inner_symbols.filter_map(|symbol| read(&inner, &symbol, Source::GnuDebugdata)));
            } else if let Ok(inner) = ElfFile32::<Endianness>::parse(unpacked.as_slice()) {
                let inner_symbols = inner.symbols();
                self.symbols.extend(inner_symbols.filter_map(|symbol| read(&inner, &symbol, Source::GnuDebugdata)));
            }
        }
    }

    /// Returns the addresses of the executable sections.
    pub(super) fn code(&self) -> Coverage {
        Coverage::new(self.sections.clone())
    }

    /// Returns the address ranges of the sections of the PLT.
    pub(super) fn plt(&self) -> Vec<(u64, u64)> {
        self.plt.clone()
    }

    /// Returns all functions as disjoint pieces, sorted by address.
    pub(super) fn into_pieces(mut self) -> Vec<Piece> {
        let code = self.code();
        // A function without a size extends to the next one. If only exported functions are known, the next one may be
        // far, and the code in between would get a wrong name. So functions without a size are then dropped.
        let is_complete = self.symbols.iter().any(|symbol| symbol.source > Source::Dynsym);
        self.symbols.retain_mut(|symbol| {
            let section = code.at(symbol.start);
            symbol.end = section.map_or(symbol.start, |(_, end)| symbol.end.min(end));
            section.is_some()
        });
        self.symbols.sort_by(|a, b| {
            let key = |symbol: &Symbol| (symbol.start, Reverse(symbol.end), symbol.rank, Reverse(symbol.source));
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        self.symbols.dedup_by_key(|symbol| (symbol.start, symbol.end));
        let (sized, unsized_): (Vec<_>, Vec<_>) =
            self.symbols.into_iter().partition(|symbol| symbol.start < symbol.end);
        let ranges = sized.into_iter().map(|symbol| (symbol.start, symbol.end, (symbol.name, symbol.source)));
        let piece = |(start, end, (name, source))| Piece { start, end, name, source };
        let mut pieces: Vec<Piece> = flatten(ranges.collect()).into_iter().map(piece).collect();
        if is_complete {
            let taken = Coverage::new(pieces.iter().map(|piece| (piece.start, piece.end)).collect());
            pieces.extend(extend(unsized_, &code, &taken));
            pieces.sort_by_key(|piece| piece.start);
        }
        pieces
    }
}

fn read<'data, H: FileHeader>(
    file: &object::read::elf::ElfFile<'data, H>,
    symbol: &object::read::elf::ElfSymbol<'data, '_, H>,
    source: Source,
) -> Option<Symbol> {
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    is_code(section.flags()).then_some(())?;
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return None };
    let kind_rank = match st_info.st_type() {
        elf::STT_FUNC => 0,
        elf::STT_GNU_IFUNC => 1,
        elf::STT_NOTYPE => 2,
        _ => return None,
    };
    let binding_rank = match st_info.st_bind() {
        elf::STB_GLOBAL => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    let name = String::from_utf8_lossy(symbol.name_bytes().ok()?);
    // Linkers append `@@VERSION` to the names of exported functions. Names such as `$x` are not functions; they mark
    // the beginning of code or data.
    let is_mark = kind_rank == 2 && name.starts_with('$');
    let name = name.split('@').next().filter(|name| !name.is_empty() && !is_mark)?;
    Some(Symbol {
        start: symbol.address(),
        end: symbol.address().checked_add(symbol.size())?,
        rank: (kind_rank, binding_rank, name.len() - name.trim_start_matches('_').len()),
        name: name.to_owned(),
        source,
    })
}

fn is_code(flags: SectionFlags) -> bool {
    matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.contains(elf::SHF_EXECINSTR))
}

/// Decompresses the content of a section `.gnu_debugdata`. `None` if it is damaged or too large.
fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(packed, true, host_files::limits::XZ_MEMORY_KIB_MAX);
    let bytes_max = limits::DEBUGDATA_UNPACKED_BYTES_MAX;
    let length = reader.take(bytes_max + 1).read_to_end(&mut unpacked).ok()?;
    (length as u64 <= bytes_max).then_some(unpacked)
}

/// Extends each symbol without a size to the next symbol or the end of code. Symbols without a size that are inside
/// another symbol are labels, and are dropped.
fn extend(symbols: Vec<Symbol>, code: &Coverage, taken: &Coverage) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for symbol in symbols.into_iter().rev() {
        let next = pieces.last().map_or(u64::MAX, |piece| piece.start);
        let far = symbol.start.saturating_add(limits::UNSIZED_FUNCTION_BYTES_MAX).min(next);
        let end = code.at(symbol.start).map_or(symbol.start, |(_, end)| end.min(far));
        // The first gap begins at the symbol, unless the symbol is inside another one.
        let free = taken.gaps(symbol.start, end).first().copied();
        if let Some((start, end)) = free.filter(|(start, _)| *start == symbol.start) {
            pieces.push(Piece { start, end, name: symbol.name, source: symbol.source });
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(start: u64, end: u64, name: &str) -> Symbol {
        Symbol { start, end, name: name.to_owned(), source: Source::Symtab, rank: (0, 0, 0) }
    }

    /// Checks the pieces of `symbols`, each written as `name start..end`, in a file with three executable sections.
    fn check(symbols: Vec<Symbol>, expected: &[&str]) {
        let pieces =
            Symbols { symbols, sections: vec![(0x100, 0x200), (0x200, 0x300), (0x400, 0x500)], plt: Vec::new() };
        let pieces = pieces.into_pieces();
        let pieces: Vec<String> =
            pieces.iter().map(|piece| format!("{} {:x}..{:x}", piece.name, piece.start, piece.end)).collect();
        assert_eq!(pieces, expected);
    }

    #[test]
    fn addresses_after_a_nested_symbol_belong_to_the_outer_one() {
        check(
            vec![symbol(0x100, 0x150, "outer"), symbol(0x110, 0x120, "inner"), symbol(0x130, 0x140, "other")],
            &["outer 100..110", "inner 110..120", "outer 120..130", "other 130..140", "outer 140..150"],
        );
        check(
            vec![symbol(0x100, 0x120, "first"), symbol(0x110, 0x130, "second")],
            &["first 100..110", "second 110..130"],
        );
    }

    #[test]
    fn the_best_of_several_names_is_used_whatever_their_order() {
        let names = || {
            vec![
                Symbol { rank: (0, 0, 7), ..symbol(0x100, 0x110, "__libc_malloc") },
                Symbol { rank: (0, 0, 0), ..symbol(0x100, 0x110, "malloc") },
                Symbol { rank: (0, 1, 0), ..symbol(0x100, 0x110, "a_weak_one") },
            ]
        };
        check(names(), &["malloc 100..110"]);
        check(names().into_iter().rev().collect(), &["malloc 100..110"]);
    }

    #[test]
    fn a_symbol_without_a_size_extends_to_the_next_or_the_end_of_code() {
        check(
            vec![
                symbol(0x100, 0x110, "sized"),
                symbol(0x108, 0x108, "label"),
                symbol(0x110, 0x110, "a"),
                symbol(0x120, 0x120, "b"),
                symbol(0x150, 0x160, "sized2"),
                symbol(0x400, 0x400, "last"),
            ],
            &["sized 100..110", "a 110..120", "b 120..150", "sized2 150..160", "last 400..500"],
        );
    }

    #[test]
    fn exported_symbols_without_a_size_are_not_extended() {
        let exported = |symbol: Symbol| Symbol { source: Source::Dynsym, ..symbol };
        check(vec![exported(symbol(0x100, 0x100, "a")), exported(symbol(0x150, 0x160, "b"))], &["b 150..160"]);
    }

    #[test]
    fn symbols_are_limited_to_executable_sections() {
        check(
            vec![
                symbol(0x1f0, 0x1f0, "last of its section"),
                symbol(0x50, 0x60, "before"),
                symbol(0x4f0, 0x700, "long"),
                symbol(0x500, 0x510, "after"),
            ],
            &["last of its section 1f0..200", "long 4f0..500"],
        );
    }
}
