//! The node as a part of a cluster: its member of the meta group, and the duties that the state of the group gives it.
//!
//! The first start of a cluster creates the meta group. Only the initial node with the smallest id creates it, and only
//! after all initial nodes have said that their data directories are empty. A node whose directory was lost therefore
//! never makes a second cluster. Data shards are created by the member that the meta group names. Later nodes register
//! themselves in the meta group.

mod bootstrap;
mod duties;
mod forward;
mod members;
mod replicas;
mod service;
#[cfg(test)]
mod simulation;
mod status;
mod supervise;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::meta::{Shard, State};
use proto::placement::Placement;
use tokio::sync::watch;
use tonic::Status;

use crate::consensus::{DirectoryId, Member};
use crate::error::ReplicaError;
use crate::meta::MetaReplica;

pub(super) use self::bootstrap::call;
pub(super) use self::forward::propose;
pub(super) use self::replicas::open_known;
pub(super) use self::supervise::supervise;

/// State of the cluster, as far as the node knows it.
#[derive(Debug)]
pub(super) struct Cluster {
    node_id: u64,
    directory: DirectoryId,
    /// State of the meta group, as far as this node has applied it.
    pub(super) state: watch::Sender<Arc<State>>,
    /// The member of the meta group; `None` while it is closed.
    pub(super) replica: watch::Sender<Option<Arc<MetaReplica>>>,
    /// The error after which the member is not opened again.
    pub(super) failure: watch::Sender<Option<Arc<ReplicaError>>>,
    /// The placement of the newest state, with the state's revision.
    placement: Mutex<Option<(u64, Arc<Placement>)>>,
}

impl Cluster {
    pub(super) fn new(node_id: u64, directory: DirectoryId) -> Self {
        Self {
            node_id,
            directory,
            state: watch::Sender::new(Arc::default()),
            replica: watch::Sender::new(None),
            failure: watch::Sender::new(None),
            placement: Mutex::default(),
        }
    }

    /// Returns the identity of the data directory.
    #[cfg(test)]
    pub(super) fn directory(&self) -> DirectoryId {
        self.directory
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.borrow())
    }

    /// Returns the placement.
    ///
    /// # Errors
    /// UNAVAILABLE: the cluster has no placement yet, or this node does not know it yet.
    pub(super) fn placement(&self) -> Result<Arc<Placement>, Status> {
        let state = self.state();
        let mut kept = self.placement.lock();
        if let Some((revision, placement)) = kept.as_ref()
            && *revision == state.revision
        {
            return Ok(Arc::clone(placement));
        }
        let placement = state.placement().map(Arc::new);
        let placement = placement.ok_or_else(|| Status::unavailable("the cluster is being created: try again"))?;
        *kept = Some((state.revision, Arc::clone(&placement)));
        Ok(placement)
    }

    /// Returns the identities of the replicas that this node is to hold, by shard. There is none if the state names
    /// another data directory of this node.
    pub(super) fn own_replicas(&self, state: &State) -> BTreeMap<u32, DirectoryId> {
        if !self.is_known(state) {
            return BTreeMap::new();
        }
        let own = |shard: &Shard| Some((shard.number, identity_of(shard.replica_on(self.node_id)?)));
        state.shards.values().filter_map(own).collect()
    }

    /// Returns true if the state names the data directory of this node.
    pub(super) fn is_known(&self, state: &State) -> bool {
        let known = state.nodes.get(&self.node_id);
        known.is_some_and(|node| node.directory.0.to_be_bytes() == self.directory)
    }

    /// Returns true if the replica of a shard on this node replaces a lost one, and is no voter yet.
    pub(super) fn is_replaced_here(&self, state: &State, shard: u32) -> bool {
        let Some(shard) = state.shards.get(&shard) else { return false };
        shard.member(self.node_id).is_some_and(|member| shard.replica_on(self.node_id) != Some(member))
    }

    /// Returns the members with which this node must create the group of a shard; `None` if the group exists, or if
    /// another node creates it.
    pub(super) fn to_create(&self, shard: u32) -> Option<BTreeMap<u64, Member>> {
        let state = self.state();
        let shard = state.shards.get(&shard)?;
        // With a new directory, the node cannot know if it has created the group before.
        let is_original = shard.member(self.node_id).is_some_and(|member| identity_of(member) == self.directory);
        if shard.is_created || shard.creator != self.node_id || !is_original {
            return None;
        }
        let member = |member: &proto::meta::Member| {
            let address = state.nodes.get(&member.node)?.address.clone();
            Some((member.node, Member { address, directory: identity_of(member) }))
        };
        shard.members.iter().map(member).collect()
    }
}

/// Returns the identity of a member's replica, as the members of Raft groups have it.
fn identity_of(member: &proto::meta::Member) -> DirectoryId {
    member.directory.0.to_be_bytes()
}
