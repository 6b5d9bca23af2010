//! How numbers become bytes: varints, packed blocks of small numbers, sums by stack, events, and the frame around every value.

pub(crate) mod ascending;
pub(crate) mod events;
pub(crate) mod frame;
pub(crate) mod packed;
pub(crate) mod sums;
pub(crate) mod varint;
