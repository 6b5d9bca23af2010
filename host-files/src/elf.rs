//! Data in the headers and sections of ELF files: build IDs, loaded segments, debug links and call frame information.
//!
//! Reads a few kilobytes by `pread` and never the whole file, so the cost is the same for a binary of 20 kB and one of
//! 2 GB.
//!
//! Invariant: no number in the file is trusted. Every offset, length and count is checked against the limits in
//! [`crate::limits`] before anything is allocated or read. A part of the file that exceeds a limit is an error, or is
//! skipped.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use proto::BuildId;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::limits;

mod call_frames;
mod debug_link;
mod function_index;
mod go;
mod header;
mod needed;
mod note;
mod symbols;
mod thread_local;

pub use call_frames::{CallFrameSections, debug_data, debug_frame};
pub use debug_link::DebugLink;
pub use function_index::FunctionIndex;
pub use go::{FileRange, GoLayout};
use header::{Header, PT_LOAD, PT_NOTE, SHT_NOTE, read_range};
pub use needed::needed_libraries;
pub use symbols::exported;
pub use thread_local::ThreadLocal;

/// The reason why a file could not be read as ELF.
#[derive(Debug, Error)]
pub enum ElfError {
    /// The file does not begin like an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file of a class, byte order or version that does not exist.
    #[error("unknown ELF class {class}, byte order {byte_order} or version {version}")]
    UnknownFormat {
        /// `EI_CLASS`: 1 is 32 bits, 2 is 64 bits.
        class: u8,
        /// `EI_DATA`: 1 is little-endian, 2 is big-endian.
        byte_order: u8,
        /// `EI_VERSION`; a valid file has 1.
        version: u8,
    },
    /// There are more program headers than any linker writes, or their size is impossible.
    #[error("{count} program headers of {size} bytes, limit is {count_max}")]
    ProgramHeaders {
        /// Number of program headers.
        count: u16,
        /// Size of one program header, in bytes.
        size: u16,
        /// Largest supported number of program headers.
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
    /// Offset of the segment in the file, in bytes.
    pub offset: u64,
    /// Length of the segment in the file, in bytes; 0 in a debug file that `objcopy --only-keep-debug` wrote.
    pub file_size: u64,
    /// Virtual address of the segment.
    pub address: u64,
    /// Length of the segment in memory, in bytes.
    pub memory_size: u64,
    /// True if the segment contains code.
    pub executable: bool,
}

/// Returns the bytes that are loaded at the virtual addresses `range`; `None` if the file does not have them. `image`
/// is that of the file, and the caller limits the length.
#[must_use]
pub fn loaded_bytes(file: &File, image: &ElfImage, range: Range<u64>) -> Option<Vec<u8>> {
    let bytes = range.end.checked_sub(range.start)?;
    let segment = image.segments.iter().find(|segment| {
        let within = range.start.checked_sub(segment.address);
        within.is_some_and(|within| within.checked_add(bytes).is_some_and(|end| end <= segment.file_size))
    })?;
    read_range(file, segment.offset.checked_add(range.start - segment.address)?, bytes)
}

/// Returns the virtual address of a program's entry point; 0 for other files.
///
/// # Errors
/// Any [`ElfError`].
pub fn entry(file: &File) -> Result<u64, ElfError> {
    Ok(Header::read(file)?.entry)
}

/// Returns true if the file has a table of all its symbols, and not only of those that it exports.
///
/// # Errors
/// Any [`ElfError`].
pub fn has_symbol_table(file: &File) -> Result<bool, ElfError> {
    Ok(Header::read(file)?.find_section(file, b".symtab").is_some())
}

/// The identity and layout of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfImage {
    /// GNU build ID, not empty: the descriptor of the note `NT_GNU_BUILD_ID`. `None` if the file has no such note.
    pub gnu_build_id: Option<Vec<u8>>,
    /// Go build ID, not empty; `None` if the file has none.
    pub go_build_id: Option<String>,
    /// Loaded segments, in the order of the program headers.
    pub segments: Vec<Segment>,
}

impl ElfImage {
    /// Reads the headers and notes of `file`. The position of the file is neither used nor moved.
    ///
    /// # Errors
    ///
    /// Any [`ElfError`]. After any error but [`ElfError::Io`], another attempt would fail, too.
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
            // Old linkers write no note segment. eu-strip copies the program headers of the stripped file to the debug
            // file, where they are wrong; the section headers are right.
            for section in header.sections(file).iter().filter(|section| section.kind == SHT_NOTE) {
                image.take_notes(&header, file, section.offset, section.size, section.align);
            }
        }
        Ok(image)
    }

    /// Reads the headers and notes of `file`. `None` unless `id` is the GNU build ID, the Go build ID or the
    /// [`htlhash`] of the file.
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

    /// Build ID of the file: the GNU build ID, or the Go build ID if there is no GNU build ID. `None` if the file has
    /// neither; such a file is identified by its [`htlhash`].
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        self.gnu_build_id.clone().map(BuildId::Gnu).or_else(|| self.go_build_id.clone().map(BuildId::Go))
    }

    /// Virtual address at which the byte at `file_offset` is loaded. `None` if the byte is not loaded.
    #[must_use]
    pub fn virtual_address(&self, file_offset: u64) -> Option<u64> {
        virtual_address(&self.segments, file_offset)
    }

    /// Lowest virtual address of the loaded segments; 0 if there are none.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.segments.iter().map(|segment| segment.address).min().unwrap_or_default()
    }

    /// Reads the notes at `offset`, and adds their build IDs if none of the same kind is known yet. Unreadable notes
    /// are ignored.
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

/// Virtual address at which `segments` load the byte at `file_offset`; `None` if no segment loads it. If several
/// segments load it, one with code is preferred.
#[must_use]
pub fn virtual_address(segments: &[Segment], file_offset: u64) -> Option<u64> {
    let address = |segment: &Segment| {
        let within = file_offset.checked_sub(segment.offset).filter(|within| *within < segment.file_size)?;
        segment.address.checked_add(within)
    };
    let code = segments.iter().filter(|segment| segment.executable).find_map(address);
    code.or_else(|| segments.iter().find_map(address))
}

/// Finds the GNU build ID in notes that have this machine's byte order, such as the kernel's own notes in
/// `/sys/kernel/notes`. `None` if there is none.
#[must_use]
pub fn gnu_build_id(notes: &[u8]) -> Option<Vec<u8>> {
    let mut notes = note::notes(notes, 4, cfg!(target_endian = "big")).filter(note::Note::is_gnu_build_id);
    notes.find(|note| note.descriptor.len() <= limits::GNU_BUILD_ID_BYTES_MAX).map(|note| note.descriptor.to_vec())
}

/// Returns whether `file` has DWARF sections, compressed or not.
#[must_use]
pub fn has_dwarf(file: &File) -> bool {
    let names: [&[u8]; 2] = [b".debug_info", b".zdebug_info"];
    Header::read(file).is_ok_and(|header| names.iter().any(|name| header.find_section(file, name).is_some()))
}

/// Hash that identifies a file without a build ID. It consists of the first 16 bytes of a SHA-256. The hashed bytes are
/// the first 4096 bytes of the file, its last 4096 bytes, and its length as a big-endian u64. In a file of less than
/// 8192 bytes, the two parts overlap. In a file of less than 4096 bytes, each part is the whole file, without padding.
///
/// # Errors
///
/// The error of read(2). [`io::ErrorKind::UnexpectedEof`] if the file became shorter while it was read.
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
