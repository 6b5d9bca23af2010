//! The state that requests and upkeep of a node share: its shards, limits on work in flight, and reasons to refuse
//! appends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use proto::limits;
use storage_engine::{BudgetSizes, Budgets};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::clock::Clock;
use crate::config::Config;
use crate::consensus::{DirectoryId, Peers, Terms};
use crate::directory::DataDirectory;
use crate::error::NodeError;
use crate::meta::META_GROUP;
use crate::metrics::Metrics;
use crate::node::cluster::Cluster;
use crate::node::hosted::{Hosted, State};
use crate::node::raft_log::RaftLog;
use crate::node::replica::{Replica, Surroundings};
use crate::node::supervise::supervised;
use crate::shard::snapshot::lease::Leases;
use crate::shard::snapshot::receiver::Staged;
use crate::sharers::Sharers;
use crate::space::Space;

/// Largest total size of the appends in flight, in bytes. Each append counts with one form of its batch. With the other
/// forms, encoded and decoded, appends take a few times as much memory.
pub(super) const APPENDS_IN_FLIGHT_BYTES_MAX: usize = 128 << 20;

/// Interval at which the node logs that a replica is still being opened. Opening takes long if files are repaired.
const OPEN_REPORT: Duration = Duration::from_secs(5);

/// Largest number of damaged replicas of a node that fetch the state of another member at one time. Further ones wait,
/// so that a node with a broken disk does not load the others.
const REFETCHES_MAX: usize = 2;

/// Longest time that a request waits for the end of a repair.
pub(super) const REPAIR_PATIENCE: Duration = Duration::from_secs(20);

/// Shared state of one node.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) directory: Arc<DataDirectory>,
    pub(super) cluster: Cluster,
    /// Number of shards with which a new cluster begins.
    pub(super) initial_shards: NonZeroU16,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<Clock>,
    pub(super) raft_log: RaftLog,
    /// Transport between the members of Raft groups.
    pub(super) peers: Arc<Peers>,
    /// Snapshots that other nodes are reading.
    pub(super) leases: Arc<Leases>,
    /// Shards of this node, by number.
    hosted: watch::Sender<BTreeMap<u32, Arc<Hosted>>>,
    /// Number of replicas that share the budgets.
    pub(super) sharers: Arc<Sharers>,
    /// Supervisors of the replicas, which end before the log is closed.
    pub(super) supervisors: TaskTracker,
    /// Memory budgets that the engines of all shards share.
    budgets: Budgets,
    /// Limit of replicas that are being opened, which is the number of CPUs.
    opening: Semaphore,
    /// Limit of damaged replicas that fetch the state of another member. Each holds one permit.
    pub(super) refetches: Semaphore,
    /// Lock that is held while the accepted time is read, stored and set, so that no older time replaces a newer one.
    pub(super) storing_time: Mutex<()>,
    /// True if the file system has no space for appends.
    is_full: AtomicBool,
    /// Disk use of the data when it was last measured, in bytes.
    disk_bytes: AtomicU64,
    /// Size of the unflushed entries of all shards, in bytes, when the free space was last checked.
    unflushed_bytes: AtomicU64,
    /// Budget for appends in flight. An append holds one permit for each of its bytes.
    pub(super) appends: Arc<Semaphore>,
    /// Limit of running queries. Each holds one permit.
    pub(super) queries: Arc<Semaphore>,
    /// Cancelled when the node stops: new requests are then refused.
    pub(super) stopping: CancellationToken,
    /// Cancelled after a shutdown has waited for appends in flight: the upkeep then flushes, closes the replicas and
    /// ends.
    pub(super) closing: CancellationToken,
}

impl Shared {
    /// Opens the data directory and the log, and registers the node's metrics. No replica is open yet.
    pub(super) async fn open(config: Config, registry: &mut Registry) -> Result<Arc<Self>, NodeError> {
        config.check()?;
        let directory = Arc::new(DataDirectory::open(&config.data_dir)?);
        let metrics = Metrics::register(registry);
        let (raft_log, shards, directory_id) = RaftLog::open(&config, &directory, &metrics).await?;
        let budgets = Budgets::new(BudgetSizes {
            engines: shards.get().into(),
            head_bytes_max: config.head_bytes_max,
            dictionary_bytes_max: limits::DICTIONARY_BYTES_MAX,
            cache_bytes: config.cache_bytes,
        });
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            peers: Peers::new(config.node_id, config.site.address.clone(), directory_id, config.dialer.clone()),
            leases: Arc::default(),
            directory,
            cluster: Cluster::new(config.node_id, directory_id),
            initial_shards: shards,
            clock: Arc::new(Clock::new(config.retention, metrics.clone())),
            raft_log,
            hosted: watch::Sender::default(),
            sharers: Arc::new(Sharers::new(shards.get())),
            supervisors: TaskTracker::new(),
            budgets,
            opening: Semaphore::new(cpus),
            refetches: Semaphore::new(REFETCHES_MAX),
            storing_time: Mutex::default(),
            is_full: AtomicBool::new(false),
            disk_bytes: AtomicU64::new(0),
            unflushed_bytes: AtomicU64::new(0),
            appends: Arc::new(Semaphore::new(APPENDS_IN_FLIGHT_BYTES_MAX)),
            queries: Arc::new(Semaphore::new(limits::QUERIES_AT_ONCE_MAX)),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
            metrics,
            config,
        }))
    }

    /// Returns the shards of this node, by number.
    pub(super) fn shards(&self) -> BTreeMap<u32, Arc<Hosted>> {
        self.hosted.borrow().clone()
    }

    /// Returns a shard of this node; `None` if the node has no replica of it.
    pub(super) fn shard(&self, shard: u32) -> Option<Arc<Hosted>> {
        self.hosted.borrow().get(&shard).map(Arc::clone)
    }

    /// Waits until this node has a replica of the shard.
    pub(super) async fn hosted_shard(&self, shard: u32) -> Arc<Hosted> {
        let mut hosted = self.hosted.subscribe();
        match hosted.wait_for(|hosted| hosted.contains_key(&shard)).await.map(|hosted| Arc::clone(&hosted[&shard])) {
            Ok(hosted) => hosted,
            // `self` holds the sender.
            Err(_closed) => std::future::pending().await,
        }
    }

    /// Waits until this node has more than `count` replicas.
    pub(super) async fn hosted_more_than(&self, count: usize) {
        // `self` holds the sender, so the wait ends only with the condition.
        let _is_more = self.hosted.subscribe().wait_for(|hosted| hosted.len() > count).await.is_ok();
    }

    /// Makes this node hold a replica of a shard with this identity, if it does not yet. Starts to open the replica.
    pub(super) async fn host(self: &Arc<Self>, shard: u32, identity: DirectoryId) -> io::Result<()> {
        if self.shard(shard).is_some() {
            return Ok(());
        }
        let directory = Arc::clone(&self.directory);
        spawn_blocking(move || directory.make_shard(shard)).await.map_err(io::Error::other)??;
        let closing = self.closing.child_token();
        let hosted = Hosted::new(shard, identity, closing, self.metrics.clone());
        let hosted = Arc::new(hosted);
        let is_new = self.hosted.send_if_modified(|all| match all.entry(shard) {
            Entry::Vacant(vacant) => {
                vacant.insert(Arc::clone(&hosted));
                self.sharers.set(all.len());
                true
            }
            Entry::Occupied(_) => false,
        });
        if is_new {
            self.supervisors.spawn(supervised(Arc::clone(self), hosted));
        }
        Ok(())
    }

    /// Checks the cluster that a request names. A request without a cluster passes.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: the request is of another cluster.
    pub(super) fn check_cluster(&self, cluster: &[u8]) -> Result<(), Status> {
        match self.peers.cluster() {
            Some(own) if !cluster.is_empty() && *cluster != own.0.to_be_bytes() => {
                Err(Status::failed_precondition(format!(
                    "node {} belongs to cluster {own}, and the request is of another cluster: correct the address of \
                     the node",
                    self.config.node_id
                )))
            }
            _ => Ok(()),
        }
    }

    /// Closes the replica of a shard for good, if there is one. Returns when no file of it is open.
    pub(super) async fn unhost(&self, shard: u32) {
        let Some(hosted) = self.shard(shard) else { return };
        hosted.closing.cancel();
        hosted.closed.cancelled().await;
        self.hosted.send_modify(|all| {
            all.remove(&shard);
            self.sharers.set(all.len());
        });
    }

    /// Returns the state of a shard. If its replica is being repaired, first waits for the end of the repair: at most
    /// [`REPAIR_PATIENCE`], and only until the node stops.
    pub(super) async fn state_after_repair(&self, hosted: &Hosted) -> State {
        let repaired = hosted.reached(|state| (!matches!(state, State::Repairing)).then(|| state.clone()));
        let repaired = tokio::time::timeout(REPAIR_PATIENCE, self.stopping.run_until_cancelled(repaired)).await;
        repaired.ok().flatten().unwrap_or(State::Repairing)
    }

    /// Repairs damaged files of a shard's replica, and opens it. Logs every [`OPEN_REPORT`] that it still waits.
    pub(super) async fn open_replica(&self, hosted: &Hosted) -> Result<Arc<Replica>, NodeError> {
        self.open_with(hosted, None).await
    }

    /// Installs a snapshot, if there is one, and opens the replica as [`Shared::open_replica`] does. If the snapshot
    /// cannot be installed, the replica has its old state.
    pub(super) async fn open_with(&self, hosted: &Hosted, staged: Option<Staged>) -> Result<Arc<Replica>, NodeError> {
        let shard = hosted.number();
        let opened = async {
            let log = self.raft_log.opened().await?;
            // The semaphore is never closed, so this does not fail.
            let _permit = self.opening.acquire().await;
            let Self { config, budgets, metrics, clock, peers, leases, sharers, .. } = self;
            let surroundings = Surroundings { config, budgets, metrics, clock, peers, leases, sharers };
            Replica::open(shard, hosted.identity(), log, staged, surroundings).await
        };
        let mut opened = std::pin::pin!(opened);
        let began = Instant::now();
        loop {
            match tokio::time::timeout(OPEN_REPORT, &mut opened).await {
                Ok(opened) => return opened,
                Err(_elapsed) => {
                    tracing::info!(shard, seconds = began.elapsed().as_secs(), "waiting until the shard is open");
                }
            }
        }
    }

    /// Returns the replicas whose engines are open for requests.
    pub(super) fn replicas(&self) -> impl Iterator<Item = Arc<Replica>> {
        self.shards().into_values().filter_map(|hosted| hosted.replica())
    }

    /// Returns true if damaged files of a shard cannot be repaired. Dropping data of that shard then frees no space.
    pub(super) fn is_unrepaired(&self) -> bool {
        self.replicas().any(|replica| replica.shard().engine().repair_failure().is_some())
    }

    /// Sums up the size of the unflushed entries of all shards, in bytes. The sum is kept for
    /// [`Shared::unflushed_bytes`].
    pub(super) fn sum_unflushed_bytes(&self) -> u64 {
        let serving = self.shards().into_values().filter_map(|hosted| hosted.serving());
        let bytes = serving.map(|replica| replica.shard().unflushed_bytes()).sum();
        self.unflushed_bytes.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// Returns the space of purged log entries to the file system, if that writes at most `written_max` bytes for each
    /// byte that it returns ([`LogDatabase::reclaim`](crate::consensus::LogDatabase::reclaim)). Returns true if it
    /// was tried.
    pub(super) async fn reclaim_log(&self, written_max: u64) -> bool {
        let live_bytes = |hosted: &Hosted| Some(hosted.serving()?.shard().log_bytes());
        let shards = self.shards().into_iter().map(|(number, hosted)| (number, live_bytes(&hosted)));
        let live = shards.chain([(META_GROUP, None)]).collect();
        // On a full disk, a merge may use what is left, because it returns more.
        let reserve_bytes = if self.is_full() {
            0
        } else {
            // If the space is not known, the disk counts as full from the next check on.
            let space = Space::of(self.directory.path()).map_or(0, Space::reserve_bytes);
            space.saturating_add(self.unflushed_bytes().saturating_mul(2))
        };
        self.raft_log.reclaim(Terms { written_max, live, reserve_bytes }).await
    }

    /// Returns the total size of the unflushed entries of all shards, in bytes, as it was last computed.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    pub(super) fn set_full(&self, is_full: bool) {
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            tracing::warn!(is_full, "space for appends");
        }
    }

    /// Returns the disk use of the data when it was last measured, in bytes.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_over_cap(&self) -> bool {
        self.disk_bytes() > self.config.disk_bytes_max
    }

    /// Compares the disk use of the data with the cap. Appends are refused while it exceeds the cap.
    pub(super) fn note_use(&self, disk_bytes: u64) {
        let was_over_cap = self.is_over_cap();
        self.disk_bytes.store(disk_bytes, Ordering::Relaxed);
        let is_over_cap = self.is_over_cap();
        if is_over_cap != was_over_cap {
            let cap = self.config.disk_bytes_max;
            tracing::warn!(is_over_cap, disk_bytes, cap, "cap on disk use");
        }
    }
}
