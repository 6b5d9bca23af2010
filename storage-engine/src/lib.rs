//! Durable storage for one shard of profiles: applies entries in log order, and selects sums.
//!
//! # Promise
//! When [`Engine::flush`] returns a position, everything applied up to it survives a power cut. Later entries are in
//! the Raft log, which may be purged only up to that position. The same entries give the same responses on every
//! replica.
//! # Limits
//! The engine does not know Raft (positions are opaque) or limits of tenants. It uses no network, and starts no thread.
//! It reads no clock.
//! # Read in this order
//! `encoding` (values, see `FORMAT.md`) → `database` (keys) → `memory` (unsealed samples, dictionaries) → `engine` (the
//! interface, store and state, entries, upkeep) → `select` (queries) → `integrity` (damage).

use bytes::Bytes;
use proto::Tier;

mod config;
mod database;
mod encoding;
mod engine;
mod error;
mod integrity;
mod memory;
mod select;

pub use config::{Config, TimeResolution};
pub use engine::Engine;
pub use engine::apply::delete::check_deletion;
pub use engine::upkeep::space::Extent;
pub use engine::upkeep::statistics::{SectionBytes, Statistics};
pub use error::{Corruption, CorruptionCheck, EngineError, SelectError, StripError};
pub use integrity::quarantine::report::{DamageCounts, DamagedWindow};
pub use integrity::verify::Verified;

/// A position in the log. Positions are ordered by `index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Index of the entry in the log. Indexes are consecutive.
    pub index: u64,
    /// ID that the log gives to the entry. The engine does not interpret it.
    pub log_id: Bytes,
}

/// State that is durable after a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Position up to which everything is durable; `None` if no entry was applied. The log may be purged up to this
    /// position.
    pub position: Option<Position>,
    /// Membership as of this position.
    pub membership: Option<Bytes>,
}

/// Result of applying an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The entry is in the state.
    Applied,
    /// The entry is in the state, except for samples of times whose raw samples were dropped.
    Partial {
        /// Number of samples that were not stored. It may be the number of all samples of the entry.
        samples_too_old: u64,
    },
    /// A batch with the same ID was applied before, and nothing changed.
    Duplicate,
    /// The entry is a deletion, and was applied.
    Deleted {
        /// Number of raw samples that were deleted.
        samples: u64,
        /// Number of minutes, hours and days that were deleted because their finer tier had been dropped.
        windows: u64,
    },
    /// The entry is a deletion, and nothing was deleted. It is undecidable which series of a tier match: the tier
    /// dropped the label of one matcher, or the label is an attribute of samples.
    Undecidable {
        /// Tier with the undecidable series.
        tier: Tier,
        /// Index of the undecidable matcher in the deletion.
        matcher: usize,
    },
    /// The entry omits definitions that the shard does not have, and nothing changed. The batch must be proposed again
    /// with all definitions.
    Dangling,
}
