//! Upkeep: writes, seals, sums and compacts applied samples.
//!
//! Upkeep changes no response.

pub(crate) mod checkpoint;
pub(crate) mod compact;
pub(crate) mod flush;
pub(crate) mod roll_up;
pub(crate) mod seal;
pub(crate) mod service_rates;
pub(crate) mod space;
pub(crate) mod statistics;
pub(crate) mod stored_chunks;
