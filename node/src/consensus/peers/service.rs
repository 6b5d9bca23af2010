//! The gRPC service that receives the messages of other nodes, and passes each to the member of its group.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use futures::{Stream, stream};
use openraft::raft::AppendEntriesResponse;
use prost::Message as _;
use proto::meta::ClusterId;
use proto::wire;
use proto::wire::peer_reply::Reply as WireReply;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use crate::consensus::group::Handle;
use crate::consensus::member::DirectoryId;
use crate::consensus::peers::messages::{self, Request as Message};
use crate::consensus::peers::replies::SentReplies;
use crate::consensus::peers::{Members, Peers, Registered};
use crate::consensus::types::LogId;

/// Largest total size of the requests of one stream that are processed at one time, in bytes. Further requests wait in
/// the connection. A peer that keeps to its own limit on entries in flight never waits.
const PROCESSED_BYTES_MAX: usize = 64 << 20;
/// Size that each request counts at least, in bytes.
const PROCESSED_BYTES_MIN: usize = 1 << 10;
/// Largest number of replies in one message.
const REPLIES_MAX: usize = 1024;

#[tonic::async_trait]
impl wire::peers_server::Peers for Peers {
    type ExchangeStream = Pin<Box<dyn Stream<Item = Result<wire::PeerReplies, Status>> + Send>>;

    async fn exchange(
        &self,
        request: Request<Streaming<wire::PeerRequests>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let (replies, replied) = mpsc::channel(REPLIES_MAX);
        let receiver = self.receiver(transport::require_node(&request)?);
        let closed = self.closed();
        tokio::spawn(async move {
            closed.run_until_cancelled(process(receiver, request.into_inner(), replies)).await;
        });
        let replies = stream::unfold(replied, |mut replied| async move {
            let mut replies = Vec::new();
            // Zero means that the stream of requests has ended, and all of them have their replies.
            let received = replied.recv_many(&mut replies, REPLIES_MAX).await;
            (received > 0).then_some((Ok(wire::PeerReplies { replies }), replied))
        });
        Ok(Response::new(Box::pin(replies)))
    }

    async fn install(&self, request: Request<wire::InstallRequest>) -> Result<Response<wire::InstallResponse>, Status> {
        let receiver = self.receiver(transport::require_node(&request)?);
        let request = request.into_inner();
        let wire::InstallRequest { shard, sender, .. } = request;
        if let Err(refusal) = receiver.check_sender(&request.cluster, sender) {
            tracing::warn!(shard, sender, refusal, "a request to install a snapshot is refused");
            return Err(Status::failed_precondition(refusal));
        }
        let installed = self.closed().run_until_cancelled_owned(self.installs.request(request)).await;
        installed.unwrap_or_else(|| Err(Status::unavailable("the node is stopping"))).map(Response::new)
    }
}

/// Returns the refusal of a message for another replica than that of this node.
fn of_other_directory(node: u64) -> String {
    format!(
        "node {node} has a new, empty data directory, or another replica of the shard, or another node answers at its \
         address: it takes no part in the group, because it may have voted and acknowledged with the old replica; \
         mount the disk with the old directory again, or run `varve admin cluster accept --node {node}`"
    )
}

/// Everything that processing a request needs.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    pub(super) node_id: u64,
    pub(super) directory: DirectoryId,
    pub(super) cluster: Arc<OnceLock<ClusterId>>,
    /// Node of the peer's certificate; `None` without TLS.
    pub(super) peer: Option<u64>,
    pub(super) members: Members,
}

/// Processes the requests of one stream, many at one time, until the sender or the receiver of replies is gone.
async fn process(
    receiver: Receiver,
    mut messages: Streaming<wire::PeerRequests>,
    replies: mpsc::Sender<wire::PeerReply>,
) {
    let permits = Arc::new(Semaphore::new(PROCESSED_BYTES_MAX));
    let sent = Arc::new(SentReplies::default());
    // Dropping the set ends the requests that are being processed.
    let mut processed = JoinSet::new();
    loop {
        let message = tokio::select! {
            message = messages.message() => message,
            () = replies.closed() => return,
        };
        let Ok(Some(wire::PeerRequests { requests, cluster })) = message else { break };
        for request in requests {
            let cluster = cluster.clone();
            let bytes = request.encoded_len().clamp(PROCESSED_BYTES_MIN, PROCESSED_BYTES_MAX);
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_many_owned(bytes).await else { return };
            let receiver = receiver.clone();
            let replies = replies.clone();
            let sent = Arc::clone(&sent);
            processed.spawn(async move {
                let number = request.number;
                let made_after = sent.time_of(request.replied);
                let reply = receiver.reply(&cluster, request, made_after).await;
                sent.add(number, Instant::now());
                // If the receiver is gone, nobody waits for the reply.
                let _gone = replies.send(wire::PeerReply { number, reply: Some(reply) }).await.is_err();
                drop(permit);
            });
            while processed.try_join_next().is_some() {}
        }
    }
    drop(replies);
    while processed.join_next().await.is_some() {}
}

impl Receiver {
    /// Checks the cluster and the node that a request names as its sender.
    ///
    /// # Errors
    /// The fault, with the remedy.
    pub(super) fn check_sender(&self, cluster: &[u8], sender: u64) -> Result<(), String> {
        // A node does not know its cluster before it has a member of the meta group.
        if let Some(own) = self.cluster.get()
            && !cluster.is_empty()
            && *cluster != own.0.to_be_bytes()
        {
            return Err(format!(
                "node {} belongs to cluster {own}, and the request is of another cluster: correct the address of this \
                 node in that cluster",
                self.node_id
            ));
        }
        match self.peer {
            Some(peer) if peer != sender => Err(format!(
                "the request names node {sender} as its sender, and the certificate is that of node {peer}: start \
                 each node with its own certificate"
            )),
            _ => Ok(()),
        }
    }

    /// Processes a request. A request that is refused changes nothing. The request was made after `made_after`, as far
    /// as this is known.
    pub(super) async fn reply(
        &self,
        cluster: &[u8],
        request: wire::PeerRequest,
        made_after: Option<Instant>,
    ) -> WireReply {
        let wire::PeerRequest { shard, sender, directory, message, .. } = request;
        let node = self.node_id;
        if let Err(refusal) = self.check_sender(cluster, sender) {
            tracing::warn!(shard, sender, refusal, "a message is refused");
            return messages::refusal(&refusal);
        }
        let member = self.members.lock().get(&shard).cloned();
        let expected = member.as_ref().map_or(self.directory, |member| member.identity);
        if *directory != expected {
            tracing::debug!(shard, sender, "a message for another replica is refused");
            return messages::refusal(&of_other_directory(node));
        }
        let Some(Registered { handle, .. }) = member else {
            return messages::refusal(&format!("node {node} has no running member of shard {shard}"));
        };
        let Some(message) = message else { return messages::refusal(&"the request has no message") };
        match Message::from_wire(shard, message) {
            Ok(message) if message.node() != sender => {
                let other = message.node();
                tracing::warn!(shard, sender, other, "a message with the vote of another node is refused");
                messages::refusal(&format!("the vote is that of node {other}, and the sender is node {sender}"))
            }
            Ok(message) => processed(&handle, message, made_after).await,
            Err(error) => {
                tracing::warn!(shard, sender, %error, "a message of a peer is refused");
                messages::refusal(&error)
            }
        }
    }
}

async fn processed(handle: &Handle, message: Message, made_after: Option<Instant>) -> WireReply {
    let raft = &handle.raft;
    let reply = match message {
        Message::Append(request) => {
            // A request with entries may be made long after its committed index was read.
            let is_heartbeat = request.entries.is_empty();
            let leader = (request.vote.leader_id.term, request.vote.leader_id.node_id);
            let is_own = |log_id: &&LogId| (log_id.leader_id.term, log_id.leader_id.node_id) == leader;
            let committed = request.leader_commit.as_ref().filter(|_| is_heartbeat).filter(is_own);
            let committed = committed.map(|log_id| log_id.index);
            let reply = raft.append_entries(request).await;
            if reply.as_ref().is_ok_and(|reply| !matches!(reply, AppendEntriesResponse::HigherVote(_))) {
                handle.heard_leader();
                if let (Some(made_after), Some(committed)) = (made_after, committed) {
                    handle.freshness.note(made_after, committed);
                }
            }
            reply.map(messages::append_reply)
        }
        Message::Vote(request) => {
            let reply = raft.vote(request).await;
            if reply.as_ref().is_ok_and(|reply| reply.vote_granted) {
                handle.heard();
            }
            reply.map(|reply| messages::vote_reply(&reply))
        }
        Message::PreVote(request) => raft.pre_vote(request).await.map(|reply| messages::vote_reply(&reply)),
        Message::TransferLeader(request) => {
            let reply = raft.handle_transfer_leader(request).await;
            return reply.map_or_else(|fatal| messages::refusal(&fatal), messages::transfer_reply);
        }
    };
    reply.unwrap_or_else(|error| messages::refusal(&error))
}
