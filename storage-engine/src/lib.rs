//! Durable storage for one shard of profiles: apply entries in log order, select sums.
//!
//! # Promise
//! When [`Engine::flush`] returns a position, everything applied up to it survives a power cut. What is not flushed is in
//! the Raft log, which may be cut only below that position. The same entries give the same answers on every replica.
//! # Does not
//! Know Raft (positions are opaque), talk to a network, read a clock, start a thread, or know a tenant's limits.
//! # Read in this order
//! `key` (what is stored under what) → `block`, `chunk` (bytes, see `FORMAT.md`) → `partition` (memory) → `engine` (apply,
//! seal, flush) → `select`, `series`; `space` (what partitions take on disk).

use std::path::PathBuf;

use bytes::Bytes;

mod batch_ids;
mod block;
mod chunk;
mod database;
mod engine;
mod error;
mod key;
mod matcher;
mod partition;
mod select;
mod series;
mod space;
mod split;
mod strip;
mod tree;

pub use engine::Engine;
pub use error::{Corruption, CorruptionCheck, EngineError, SelectError, StripError};

/// Where and how large.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of this shard alone; made if it is not there.
    pub directory: PathBuf,
    /// Bytes of unsealed samples at which [`Engine::wants_flush`] says so.
    pub head_bytes_max: usize,
    /// Bytes of dictionaries and series in memory over which [`Engine::strip`] refuses what is new.
    pub dictionary_bytes_max: usize,
    /// Bytes of RocksDB's block cache.
    pub cache_bytes: usize,
}

/// A place in the log. `index` orders; the rest is the log's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Ascending by one.
    pub index: u64,
    /// Whatever the log needs to name the entry again.
    pub log_id: Bytes,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the state.
    Applied,
    /// Its batch id was known: nothing changed.
    Duplicate,
    /// It refers to definitions that the shard does not have (any more): nothing changed; propose it again with all of them.
    Dangling,
}
