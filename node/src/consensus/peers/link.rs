//! The connection to one peer, which carries the requests of all groups.
//!
//! One task connects, sends and receives. While there is no connection, requests fail at once, so that their callers
//! wait before they try again. All requests that wait when a message can be sent form one message.
//!
//! Invariant: a peer that does not respond costs bounded memory: [`WAITING_MAX`] requests in each of two queues,
//! [`ENTRY_BYTES_IN_FLIGHT_MAX`] of entries, and [`PENDING_MAX`] replies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::stream;
use parking_lot::Mutex;
use prost::Message as _;
use proto::meta::ClusterId;
use proto::wire;
use proto::wire::peer_reply::Reply as WireReply;
use proto::wire::peers_client::PeersClient;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::Streaming;
use tonic::transport::Endpoint;
use transport::Dialer;

#[cfg(test)]
use crate::consensus::peers::simulated;
use crate::consensus::peers::{MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX};

/// Largest number of requests in one queue.
const WAITING_MAX: usize = 1024;
/// Largest number of requests whose replies are awaited.
const PENDING_MAX: usize = 8192;
/// Size of the requests in one message, in bytes, at which no further entries are added to it.
const COALESCED_BYTES: usize = 1 << 20;
/// Largest total size of the entries that are in flight to one peer, in bytes. A single larger request is sent alone.
const ENTRY_BYTES_IN_FLIGHT_MAX: usize = 32 << 20;
/// Longest time to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Interval of HTTP/2 pings, and the longest time until their response. After that the connection is closed.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Pauses before further attempts to connect: they double from the shortest to the longest.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// ID of the cluster of this node, as soon as the node knows it.
type OwnCluster = Arc<OnceLock<ClusterId>>;

/// Reason why a request got no reply.
pub(super) type NoReply = Arc<str>;

pub(super) type Reply = Result<Option<WireReply>, NoReply>;

/// A request on its way to the task of the connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) request: wire::PeerRequest,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// A connection to one peer. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Queue of small requests, such as heartbeats and votes. They precede all entries.
    urgent: mpsc::Sender<Outgoing>,
    /// Queue of requests with entries.
    bulk: mpsc::Sender<Outgoing>,
    entry_bytes: Semaphore,
    replied: Replied,
}

/// Number of the request whose reply was received last; 0 if there is none. Numbers are unique over all streams of a
/// connection.
pub(super) type Replied = Arc<AtomicU64>;

impl Link {
    /// Makes a connection, which is opened with the first request.
    pub(super) fn new(dialer: Dialer, endpoint: Endpoint, cluster: OwnCluster) -> Self {
        let (link, queues) = Self::with_queues(cluster);
        let endpoint = endpoint
            .connect_timeout(CONNECT_PATIENCE)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_INTERVAL);
        tokio::spawn(run(dialer, endpoint, queues, Arc::clone(&link.replied)));
        link
    }

    /// Makes a connection over the network of a simulation.
    #[cfg(test)]
    pub(super) fn simulated(wire: &Arc<dyn simulated::Wire>, address: &str, cluster: OwnCluster) -> Self {
        let (link, queues) = Self::with_queues(cluster);
        let address = address.to_owned();
        tokio::spawn(simulated::run(Arc::clone(wire), address, queues, Arc::clone(&link.replied)));
        link
    }

    /// Makes a connection without a task that serves its queues.
    fn with_queues(cluster: OwnCluster) -> (Self, Queues) {
        let (urgent, urgent_queue) = mpsc::channel(WAITING_MAX);
        let (bulk, bulk_queue) = mpsc::channel(WAITING_MAX);
        let entry_bytes = Semaphore::new(ENTRY_BYTES_IN_FLIGHT_MAX);
        let queues = Queues { urgent: urgent_queue, bulk: bulk_queue, cluster };
        (Self { urgent, bulk, entry_bytes, replied: Replied::default() }, queues)
    }

    /// Returns the number of the request whose reply was received last; 0 if there is none.
    pub(super) fn replied(&self) -> u64 {
        self.replied.load(Ordering::Acquire)
    }

    /// Sends a request, and waits at most `patience` for its reply.
    pub(super) async fn call(&self, request: wire::PeerRequest, patience: Duration) -> Reply {
        let bytes = request.encoded_len();
        if bytes > REQUEST_BYTES_MAX {
            return Err(format!("the request has {bytes} bytes, and the largest has {REQUEST_BYTES_MAX}").into());
        }
        let called = timeout(patience, self.call_now(request, bytes));
        called.await.unwrap_or_else(|_elapsed| Err(format!("no reply within {patience:?}").into()))
    }

    async fn call_now(&self, request: wire::PeerRequest, bytes: usize) -> Reply {
        let closed = || NoReply::from("the connection is closed");
        let has_entries = matches!(
            &request.message,
            Some(wire::peer_request::Message::Append(append)) if !append.entries.is_empty()
        );
        let (reply, replied) = oneshot::channel();
        let outgoing = Outgoing { request, reply };
        let _permit = if has_entries {
            let permits = u32::try_from(bytes.min(ENTRY_BYTES_IN_FLIGHT_MAX)).unwrap_or(u32::MAX);
            let permit = self.entry_bytes.acquire_many(permits).await.map_err(|_closed| closed())?;
            self.bulk.send(outgoing).await.map_err(|_closed| closed())?;
            Some(permit)
        } else {
            self.urgent.send(outgoing).await.map_err(|_closed| closed())?;
            None
        };
        replied.await.unwrap_or_else(|_dropped| Err(closed()))
    }
}

/// The receiving ends of a connection's queues, and the cluster that its messages name.
pub(super) struct Queues {
    urgent: mpsc::Receiver<Outgoing>,
    bulk: mpsc::Receiver<Outgoing>,
    pub(super) cluster: OwnCluster,
}

impl Queues {
    /// Waits for a request. Returns `None` if the connection was dropped.
    pub(super) async fn next(&mut self) -> Option<Outgoing> {
        tokio::select! {
            biased;
            outgoing = self.urgent.recv() => outgoing,
            outgoing = self.bulk.recv() => outgoing,
        }
    }

    /// Returns a request that is already waiting.
    fn waiting(&mut self) -> Option<Outgoing> {
        self.urgent.try_recv().or_else(|_empty| self.bulk.try_recv()).ok()
    }

    /// Refuses all requests until `end`. Returns `None` if the connection was dropped.
    async fn refuse_until(&mut self, end: Instant, error: &NoReply) -> Option<()> {
        loop {
            match timeout_at(end, self.next()).await {
                Ok(outgoing) => refuse(outgoing?, error),
                Err(_elapsed) => return Some(()),
            }
        }
    }
}

fn refuse(outgoing: Outgoing, error: &NoReply) {
    // The caller may have stopped waiting.
    let _gone = outgoing.reply.send(Err(Arc::clone(error))).is_err();
}

/// Connects whenever there are requests, until the connection is dropped.
async fn run(dialer: Dialer, endpoint: Endpoint, mut queues: Queues, replied: Replied) {
    let mut pause = RECONNECT_PAUSE_MIN;
    let mut number = 0;
    while let Some(first) = queues.next().await {
        if first.reply.is_closed() {
            continue;
        }
        let opened = Instant::now();
        let error = match timeout(CONNECT_PATIENCE, open(&dialer, &endpoint)).await {
            Ok(Ok((outbound, inbound))) => {
                pause = RECONNECT_PAUSE_MIN;
                let streams = (outbound, inbound);
                exchange(first, &mut queues, &mut number, streams, &replied).await
            }
            Ok(Err(error)) => {
                refuse(first, &error);
                Some(error)
            }
            Err(_elapsed) => {
                let error = format!("no connection within {CONNECT_PATIENCE:?}").into();
                refuse(first, &error);
                Some(error)
            }
        };
        // Without an error, the connection was dropped.
        let Some(error) = error else { return };
        tracing::debug!(address = %endpoint.uri(), %error, "no connection to a peer");
        if queues.refuse_until(opened + pause, &error).await.is_none() {
            return;
        }
        pause = RECONNECT_PAUSE_MAX.min(pause * 2);
    }
}

type Outbound = mpsc::Sender<wire::PeerRequests>;

async fn open(dialer: &Dialer, endpoint: &Endpoint) -> Result<(Outbound, Streaming<wire::PeerReplies>), NoReply> {
    let failed = |error: &dyn std::error::Error| NoReply::from(with_causes(error));
    let mut client = PeersClient::new(dialer.connect_lazy(endpoint))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    // One message is being sent while the next one collects requests.
    let (outbound, messages) = mpsc::channel(1);
    let messages = stream::unfold(messages, |mut messages: mpsc::Receiver<wire::PeerRequests>| async move {
        messages.recv().await.map(|message| (message, messages))
    });
    let replies = client.exchange(messages).await.map_err(|status| failed(&status))?;
    Ok((outbound, replies.into_inner()))
}

/// Returns an error with its causes. The cause of a failed connection is only in the chain.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Senders of the replies to requests that were sent, by number.
type Pending = Mutex<HashMap<u64, oneshot::Sender<Reply>>>;

/// Sends requests and receives replies until the connection fails, and returns the error. Returns `None` if the
/// connection was dropped.
async fn exchange(
    first: Outgoing,
    queues: &mut Queues,
    number: &mut u64,
    (outbound, inbound): (Outbound, Streaming<wire::PeerReplies>),
    replied: &Replied,
) -> Option<NoReply> {
    let pending = Pending::default();
    let error = tokio::select! {
        error = send(first, queues, number, &outbound, &pending) => error,
        error = receive(inbound, &pending, replied) => Some(error),
    };
    let reason = error.clone().unwrap_or_else(|| "the connection is closed".into());
    for (_number, reply) in pending.into_inner() {
        let _gone = reply.send(Err(Arc::clone(&reason))).is_err();
    }
    error
}

/// Sends requests until the connection fails, and returns the error. Returns `None` if the connection was dropped.
/// `number` is that of the last request.
async fn send(
    first: Outgoing,
    queues: &mut Queues,
    number: &mut u64,
    outbound: &Outbound,
    pending: &Pending,
) -> Option<NoReply> {
    let mut next = Some(first);
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => queues.next().await?,
        };
        let Ok(permit) = outbound.reserve().await else { return Some("the peer closed the connection".into()) };
        let mut requests = Vec::new();
        let mut bytes = 0;
        let mut waiting = Some(first);
        while let Some(Outgoing { mut request, reply }) = waiting {
            if !reply.is_closed() {
                *number += 1;
                request.number = *number;
                bytes += request.encoded_len();
                requests.push(request);
                pending.lock().insert(*number, reply);
            }
            waiting = if bytes < COALESCED_BYTES { queues.waiting() } else { None };
        }
        if !requests.is_empty() {
            let cluster = queues.cluster.get().map(|cluster| cluster.to_wire()).unwrap_or_default();
            permit.send(wire::PeerRequests { requests, cluster });
        }
        while pending.lock().len() >= PENDING_MAX {
            pending.lock().retain(|_number, reply| !reply.is_closed());
            sleep(RECONNECT_PAUSE_MIN).await;
        }
    }
}

/// Receives replies until the connection fails, and returns the error.
async fn receive(mut inbound: Streaming<wire::PeerReplies>, pending: &Pending, replied: &Replied) -> NoReply {
    loop {
        match inbound.message().await {
            Ok(Some(wire::PeerReplies { replies })) => {
                for wire::PeerReply { number, reply } in replies {
                    replied.store(number, Ordering::Release);
                    if let Some(waiting) = pending.lock().remove(&number) {
                        // The caller may have stopped waiting.
                        let _gone = waiting.send(Ok(reply)).is_err();
                    }
                }
            }
            Ok(None) => return "the peer closed the connection".into(),
            Err(status) => return with_causes(&status).into(),
        }
    }
}
