//! The headers of an ELF file of either class and byte order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::{ElfError, FileRange, Segment};
use crate::limits;

pub(super) const PT_LOAD: u32 = 1;
pub(super) const PT_DYNAMIC: u32 = 2;
pub(super) const PT_NOTE: u32 = 4;
pub(super) const PT_TLS: u32 = 7;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
pub(super) const SHT_NOTE: u32 = 7;
/// Type of a section without bytes in the file.
pub(super) const SHT_NOBITS: u32 = 8;
const SHF_COMPRESSED: u64 = 1 << 11;

/// The ELF header: the fields that locate the other headers, and the entry point.
pub(super) struct Header {
    /// True if this is a 64-bit file.
    pub(super) wide: bool,
    pub(super) big_endian: bool,
    program_headers_offset: u64,
    program_header_size: u16,
    program_header_count: u16,
    section_headers_offset: u64,
    section_header_size: u16,
    section_header_count: u16,
    section_names_index: u16,
    /// Virtual address of the entry point of a program; 0 for other files.
    pub(super) entry: u64,
    /// Number of the machine for which the file is.
    pub(super) machine: u16,
}

/// A program header.
pub(super) struct ProgramHeader {
    pub(super) kind: u32,
    flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) file_size: u64,
    pub(super) memory_size: u64,
    pub(super) align: u64,
}

/// A section header.
pub(super) struct Section {
    /// Offset of the section's name in the section of names, in bytes.
    pub(super) name: u32,
    pub(super) kind: u32,
    /// True if the bytes of the section are compressed.
    pub(super) is_compressed: bool,
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) align: u64,
}

impl Header {
    pub(super) fn read(file: &File) -> Result<Self, ElfError> {
        let mut bytes = [0; 64];
        let length = read_up_to(file, &mut bytes).map_err(ElfError::Io)?;
        let [0x7f, b'E', b'L', b'F', class, byte_order, version, ..] = bytes else { return Err(ElfError::NotElf) };
        if !matches!(class, 1 | 2) || !matches!(byte_order, 1 | 2) || version != 1 {
            return Err(ElfError::UnknownFormat { class, byte_order, version });
        }
        let wide = class == 2;
        if length < if wide { 64 } else { 52 } {
            return Err(ElfError::Truncated);
        }
        let fields = Fields { bytes: &bytes, big_endian: byte_order == 2 };
        // Offsets in the ELF header of e_phoff, e_shoff and e_phentsize. Four more fields of two bytes each follow
        // e_phentsize.
        let (program_headers, section_headers, sizes) = if wide { (32, 40, 54) } else { (28, 32, 42) };
        let parse = || {
            Some(Self {
                wide,
                big_endian: fields.big_endian,
                program_headers_offset: fields.word(program_headers, wide)?,
                section_headers_offset: fields.word(section_headers, wide)?,
                program_header_size: fields.u16(sizes)?,
                program_header_count: fields.u16(sizes + 2)?,
                section_header_size: fields.u16(sizes + 4)?,
                section_header_count: fields.u16(sizes + 6)?,
                section_names_index: fields.u16(sizes + 8)?,
                entry: fields.word(24, wide)?,
                machine: fields.u16(18)?,
            })
        };
        parse().ok_or(ElfError::Truncated)
    }

    pub(super) fn program_headers(&self, file: &File) -> Result<Vec<ProgramHeader>, ElfError> {
        let count = self.program_header_count;
        let size = self.program_header_size;
        let size_min = if self.wide { 56 } else { 32 };
        if count == 0 {
            return Ok(Vec::new());
        }
        if usize::from(count) > limits::PROGRAM_HEADERS_MAX || !(size_min..=512).contains(&size) {
            return Err(ElfError::ProgramHeaders { count, size, count_max: limits::PROGRAM_HEADERS_MAX });
        }
        let table = read_range(file, self.program_headers_offset, u64::from(count) * u64::from(size));
        let table = table.ok_or(ElfError::Truncated)?;
        let headers = table.chunks_exact(usize::from(size)).map(|bytes| self.program_header(bytes));
        headers.collect::<Option<_>>().ok_or(ElfError::Truncated)
    }

    fn program_header(&self, bytes: &[u8]) -> Option<ProgramHeader> {
        let fields = Fields { bytes, big_endian: self.big_endian };
        let (flags, rest, step) = if self.wide { (4, 8, 8) } else { (24, 4, 4) };
        Some(ProgramHeader {
            kind: fields.u32(0)?,
            flags: fields.u32(flags)?,
            offset: fields.word(rest, self.wide)?,
            address: fields.word(rest + step, self.wide)?,
            // The physical address lies between the virtual address and the size.
            file_size: fields.word(rest + 3 * step, self.wide)?,
            memory_size: fields.word(rest + 4 * step, self.wide)?,
            align: fields.word(if self.wide { 48 } else { 28 }, self.wide)?,
        })
    }

    /// Reads the section headers. Returns an empty list if the file has none, or if they cannot be read.
    pub(super) fn sections(&self, file: &File) -> Vec<Section> {
        let size = usize::from(self.section_header_size);
        let count = usize::from(self.section_header_count).min(limits::SECTION_HEADERS_MAX);
        if count == 0 || !(if self.wide { 64 } else { 40 }..=512).contains(&size) {
            return Vec::new();
        }
        let table = read_range(file, self.section_headers_offset, (count * size) as u64).unwrap_or_default();
        table.chunks_exact(size).filter_map(|bytes| self.section(bytes)).collect()
    }

    fn section(&self, bytes: &[u8]) -> Option<Section> {
        let fields = Fields { bytes, big_endian: self.big_endian };
        let (address, offset, size, align) = if self.wide { (16, 24, 32, 48) } else { (12, 16, 20, 32) };
        Some(Section {
            name: fields.u32(0)?,
            kind: fields.u32(4)?,
            // The flags are at the same offset in both classes.
            is_compressed: fields.word(8, self.wide)? & SHF_COMPRESSED != 0,
            address: fields.word(address, self.wide)?,
            offset: fields.word(offset, self.wide)?,
            size: fields.word(size, self.wide)?,
            align: fields.word(align, self.wide)?,
        })
    }

    /// Reads the address and the bytes of a section. `None` if the section is missing, compressed, too large, or has no
    /// bytes in the file.
    pub(super) fn loaded_section(&self, file: &File, name: &[u8], bytes_max: u64) -> Option<(u64, Vec<u8>)> {
        let section = self.find_section(file, name)?;
        let is_plain = section.kind != SHT_NOBITS && !section.is_compressed && section.size <= bytes_max;
        is_plain.then(|| read_range(file, section.offset, section.size).map(|bytes| (section.address, bytes)))?
    }

    /// Finds the section with this name. `None` if the file does not have it.
    pub(super) fn find_section(&self, file: &File, name: &[u8]) -> Option<Section> {
        let (sections, names) = self.named_sections(file)?;
        sections.into_iter().find(|section| section.is_named(name, &names))
    }

    /// Finds the sections with these names whose bytes are in the file and not compressed. `None` if the file has no
    /// named sections at all.
    pub(super) fn find_sections<const N: usize>(
        &self,
        file: &File,
        wanted: [&[u8]; N],
    ) -> Option<[Option<FileRange>; N]> {
        let (sections, names) = self.named_sections(file)?;
        Some(wanted.map(|name| {
            let section = sections.iter().find(|section| section.is_named(name, &names))?;
            let Section { offset, size, address, .. } = *section;
            (section.kind != SHT_NOBITS && !section.is_compressed).then_some(FileRange { offset, size, address })
        }))
    }

    /// Reads the headers of all sections, and the content of the section that holds their names. `None` if the file has
    /// no names of sections.
    fn named_sections(&self, file: &File) -> Option<(Vec<Section>, Vec<u8>)> {
        let sections = self.sections(file);
        let names = sections.get(usize::from(self.section_names_index))?;
        let names = read_range(file, names.offset, names.size.min(limits::SECTION_NAMES_BYTES_MAX))?;
        (!names.is_empty()).then_some((sections, names))
    }
}

impl Section {
    fn is_named(&self, name: &[u8], names: &[u8]) -> bool {
        let rest = names.get(self.name as usize..).unwrap_or_default();
        rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }
}

impl ProgramHeader {
    pub(super) fn segment(&self) -> Segment {
        Segment {
            offset: self.offset,
            file_size: self.file_size,
            address: self.address,
            memory_size: self.memory_size,
            executable: self.flags & PF_X != 0,
        }
    }

    pub(super) fn is_writable(&self) -> bool {
        self.flags & PF_W != 0
    }

    pub(super) fn file_range(&self) -> FileRange {
        FileRange { offset: self.offset, size: self.file_size, address: self.address }
    }
}

/// Reader of integers in the byte order of the file. `at` is an offset in `bytes`. Every read returns `None` beyond the
/// end of `bytes`.
struct Fields<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.array(at)?;
        Some(if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.array(at)?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// Reads a u64 of a 64-bit file, or a u32 of a 32-bit one.
    fn word(&self, at: usize, wide: bool) -> Option<u64> {
        if !wide {
            return self.u32(at).map(u64::from);
        }
        let bytes = self.array(at)?;
        Some(if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }
}

/// Reads from the beginning of the file until `bytes` is full or the file ends. Returns the number of read bytes.
fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Reads exactly `size` bytes at `offset`. `None` if the file has fewer bytes there. The caller must bound `size`.
pub(super) fn read_range(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}
