//! A node: it holds replicas of shards, and serves them to routers over gRPC. A replica is the Raft group and the
//! engine of one shard. The Raft logs of all shards are in one database, so that one sync serves all of them.
//!
//! # Promise
//! - A batch is acknowledged after it is synced to disk on a majority of the shard's members, and applied. A batch that
//!   is sent again with the same batch id is stored once.
//! - A query sees everything that was acknowledged before it.
//! - A failed sync ends all replicas: nothing is acknowledged any more, and no queries are served (see
//!   [`Node::failed`]).
//! - If the disk is full, appends are refused and queries are served. When there is space, appends are accepted again.
//! - A shard with a failure of its own fails alone: requests to other shards are served.
//! - All shards together stay within the memory budgets of the node.
//! # Limits
//! The node knows nothing of HTTP, of limits for tenants, or of the names of symbols. The members of a shard do not
//! change after its creation.
//! # Layers
//! A module uses only modules on the lines above its own.
//! - `error`, `failure`; `config`, `metrics`; `host` (data directory, disk space, clock)
//! - `consensus` (log, state machine, Raft groups, transport); `meta` (the meta group)
//! - `shard` (the engine, as the state of a group, and its snapshots)
//! - `node` (replicas, requests, the cluster, upkeep, retention, administration)

mod config;
mod consensus;
mod error;
mod failure;
mod host;
pub mod meta;
mod metrics;
mod node;
mod shard;

use host::{clock, directory, sharers, space};

pub use config::{Config, DISK_BYTES_MIN, Retention, Site};
pub use error::{NodeError, RecordError, ReplicaError};
pub use node::{Node, ServeError, UnreadyShard};
