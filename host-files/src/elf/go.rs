//! Positions in an ELF file of the data from which a Go program gets the names of its own functions.

use std::fs::File;

use super::header::{Header, PT_DYNAMIC, PT_LOAD, PT_TLS, ProgramHeader, read_range};
use super::{ElfError, Segment};
use crate::limits;

// Tags of the dynamic section whose values are the address and the size of the relocations with addends.
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;

/// A range of bytes in an ELF file, with the address at which it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Offset of the range in the file, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub size: u64,
    /// Virtual address at which the range begins.
    pub address: u64,
}

/// Ranges and segments of a Go program. They are not checked against the length of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoLayout {
    /// The section `.gopclntab`. `None` if the caller must search for the table, because the file has no section
    /// headers, or a C linker has put the table into a larger section.
    pub table: Option<FileRange>,
    /// The section `.go.module`, which linkers write since Go 1.26; `None` if the file does not have it.
    pub module: Option<FileRange>,
    /// The section `.go.buildinfo`, which has the version of Go; `None` if the file does not have it.
    pub build_info: Option<FileRange>,
    /// Size of the thread-local storage of a thread, in bytes.
    pub thread_local_bytes: u64,
    /// Loaded segments, in the order of the program headers.
    pub segments: Vec<Segment>,
    /// Ranges of the file that are loaded into writable segments. Memory without bytes in the file is not included.
    pub writable: Vec<FileRange>,
    /// Range of the relocations with addends (`Elf64_Rela`) of a position-independent program; `None` for other
    /// programs.
    pub relocations: Option<FileRange>,
}

impl GoLayout {
    /// Reads the headers of `file`. `None` if it is not a 64-bit file in this machine's byte order. Also `None` if it
    /// has named sections, but none that Go writes.
    ///
    /// # Errors
    /// Any [`ElfError`].
    pub fn read(file: &File) -> Result<Option<Self>, ElfError> {
        let header = Header::read(file)?;
        if !header.wide || header.big_endian != cfg!(target_endian = "big") {
            return Ok(None);
        }
        let names: [&[u8]; 5] =
            [b".gopclntab", b".data.rel.ro.gopclntab", b".go.module", b".go.buildinfo", b".note.go.buildid"];
        let sections = header.find_sections(file, names);
        let [table, relocated_table, module, info, build_id] = sections.unwrap_or_default();
        let table = table.or(relocated_table);
        if sections.is_some() && table.or(info).or(build_id).is_none() {
            return Ok(None);
        }
        let mut layout = Self { table, module, build_info: info, ..Self::default() };
        let mut dynamic = None;
        for program_header in header.program_headers(file)? {
            match program_header.kind {
                PT_LOAD => {
                    layout.segments.push(program_header.segment());
                    layout.writable.extend(program_header.is_writable().then(|| program_header.file_range()));
                }
                PT_TLS => layout.thread_local_bytes = program_header.memory_size,
                PT_DYNAMIC => dynamic = Some(program_header),
                _ => {}
            }
        }
        layout.relocations = dynamic.and_then(|dynamic| layout.find_relocations(file, &dynamic));
        Ok(Some(layout))
    }

    fn find_relocations(&self, file: &File, dynamic: &ProgramHeader) -> Option<FileRange> {
        let bytes = read_range(file, dynamic.offset, dynamic.file_size.min(limits::DYNAMIC_BYTES_MAX))?;
        let (words, _) = bytes.as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        let value = |tag| {
            let found = pairs.iter().find(|[found, _]| u64::from_ne_bytes(*found) == tag);
            found.map(|[_, value]| u64::from_ne_bytes(*value))
        };
        let address = value(DT_RELA)?;
        let size = value(DT_RELASZ)?;
        Some(FileRange { offset: self.file_offset(address)?, size, address })
    }

    /// File offset of the byte that is loaded at `address`. `None` if the byte is not in the file.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let within = address.checked_sub(segment.address).filter(|within| *within < segment.file_size)?;
            segment.offset.checked_add(within)
        })
    }
}
