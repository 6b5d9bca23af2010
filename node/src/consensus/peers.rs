//! The transport between the members of groups: for each ordered pair of nodes, one gRPC stream that carries the
//! messages of all groups (`varve.v1.Peers`).
//!
//! Every message names its cluster, its group, its sender, and the replica that it is meant for. So a node whose data
//! directory was emptied or replaced takes no part in the groups of its old directory, in which it may have voted.
//! With TLS, the sender must be the node in the certificate of the peer.
//! One timer lets the members of all groups send heartbeats, so that these travel together.
//! # Layers
//! Each module uses only the modules to its left in this list: [`messages`], [`link`], [`install`], [`network`],
//! [`replies`], [`service`].

mod install;
mod link;
mod messages;
mod network;
mod replies;
#[cfg(test)]
pub(crate) mod scripted;
mod service;
#[cfg(test)]
pub(crate) mod simulated;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use proto::limits::ENTRY_BYTES_MAX;
use proto::meta::ClusterId;
use proto::wire;
use proto::wire::peers_server::PeersServer;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use transport::Dialer;

use crate::consensus::group::{Group, HEARTBEAT, Handle};
use crate::consensus::member::DirectoryId;
pub(crate) use crate::consensus::peers::install::Install;
use crate::consensus::peers::install::Installs;
use crate::consensus::peers::link::Link;
pub(crate) use crate::consensus::peers::network::GroupNetwork;
use crate::consensus::peers::service::Receiver;

/// Largest request, in bytes: one entry of the largest size, or several smaller ones.
const REQUEST_BYTES_MAX: usize = ENTRY_BYTES_MAX + (4 << 20);
/// Largest message, in bytes. A message takes requests until it has a certain size, and then the last one still fits.
const MESSAGE_BYTES_MAX: usize = REQUEST_BYTES_MAX + (4 << 20);

/// The members on this node, by shard.
type Members = Arc<Mutex<BTreeMap<u32, Registered>>>;

/// A member that receives messages.
#[derive(Clone, Debug)]
struct Registered {
    /// Number of the registration.
    number: u64,
    /// Identity of the replica.
    identity: DirectoryId,
    handle: Arc<Handle>,
}

/// Interval of the timer. It divides the interval of heartbeats, and makes elections at most this late.
const TICK: Duration = Duration::from_millis(50);

/// The connections of this node to other nodes, and the members that receive the messages of other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    node_id: u64,
    /// Address, `host:port`, at which other nodes reach this node.
    address: String,
    directory: DirectoryId,
    dialer: Dialer,
    /// ID of the cluster, as soon as this node knows it.
    cluster: Arc<OnceLock<ClusterId>>,
    members: Members,
    installs: Installs,
    registered: AtomicU64,
    /// Connections by node and address. A connection closes when no group uses it any more.
    links: Mutex<HashMap<(u64, String), Weak<Link>>>,
    /// Held so that the timer ends with this value.
    _timer: Timer,
    /// Cancelled when no messages are received any more.
    closed: CancellationToken,
    #[cfg(test)]
    proxies: HashMap<String, String>,
    /// Network of a simulation.
    #[cfg(test)]
    wire: Option<Arc<dyn simulated::Wire>>,
}

/// The task of the timer, which ends when this value is dropped.
#[derive(Debug)]
struct Timer(JoinHandle<()>);

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lets the members of all groups send heartbeats and start elections.
async fn run_timer(members: Members) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beaten = Instant::now();
    loop {
        let now = ticks.tick().await;
        let beats = now.duration_since(beaten) >= HEARTBEAT;
        if beats {
            beaten = now;
        }
        let handles: Vec<_> = members.lock().values().map(|member| Arc::clone(&member.handle)).collect();
        for handle in handles {
            handle.tick(beats).await;
        }
    }
}

impl Peers {
    /// Returns the transport of a node, and starts its timer. Other nodes reach the node at `address`. `directory` is
    /// the identity of its data directory.
    pub(crate) fn new(node_id: u64, address: String, directory: DirectoryId, dialer: Dialer) -> Arc<Self> {
        Arc::new(Self::of(node_id, address, directory, dialer))
    }

    fn of(node_id: u64, address: String, directory: DirectoryId, dialer: Dialer) -> Self {
        let members = Members::default();
        Self {
            node_id,
            address,
            directory,
            dialer,
            _timer: Timer(tokio::spawn(run_timer(Arc::clone(&members)))),
            cluster: Arc::default(),
            members,
            installs: Installs::default(),
            registered: AtomicU64::new(0),
            closed: CancellationToken::new(),
            links: Mutex::default(),
            #[cfg(test)]
            proxies: HashMap::new(),
            #[cfg(test)]
            wire: None,
        }
    }

    /// Returns the transport of a node whose connections go through proxies, by the addresses of the members.
    #[cfg(test)]
    fn through(node_id: u64, directory: DirectoryId, proxies: HashMap<String, String>) -> Arc<Self> {
        Arc::new(Self { proxies, ..Self::of(node_id, String::new(), directory, Dialer::plaintext()) })
    }

    /// Returns the address to dial for the address of a member. In tests, a proxy may be in between.
    fn dialed(&self, address: &str) -> String {
        #[cfg(test)]
        if let Some(proxy) = self.proxies.get(address) {
            return proxy.clone();
        }
        address.to_owned()
    }

    /// Returns the network of a group, for [`Group::open`].
    pub(crate) fn network(self: &Arc<Self>, shard: u32) -> GroupNetwork {
        GroupNetwork::new(Arc::clone(self), shard)
    }

    /// Passes messages and ticks for a group to its member on this node, until the returned guard is dropped.
    /// `identity` is that of the member's replica; messages for another one are refused.
    pub(crate) fn receive(&self, shard: u32, identity: DirectoryId, group: &Group) -> Receiving {
        let number = self.registered.fetch_add(1, Ordering::Relaxed);
        let member = Registered { number, identity, handle: Arc::clone(group.handle()) };
        self.members.lock().insert(shard, member);
        Receiving { members: Arc::clone(&self.members), shard, number }
    }

    /// Returns the receiver of all later requests of other nodes to install a snapshot of a shard in the replica with
    /// this identity. A shard has one receiver.
    pub(crate) fn installs(&self, shard: u32, identity: DirectoryId) -> mpsc::Receiver<Install> {
        self.installs.queue(shard, identity)
    }

    /// Refuses requests of other clusters from now on. A node belongs to one cluster.
    pub(crate) fn belong_to(&self, cluster: ClusterId) {
        // The first one stays.
        let _is_known = self.cluster.set(cluster).is_err();
    }

    /// Returns the cluster of this node; `None` if the node does not know it yet.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.cluster.get().copied()
    }

    /// Returns the gRPC service that receives the messages of other nodes.
    pub(crate) fn service(self: &Arc<Self>) -> PeersServer<Self> {
        PeersServer::from_arc(Arc::clone(self))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Ends the streams of other nodes. A server that finishes its requests would wait for these streams.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Returns a token that is cancelled by [`Peers::close`].
    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    fn node_id(&self) -> u64 {
        self.node_id
    }

    fn receiver(&self, peer: Option<u64>) -> Receiver {
        Receiver {
            node_id: self.node_id,
            directory: self.directory,
            cluster: Arc::clone(&self.cluster),
            peer,
            members: Arc::clone(&self.members),
        }
    }

    /// Makes the member at an address install a snapshot. Returns when its state has the requested entry.
    async fn install(&self, address: &str, request: wire::InstallRequest) -> Result<(), String> {
        #[cfg(test)]
        if let Some(wire) = &self.wire {
            return simulated::install(&**wire, address, request).await;
        }
        install::install(&self.dialer, &self.dialed(address), request).await
    }

    /// Returns the connection to a node, which all groups share.
    fn link(&self, node: u64, address: &str) -> Result<Arc<Link>, Arc<str>> {
        let mut links = self.links.lock();
        links.retain(|_key, link| link.strong_count() > 0);
        let key = (node, address.to_owned());
        if let Some(link) = links.get(&key).and_then(Weak::upgrade) {
            return Ok(link);
        }
        #[cfg(test)]
        if let Some(wire) = &self.wire {
            let link = Arc::new(Link::simulated(wire, address, Arc::clone(&self.cluster)));
            links.insert(key, Arc::downgrade(&link));
            return Ok(link);
        }
        let endpoint = self.dialer.endpoint(&self.dialed(address));
        let endpoint = endpoint.map_err(|error| format!("its address is invalid: {error}"))?;
        let link = Arc::new(Link::new(self.dialer.clone(), endpoint, Arc::clone(&self.cluster)));
        links.insert(key, Arc::downgrade(&link));
        Ok(link)
    }
}

/// Guard of a member that receives messages.
#[derive(Debug)]
pub(crate) struct Receiving {
    members: Members,
    shard: u32,
    number: u64,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let mut members = self.members.lock();
        // The member may have been opened again meanwhile.
        if members.get(&self.shard).is_some_and(|member| member.number == self.number) {
            members.remove(&self.shard);
        }
    }
}

#[cfg(test)]
mod tests;
