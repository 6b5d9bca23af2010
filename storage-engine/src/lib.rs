//! Durable storage of the profiles of one shard: applies log entries in order, and answers queries with sums of
//! samples.
//!
//! # Promise
//! When [`Engine::flush`] returns a position, every entry up to it survives a power cut. Later entries are safe only in
//! the Raft log, so the log must keep them. Replicas that applied the same entries give the same responses, except to
//! queries for labels or attributes that a coarser tier dropped, and for sums of gauges. A replica that has summed up
//! more hours and days may refuse such a query, list series without the label, or report more times as missing. Missing
//! times may also differ in times without samples.
//! # Limits
//! The engine knows neither Raft (it does not interpret log IDs) nor limits of tenants. It uses no network and reads no
//! clock. It starts threads only for the time of a large query.
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

pub use config::{Config, LogBarrier, LogError};
pub use engine::Engine;
pub use engine::apply::delete::check_deletion;
pub use engine::upkeep::checkpoint::stored_position;
pub use engine::upkeep::service_rates::ServiceRate;
pub use engine::upkeep::space::Extent;
pub use engine::upkeep::statistics::{SectionBytes, Statistics};
pub use error::{Corruption, CorruptionCheck, EngineError, SelectError, StripError};
pub use integrity::quarantine::report::{DamageCounts, DamagedWindow};
pub use integrity::verify::Verified;
pub use integrity::verify::content::Content;
pub use memory::budgets::{BudgetSizes, Budgets};

/// A position in the log. Positions are ordered by `index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Index of the entry in the log. Indexes are consecutive.
    pub index: u64,
    /// ID of the entry, in the log's own encoding. The engine stores it, and does not interpret it.
    pub log_id: Bytes,
}

/// State that is durable after a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Position up to which everything is durable; `None` if no entry was applied. The log may be purged up to this
    /// position.
    pub position: Option<Position>,
    /// Membership of the Raft group as of this position, in the log's encoding; `None` if no entry set one.
    pub membership: Option<Bytes>,
}

/// Result of applying an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole entry was applied.
    Applied,
    /// The entry was applied, but without its samples from times whose raw samples have expired.
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
        /// Number of sums of a minute, an hour or a day that were deleted because their finer tier had expired.
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
