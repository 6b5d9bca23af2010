//! A node: the replicas of shards, each a Raft log and an engine, behind the gRPC service that routers use.
//!
//! # Promise
//! - Acknowledged = synced to disk on a majority of the shard's members, and applied. A retry with the same batch id counts
//!   once.
//! - A read sees everything that was acknowledged before it was asked.
//! - A failed sync is the end of the replica: it acknowledges and answers nothing any more, see [`Node::failed`].
//! - A full disk refuses appends and goes on reading; when there is space again, appends are accepted again.
//! # Does not
//! Know tenants' limits, HTTP, or names of symbols. In this version a shard has one member; the code path is that of many.
//! # Read in this order
//! `config` → `directory` and `space` (the disk) → `clock` → `consensus` (the log) → `shard` (the engine) → `proposal` → `replica` →
//! `upkeep` (flush, cut, reopen) and `retention` (expire) → `service`, `administration` → `node` (all of it together).

mod administration;
mod clock;
mod config;
mod consensus;
mod directory;
mod error;
mod failure;
mod grpc;
mod metrics;
mod node;
mod proposal;
mod replica;
mod retention;
mod service;
mod shard;
mod space;
mod upkeep;

pub use config::{Config, DISK_BYTES_MIN, Retention};
pub use consensus::RecordError;
pub use error::{NodeError, ReplicaError};
pub use node::{Node, ServeError};
