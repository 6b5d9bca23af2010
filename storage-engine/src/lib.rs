//! Durable storage for one shard of profiles: apply entries in log order, select sums.
//!
//! # Promise
//! When [`Engine::flush`] returns a position, everything applied up to it survives a power cut. What is not flushed is in
//! the Raft log, which may be cut only below that position. The same entries give the same answers on every replica.
//! # Does not
//! Know Raft (positions are opaque), talk to a network, read a clock, start a thread, or know a tenant's limits.
//! # Read in this order
//! `key` (what is stored under what) → `encoding`, `chunk`, `windows`, `dictionary_block`, `head_block` (bytes, see `FORMAT.md`) →
//! `footprint`, `vocabulary`, `partition`, `stored_partition`, `run`, `head` (memory) → `engine`, `append`, `flush`, `seal`,
//! `roll_up`, `expire`, `delete` (from samples to windows of all tiers) → `plan`, `gather`, `cursor`, `read`, `select`,
//! `accumulator`, `totals`, `series`, `lacking` (from windows to answers) →
//! `space`, `settle`, `statistics`, `verify` (`signature`), `snapshot`.

use std::path::PathBuf;

use bytes::Bytes;
use proto::Tier;

mod accumulator;
mod adders;
mod append;
mod batch_ids;
mod chunk;
mod cursor;
mod database;
mod delete;
mod dense;
mod dictionary_block;
mod encoding;
mod engine;
mod error;
mod expire;
mod flush;
mod footprint;
mod gather;
mod grouping;
mod head;
mod head_block;
mod key;
mod label_index;
mod lacking;
mod locations;
pub mod manifest;
mod matcher;
mod numbered;
mod partition;
mod plan;
mod quarantine;
mod read;
pub mod record_file;
mod roll_up;
mod run;
mod seal;
mod select;
mod series;
mod settle;
mod signature;
mod snapshot;
mod space;
mod split;
mod stack_filter;
mod state;
mod statistics;
mod stored_partition;
mod stored_rows;
mod strip;
mod totals;
mod tree;
mod verify;
mod verify_partition;
mod vocabulary;
mod windows;

pub use delete::check_deletion;
pub use engine::Engine;
pub use error::{Corruption, CorruptionCheck, EngineError, SelectError, StripError};
pub use quarantine::report::{DamageCounts, DamagedWindow};
pub use space::Extent;
pub use statistics::{SectionBytes, Statistics};
pub use verify::Verified;

/// Where, how large, and how exact.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of this shard alone; made if it is not there.
    pub directory: PathBuf,
    /// Bytes of unsealed samples at which [`Engine::wants_flush`] says so.
    pub head_bytes_max: usize,
    /// Bytes of dictionaries and series in memory over which [`Engine::strip`] refuses what is new.
    pub dictionary_bytes_max: usize,
    /// Bytes of RocksDB's block cache and write buffers; of the latter at least 64 MiB may be filled, whatever this is.
    pub cache_bytes: usize,
    /// How exact times are kept.
    pub time_resolution: TimeResolution,
    /// Labels that windows of hours have not, and those that windows of days have not beside them: those of instances, whose
    /// churn would make years of them large.
    pub dropped_labels: [Vec<String>; 2],
}

impl Config {
    /// Bytes of dictionaries over which partitions that nobody uses are let go: the rest is for what is being written to and asked for.
    /// Where questions need more partitions than fit, each loads them again, which takes seconds for those of many stacks.
    pub(crate) fn idle_dictionary_bytes_max(&self) -> usize {
        self.dictionary_bytes_max / 4 * 3
    }

    pub(crate) fn dropped_labels(&self, tier: Tier) -> &[String] {
        match tier {
            Tier::Raw | Tier::Minute => &[],
            Tier::Hour => &self.dropped_labels[0],
            Tier::Day => &self.dropped_labels[1],
        }
    }
}

/// How exact times are kept: those of raw samples are most of their bytes. A time becomes the end of what it lies in, so no sum over
/// whole minutes changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeResolution {
    /// As they came.
    #[default]
    Nanoseconds,
    /// To the millisecond.
    Milliseconds,
    /// To the minute, the finest window there is.
    Window,
}

impl TimeResolution {
    fn round(self, time_ns: i64) -> i64 {
        let unit_ns = match self {
            Self::Nanoseconds => return time_ns,
            Self::Milliseconds => 1_000_000,
            Self::Window => Tier::Minute.window_ns(),
        };
        time_ns.saturating_sub(1).div_euclid(unit_ns).saturating_add(1).saturating_mul(unit_ns)
    }
}

/// A place in the log. `index` orders; the rest is the log's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Ascending by one.
    pub index: u64,
    /// Whatever the log needs to name the entry again.
    pub log_id: Bytes,
}

/// What is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Up to where; the log may be cut at or below it.
    pub position: Option<Position>,
    /// As of that position.
    pub membership: Option<Bytes>,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the state.
    Applied,
    /// It is in the state without so many of its samples: raw samples of their time were dropped.
    Partial {
        /// How many; may be all.
        samples_too_old: u64,
    },
    /// Its batch id was known: nothing changed.
    Duplicate,
    /// It deleted so much.
    Deleted {
        /// Raw ones.
        samples: u64,
        /// Minutes, hours and days of series, where what is finer was dropped before.
        windows: u64,
    },
    /// It deleted nothing: whether series of this tier match is not known, since the label that this matcher names was left out of
    /// it, or is an attribute of samples.
    Undecidable {
        /// Which tier.
        tier: Tier,
        /// Place among the deletion's matchers.
        matcher: usize,
    },
    /// It refers to definitions that the shard does not have (any more): nothing changed; propose it again with all of them.
    Dangling,
}
