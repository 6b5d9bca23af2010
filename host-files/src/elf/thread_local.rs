//! Thread-local variables that a file for x86-64 exports, and how its code finds them at run time.
//!
//! The relocations of the file show which way its code was compiled, as in ELF Handling For Thread-Local Storage by
//! Ulrich Drepper, and in the document on TLS descriptors by Alexandre Oliva. If no other file can replace a variable,
//! some linkers write a relocation without a symbol, whose addend is the variable's offset in the block.

use std::fs::File;

use super::header::{Header, PT_TLS, read_range};
use super::symbols::exported_symbols;
use super::{ElfError, FileRange};
use crate::limits;

/// Type of a thread-local symbol.
const STT_TLS: u8 = 6;
/// Number of the machine x86-64.
const EM_X86_64: u16 = 62;
const R_X86_64_DTPMOD64: u32 = 16;
const R_X86_64_TPOFF64: u32 = 18;
const R_X86_64_TLSDESC: u32 = 36;
/// Size of a relocation in the file, in bytes.
const RELOCATION_BYTES: usize = 24;
/// Number of bytes that are read at once: a multiple of the size of a relocation.
const PIECE_BYTES: usize = RELOCATION_BYTES << 12;

/// Way by which the code of a file finds a thread-local variable. Addresses are virtual addresses of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadLocal {
    /// The two words at this address are a TLS descriptor: a function, and its argument.
    Descriptor(u64),
    /// The two words at this address are the number of a module, and the variable's offset in the module's block.
    Pair(u64),
    /// The word at this address is the variable's offset from the thread's base.
    Slot(u64),
    /// The code has the variable's offset from the thread's base, if the file is a program. In a library, nothing shows
    /// where the variable is.
    InProgram(i64),
}

impl ThreadLocal {
    /// Finds the variable with a name; `None` if the file does not export it, or is not for x86-64.
    ///
    /// # Errors
    /// Any [`ElfError`].
    pub fn find(file: &File, name: &str) -> Result<Option<Self>, ElfError> {
        let header = Header::read(file)?;
        let [symbol] = exported_symbols(file, &header, [name]);
        let Some(symbol) = symbol.filter(|symbol| symbol.kind == STT_TLS && header.machine == EM_X86_64) else {
            return Ok(None);
        };
        let variable = Variable { symbol: symbol.index, offset: symbol.range.start };
        let tables = header.find_sections(file, [b".rela.dyn", b".rela.plt"]).unwrap_or_default();
        let relocated = tables.into_iter().flatten().filter_map(|table| variable.in_table(file, table)).min();
        if relocated.is_some() {
            return Ok(relocated);
        }
        let headers = header.program_headers(file)?;
        let block = headers.iter().find(|header| header.kind == PT_TLS);
        Ok(block.map(|block| {
            // The base is the first address after the block that has the block's alignment.
            let gap = block.address.wrapping_add(block.memory_size).wrapping_neg() % block.align.max(1);
            Self::InProgram(variable.offset.wrapping_sub(block.memory_size).wrapping_sub(gap).cast_signed())
        }))
    }
}

/// A thread-local variable: the index of its symbol, and its offset in the block of its file.
struct Variable {
    symbol: u64,
    offset: u64,
}

impl Variable {
    /// Returns the first way, in the order of [`ThreadLocal`], that a table of relocations shows.
    fn in_table(&self, file: &File, table: FileRange) -> Option<ThreadLocal> {
        let size = table.size.min(limits::RELOCATIONS_BYTES_MAX);
        let pieces = (0..size).step_by(PIECE_BYTES).map_while(|start| {
            read_range(file, table.offset.saturating_add(start), (size - start).min(PIECE_BYTES as u64))
        });
        pieces.filter_map(|piece| self.in_piece(&piece)).min()
    }

    fn in_piece(&self, piece: &[u8]) -> Option<ThreadLocal> {
        let relocations = piece.as_chunks::<RELOCATION_BYTES>().0.iter();
        relocations.filter_map(|relocation| self.in_relocation(relocation)).min()
    }

    fn in_relocation(&self, relocation: &[u8; RELOCATION_BYTES]) -> Option<ThreadLocal> {
        // Layout of Elf64_Rela: address u64, type u32, symbol u32, addend i64.
        let [address, info, addend] =
            [0, 8, 16].map(|at| u64::from_le_bytes(std::array::from_fn(|index| relocation[at + index])));
        let (kind, symbol) = (info as u32, info >> 32);
        let is_of_variable = (symbol, addend) == (self.symbol, 0) || (symbol, addend) == (0, self.offset);
        match kind {
            R_X86_64_TLSDESC if is_of_variable => Some(ThreadLocal::Descriptor(address)),
            R_X86_64_DTPMOD64 if symbol == self.symbol => Some(ThreadLocal::Pair(address)),
            R_X86_64_TPOFF64 if is_of_variable => Some(ThreadLocal::Slot(address)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relocation_without_a_symbol_is_identified_by_its_addend() {
        let variable = Variable { symbol: 7, offset: 0x40 };
        let find = |kind: u32, symbol: u64, addend: u64| {
            let words = [0x1000, symbol << 32 | u64::from(kind), addend].map(u64::to_le_bytes);
            variable.in_piece(words.as_flattened())
        };
        let (descriptor, slot) = (Some(ThreadLocal::Descriptor(0x1000)), Some(ThreadLocal::Slot(0x1000)));
        assert_eq!((find(R_X86_64_TLSDESC, 7, 0), find(R_X86_64_TLSDESC, 0, 0x40)), (descriptor, descriptor));
        assert_eq!((find(R_X86_64_TPOFF64, 7, 0), find(R_X86_64_TPOFF64, 0, 0x40)), (slot, slot));
        assert_eq!(find(R_X86_64_DTPMOD64, 7, 0), Some(ThreadLocal::Pair(0x1000)));
        // Other variables, and the block of the module.
        for (symbol, addend) in [(0, 0), (0, 0x48), (8, 0), (8, 0x40), (7, 8)] {
            assert_eq!(find(R_X86_64_TLSDESC, symbol, addend), None, "{symbol} {addend}");
            assert_eq!(find(R_X86_64_TPOFF64, symbol, addend), None, "{symbol} {addend}");
        }
        assert_eq!((find(R_X86_64_DTPMOD64, 0, 0), find(1, 7, 0)), (None, None));
    }
}
