//! Background work of a node: flushes, purges of the log, a watch on the disk, and reopening of a replica after a
//! full disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::limits::QUERIES_AT_ONCE_MAX;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::TaskTracker;

use crate::error::{NodeError, ReplicaError};
use crate::node::retention::{keep_retention, watch_cap};
use crate::node::shared::{Shared, State};
use crate::replica::Replica;
use crate::space::Space;

/// A disk that takes 1 GB/s loses a quarter of the largest reserve in this time.
const SPACE_INTERVAL: Duration = Duration::from_millis(100);
const FLUSH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
const CAP_INTERVAL: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a replica with damage is opened again. It doubles if damage is found again within [`REPAIR_MEMORY`].
const REPAIR_INTERVAL: Duration = Duration::from_millis(250);
const REPAIR_DOUBLINGS_MAX: u32 = 8;
const REPAIR_MEMORY: Duration = Duration::from_secs(300);
/// Interval of attempts to open a replica again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Starts all background tasks; they end when the node closes.
pub(super) fn start(shared: &Arc<Shared>, tasks: &TaskTracker, replica: Arc<Replica>) {
    tasks.spawn(supervise(Arc::clone(shared), replica));
    tasks.spawn(every(Arc::clone(shared), SPACE_INTERVAL, async |shared| watch_space(shared)));
    // A task of its own, since dropping partitions takes long.
    tasks.spawn(every(Arc::clone(shared), CAP_INTERVAL, watch_cap));
    tasks.spawn(every(Arc::clone(shared), RETENTION_INTERVAL, keep_retention));
}

async fn every(shared: Arc<Shared>, period: Duration, work: impl AsyncFn(&Arc<Shared>)) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shared.closing.run_until_cancelled(ticks.tick()).await.is_some() {
        work(&shared).await;
    }
}

/// Follows the replica through its states until the node stops.
async fn supervise(shared: Arc<Shared>, first: Arc<Replica>) {
    let mut replica = first;
    let mut queries_held = None;
    let mut repaired = Repaired::default();
    loop {
        let error = tokio::select! {
            error = serve(&shared, &replica, queries_held.take()) => error,
            () = shared.closing.cancelled() => {
                if let Err(error) = replica.flush().await {
                    tracing::error!(%error, "the last flush failed; the next start applies the log again");
                }
                shared.set_state(State::Stopped);
                return replica.close().await;
            }
        };
        if error.is_damage() {
            let Some((opened, held)) = repair(&shared, replica, &error, &mut repaired).await else { return };
            (replica, queries_held) = (opened, Some(held));
            continue;
        }
        if !error.is_disk_full() {
            shared.set_state(State::Failed(error));
            return replica.close().await;
        }
        // A replica that has not replayed its log must not answer queries.
        let was_serving = matches!(shared.state(), State::Serving(_));
        shared.set_state(if was_serving { State::ReadOnly(Arc::clone(&replica)) } else { State::Starting });
        replica.stop().await;
        let Some((opened, held)) = reopen_when_there_is_space(&shared, replica).await else { return };
        replica = opened;
        queries_held = Some(held);
    }
}

/// Serves until the replica fails. Held queries continue as soon as it serves.
async fn serve(
    shared: &Arc<Shared>,
    replica: &Arc<Replica>,
    queries_held: Option<OwnedSemaphorePermit>,
) -> Arc<ReplicaError> {
    let recovered = async move {
        replica.recovered().await;
        shared.set_state(State::Serving(Arc::clone(replica)));
        drop(queries_held);
        keep_flushed(shared, replica).await
    };
    tokio::select! {
        biased;
        error = replica.failure().wait() => error,
        error = recovered => error,
    }
}

/// Recent repairs of the replica.
#[derive(Debug, Default)]
struct Repaired {
    times: u32,
    last: Option<Instant>,
}

impl Repaired {
    /// Pause before the next repair.
    fn pause(&mut self) -> Duration {
        let is_soon = self.last.is_some_and(|last| last.elapsed() < REPAIR_MEMORY);
        self.times = if is_soon { self.times.saturating_add(1).min(REPAIR_DOUBLINGS_MAX) } else { 0 };
        self.last = Some(Instant::now());
        REPAIR_INTERVAL.saturating_mul(1 << self.times)
    }
}

/// Opens the replica again, which repairs its files. Returns it with a permit that holds queries until it serves.
/// `None`: the node stops, or the replica failed for good and is closed.
async fn repair(
    shared: &Arc<Shared>,
    replica: Arc<Replica>,
    error: &ReplicaError,
    repaired: &mut Repaired,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    tracing::error!(%error, "stored values are damaged: the replica is opened again and repaired");
    if !matches!(error, ReplicaError::Damaged) {
        // The replica applies no more entries.
        shared.set_state(State::Repairing);
    }
    close_and_open(shared, replica, repaired.pause(), &State::Repairing).await
}

/// The reopened replica, and a permit that holds queries until it serves. `None`: the node stops, or the replica
/// failed for good and is closed.
async fn reopen_when_there_is_space(
    shared: &Arc<Shared>,
    replica: Arc<Replica>,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    close_and_open(shared, replica, REOPEN_INTERVAL, &State::Starting).await
}

/// Opens a replica again after `pause`; `state` is the node's from when the replica is closed until it is open.
async fn close_and_open(
    shared: &Arc<Shared>,
    replica: Arc<Replica>,
    pause: Duration,
    state: &State,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    let mut old = Some(replica);
    let reopened = reopen(shared, &mut old, pause, state).await;
    if let Some(old) = old {
        // The state also holds the replica.
        shared.set_state(State::Stopped);
        old.close().await;
    }
    reopened
}

/// Closes `old` and opens it again once there is space. `None` with `old` left: the node stops.
async fn reopen(
    shared: &Arc<Shared>,
    old: &mut Option<Arc<Replica>>,
    pause: Duration,
    state: &State,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    loop {
        shared.closing.run_until_cancelled(sleep(pause)).await?;
        if shared.is_full() {
            continue;
        }
        // Running queries end first and new ones wait: none is refused because files are closed and opened.
        let all = u32::try_from(QUERIES_AT_ONCE_MAX).unwrap_or(u32::MAX);
        let held = Arc::clone(&shared.queries).acquire_many_owned(all);
        let held = shared.closing.run_until_cancelled(held).await?.ok()?;
        shared.set_state(state.clone());
        if let Some(old) = old.take() {
            old.close().await;
        }
        match shared.open_replica().await {
            Ok(replica) => return Some((replica, held)),
            Err(NodeError::Replica(error)) if error.is_disk_full() => {
                tracing::warn!(%error, "the replica does not open yet");
            }
            Err(error) => {
                let error = match error {
                    NodeError::Replica(error) => error,
                    other => ReplicaError::Consensus(other.into()),
                };
                shared.set_state(State::Failed(Arc::new(error)));
                return None;
            }
        }
    }
}

/// Flushes when it is time, purges the log, and reclaims its space. Returns the error when one of these fails.
async fn keep_flushed(shared: &Shared, replica: &Replica) -> Arc<ReplicaError> {
    let mut flushed_at = Instant::now();
    loop {
        sleep(FLUSH_CHECK_INTERVAL).await;
        let shard = replica.shard();
        // A full disk is a reason to flush: the purge after it frees more of the log than the flush writes.
        let is_full = shared.is_full();
        let is_late = flushed_at.elapsed() >= shared.config.flush_interval;
        let is_due = (is_late || is_full) && shard.unflushed_bytes() > 0;
        let is_large = shard.unflushed_bytes() >= shared.config.flush_bytes;
        // Called in any case, because it also sets the memory metrics.
        let wants_flush = replica.wants_flush().await;
        if is_due || is_large || wants_flush {
            if let Err(error) = replica.flush().await {
                return error;
            }
            flushed_at = Instant::now();
        }
        if shard.engine().needs_repair() {
            // Flushed entries need not be applied again after the repair.
            let flushed = replica.flush().await;
            return flushed.err().unwrap_or_else(|| Arc::new(ReplicaError::Damaged));
        }
        // Openraft purges a moment after the flush; most of the time there is nothing to reclaim.
        if replica.is_reclaimable()
            && let Err(error) = replica.reclaim().await
        {
            return error;
        }
    }
}

/// Refuses appends while less space is free than a flush and the reserve need.
pub(super) fn watch_space(shared: &Arc<Shared>) {
    let unflushed_bytes = match shared.state() {
        State::Serving(replica) => replica.shard().unflushed_bytes(),
        _ => 0,
    };
    let is_full = match Space::of(shared.directory.path()) {
        Ok(space) => space.is_full(unflushed_bytes),
        Err(error) => {
            tracing::error!(%error, "the free space of the data directory cannot be read: appends are refused");
            true
        }
    };
    shared.set_full(is_full);
}
