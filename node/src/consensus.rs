//! Consensus: Raft groups, their logs, and the transport between their members. Only this folder uses openraft.
//!
//! # Promise
//! An entry is acknowledged when a majority of its shard's members has synced the entry and this node has applied it.
//! All records on disk have varve's own encoding ([`record`]), so that another version of openraft cannot change the
//! disk format.
//! # Layers
//! Each module uses only the modules to its left in this list: [`member`], [`payload`], [`state`], [`types`],
//! [`record`], [`log`], [`state_machine`], [`freshness`], [`group`], [`peers`].

mod error;
mod freshness;
mod group;
mod log;
mod member;
mod payload;
mod peers;
mod record;
mod state;
mod state_machine;
mod types;

pub(crate) use error::{ConsensusError, Leader};
pub(crate) use group::Group;
pub(crate) use group::membership::{Change, Voters, Wanted};
#[cfg(test)]
pub(crate) use log::simulated as simulated_log;
pub(crate) use log::{LogDatabase, LogStore, Terms, random_identity};
pub(crate) use member::{DirectoryId, Member, ReplicaRecord};
pub(crate) use payload::{Payload, Proposal};
#[cfg(test)]
pub(crate) use peers::scripted;
#[cfg(test)]
pub(crate) use peers::simulated as simulated_network;
pub(crate) use peers::{Install, Peers, Receiving};
pub(crate) use state::{GroupState, Outcome};
