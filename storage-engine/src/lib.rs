//! Durable storage for one shard of profiles: applies entries in log order, and selects sums.
//!
//! # Promise
//! When [`Engine::flush`] returns a position, everything applied up to it survives a power cut. Later entries are in
//! the Raft log, which may be purged only up to that position. The same entries give the same responses on every
//! replica.
//! # Limits
//! The engine does not know Raft (positions are opaque) or limits of tenants. It uses no network, clock or thread.
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
    /// Index of the entry; consecutive.
    pub index: u64,
    /// The log's own ID of the entry, opaque here.
    pub log_id: Bytes,
}

/// The durable part of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Position up to which everything is durable; the log may be purged up to it.
    pub position: Option<Position>,
    /// Membership as of that position.
    pub membership: Option<Bytes>,
}

/// Result of applying an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The entry is in the state.
    Applied,
    /// The entry is in the state, but raw samples of the time of some of its samples were dropped already.
    Partial {
        /// Number of samples that were not stored; may be all.
        samples_too_old: u64,
    },
    /// The batch ID was known, and nothing changed.
    Duplicate,
    /// A deletion.
    Deleted {
        /// Raw samples that were deleted.
        samples: u64,
        /// Deleted minutes, hours and days of series whose finer tiers had been dropped.
        windows: u64,
    },
    /// Nothing was deleted, because it is undecidable which series of a tier match: the tier dropped the label of this
    /// matcher, or the label is an attribute of samples.
    Undecidable {
        /// The tier.
        tier: Tier,
        /// Index of the matcher in the deletion.
        matcher: usize,
    },
    /// The entry refers to definitions that the shard does not have, and nothing changed. Propose it again with all
    /// definitions.
    Dangling,
}
