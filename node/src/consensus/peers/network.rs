//! The adapter from openraft's network to the connections of this node. Each group has one, and all of them share the
//! connections.
//!
//! A committed index usually travels with the next entries. Openraft makes a request of its own for each one, which
//! would cost a member as much CPU time as the request with the entry.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use openraft::OptionalSend;
use openraft::alias::SnapshotOf;
use openraft::base::{BoxFuture, BoxStream};
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use proto::wire;
use proto::wire::peer_reply::Reply as WireReply;
use tokio::time::{Instant, timeout_at};

use crate::consensus::member::Member;
use crate::consensus::peers::Peers;
use crate::consensus::peers::link::Link;
use crate::consensus::peers::messages::{self, Request};
use crate::consensus::types::{Types, Vote};

/// Longest time that an append with entries waits for its reply. A follower replies after its disk has synced the
/// entries, and a slow disk takes seconds.
const APPEND_PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that any other request waits for its reply. Openraft gives up some of them earlier.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest time that a committed index waits for further entries to travel with. Members apply entries later by this
/// time, which delays no acknowledgement. It is a fraction of the interval of heartbeats.
const COMMIT_DELAY_MAX: Duration = Duration::from_millis(20);

/// The network of one group.
#[derive(Clone, Debug)]
pub(crate) struct GroupNetwork {
    peers: Arc<Peers>,
    shard: u32,
}

impl GroupNetwork {
    pub(super) fn new(peers: Arc<Peers>, shard: u32) -> Self {
        Self { peers, shard }
    }
}

impl RaftNetworkFactory<Types> for GroupNetwork {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, member: &Member) -> Peer {
        let link = self.peers.link(target, &member.address);
        let calls = EarlierCalls::default();
        Peer { peers: Arc::clone(&self.peers), shard: self.shard, target, member: member.clone(), link, calls }
    }
}

/// Drops each request without entries if another request follows within [`COMMIT_DELAY_MAX`]. The later request has a
/// committed index that is at least as large, and its reply stands for both.
fn join_commits<S>(requests: S) -> impl Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin
where
    S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin,
{
    Box::pin(stream::unfold(requests.fuse(), |mut requests| async move {
        let mut request = requests.next().await?;
        let end = Instant::now() + COMMIT_DELAY_MAX;
        while request.entries.is_empty() {
            match timeout_at(end, requests.next()).await {
                Ok(Some(next)) => request = next,
                // Nothing follows a request that looks for the end of the member's log.
                Ok(None) | Err(_) => break,
            }
        }
        Some((request, requests))
    }))
}

/// One member of a group, on another node.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    peers: Arc<Peers>,
    shard: u32,
    target: u64,
    member: Member,
    /// The connection, or the reason why there cannot be one.
    link: Result<Arc<Link>, Arc<str>>,
    calls: EarlierCalls,
}

/// The last reply of the connection as of the last two calls.
///
/// Openraft fixes the commit index of a heartbeat when it queues the heartbeat. It does so after it has taken the one
/// before from the queue, and therefore after the call before that one. The reply as of that call is thus older than
/// the commit index, whatever else the connection has received since.
#[derive(Clone, Debug, Default)]
struct EarlierCalls(Arc<Mutex<[u64; 2]>>);

impl EarlierCalls {
    /// Records a call, and returns the last reply as of the call before the last one. `newest` is the last reply now.
    fn note(&self, newest: u64) -> u64 {
        let [before_last, last] = &mut *self.0.lock();
        std::mem::replace(before_last, std::mem::replace(last, newest))
    }
}

impl Peer {
    async fn call(&self, request: &Request, patience: Duration) -> Result<Option<WireReply>, Unreachable<Types>> {
        let request = wire::PeerRequest {
            // The connection numbers its requests.
            number: 0,
            shard: self.shard,
            sender: self.peers.node_id(),
            directory: Bytes::copy_from_slice(&self.member.directory),
            // The receiver concludes that the request was made after this reply.
            replied: self.link.as_ref().map_or(0, |link| self.calls.note(link.replied())),
            message: Some(request.to_wire(self.shard)),
        };
        let replied = match &self.link {
            Ok(link) => link.call(request, patience).await,
            Err(reason) => Err(Arc::clone(reason)),
        };
        replied.map_err(|error| self.unreachable(&error))
    }

    /// Makes the member fetch a snapshot from this node. Returns when its state has the entry at `index`.
    async fn install(&self, index: u64) -> Result<(), Unreachable<Types>> {
        let Self { peers, shard, target, member, .. } = self;
        let request = wire::InstallRequest {
            shard: *shard,
            sender: peers.node_id(),
            directory: Bytes::copy_from_slice(&member.directory),
            address: peers.address.clone(),
            index,
            cluster: peers.cluster().map(|cluster| cluster.to_wire()).unwrap_or_default(),
        };
        // The receiver of the snapshot logs more. A member whose node is down is tried again and again.
        tracing::debug!(shard, node = target, index, "the member lags behind the log: it is to install a snapshot");
        let installed = peers.install(&member.address, request).await;
        installed.map_err(|error| {
            tracing::debug!(shard, node = target, error, "the member has installed no snapshot: will retry");
            self.unreachable(&error)
        })
    }

    /// Openraft waits before it tries an unreachable member again.
    fn unreachable(&self, error: &dyn std::fmt::Display) -> Unreachable<Types> {
        let Self { target, member, shard, .. } = self;
        Unreachable::from_string(format!("shard {shard}, node {target} at {member}: {error}"))
    }
}

/// Replies to the requests of one stream, in their order.
type Replies<'s> = BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>;

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let patience = if request.entries.is_empty() { PATIENCE } else { APPEND_PATIENCE };
        let previous = request.prev_log_id;
        let reply = self.call(&Request::Append(request), patience).await?;
        let reply = messages::append_reply_from_wire(reply, previous.as_ref());
        Ok(reply.map_err(|error| self.unreachable(&error))?)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        requests: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Replies<'s>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        stream_append_sequential(self, join_commits(requests), option)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let reply = self.call(&Request::Vote(request), PATIENCE).await?;
        Ok(messages::vote_reply_from_wire(reply).map_err(|error| self.unreachable(&error))?)
    }

    // The default implementation would grant the vote.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let reply = self.call(&Request::PreVote(request), PATIENCE).await?;
        Ok(messages::vote_reply_from_wire(reply).map_err(|error| self.unreachable(&error))?)
    }

    // A snapshot holds only committed entries, so the member may install the snapshot of a node that leads no longer.
    // A later leader is found by other messages; the vote in the response is therefore that of this node.
    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, ()>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let index = snapshot.meta.last_log_id.map_or(0, |last| last.index);
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            installed = self.install(index) => {
                installed?;
                Ok(SnapshotResponse::new(vote))
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let message = Request::TransferLeader(request.clone());
        let reply = self.call(&message, PATIENCE).await?;
        let reply = messages::transfer_reply_from_wire(reply, &request);
        Ok(reply.map_err(|error| self.unreachable(&error))?)
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;
    use openraft::EntryPayload;
    use openraft::entry::RaftEntry as _;
    use openraft::vote::RaftLeaderId as _;

    use super::*;
    use crate::consensus::types::{LeaderId, LogEntry, LogId};

    fn log_id(index: u64) -> LogId {
        LogId::new(LeaderId::new(1, 1), index)
    }

    /// Returns a request with entries up to the index `last`, after `previous`.
    fn request(previous: u64, last: u64, committed: u64) -> AppendEntriesRequest<Types> {
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: Some(log_id(previous)),
            entries: (previous + 1..=last).map(|index| LogEntry::new(log_id(index), EntryPayload::Blank)).collect(),
            leader_commit: Some(log_id(committed)),
        }
    }

    /// Returns the number of entries and the committed index of a request.
    fn told(request: &AppendEntriesRequest<Types>) -> (usize, u64) {
        (request.entries.len(), request.leader_commit.map_or(0, |committed| committed.index))
    }

    #[tokio::test]
    async fn a_committed_index_travels_with_the_entries_that_follow() {
        let (sender, requests) = mpsc::unbounded();
        let mut joined = join_commits(requests);
        for made in [request(1, 2, 1), request(2, 2, 2), request(2, 2, 2), request(2, 4, 2), request(4, 5, 2)] {
            sender.unbounded_send(made).unwrap();
        }
        for expected in [(1, 1), (2, 2), (1, 2)] {
            assert_eq!(joined.next().await.as_ref().map(told), Some(expected));
        }
    }

    #[tokio::test]
    async fn a_committed_index_without_further_entries_is_sent_a_moment_later() {
        let (sender, requests) = mpsc::unbounded();
        let mut joined = join_commits(requests);
        let start = Instant::now();
        sender.unbounded_send(request(2, 2, 1)).unwrap();
        sender.unbounded_send(request(2, 2, 2)).unwrap();
        assert_eq!(joined.next().await.as_ref().map(told), Some((0, 2)));
        assert!(start.elapsed() >= COMMIT_DELAY_MAX);
        // The last request of a stream is not lost.
        sender.unbounded_send(request(2, 2, 2)).unwrap();
        drop(sender);
        assert_eq!(joined.next().await.as_ref().map(told), Some((0, 2)));
        assert!(joined.next().await.is_none());
    }
}
