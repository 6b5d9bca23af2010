//! The network as one node sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prost::Message as _;
use proto::wire;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use crate::consensus::simulated_network::{Stream, Wire};
use crate::node::cluster::simulation::Sim;
use crate::node::cluster::simulation::node::Running;
use crate::node::cluster::simulation::planted::Planted;

/// The end of the network on one node.
#[derive(Debug)]
pub(super) struct NodeWire {
    pub(super) sim: Arc<Sim>,
    pub(super) from: u64,
    /// Cancelled when the node crashes.
    pub(super) down: CancellationToken,
}

/// A message in the trace.
struct Message<'a>(&'a [u8]);

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use wire::peer_request::Message as Of;
        let Ok(wire::PeerRequests { requests, .. }) = wire::PeerRequests::decode(self.0) else {
            return Err(fmt::Error);
        };
        for wire::PeerRequest { number, shard, message, .. } in requests {
            write!(f, "#{number} {shard}: ")?;
            let term = |vote: &Option<wire::Vote>| vote.as_ref().map_or(0, |vote| vote.term);
            let index = |at: &Option<wire::LogPosition>| at.as_ref().map_or(0, |at| at.index);
            match message {
                Some(Of::Append(wire::AppendEntries { vote, previous, committed, entries })) => {
                    let (previous, committed) = (index(&previous), index(&committed));
                    let count = entries.len();
                    write!(f, "append term {} after {previous}: {count}, committed {committed}", term(&vote))?;
                }
                Some(Of::Vote(wire::RequestVote { vote, last, .. })) => {
                    write!(f, "vote term {} last {}", term(&vote), index(&last))?;
                }
                Some(Of::PreVote(wire::RequestVote { vote, last, .. })) => {
                    write!(f, "pre-vote term {} last {}", term(&vote), index(&last))?;
                }
                other => write!(f, "{other:?}")?,
            }
        }
        write!(f, " {:x}", xxh3_64(self.0))
    }
}

/// A reply in the trace.
struct Reply<'a>(&'a [u8]);

impl fmt::Display for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use wire::peer_reply::Reply as Of;
        let Ok(wire::PeerReply { number, reply }) = wire::PeerReply::decode(self.0) else { return Err(fmt::Error) };
        match reply {
            Some(Of::Vote(vote)) => write!(f, "#{number} {vote:?}"),
            Some(Of::Append(wire::AppendReply { result })) => write!(f, "#{number} {result:?}"),
            Some(Of::Refusal(refusal)) => write!(f, "#{number} refused {:x}", xxh3_64(refusal.text.as_bytes())),
            other => write!(f, "#{number} {other:?}"),
        }
    }
}

fn node_at(address: &str) -> u64 {
    address.trim_start_matches("node-").trim_end_matches(":1").parse().expect("the address of a node")
}

/// Delivers a message to a node. Returns `None` if the node crashes before it replies.
async fn deliver(node: &Arc<Running>, stream: &Stream, sent_wall_ns: i64, message: Vec<u8>) -> Option<Vec<u8>> {
    let sim = &node.sim;
    let made_after = |made_after: Option<Instant>| {
        if !sim.is(Planted::LeaseByWallClock) {
            return made_after;
        }
        let ago_ns = sim.jumped_wall_ns(node.id) - sent_wall_ns;
        let ago = Duration::from_nanos(ago_ns.unsigned_abs());
        let now = Instant::now();
        if ago_ns < 0 { Some(now + ago) } else { now.checked_sub(ago) }
    };
    node.down.run_until_cancelled(node.peers.deliver(stream, message, made_after)).await
}

impl Wire for NodeWire {
    fn call(&self, address: &str, message: Vec<u8>) -> BoxFuture<'static, Option<Vec<u8>>> {
        let (sim, from, to, down) = (Arc::clone(&self.sim), self.from, node_at(address), self.down.clone());
        Box::pin(async move {
            if down.is_cancelled() {
                std::future::pending::<()>().await;
            }
            let sent_wall_ns = sim.jumped_wall_ns(from);
            sim.network.carry(from, to).await?;
            let node = sim.running(to)?;
            sim.trace.event(format_args!("{from} > {to} {}", Message(&message)));
            if let Some(later) = sim.network.duplicate(from, to) {
                let (node, message) = (Arc::clone(&node), message.clone());
                tokio::spawn(async move {
                    sleep(later).await;
                    // It is not of the stream, in which each message has a number of its own.
                    drop(deliver(&node, &Stream::default(), sent_wall_ns, message).await);
                });
            }
            let reply = deliver(&node, &node.stream(from), sent_wall_ns, message).await?;
            sim.trace.event(format_args!("{from} < {to} {}", Reply(&reply)));
            sim.network.carry(to, from).await?;
            if down.is_cancelled() {
                std::future::pending::<()>().await;
            }
            Some(reply)
        })
    }

    fn install(&self, address: &str, request: wire::InstallRequest) -> BoxFuture<'static, Result<u64, String>> {
        let (sim, from, to, down) = (Arc::clone(&self.sim), self.from, node_at(address), self.down.clone());
        Box::pin(async move {
            if down.is_cancelled() {
                std::future::pending::<()>().await;
            }
            let lost = || "lost".to_owned();
            sim.network.carry(from, to).await.ok_or_else(lost)?;
            let node = sim.running(to).ok_or_else(lost)?;
            let installed =
                node.down.run_until_cancelled(node.peers.request_install(request)).await.ok_or_else(lost)?;
            sim.network.carry(to, from).await.ok_or_else(lost)?;
            installed
        })
    }
}
