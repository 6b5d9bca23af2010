//! A shard of the node: the state of its replica, and the queries that use the replica.

use std::sync::Arc;

use tokio::sync::{RwLock, Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::consensus::DirectoryId;
use crate::error::ReplicaError;
use crate::metrics::{Metrics, StateLabels};
use crate::node::replica::Replica;
use crate::node::shared::APPENDS_IN_FLIGHT_BYTES_MAX;

/// A shard of this node.
#[derive(Debug)]
pub(super) struct Hosted {
    number: u32,
    /// Identity of the replica.
    identity: DirectoryId,
    /// Cancelled when the replica is to be closed: when the node stops, or when the node gives up the replica.
    pub(super) closing: CancellationToken,
    /// Cancelled when the replica is closed for good.
    pub(super) closed: CancellationToken,
    state: watch::Sender<State>,
    metrics: Metrics,
    /// Lock that each query of the shard holds for reading. The upkeep holds it for writing while it opens the replica
    /// again, so that queries wait.
    pub(super) queries: Arc<RwLock<()>>,
    /// Appends that wait for the end of a repair. An append holds one permit for each of its bytes while it waits.
    repair_waits: Semaphore,
}

/// Reason why a shard is not ready although its replica serves: without a majority, it neither stores pushes nor
/// answers queries.
pub(super) const CANNOT_COMMIT: &str = "cannot_commit";

/// State of a shard's replica.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The replica replays its log, waits for an election, or is being opened again.
    Starting,
    Serving(Arc<Replica>),
    /// The replica is being opened again because stored values are damaged, or because a snapshot replaces its state.
    /// Requests wait.
    Repairing,
    /// The disk is full: queries are served, and the replica is opened again when there is space.
    ReadOnly(Arc<Replica>),
    /// The state cannot be used, and is fetched from another member.
    Damaged(Arc<ReplicaError>),
    Failed(Arc<ReplicaError>),
    Stopped,
}

impl State {
    const NAMES: [&str; 7] = ["starting", "serving", "repairing", "read_only", "damaged", "failed", "stopped"];

    pub(super) fn name(&self) -> &'static str {
        let [starting, serving, repairing, read_only, damaged, failed, stopped] = Self::NAMES;
        match self {
            Self::Starting => starting,
            Self::Serving(_) => serving,
            Self::Repairing => repairing,
            Self::ReadOnly(_) => read_only,
            Self::Damaged(_) => damaged,
            Self::Failed(_) => failed,
            Self::Stopped => stopped,
        }
    }

    /// Returns the state of a replica that has ended with an error.
    pub(super) fn after(error: Arc<ReplicaError>) -> Self {
        if error.is_state_lost() { Self::Damaged(error) } else { Self::Failed(error) }
    }

    /// Returns the reason why the shard is not ready; `None` if it is. A read-only shard is ready, because it serves
    /// queries. So is a shard in a repair, because queries wait for its end.
    pub(super) fn unready(&self) -> Option<&'static str> {
        match self {
            Self::Serving(replica) if !replica.can_commit() => Some(CANNOT_COMMIT),
            Self::Serving(_) | Self::Repairing | Self::ReadOnly(_) => None,
            Self::Starting | Self::Damaged(_) | Self::Failed(_) | Self::Stopped => Some(self.name()),
        }
    }
}

impl Hosted {
    /// Returns a shard whose replica is not open.
    pub(super) fn new(number: u32, identity: DirectoryId, closing: CancellationToken, metrics: Metrics) -> Self {
        Self {
            number,
            identity,
            closing,
            closed: CancellationToken::new(),
            state: watch::Sender::new(State::Starting),
            metrics,
            queries: Arc::default(),
            repair_waits: Semaphore::new(APPENDS_IN_FLIGHT_BYTES_MAX),
        }
    }

    /// Reserves `bytes` for an append that waits for the end of a repair, until the permit is dropped. Returns `None`
    /// if more than `bytes_max` would wait. An append that is larger than that may wait alone.
    pub(super) fn wait_for_repair(&self, bytes: usize, bytes_max: u64) -> Option<SemaphorePermit<'_>> {
        let waiting = APPENDS_IN_FLIGHT_BYTES_MAX.saturating_sub(self.repair_waits.available_permits());
        if waiting > 0 && waiting.saturating_add(bytes) as u64 > bytes_max {
            return None;
        }
        let permits = u32::try_from(bytes.min(APPENDS_IN_FLIGHT_BYTES_MAX)).unwrap_or(u32::MAX);
        self.repair_waits.try_acquire_many(permits).ok()
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn identity(&self) -> DirectoryId {
        self.identity
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn set_state(&self, state: State) {
        let shard = self.number;
        for name in State::NAMES {
            let gauge = self.metrics.replica_state.get_or_create_owned(&StateLabels { state: name, shard });
            gauge.set(i64::from(name == state.name()));
        }
        tracing::info!(shard, state = state.name(), "replica");
        self.state.send_replace(state);
    }

    /// Returns the replica if its engine is open for requests: if the replica serves, or is read-only.
    pub(super) fn replica(&self) -> Option<Arc<Replica>> {
        match &*self.state.borrow() {
            State::Serving(replica) | State::ReadOnly(replica) => Some(Arc::clone(replica)),
            State::Starting | State::Repairing | State::Damaged(_) | State::Failed(_) | State::Stopped => None,
        }
    }

    /// Describes the damage of the replica's state; `None` if none is known.
    pub(super) fn damage(&self) -> Option<String> {
        match &*self.state.borrow() {
            State::Serving(replica) | State::ReadOnly(replica) => replica.shard().damage(),
            State::Damaged(error) | State::Failed(error) => Some(error.to_string()),
            State::Starting | State::Repairing | State::Stopped => None,
        }
    }

    /// Returns the replica if it serves.
    pub(super) fn serving(&self) -> Option<Arc<Replica>> {
        match &*self.state.borrow() {
            State::Serving(replica) => Some(Arc::clone(replica)),
            _ => None,
        }
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
}
