//! Reads HotSpot's tables of its own structures, which it exports for debuggers.
//!
//! The tables are filled in when `libjvm.so` is loaded, so they are complete only in the memory of a process.

use std::collections::HashMap;
use std::fs::File;

use host_files::elf;

use super::fields::{Integer, int, word};
use crate::runtimes::memory::ProcessMemory;

/// Largest number of entries of a table. JDK 11 has 837 fields.
const ENTRIES_MAX: usize = 2048;
/// Number of entries that are read at once.
const PIECE: usize = 64;
/// Largest number of pages of memory from which names are read. The names are within 200 pages.
const PAGES_MAX: usize = 1024;
/// Largest length of a name, in bytes.
const NAME_BYTES_MAX: usize = 127;
const PAGE: u64 = 4096;

/// Layout of the tables. It is the same in all versions since JDK 8, and it is checked by the sizes of the entries.
const FIELD_BYTES: usize = 48;
const TYPE_BYTES: usize = 40;

/// ELF virtual addresses of the variables that describe the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbols {
    fields: u64,
    field_bytes: u64,
    types: u64,
    type_bytes: u64,
}

impl Symbols {
    /// Finds the variables in a file; `None` if it is not HotSpot.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let names = [
            "gHotSpotVMStructs",
            "gHotSpotVMStructEntryArrayStride",
            "gHotSpotVMTypes",
            "gHotSpotVMTypeEntryArrayStride",
        ];
        let [fields, field_bytes, types, type_bytes] =
            elf::exported(file, names).ok()?.map(|symbol| symbol.map(|at| at.start));
        Some(Self { fields: fields?, field_bytes: field_bytes?, types: types?, type_bytes: type_bytes? })
    }
}

/// A field of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// Type in C++.
    of: String,
    is_static: bool,
    /// Offset in the structure; address of a static field.
    place: u64,
}

/// The structures of one HotSpot.
#[derive(Debug, Default)]
pub(crate) struct VmStructs {
    /// Fields by their names, such as `Method::_constMethod`.
    fields: HashMap<String, Field>,
    /// Sizes of types.
    sizes: HashMap<String, u64>,
}

impl VmStructs {
    /// Reads the tables. `bias` is added to an ELF virtual address to get the address in the process. `None` if they
    /// cannot be read, or if they are not filled in yet.
    pub(crate) fn read(memory: &ProcessMemory, symbols: Symbols, bias: u64) -> Option<Self> {
        let variable = |address: u64| word(memory, address.wrapping_add(bias), 0);
        let sizes = (variable(symbols.field_bytes)?, variable(symbols.type_bytes)?);
        if sizes != (FIELD_BYTES as u64, TYPE_BYTES as u64) {
            return None;
        }
        let mut names = Names { memory, pages: HashMap::new() };
        let mut read = Self::default();
        for entry in entries::<FIELD_BYTES>(memory, variable(symbols.fields)?)? {
            let [of, name, text, is_static, offset, address] = words(&entry);
            let is_static = is_static as u32 != 0;
            let name = format!("{}::{}", names.read(of)?, names.read(name)?);
            let of = if text == 0 { String::new() } else { names.read(text)? };
            read.fields.insert(name, Field { of, is_static, place: if is_static { address } else { offset } });
        }
        for entry in entries::<TYPE_BYTES>(memory, variable(symbols.types)?)? {
            let [name, _, _, _, size] = words(&entry);
            read.sizes.insert(names.read(name)?, size);
        }
        Some(read)
    }

    /// Returns the offset of a field; `None` if there is no such field.
    pub(crate) fn offset(&self, name: &str) -> Option<u16> {
        let field = self.fields.get(name).filter(|field| !field.is_static)?;
        u16::try_from(field.place).ok()
    }

    /// Returns a field that is an integer.
    pub(crate) fn integer(&self, name: &str) -> Option<Integer> {
        let (bytes, is_signed) = match &*self.fields.get(name)?.of {
            "int" | "jint" | "int32_t" => (4, true),
            "unsigned int" | "uint" | "juint" | "u4" | "uint32_t" => (4, false),
            "short" | "int16_t" => (2, true),
            "u2" | "uint16_t" | "unsigned short" => (2, false),
            "u1" | "uint8_t" => (1, false),
            _ => return None,
        };
        Some(Integer { offset: self.offset(name)?, bytes, is_signed })
    }

    /// Returns the offset of a field that is an `int`.
    pub(crate) fn int(&self, name: &str) -> Option<u16> {
        self.integer(name).filter(|field| field.bytes == 4).map(|field| field.offset)
    }

    /// Returns the address of a static field.
    pub(crate) fn address(&self, name: &str) -> Option<u64> {
        self.fields.get(name).filter(|field| field.is_static).map(|field| field.place)
    }

    /// Returns the size of a type, in bytes.
    pub(crate) fn size(&self, name: &str) -> Option<u16> {
        self.sizes.get(name).and_then(|size| u16::try_from(*size).ok())
    }

    /// Reads a static field that is an `int`.
    pub(crate) fn static_int(&self, memory: &ProcessMemory, name: &str) -> Option<i32> {
        int(memory, self.address(name)?, 0)
    }

    /// Reads a static field that is a pointer.
    pub(crate) fn static_word(&self, memory: &ProcessMemory, name: &str) -> Option<u64> {
        word(memory, self.address(name)?, 0)
    }
}

/// Reads the entries of a table, up to the one that has no name.
fn entries<const N: usize>(memory: &ProcessMemory, table: u64) -> Option<Vec<[u8; N]>> {
    let mut entries = Vec::new();
    let mut at = table;
    while entries.len() < ENTRIES_MAX {
        // The memory after the table may be missing, so that single entries are read there.
        let mut piece = vec![0; PIECE * N];
        if !memory.read(at, &mut piece) {
            piece = memory.array::<N>(at)?.to_vec();
        }
        for entry in piece.as_chunks::<N>().0 {
            if entry.starts_with(&[0; 8]) {
                return Some(entries);
            }
            entries.push(*entry);
        }
        at = at.checked_add(piece.len() as u64)?;
    }
    None
}

fn words<const N: usize>(entry: &[u8]) -> [u64; N] {
    let words = entry.as_chunks::<8>().0;
    std::array::from_fn(|index| words.get(index).copied().map_or(0, u64::from_ne_bytes))
}

/// Reads names, each page of memory only once.
struct Names<'a> {
    memory: &'a ProcessMemory,
    pages: HashMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Names<'_> {
    fn read(&mut self, address: u64) -> Option<String> {
        let mut name = Vec::new();
        let mut at = address;
        while name.len() <= NAME_BYTES_MAX {
            let rest = self.rest_of_page(at)?;
            if let Some(end) = rest.iter().position(|byte| *byte == 0) {
                name.extend(&rest[..end]);
                return String::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX);
            }
            name.extend(rest);
            at = at.checked_add(rest.len() as u64)?;
        }
        None
    }

    /// Returns the bytes from an address to the end of its page.
    fn rest_of_page(&mut self, address: u64) -> Option<&[u8]> {
        let start = address - address % PAGE;
        if !self.pages.contains_key(&start) {
            if self.pages.len() == PAGES_MAX {
                return None;
            }
            self.pages.insert(start, Box::new(self.memory.array(start)?));
        }
        self.pages.get(&start).map(|page| &page[(address % PAGE) as usize..])
    }
}

#[cfg(test)]
impl VmStructs {
    /// Adds a field of a structure.
    pub(super) fn insert(&mut self, name: &str, of: &str, offset: u64) {
        self.fields.insert(name.to_owned(), Field { of: of.to_owned(), is_static: false, place: offset });
    }

    /// Adds a static field.
    pub(super) fn insert_static(&mut self, name: &str, address: u64) {
        self.fields.insert(name.to_owned(), Field { of: String::new(), is_static: true, place: address });
    }

    pub(super) fn insert_size(&mut self, name: &str, bytes: u64) {
        self.sizes.insert(name.to_owned(), bytes);
    }
}

#[cfg(test)]
mod tests;
