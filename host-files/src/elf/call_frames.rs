//! Call frame information: the sections `.eh_frame` and `.debug_frame`, compressed or not.
//!
//! ```text
//! compressed section | kind u32: 1 zlib, 2 zstd | 0 u32 | size u64 | alignment u64 | stream |   with SHF_COMPRESSED
//! .zdebug_frame      | "ZLIB" | size u64, big-endian | zlib stream |                            of old linkers
//! .gnu_debugdata     | xz stream |                                                a small ELF file ("MiniDebugInfo")
//! ```
//!
//! Invariant: the decompressed size of a section is limited, and the size that the file claims is ignored. A section is
//! decompressed as a stream, so memory is allocated only for bytes that are already decompressed.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use lzma_rust2::XzReader;

use super::ElfError;
use super::header::{Header, SHT_NOBITS, read_range};
use crate::limits;
use crate::open;

const COMPRESSED_ZLIB: u32 = 1;
const COMPRESSED_ZSTD: u32 = 2;
const COMPRESSION_HEADER_BYTES: usize = 24;

/// The uncompressed call frame information of a file. Addresses are virtual addresses of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFrameSections {
    /// Virtual address and bytes of `.eh_frame`; `None` if the section is missing, compressed or too large.
    pub eh_frame: Option<(u64, Vec<u8>)>,
    /// Bytes of `.debug_frame`; `None` if the section is missing, compressed or too large. [`debug_frame`] reads a
    /// compressed section, too.
    pub debug_frame: Option<Vec<u8>>,
    /// Range of virtual addresses of `.text`; empty if the file does not have the section.
    pub text: Range<u64>,
    /// Offset of `.text` in the file, in bytes; `None` if its bytes are not in the file.
    text_offset: Option<u64>,
    /// Virtual address of the entry point of a program; 0 for other files.
    pub entry: u64,
}

impl CallFrameSections {
    /// Reads the sections of a 64-bit file in this machine's byte order. For any other ELF file, the result is empty.
    ///
    /// # Errors
    /// Any [`ElfError`].
    pub fn read(file: &File) -> Result<Self, ElfError> {
        let Some(header) = native(file)? else { return Ok(Self::default()) };
        let section = |name: &[u8]| header.loaded_section(file, name, limits::CALL_FRAME_BYTES_MAX);
        let text = header.find_section(file, b".text");
        let text_offset = text.as_ref().filter(|text| text.kind != SHT_NOBITS).map(|text| text.offset);
        let text = text.map_or(0..0, |text| text.address..text.address.saturating_add(text.size));
        let debug_frame = section(b".debug_frame").map(|(_, bytes)| bytes);
        Ok(Self { eh_frame: section(b".eh_frame"), debug_frame, text, text_offset, entry: header.entry })
    }

    /// Reads the bytes at the virtual addresses `part`, which must be in `.text`. `None` if they are not in `.text` or
    /// not in the file. `file` must be the file from which the sections were read.
    #[must_use]
    pub fn code(&self, file: &File, part: Range<u64>) -> Option<Vec<u8>> {
        let offset = self.text_offset?.checked_add(part.start.checked_sub(self.text.start)?)?;
        let bytes = read_range(file, offset, part.end.checked_sub(part.start)?)?;
        (part.end <= self.text.end).then_some(bytes)
    }
}

/// Reads the section `.debug_frame` of a file, whether it is compressed or not. `None` if the section is missing,
/// unreadable or too large.
#[must_use]
pub fn debug_frame(file: &File) -> Option<Vec<u8>> {
    let header = native(file).ok()??;
    if let Some((_, plain)) = header.loaded_section(file, b".debug_frame", limits::CALL_FRAME_BYTES_MAX) {
        return Some(plain);
    }
    let compressed = |name: &[u8], is_flagged: bool| {
        let section = header.find_section(file, name)?;
        let is_it = section.kind != SHT_NOBITS && section.is_compressed == is_flagged;
        (is_it && section.size <= limits::CALL_FRAME_BYTES_MAX)
            .then(|| read_range(file, section.offset, section.size))?
    };
    if let Some(bytes) = compressed(b".debug_frame", true) {
        let (head, stream) = bytes.split_at_checked(COMPRESSION_HEADER_BYTES)?;
        return match u32::from_ne_bytes(*head.first_chunk()?) {
            COMPRESSED_ZLIB => read_stream(flate2::read::ZlibDecoder::new(stream)),
            COMPRESSED_ZSTD => {
                let mut decoder = zstd::Decoder::new(stream).ok()?;
                decoder.window_log_max(limits::ZSTD_WINDOW_LOG_MAX).ok()?;
                read_stream(decoder)
            }
            _ => None,
        };
    }
    let bytes = compressed(b".zdebug_frame", false)?;
    let (_size, stream) = bytes.strip_prefix(b"ZLIB")?.split_at_checked(8)?;
    read_stream(flate2::read::ZlibDecoder::new(stream))
}

/// Decompresses the ELF file in the section `.gnu_debugdata` to a file in memory. `None` if the section is missing,
/// unreadable or too large.
#[must_use]
pub fn debug_data(file: &File) -> Option<File> {
    let (_, compressed) =
        native(file).ok()??.loaded_section(file, b".gnu_debugdata", limits::MINI_DEBUG_FILE_BYTES_MAX)?;
    let bytes_max = limits::MINI_DEBUG_FILE_BYTES_MAX;
    let reader = XzReader::new_mem_limit(compressed.as_slice(), true, limits::XZ_MEMORY_KIB_MAX);
    let mut bytes = open::in_memory(b"")?;
    let length = io::copy(&mut reader.take(bytes_max + 1), &mut bytes).ok()?;
    (length <= bytes_max).then_some(bytes)
}

/// Reads the header of a 64-bit file in this machine's byte order. `None` for other ELF files.
pub(super) fn native(file: &File) -> Result<Option<Header>, ElfError> {
    let header = Header::read(file)?;
    Ok((header.wide && header.big_endian == cfg!(target_endian = "big")).then_some(header))
}

/// Reads a whole stream. `None` if it is damaged or too long.
fn read_stream(stream: impl Read) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = stream.take(limits::CALL_FRAME_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (length as u64 <= limits::CALL_FRAME_BYTES_MAX).then_some(bytes)
}
