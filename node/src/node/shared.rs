//! The state that requests and upkeep of a node share: the replica, limits on work in flight, and reasons to refuse
//! appends.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proto::limits;
use proto::placement::{FIRST_DATA_SHARD, Placement};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Config;
use crate::directory::DataDirectory;
use crate::error::{NodeError, ReplicaError};
use crate::metrics::{Metrics, StateLabels};
use crate::replica::Replica;

/// Largest total size of the appends in flight, in bytes. Each append counts with one form of its batch. With the other
/// forms, encoded and decoded, appends take a few times as much memory.
pub(super) const APPENDS_IN_FLIGHT_BYTES_MAX: usize = 128 << 20;

/// Interval at which the node logs that the replica is still being opened. Opening takes long if files are repaired.
const OPEN_REPORT: Duration = Duration::from_secs(5);

/// Longest time that a request waits for the end of a repair.
const REPAIR_PATIENCE: Duration = Duration::from_secs(20);

/// Shared state of one node.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) directory: Arc<DataDirectory>,
    pub(super) placement: Placement,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<Clock>,
    state: watch::Sender<State>,
    /// True if the file system has no space for appends.
    is_full: AtomicBool,
    /// True if the disk use of the data exceeds the configured cap.
    is_over_cap: AtomicBool,
    /// Budget for appends in flight. An append holds one permit for each of its bytes.
    pub(super) appends: Arc<Semaphore>,
    /// Limit of running queries. Each holds one permit; the upkeep holds all permits while it reopens the replica.
    pub(super) queries: Arc<Semaphore>,
    /// Cancelled when the node stops: new requests are then refused.
    pub(super) stopping: CancellationToken,
    /// Cancelled after a shutdown has waited for appends in flight: the upkeep then flushes, closes the replica and
    /// ends.
    pub(super) closing: CancellationToken,
}

/// State of the replica.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The replica replays its log, waits for an election, or is being opened again.
    Starting,
    Serving(Arc<Replica>),
    /// The replica is being opened again because stored values are damaged. Requests wait.
    Repairing,
    /// The disk is full: queries are served, and the replica is opened again when there is space.
    ReadOnly(Arc<Replica>),
    Failed(Arc<ReplicaError>),
    Stopped,
}

impl State {
    const NAMES: [&str; 6] = ["starting", "serving", "repairing", "read_only", "failed", "stopped"];

    fn name(&self) -> &'static str {
        let [starting, serving, repairing, read_only, failed, stopped] = Self::NAMES;
        match self {
            Self::Starting => starting,
            Self::Serving(_) => serving,
            Self::Repairing => repairing,
            Self::ReadOnly(_) => read_only,
            Self::Failed(_) => failed,
            Self::Stopped => stopped,
        }
    }
}

impl Shared {
    pub(super) fn new(config: Config, directory: DataDirectory, metrics: Metrics, clock: Arc<Clock>) -> Self {
        Self {
            config,
            directory: Arc::new(directory),
            placement: Placement::uniform(NonZeroU16::MIN),
            metrics,
            clock,
            state: watch::Sender::new(State::Starting),
            is_full: AtomicBool::new(false),
            is_over_cap: AtomicBool::new(false),
            appends: Arc::new(Semaphore::new(APPENDS_IN_FLIGHT_BYTES_MAX)),
            queries: Arc::new(Semaphore::new(limits::QUERIES_AT_ONCE_MAX)),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
        }
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn set_state(&self, state: State) {
        for name in State::NAMES {
            let gauge = self.metrics.replica_state.get_or_create_owned(&StateLabels { state: name });
            gauge.set(i64::from(name == state.name()));
        }
        tracing::info!(state = state.name(), "replica");
        self.state.send_replace(state);
    }

    /// Waits for a state for which `wanted` returns `Some`, and returns the value in it.
    pub(super) async fn reached<T>(&self, wanted: impl Fn(&State) -> Option<T>) -> T {
        let mut states = self.state.subscribe();
        loop {
            let found = wanted(&states.borrow_and_update());
            if let Some(found) = found {
                return found;
            }
            // `self` holds the sender, so this fails only if the state can never change again.
            if states.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the state. If the replica is being repaired, first waits for the end of the repair: at most
    /// [`REPAIR_PATIENCE`], and only until the node stops.
    pub(super) async fn state_after_repair(&self) -> State {
        let repaired = self.reached(|state| (!matches!(state, State::Repairing)).then(|| state.clone()));
        let repaired = tokio::time::timeout(REPAIR_PATIENCE, self.stopping.run_until_cancelled(repaired)).await;
        repaired.ok().flatten().unwrap_or(State::Repairing)
    }

    /// Repairs damaged files of the replica, and opens it. Logs every [`OPEN_REPORT`] that it still waits.
    pub(super) async fn open_replica(&self) -> Result<Arc<Replica>, NodeError> {
        let clock = Arc::clone(&self.clock);
        let opened = Replica::open(&self.config, &self.directory, FIRST_DATA_SHARD, &self.metrics, clock);
        let mut opened = std::pin::pin!(opened);
        let began = Instant::now();
        loop {
            match tokio::time::timeout(OPEN_REPORT, &mut opened).await {
                Ok(opened) => return opened,
                Err(_elapsed) => {
                    tracing::info!(seconds = began.elapsed().as_secs(), "waiting until the data directory is open");
                }
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    pub(super) fn set_full(&self, is_full: bool) {
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            tracing::warn!(is_full, "space for appends");
        }
    }

    pub(super) fn is_over_cap(&self) -> bool {
        self.is_over_cap.load(Ordering::Relaxed)
    }

    /// Compares the disk use of the data with the cap. Appends are refused while it exceeds the cap.
    pub(super) fn note_use(&self, disk_bytes: u64) {
        let cap = self.config.disk_bytes_max;
        let is_over_cap = disk_bytes > cap;
        if self.is_over_cap.swap(is_over_cap, Ordering::Relaxed) != is_over_cap {
            tracing::warn!(is_over_cap, disk_bytes, cap, "cap on disk use");
        }
    }
}
