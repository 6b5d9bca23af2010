//! A node: the replicas of shards, each a Raft log and an engine, and the gRPC service that routers call.
//!
//! # Promise
//! - Acknowledged means synced to disk on a majority of the shard's members, and applied. A batch that is retried with
//!   its batch id is stored once.
//! - A query sees everything that was acknowledged before it.
//! - A failed sync ends the replica, which then acknowledges nothing and serves no queries (see [`Node::failed`]).
//! - If the disk is full, appends are refused and queries are served. When there is space, appends are accepted again.
//! # Limits
//! The node does not know limits of tenants, HTTP, or names of symbols. In this version a shard has one member, but the
//! code is that for several members.
//! # Layers
//! Each module uses only modules of the lines above.
//! - `error`, `failure`; `config`, `metrics`; `directory`, `space` (the disk); `clock`
//! - `shard` (the engine)
//! - `consensus` (log, state machine, Raft group)
//! - `replica` (all of these for one shard)
//! - `node` (requests, upkeep, retention, administration)

mod clock;
mod config;
mod consensus;
mod directory;
mod error;
mod failure;
mod metrics;
mod node;
mod replica;
mod shard;
mod space;

pub use config::{Config, DISK_BYTES_MIN, Retention};
pub use error::{NodeError, RecordError, ReplicaError};
pub use node::{Node, ServeError};
