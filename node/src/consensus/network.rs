//! The transport to other members of a group.
//!
//! This version has no transport, because a group has one member. Openraft treats an unreachable member like a member
//! that is down: no entry counts as replicated to it.

use std::future::Future;

use openraft::alias::SnapshotOf;
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, OptionalSend};

use crate::consensus::types::{Types, Vote};

/// Network without connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers;

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer { target, address: node.addr.clone() }
    }
}

/// Connection to one member, which always fails.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    target: u64,
    address: String,
}

impl Peer {
    fn unreachable(&self) -> Unreachable<Types> {
        let Self { target, address } = self;
        Unreachable::from_string(format!("node {target} at {address}: this version replicates to no other node"))
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    // The default implementation would grant the vote.
    async fn pre_vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: SnapshotOf<Types, ()>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(self.unreachable().into())
    }
}
