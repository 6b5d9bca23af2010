//! `.gnu_debuglink`: the name and checksum of the separate debug file.
//!
//! | file name, zero-terminated, padded to a multiple of 4 bytes | CRC-32 of the whole debug file, u32 |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::header::{Header, read_range};
use crate::limits;

/// The name and checksum of the debug file of a stripped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugLink {
    /// Plain file name: not empty, not `.` or `..`, and without a slash.
    pub name: String,
    /// CRC-32 (IEEE) of the debug file.
    pub crc: u32,
}

impl DebugLink {
    /// Reads the debug link in `file`. `None` if the file has none, or if the name in it is not a plain file name.
    #[must_use]
    pub fn read(file: &File) -> Option<Self> {
        let header = Header::read(file).ok()?;
        let section = header.find_section(file, b".gnu_debuglink")?;
        let bytes = read_range(file, section.offset, section.size.min(limits::DEBUG_LINK_BYTES_MAX))?;
        let name_len = bytes.iter().position(|byte| *byte == 0)?;
        let crc = bytes.get((name_len + 1).next_multiple_of(4)..)?.first_chunk().copied()?;
        let crc = if header.big_endian { u32::from_be_bytes(crc) } else { u32::from_le_bytes(crc) };
        let name = String::from_utf8(bytes.get(..name_len)?.to_vec()).ok()?;
        // The name is untrusted. It must not lead out of the searched directories.
        let is_plain = !matches!(name.as_str(), "" | "." | "..") && !name.contains('/');
        is_plain.then_some(Self { name, crc })
    }

    /// Returns whether the content of `file` has the checksum of this link. Reads the whole file. The position of the
    /// file is neither used nor moved.
    ///
    /// # Errors
    ///
    /// The error of read(2).
    pub fn matches(&self, file: &File) -> io::Result<bool> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; 256 << 10];
        let mut offset = 0;
        loop {
            let read = file.read_at(&mut buffer, offset)?;
            let Some(part) = buffer.get(..read).filter(|part| !part.is_empty()) else { break };
            hasher.update(part);
            offset += read as u64;
        }
        Ok(hasher.finalize() == self.crc)
    }
}
