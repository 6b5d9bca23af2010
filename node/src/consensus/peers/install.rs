//! Requests to a member of another node to fetch a snapshot from this node, and to install the snapshot.
//!
//! A request has its own connection, because it may take hours. The member installs one snapshot at a time: further
//! requests wait for its end, and are then usually answered at once.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use proto::wire;
use proto::wire::peers_client::PeersClient;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::{Request, Status};
use transport::Dialer;

use crate::consensus::member::DirectoryId;

/// Longest time that one request waits. The member goes on afterwards, and a second request waits for its end.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// Longest time to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Interval of HTTP/2 pings, and the longest time until their response. They show that the member's node is alive.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A request to fetch and install a snapshot. Dropping the request refuses it.
#[derive(Debug)]
pub(crate) struct Install {
    /// Node id and address, `host:port`, of the node from which the snapshot is fetched.
    pub(crate) sender: u64,
    pub(crate) address: String,
    /// Index of the entry that the state must have.
    pub(crate) index: u64,
    reply: oneshot::Sender<Result<u64, Status>>,
}

impl Install {
    /// Returns true if the sender waits no longer for the reply.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Replies with the index of the last applied entry.
    pub(crate) fn done(self, applied: u64) {
        // The sender may have stopped waiting.
        let _gone = self.reply.send(Ok(applied)).is_err();
    }

    /// Replies that no snapshot was installed.
    pub(crate) fn refuse(self, error: &dyn std::fmt::Display) {
        let _gone = self.reply.send(Err(Status::unavailable(error.to_string()))).is_err();
    }
}

/// The queues of requests to the members on this node, by shard. Each queue holds one request, and others wait for
/// their turn.
#[derive(Debug, Default)]
pub(super) struct Installs(Mutex<HashMap<u32, (DirectoryId, mpsc::Sender<Install>)>>);

impl Installs {
    /// Makes the queue of a shard's replica.
    pub(super) fn queue(&self, shard: u32, identity: DirectoryId) -> mpsc::Receiver<Install> {
        let (sender, receiver) = mpsc::channel(1);
        self.0.lock().insert(shard, (identity, sender));
        receiver
    }

    /// Passes a request to the member, and waits for the reply.
    pub(super) async fn request(&self, request: wire::InstallRequest) -> Result<wire::InstallResponse, Status> {
        let wire::InstallRequest { shard, sender, directory, address, index, cluster: _ } = request;
        let closed = || Status::unavailable(format!("this node has no running replica of shard {shard}"));
        let (identity, queue) = self.0.lock().get(&shard).cloned().ok_or_else(closed)?;
        if *directory != identity {
            let text = format!("this node has another replica of shard {shard}: read the members of the shard again");
            return Err(Status::failed_precondition(text));
        }
        let (reply, replied) = oneshot::channel();
        queue.send(Install { sender, address, index, reply }).await.map_err(|_gone| closed())?;
        let index = replied.await.map_err(|_dropped| closed())??;
        Ok(wire::InstallResponse { index })
    }
}

/// Makes the member at `address` install a snapshot. Returns when the state of the member has the requested entry.
///
/// # Errors
/// The reason why the state does not have the entry yet. The request may be repeated.
pub(super) async fn install(dialer: &Dialer, address: &str, request: wire::InstallRequest) -> Result<(), String> {
    let requested = request.index;
    let endpoint = dialer.endpoint(address).map_err(|error| format!("its address is invalid: {error}"))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_PATIENCE)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    let mut client = PeersClient::new(dialer.connect_lazy(&endpoint));
    let response = timeout(PATIENCE, client.install(Request::new(request))).await;
    let response = response.map_err(|_elapsed| format!("no snapshot was installed within {PATIENCE:?}"))?;
    let index = response.map_err(|status| status.message().to_owned())?.into_inner().index;
    if index < requested {
        return Err(format!("no snapshot was installed: the state is as of entry {index}, and not {requested}"));
    }
    Ok(())
}
