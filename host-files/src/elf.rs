//! What an ELF file says about itself: its build IDs and its loaded segments.
//!
//! Reads the ELF header, the program headers, the notes and, where those hold no GNU build ID, the section headers: a
//! few kilobytes by `pread`, never the whole file, so that it costs the same for a 20 kB and a 2 GB binary.
//!
//! Invariant: no number in the file is trusted. Every offset, length and count is checked against the limits in
//! [`crate::limits`] before anything is allocated or read; what does not fit is an error or is left out.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use proto::BuildId;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::limits;

mod call_frames;
mod debug_link;
mod go;
mod header;
mod note;

pub use call_frames::{CallFrameSections, debug_data, debug_frame};
pub use debug_link::DebugLink;
pub use go::{FileRange, GoLayout};
use header::{Header, PT_LOAD, PT_NOTE, SHT_NOTE, read_range};

/// Why a file could not be read as ELF.
#[derive(Debug, Error)]
pub enum ElfError {
    /// The file does not begin as an ELF file does; it is another kind of file.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file of a class, byte order or version that does not exist.
    #[error("unknown ELF class {class}, byte order {byte_order} or version {version}")]
    UnknownFormat {
        /// `EI_CLASS`: 1 is 32 bits, 2 is 64 bits.
        class: u8,
        /// `EI_DATA`: 1 is little-endian, 2 is big-endian.
        byte_order: u8,
        /// `EI_VERSION`: 1.
        version: u8,
    },
    /// The program headers are more than any linker writes, or of an impossible size.
    #[error("{count} program headers of {size} bytes, limit is {count_max}")]
    ProgramHeaders {
        /// Their number.
        count: u16,
        /// The size of one.
        size: u16,
        /// The most that are read.
        count_max: usize,
    },
    /// The file ends before its headers do.
    #[error("the file ends within its headers")]
    Truncated,
    /// The file cannot be read.
    #[error("cannot read the file")]
    Io(#[source] io::Error),
}

/// A part of the file that is loaded into memory (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in the file, in bytes; 0 in a debug file that `objcopy --only-keep-debug` wrote.
    pub file_size: u64,
    /// Its virtual address.
    pub address: u64,
    /// Its length in memory, in bytes.
    pub memory_size: u64,
    /// Whether it holds code.
    pub executable: bool,
}

/// The identity and layout of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfImage {
    /// The descriptor of the note `NT_GNU_BUILD_ID`, not empty.
    pub gnu_build_id: Option<Vec<u8>>,
    /// The Go build ID, not empty.
    pub go_build_id: Option<String>,
    /// The loaded segments, in the order of the program headers.
    pub segments: Vec<Segment>,
}

impl ElfImage {
    /// Reads the headers and notes of `file`. Its position is neither used nor moved.
    ///
    /// # Errors
    ///
    /// Any [`ElfError`]; all but [`ElfError::Io`] are final for this file.
    pub fn read(file: &File) -> Result<Self, ElfError> {
        let header = Header::read(file)?;
        let mut image = Self { gnu_build_id: None, go_build_id: None, segments: Vec::new() };
        for program_header in header.program_headers(file)? {
            match program_header.kind {
                PT_LOAD => image.segments.push(program_header.segment()),
                PT_NOTE => {
                    image.take_notes(
                        &header,
                        file,
                        program_header.offset,
                        program_header.file_size,
                        program_header.align,
                    );
                }
                _ => {}
            }
        }
        if image.gnu_build_id.is_none() {
            // Old linkers write no note segment, and eu-strip copies the program headers of the stripped file into the
            // debug file, where they do not fit: there the section headers are right.
            for section in header.sections(file).iter().filter(|section| section.kind == SHT_NOTE) {
                image.take_notes(&header, file, section.offset, section.size, section.align);
            }
        }
        Ok(image)
    }

    /// Reads the headers and notes of `file` if `id` is its GNU or Go build ID, or its [`htlhash`].
    #[must_use]
    pub fn read_if_named(file: &File, id: &BuildId) -> Option<Self> {
        let image = Self::read(file).ok()?;
        let is_named = match id {
            BuildId::Gnu(bytes) => image.gnu_build_id.as_ref() == Some(bytes),
            BuildId::Go(text) => image.go_build_id.as_ref() == Some(text),
            BuildId::Htlhash(hash) => htlhash(file).is_ok_and(|own| own == *hash),
        };
        is_named.then_some(image)
    }

    /// The build ID that names this file: the GNU one, else the Go one. Without either, see [`htlhash`].
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        self.gnu_build_id.clone().map(BuildId::Gnu).or_else(|| self.go_build_id.clone().map(BuildId::Go))
    }

    /// The virtual address at which the byte at `file_offset` is loaded; `None` if it is not loaded.
    #[must_use]
    pub fn virtual_address(&self, file_offset: u64) -> Option<u64> {
        virtual_address(&self.segments, file_offset)
    }

    /// The lowest address of the loaded segments, to which a symbol table's addresses are relative.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.segments.iter().map(|segment| segment.address).min().unwrap_or_default()
    }

    /// Adds the build IDs among the notes at `offset`; notes that cannot be read say nothing.
    fn take_notes(&mut self, header: &Header, file: &File, offset: u64, size: u64, align: u64) {
        let Some(bytes) = read_range(file, offset, size.min(limits::NOTE_BYTES_MAX)) else { return };
        let align = if align == 8 { 8 } else { 4 };
        for found in note::notes(&bytes, align, header.big_endian) {
            if found.is_gnu_build_id() && found.descriptor.len() <= limits::GNU_BUILD_ID_BYTES_MAX {
                self.gnu_build_id.get_or_insert_with(|| found.descriptor.to_vec());
            } else if let Some(id) = found.go_build_id().filter(|id| id.len() <= limits::GO_BUILD_ID_BYTES_MAX) {
                self.go_build_id.get_or_insert_with(|| id.to_owned());
            }
        }
    }
}

/// The virtual address at which `segments` load the byte at `file_offset`; a segment with code is preferred.
#[must_use]
pub fn virtual_address(segments: &[Segment], file_offset: u64) -> Option<u64> {
    let address = |segment: &Segment| {
        let within = file_offset.checked_sub(segment.offset).filter(|within| *within < segment.file_size)?;
        segment.address.checked_add(within)
    };
    let code = segments.iter().filter(|segment| segment.executable).find_map(address);
    code.or_else(|| segments.iter().find_map(address))
}

/// The GNU build ID among notes in this machine's byte order, such as the kernel's own in `/sys/kernel/notes`.
#[must_use]
pub fn gnu_build_id(notes: &[u8]) -> Option<Vec<u8>> {
    let mut notes = note::notes(notes, 4, cfg!(target_endian = "big")).filter(note::Note::is_gnu_build_id);
    notes.find(|note| note.descriptor.len() <= limits::GNU_BUILD_ID_BYTES_MAX).map(|note| note.descriptor.to_vec())
}

/// Whether `file` has sections of DWARF, compressed or not.
#[must_use]
pub fn has_dwarf(file: &File) -> bool {
    let names: [&[u8]; 2] = [b".debug_info", b".zdebug_info"];
    Header::read(file).is_ok_and(|header| names.iter().any(|name| header.find_section(file, name).is_some()))
}

/// The hash that names a file without a build ID: the first 16 bytes of SHA-256(first 4096 bytes, last 4096 bytes,
/// length as big-endian u64). In a file below 8192 bytes the two parts overlap; nothing is padded.
///
/// # Errors
///
/// That the file cannot be read, or became shorter meanwhile.
pub fn htlhash(file: &File) -> io::Result<[u8; 16]> {
    const PART_BYTES: u64 = 4096;
    let length = file.metadata()?.len();
    let mut part = vec![0; usize::try_from(length.min(PART_BYTES)).unwrap_or_default()];
    let mut hash = Sha256::new();
    file.read_exact_at(&mut part, 0)?;
    hash.update(&part);
    file.read_exact_at(&mut part, length.saturating_sub(PART_BYTES))?;
    hash.update(&part);
    hash.update(length.to_be_bytes());
    let mut id = [0; 16];
    id.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    Ok(id)
}
