//! Connections over the network of a simulation, in place of gRPC. The queues of a connection, the messages, and the
//! receiver are the real ones.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::future::BoxFuture;
use prost::Message as _;
use proto::wire;
use tokio::time::Instant;
use transport::Dialer;

use crate::consensus::member::DirectoryId;
use crate::consensus::peers::Peers;
use crate::consensus::peers::link::{NoReply, Outgoing, Queues, Replied};
use crate::consensus::peers::replies::SentReplies;

/// The network of a simulation, as one node sees it.
pub(crate) trait Wire: Debug + Send + Sync {
    /// Carries a message to the node at an address, and its reply back; `None` if one of the two is lost.
    fn call(&self, address: &str, message: Vec<u8>) -> BoxFuture<'static, Option<Vec<u8>>>;

    /// Makes the node at an address install a snapshot of this node. Returns the index of the state.
    fn install(&self, address: &str, request: wire::InstallRequest) -> BoxFuture<'static, Result<u64, String>>;
}

/// Sends the requests of one connection, until the connection is dropped.
pub(super) async fn run(wire: Arc<dyn Wire>, address: String, mut queues: Queues, replied: Replied) {
    let mut number = 0;
    while let Some(Outgoing { mut request, reply }) = queues.next().await {
        number += 1;
        request.number = number;
        let cluster = queues.cluster.get().map(|cluster| cluster.to_wire()).unwrap_or_default();
        let message = wire::PeerRequests { requests: vec![request], cluster }.encode_to_vec();
        let called = wire.call(&address, message);
        let replied = Arc::clone(&replied);
        tokio::spawn(async move {
            let received = match called.await {
                Some(received) => {
                    let received = wire::PeerReply::decode(&*received).expect("a reply as it was sent");
                    replied.store(received.number, Ordering::Release);
                    Ok(received.reply)
                }
                None => Err(NoReply::from("the connection broke")),
            };
            // The caller may have stopped waiting.
            let _gone = reply.send(received).is_err();
        });
    }
}

pub(super) async fn install(wire: &dyn Wire, address: &str, request: wire::InstallRequest) -> Result<(), String> {
    let requested = request.index;
    let index = wire.install(address, request).await?;
    if index < requested { Err(format!("the state is as of entry {index}, and not {requested}")) } else { Ok(()) }
}

/// The messages of one node to another one, as the receiver sees them.
#[derive(Debug, Default)]
pub(crate) struct Stream(SentReplies);

impl Peers {
    /// Returns the transport of a node over the network of a simulation.
    pub(crate) fn over(node_id: u64, address: String, directory: DirectoryId, wire: Arc<dyn Wire>) -> Arc<Self> {
        Arc::new(Self { wire: Some(wire), ..Self::of(node_id, address, directory, Dialer::plaintext()) })
    }

    /// Passes a request to install a snapshot to the member of this node. Returns the index of its state.
    pub(crate) async fn request_install(&self, request: wire::InstallRequest) -> Result<u64, String> {
        let installed = self.installs.request(request).await;
        installed.map(|response| response.index).map_err(|status| status.message().to_owned())
    }

    /// Processes a message, and returns the encoded reply. `made_after` replaces the time after which the message was
    /// made, which follows from the replies of the stream.
    pub(crate) async fn deliver(
        &self,
        stream: &Stream,
        message: Vec<u8>,
        made_after: impl FnOnce(Option<Instant>) -> Option<Instant>,
    ) -> Vec<u8> {
        let wire::PeerRequests { mut requests, cluster } =
            wire::PeerRequests::decode(Bytes::from(message)).expect("a message as it was sent");
        let request = requests.pop().expect("one request");
        let number = request.number;
        let made_after = made_after(stream.0.time_of(request.replied));
        let reply = self.receiver(None).reply(&cluster, request, made_after).await;
        stream.0.add(number, Instant::now());
        wire::PeerReply { number, reply: Some(reply) }.encode_to_vec()
    }
}
