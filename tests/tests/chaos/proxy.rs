//! A TCP proxy between the processes of a cluster, which makes the faults of a network.
//!
//! Every connection to a node goes through the proxy. The proxy finds the calling process by its end of the connection,
//! so each pair of processes has faults of its own, and so has each direction. A silent direction keeps the bytes
//! and delivers them later, as TCP does after a partition. Nothing is ever reordered within a connection.

mod callers;
mod connection;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use testkit::random::Random;
use tests::cluster::Cluster;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::callers::Callers;

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// Nodes are numbered from 1 on.
    Node(usize),
    /// Routers are numbered from 0 on.
    Router(usize),
}

/// A direction between two processes: sender and receiver.
pub(crate) type Link = (Party, Party);

/// Faults of a direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    /// Nothing arrives until the fault is lifted.
    pub(crate) is_silent: bool,
    /// New connections are reset.
    pub(crate) refuses: bool,
    /// Shortest delay, and the random time that is added to it.
    pub(crate) delay: Option<(Duration, Duration)>,
    /// Percentage of reads that are lost once or several times, so that they arrive after retransmissions.
    pub(crate) loss_percent: usize,
}

/// Fault of a direction through which nothing arrives.
pub(crate) const SILENT: Fault = Fault { is_silent: true, refuses: false, delay: None, loss_percent: 0 };

/// Returns the directions from the processes of one group to those of another group.
pub(crate) fn from_to(from: &[Party], to: &[Party]) -> Vec<Link> {
    from.iter().flat_map(|&from| to.iter().map(move |&to| (from, to))).collect()
}

/// Returns the directions between the processes of two groups.
pub(crate) fn both_ways(one: &[Party], other: &[Party]) -> Vec<Link> {
    [from_to(one, other), from_to(other, one)].concat()
}

/// Effects of the faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Number of times that bytes had to wait for the end of silence.
    pub(crate) held: u64,
    /// Number of reads that were delayed or lost.
    pub(crate) delayed: u64,
    /// Number of connections that were reset or refused.
    pub(crate) reset: u64,
    /// Number of connections that became half-open.
    pub(crate) half_open: u64,
}

impl Effects {
    fn total(self) -> u64 {
        self.held + self.delayed + self.reset + self.half_open
    }
}

/// The faults of all directions. Connections are numbered in the order in which they are made.
#[derive(Clone, Debug, Default)]
struct Table {
    faults: HashMap<Link, Fault>,
    /// Connections with smaller numbers between these two processes are reset, or become half-open.
    reset_before: HashMap<Link, u64>,
    half_open_before: HashMap<Link, u64>,
}

#[derive(Debug)]
struct Shared {
    table: watch::Sender<Table>,
    random: parking_lot::Mutex<Random>,
    next: AtomicU64,
    held: AtomicU64,
    delayed: AtomicU64,
    reset: AtomicU64,
    half_open: AtomicU64,
}

/// The network between the processes of a cluster. The proxy ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl Network {
    /// Starts the proxy of a cluster, before the cluster is launched.
    pub(crate) fn new(cluster: &Cluster, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            table: watch::Sender::default(),
            random: parking_lot::Mutex::new(Random::new(seed)),
            next: AtomicU64::new(0),
            held: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            reset: AtomicU64::new(0),
            half_open: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let callers = Arc::new(Callers::new(cluster.folder().join("cluster.json")));
        for id in 1..=cluster.shape().nodes {
            let listener = runtime.block_on(TcpListener::bind(cluster.proxy_address(id))).unwrap();
            let (shared, callers) = (Arc::clone(&shared), Arc::clone(&callers));
            runtime.spawn(accept(listener, Party::Node(id), cluster.node_address(id), callers, shared));
        }
        Self { shared, _runtime: runtime }
    }

    /// Returns the effects of all faults so far.
    pub(crate) fn effects(&self) -> Effects {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { held, delayed, reset, half_open, .. } = &*self.shared;
        Effects { held: count(held), delayed: count(delayed), reset: count(reset), half_open: count(half_open) }
    }

    /// Returns the number of effects so far.
    pub(crate) fn effect_count(&self) -> u64 {
        self.effects().total()
    }

    /// Sets the faults of these directions.
    pub(crate) fn set(&self, links: &[Link], fault: Fault) {
        self.shared.table.send_modify(|table| table.faults.extend(links.iter().map(|&link| (link, fault))));
    }

    /// Lifts all lasting faults.
    pub(crate) fn heal(&self) {
        self.shared.table.send_modify(|table| table.faults.clear());
    }

    /// Resets the present connections that the first process of a pair has made to the second.
    pub(crate) fn reset(&self, links: &[Link]) {
        let before = self.shared.next.load(Ordering::Relaxed);
        let of = links.iter().map(|&link| (link, before));
        self.shared.table.send_modify(|table| table.reset_before.extend(of));
    }

    /// Makes the present connections half-open: neither end learns that they carry nothing any more.
    pub(crate) fn make_half_open(&self, links: &[Link]) {
        let before = self.shared.next.load(Ordering::Relaxed);
        let of = links.iter().map(|&link| (link, before));
        self.shared.table.send_modify(|table| table.half_open_before.extend(of));
    }
}

/// Accepts the connections to one node, and forwards them.
async fn accept(listener: TcpListener, to: Party, target: SocketAddr, callers: Arc<Callers>, shared: Arc<Shared>) {
    loop {
        // Errors such as too many open files pass.
        let Ok((stream, peer)) = listener.accept().await else { continue };
        let (callers, shared) = (Arc::clone(&callers), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(own) = stream.local_addr() else { return };
            let found = tokio::task::spawn_blocking(move || callers.find(peer, own)).await;
            // A process that was killed meanwhile is not found, and needs no connection.
            if let Ok(Some(from)) = found {
                connection::forward(stream, target, (from, to), &shared).await;
            }
        });
    }
}
