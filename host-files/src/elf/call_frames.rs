//! Call frame information: the sections `.eh_frame` and `.debug_frame` of a program, and `.debug_frame` where it is packed.
//!
//! ```text
//! compressed section | kind u32: 1 zlib, 2 zstd | 0 u32 | unpacked bytes u64 | alignment u64 | stream |     the flag SHF_COMPRESSED says so
//! .zdebug_frame      | "ZLIB" | unpacked bytes u64, big-endian | stream of zlib |                           of old linkers
//! .gnu_debugdata     | stream of xz |                                                       a small ELF file ("MiniDebugInfo")
//! ```
//!
//! Invariant: what is unpacked is read as a stream and cut off at a bound, whatever it says about its own size: no memory is taken for
//! bytes that have not come yet.

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

/// The call frame information of a file, as its sections hold it. Addresses are as the file numbers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFrameSections {
    /// `.eh_frame`: where it is loaded, and its bytes.
    pub eh_frame: Option<(u64, Vec<u8>)>,
    /// `.debug_frame`, where it is not packed: else [`debug_frame`] has it.
    pub debug_frame: Option<Vec<u8>>,
    /// Where `.text` is loaded; empty if there is none.
    pub text: Range<u64>,
    /// Where it is in the file; `None` if it is not.
    text_offset: Option<u64>,
    /// Where the program begins; 0 of a file that is none.
    pub entry: u64,
}

impl CallFrameSections {
    /// Reads those of a file of 64 bits in this machine's byte order, and none of another; what is missing, packed or too large is
    /// left out.
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

    /// A part of `.text`, of the file that this was read of.
    #[must_use]
    pub fn code(&self, file: &File, part: Range<u64>) -> Option<Vec<u8>> {
        let offset = self.text_offset?.checked_add(part.start.checked_sub(self.text.start)?)?;
        let bytes = read_range(file, offset, part.end.checked_sub(part.start)?)?;
        (part.end <= self.text.end).then_some(bytes)
    }
}

/// The section `.debug_frame` of a file, packed or not; `None` if it has none that can be read.
#[must_use]
pub fn debug_frame(file: &File) -> Option<Vec<u8>> {
    let header = native(file).ok()??;
    if let Some((_, plain)) = header.loaded_section(file, b".debug_frame", limits::CALL_FRAME_BYTES_MAX) {
        return Some(plain);
    }
    let packed = |name: &[u8], is_flagged: bool| {
        let section = header.find_section(file, name)?;
        let is_it = section.kind != SHT_NOBITS && section.is_compressed == is_flagged;
        (is_it && section.size <= limits::CALL_FRAME_BYTES_MAX)
            .then(|| read_range(file, section.offset, section.size))?
    };
    if let Some(bytes) = packed(b".debug_frame", true) {
        let (head, stream) = bytes.split_at_checked(COMPRESSION_HEADER_BYTES)?;
        return match u32::from_ne_bytes(*head.first_chunk()?) {
            COMPRESSED_ZLIB => unpack(flate2::read::ZlibDecoder::new(stream)),
            COMPRESSED_ZSTD => {
                let mut decoder = zstd::Decoder::new(stream).ok()?;
                decoder.window_log_max(limits::ZSTD_WINDOW_LOG_MAX).ok()?;
                unpack(decoder)
            }
            _ => None,
        };
    }
    let bytes = packed(b".zdebug_frame", false)?;
    let (_unpacked_bytes, stream) = bytes.strip_prefix(b"ZLIB")?.split_at_checked(8)?;
    unpack(flate2::read::ZlibDecoder::new(stream))
}

/// The small ELF file in the section `.gnu_debugdata`; `None` if there is none that can be read.
#[must_use]
pub fn debug_data(file: &File) -> Option<File> {
    let (_, packed) = native(file).ok()??.loaded_section(file, b".gnu_debugdata", limits::MINI_DEBUG_FILE_BYTES_MAX)?;
    let bytes_max = limits::MINI_DEBUG_FILE_BYTES_MAX;
    let reader = XzReader::new_mem_limit(packed.as_slice(), true, limits::XZ_MEMORY_KIB_MAX);
    let mut unpacked = open::in_memory(b"")?;
    let length = io::copy(&mut reader.take(bytes_max + 1), &mut unpacked).ok()?;
    (length <= bytes_max).then_some(unpacked)
}

/// The header of a file of 64 bits in this machine's byte order.
fn native(file: &File) -> Result<Option<Header>, ElfError> {
    let header = Header::read(file)?;
    Ok((header.wide && header.big_endian == cfg!(target_endian = "big")).then_some(header))
}

/// All of a stream; `None` if it is damaged or too long.
fn unpack(stream: impl Read) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    let length = stream.take(limits::CALL_FRAME_BYTES_MAX + 1).read_to_end(&mut unpacked).ok()?;
    (length as u64 <= limits::CALL_FRAME_BYTES_MAX).then_some(unpacked)
}
