//! Entries of a request's dictionary, both as the OTLP message has them and as normalization converts them.

use proto::dictionary::Attribute;

use crate::ingest::decode::protobuf::{Fields, WireError};
use crate::ingest::normalize::frames::Frames;

/// A location as it was sent. Its lines and attributes are in [`Scratch`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawLocation {
    pub(super) mapping: i64,
    pub(super) address: u64,
}

/// A line as it was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawLine {
    pub(super) function: i64,
    pub(super) line: i64,
    pub(super) column: i64,
}

/// A function as it was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawFunction {
    /// Indices of the name, the system name and the file in the string table.
    pub(super) texts: [i64; 3],
    pub(super) start_line: i64,
}

/// A frame type: the ID of its text, and whether it is the frame type of kernel code.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameType {
    pub(super) id: u32,
    pub(super) is_kernel: bool,
}

/// IDs of a mapping and of the text of its file name.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappingIds {
    pub(super) id: u32,
    pub(super) file: u32,
}

/// Buffers that are reused for all entries.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Frames of the current stack.
    pub(super) frames: Frames,
    /// Lines of the current location.
    pub(super) lines: Vec<RawLine>,
    pub(super) attributes: Vec<u64>,
    pub(super) hashed: Vec<u8>,
}

/// Trace ID and span ID of a link as attributes; `None` for an ID of zeros.
pub(super) type Link = [Option<Attribute>; 2];

impl RawLine {
    pub(super) fn read(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => read.function = value.int64(1)?,
                (2, value) => read.line = value.int64(2)?,
                (3, value) => read.column = value.int64(3)?,
                _ => {}
            }
        }
        Ok(read)
    }
}

impl RawFunction {
    pub(super) fn read(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in Fields::new(message) {
            match field? {
                (number @ 1..=3, value) => read.texts[number as usize - 1] = value.int64(number)?,
                (4, value) => read.start_line = value.int64(4)?,
                _ => {}
            }
        }
        Ok(read)
    }
}
