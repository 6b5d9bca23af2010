//! How numbers become bytes: varints, packed blocks of small numbers, sums by stack and how minutes share them, events,
//! timelines, and the frame around every value.

pub(crate) mod ascending;
pub(crate) mod bits;
pub(crate) mod events;
pub(crate) mod frame;
pub(crate) mod packed;
pub(crate) mod share_codes;
pub(crate) mod shares;
pub(crate) mod sorted_events;
pub(crate) mod sums;
pub(crate) mod timeline;
pub(crate) mod varint;
