//! Consensus: the log, the state machine and the Raft group of a shard. Only this folder uses openraft.
//!
//! # Promise
//! An entry is acknowledged when a majority of its shard's members has synced the entry and this node has applied it.
//! All records on disk have varve's own encoding ([`record`]), so that another version of openraft cannot change the
//! disk format.
//! # Layers
//! Each module uses only the modules to its left in this list: [`payload`], [`types`], [`record`], [`log`],
//! [`state_machine`], [`network`], [`group`].

mod error;
mod group;
mod log;
mod network;
mod payload;
mod proposal;
mod record;
mod state_machine;
mod types;

pub(crate) use error::ConsensusError;
pub(crate) use group::Group;
pub(crate) use log::{LogDatabase, LogStore};
pub(crate) use proposal::Proposal;
