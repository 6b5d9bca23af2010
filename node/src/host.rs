//! The machine that the node runs on: its clock, the data directory, the space on the disk, and shared budgets.

pub(crate) mod clock;
pub(crate) mod directory;
pub(crate) mod planted;
pub(crate) mod sharers;
pub(crate) mod simulated;
pub(crate) mod space;
