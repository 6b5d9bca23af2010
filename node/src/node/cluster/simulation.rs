//! A deterministic simulation of a cluster, on one thread and with simulated time.
//!
//! Real are openraft, [`Group`](crate::consensus::Group) with its changes of members, and the messages between members
//! with their queues and receiver. So are the state machine of the meta group, the placement, and the decisions of
//! `node/cluster` about replicas and members. Models replace the log and the engine of a shard, gRPC, and the router.
//!
//! A seed chooses the cluster, the clients and all faults. The same seed gives the same trace, bit by bit.
//! After the faults, the cluster must recover within a bounded time. Then the rules of [`oracle`] are checked.
//!
//! # Fault model
//! - A crash loses all writes that are not synced, or a later part of them. Several nodes crash at once.
//! - Messages are late, lost or doubled; a node, or one direction between two nodes, is cut off; syncs are slow.
//! - At most one disk is lost. An empty one replaces it, and an administrator accepts this.
//! - Meanwhile the administrator moves replicas, also during other moves, and adds epochs to the placement.
//! # Read in this order
//! `world` → `faults` → `oracle` → `node` → `replica`, `state` → `client` → `wire`, `network`.

mod client;
mod faults;
mod network;
mod node;
mod oracle;
mod planted;
mod push;
mod replica;
mod service;
mod state;
mod tests;
mod trace;
mod wire;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use proto::meta::State;
use tokio::time::Instant;

use self::network::Network;
use self::node::{Running, Storage};
use self::oracle::Oracle;
use self::planted::Planted;
use self::trace::Trace;

/// The state that the parts of one simulation share.
#[derive(Debug)]
struct Sim {
    seed: u64,
    planted: Option<Planted>,
    /// Nodes of the cluster, ascending.
    initial: Vec<u64>,
    /// Number of data shards.
    shards: u32,
    trace: Trace,
    oracle: Oracle,
    network: Network,
    /// Running nodes.
    nodes: Mutex<BTreeMap<u64, Arc<Running>>>,
    disks: Mutex<BTreeMap<u64, Arc<Storage>>>,
    /// Jumps of the wall clocks of nodes, in nanoseconds.
    jumps: Mutex<BTreeMap<u64, i64>>,
    is_healed: AtomicBool,
    start: Instant,
    /// Time of the start, in nanoseconds since 1970.
    start_ns: i64,
}

impl Sim {
    fn new(seed: u64, planted: Option<Planted>, nodes: u64, shards: u32) -> Arc<Self> {
        // A new epoch begins at a full minute: that is in the middle of the faults.
        let start_ns = 1_800_000_000_000_000_000 + 30_000_000_000 + (seed % 8) as i64 * 1_000_000_000;
        Arc::new(Self {
            seed,
            planted,
            initial: (1..=nodes).collect(),
            shards,
            trace: Trace::new(),
            oracle: Oracle::default(),
            network: Network::new(seed),
            nodes: Mutex::default(),
            disks: Mutex::default(),
            jumps: Mutex::default(),
            is_healed: AtomicBool::new(false),
            start: Instant::now(),
            start_ns,
        })
    }

    fn is(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    fn is_healed(&self) -> bool {
        self.is_healed.load(Ordering::Relaxed)
    }

    fn heal(&self) {
        self.is_healed.store(true, Ordering::Relaxed);
    }

    /// Returns the time in nanoseconds since 1970.
    fn wall_ns(&self) -> i64 {
        self.start_ns + i64::try_from(self.start.elapsed().as_nanos()).expect("a short time")
    }

    /// Returns the time of a node's wall clock, in nanoseconds since 1970.
    fn jumped_wall_ns(&self, node: u64) -> i64 {
        self.wall_ns() + self.jumps.lock().get(&node).copied().unwrap_or_default()
    }

    fn jump(&self, node: u64, jump_ns: i64) {
        self.trace.event(format_args!("the wall clock of node {node} jumps by {jump_ns} ns"));
        *self.jumps.lock().entry(node).or_default() += jump_ns;
    }

    fn running(&self, node: u64) -> Option<Arc<Running>> {
        self.nodes.lock().get(&node).map(Arc::clone)
    }

    fn all_running(&self) -> Vec<Arc<Running>> {
        self.nodes.lock().values().map(Arc::clone).collect()
    }

    fn set_disk(&self, node: u64, storage: &Arc<Storage>) {
        self.disks.lock().insert(node, Arc::clone(storage));
    }

    fn is_disk_of(&self, node: u64, storage: &Arc<Storage>) -> bool {
        self.disks.lock().get(&node).is_some_and(|known| Arc::ptr_eq(known, storage))
    }

    /// Returns the newest state of the meta group that a running node knows.
    fn newest_state(&self) -> Arc<State> {
        let states = self.all_running().into_iter().map(|node| node.cluster.state());
        states.max_by_key(|state| state.revision).unwrap_or_default()
    }

    /// Returns the status of all members, for the report of a simulation that got stuck.
    fn statuses(&self) -> String {
        let mut out = String::new();
        for node in self.all_running() {
            out += &format!("\n  node {}: {}", node.id, node.status());
        }
        out
    }

    /// Drops all nodes.
    fn end(&self) {
        self.nodes.lock().clear();
        self.disks.lock().clear();
    }
}
