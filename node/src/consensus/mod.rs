//! Consensus: the only module that implements what openraft asks for and sets what it is used with. [`crate::replica`] proposes
//! to it and reads its refusals, [`crate::shard`] applies its entries; nothing else knows it.
//!
//! # Promise
//! An entry is acknowledged when it is synced on a majority of its shard's members and applied. What openraft stores is in our
//! own encoding ([`record`]), so that another version of it cannot change the disk format.
//! # Read in this order
//! [`types`] → [`record`] (bytes) → [`log_database`], [`recovery`] and [`sync_thread`] (one for all shards) → [`log_store`] →
//! [`state_machine`] → [`network`].

pub(crate) mod log_database;
mod log_store;
#[cfg(test)]
mod log_store_test;
mod network;
mod purged_ranges;
pub(crate) mod record;
mod recovery;
#[cfg(test)]
mod recovery_test;
pub(crate) mod state_machine;
mod sync_thread;
mod synced_mark;
pub(crate) mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::{BasicNode, SnapshotPolicy};

pub(crate) use log_database::LogDatabase;
pub use record::RecordError;
pub(crate) use types::{Payload, Raft};

use crate::error::{NodeError, ReplicaError};
use crate::shard::Shard;
use log_store::LogStore;
use network::Peers;
use state_machine::StateMachine;

/// Of a leader to its followers, milliseconds.
const HEARTBEAT_MS: u64 = 300;
/// How long a follower waits for its leader, milliseconds; a single member does not wait, it is told to stand at once.
const ELECTION_MS_MIN: u64 = 1500;
const ELECTION_MS_MAX: u64 = 3000;

fn options() -> Result<Arc<openraft::Config>, ReplicaError> {
    let options = openraft::Config {
        cluster_name: "varve".to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS_MIN,
        election_timeout_max: ELECTION_MS_MAX,
        enable_pre_vote: Some(true),
        // A leader that restarts would serve what its engine had flushed before it knows what was committed: an election
        // writes an entry of its own, and reads wait until that is applied.
        enable_leader_restore: Some(false),
        // The log is cut when the engine has flushed, not by count.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        ..openraft::Config::default()
    };
    options.validate().map(Arc::new).map_err(stopped)
}

/// Starts this node's member of a shard's group. On the first start the group is made, with this member alone.
///
/// # Errors
/// [`NodeError::Replica`] where log or state cannot be read.
pub(crate) async fn start(
    node_id: u64,
    advertise_address: &str,
    log: &Arc<LogDatabase>,
    shard: &Arc<Shard>,
) -> Result<Raft, NodeError> {
    let store = LogStore::new(shard.id(), Arc::clone(log));
    let machine = StateMachine::new(Arc::clone(shard));
    let raft = Raft::new(node_id, options()?, Peers, store, machine).await.map_err(stopped)?;
    if raft.is_initialized().await.map_err(stopped)? {
        // Nobody else may stand while a leader lives: the vote before the vote asks for that.
        raft.trigger().elect(true).await.map_err(stopped)?;
    } else {
        let members = BTreeMap::from([(node_id, BasicNode::new(advertise_address))]);
        raft.initialize(members).await.map_err(stopped)?;
    }
    Ok(raft)
}

fn stopped(error: impl std::error::Error) -> ReplicaError {
    // As text: openraft's own errors hold types that are not for other modules.
    ReplicaError::Consensus(error.to_string().into())
}
