//! Encodings of values: numbers, sums, events and timelines, and the chunks, windows and blocks that consist of them.
//!
//! FORMAT.md specifies each encoding.

pub(crate) mod ascending;
pub(crate) mod bits;
pub(crate) mod chunk;
pub(crate) mod events;
pub(crate) mod head_block;
pub(crate) mod packed;
pub(crate) mod shares;
pub(crate) mod slot_sums;
pub(crate) mod sums;
pub(crate) mod timeline;
pub(crate) mod varint;
pub(crate) mod windows;
