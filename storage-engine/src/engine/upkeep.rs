//! Upkeep: writes, seals, sums and compacts what was applied. No response changes by it.

pub(crate) mod compact;
pub(crate) mod flush;
pub(crate) mod roll_up;
pub(crate) mod seal;
pub(crate) mod snapshot;
pub(crate) mod space;
pub(crate) mod statistics;
