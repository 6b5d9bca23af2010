//! The machine that the node runs on: its clock, the data directory, and the space on the disk.

pub(crate) mod clock;
pub(crate) mod directory;
pub(crate) mod planted;
pub(crate) mod simulated;
pub(crate) mod space;
