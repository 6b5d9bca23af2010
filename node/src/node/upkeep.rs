//! Background work of a node: flushes, purges of the log, checks of the free space, and reopening of a replica after
//! damage or a full disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::limits::QUERIES_AT_ONCE_MAX;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::TaskTracker;

use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::node::retention::{keep_retention, watch_cap};
use crate::node::shared::{Shared, State};
use crate::replica::Replica;
use crate::space::Space;

/// Interval of checks of the free space. A disk that writes 1 GB/s fills less than half of the largest reserve in this
/// time.
const SPACE_INTERVAL: Duration = Duration::from_millis(100);
const FLUSH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
const CAP_INTERVAL: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a replica with damage is opened again. The pause doubles if damage is found again within
/// [`REPAIR_MEMORY`].
const REPAIR_INTERVAL: Duration = Duration::from_millis(250);
/// Largest number of times that the pause before a repair is doubled.
const REPAIR_DOUBLINGS_MAX: u32 = 8;
/// Time since the last repair within which new damage doubles the pause before the next repair.
const REPAIR_MEMORY: Duration = Duration::from_secs(300);
/// Interval of attempts to open a replica again after a full disk.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Starts all background tasks. The tasks end when the node closes.
pub(super) fn start(shared: &Arc<Shared>, tasks: &TaskTracker, replica: Arc<Replica>) {
    tasks.spawn(supervise(Arc::clone(shared), replica));
    tasks.spawn(every(Arc::clone(shared), SPACE_INTERVAL, async |shared| watch_space(shared)));
    // Separate from `keep_retention`, which takes long when it drops partitions.
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

/// Runs the replica, and opens it again after damage or a full disk. Returns when the node stops, or when the replica
/// has failed for good.
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
        if error.is_final() {
            shared.set_state(State::Failed(error));
            return replica.close().await;
        }
        // A replica that has not replayed its log must not serve queries.
        let was_serving = matches!(shared.state(), State::Serving(_));
        shared.set_state(if was_serving { State::ReadOnly(Arc::clone(&replica)) } else { State::Starting });
        replica.stop().await;
        let Some((opened, held)) = reopen_when_there_is_space(&shared, replica).await else { return };
        replica = opened;
        queries_held = Some(held);
    }
}

/// Runs the replica until it fails, and returns the error. `queries_held` is the permit for which queries wait; it is
/// dropped as soon as the replica serves.
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

/// Number of times that the pause before a repair is doubled, and the time of the last repair.
#[derive(Debug, Default)]
struct Repaired {
    times: u32,
    last: Option<Instant>,
}

impl Repaired {
    /// Returns the pause before a repair that is needed now, and records this repair.
    fn pause(&mut self) -> Duration {
        let is_soon = self.last.is_some_and(|last| last.elapsed() < REPAIR_MEMORY);
        self.times = if is_soon { self.times.saturating_add(1).min(REPAIR_DOUBLINGS_MAX) } else { 0 };
        self.last = Some(Instant::now());
        REPAIR_INTERVAL.saturating_mul(1 << self.times)
    }
}

/// Opens the replica again, which repairs its files. Returns the replica, and a permit that makes queries wait until
/// the replica serves. Returns `None` if the node stops, or if the replica failed for good and is closed.
async fn repair(
    shared: &Arc<Shared>,
    replica: Arc<Replica>,
    error: &ReplicaError,
    repaired: &mut Repaired,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    tracing::error!(%error, "stored values are damaged: the replica is opened again and repaired");
    if !matches!(error, ReplicaError::Damaged) {
        // The replica may apply no more entries, so requests wait from now on. With `Damaged`, it serves until it is
        // closed.
        shared.set_state(State::Repairing);
    }
    close_and_open(shared, replica, repaired.pause(), &State::Repairing).await
}

/// Waits for free space and opens the replica again. Returns the replica, and a permit that makes queries wait until
/// the replica serves. Returns `None` if the node stops, or if the replica failed for good and is closed.
async fn reopen_when_there_is_space(
    shared: &Arc<Shared>,
    replica: Arc<Replica>,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    close_and_open(shared, replica, REOPEN_INTERVAL, &State::Starting).await
}

/// Opens a replica again after `pause`. The node is in `state` while the replica is closed. Returns the same as
/// [`repair`].
async fn close_and_open(
    shared: &Arc<Shared>,
    replica: Arc<Replica>,
    pause: Duration,
    state: &State,
) -> Option<(Arc<Replica>, OwnedSemaphorePermit)> {
    let failure = replica.failure().clone();
    let mut old = Some(replica);
    match reopen(shared, &failure, &mut old, pause, state).await {
        Ok(opened) => Some(opened),
        Err(end) => {
            // The old state may hold a reference to the replica, which would keep the replica from being closed.
            shared.set_state(end);
            if let Some(old) = old {
                old.close().await;
            }
            None
        }
    }
}

/// Closes `old` and opens the replica again once there is space. `failure` is the [`Failure`] of `old`.
///
/// # Errors
/// Returns the state in which the node ends. `old` is then still `Some` if that replica is not closed yet.
async fn reopen(
    shared: &Arc<Shared>,
    failure: &Failure,
    old: &mut Option<Arc<Replica>>,
    pause: Duration,
    state: &State,
) -> Result<(Arc<Replica>, OwnedSemaphorePermit), State> {
    loop {
        let held = tokio::select! {
            biased;
            // Consensus may still run during the wait, and a sync of its log may fail.
            error = failure.wait_for_final(), if old.is_some() => return Err(State::Failed(error)),
            held = hold_queries(shared, pause) => held.ok_or(State::Stopped)?,
        };
        shared.set_state(state.clone());
        if let Some(old) = old.take() {
            old.close().await;
        }
        // No thread reports errors any more. Work that the close interrupted may have reported an error, so only a
        // failed sync counts.
        if let Some(error) = failure.failed_sync() {
            return Err(State::Failed(error));
        }
        match shared.open_replica().await {
            Ok(replica) => return Ok((replica, held)),
            Err(NodeError::Replica(error)) if error.is_disk_full() => {
                tracing::warn!(%error, "the replica does not open yet");
            }
            Err(NodeError::Replica(error)) => return Err(State::Failed(Arc::new(error))),
            Err(other) => return Err(State::Failed(Arc::new(ReplicaError::Consensus(other.into())))),
        }
    }
}

/// Waits for `pause`, then for free space, and then for the end of running queries. Returns a permit that makes new
/// queries wait, so that no query is refused while files are closed and opened. Returns `None` if the node stops.
async fn hold_queries(shared: &Shared, pause: Duration) -> Option<OwnedSemaphorePermit> {
    let held = async {
        sleep(pause).await;
        while shared.is_full() {
            sleep(pause).await;
        }
        let all = u32::try_from(QUERIES_AT_ONCE_MAX).unwrap_or(u32::MAX);
        Arc::clone(&shared.queries).acquire_many_owned(all).await.ok()
    };
    shared.closing.run_until_cancelled(held).await?
}

/// Flushes when a flush is due, purges the log, and reclaims its space. Returns the error of the first step that fails.
async fn keep_flushed(shared: &Shared, replica: &Replica) -> Arc<ReplicaError> {
    let mut flushed_at = Instant::now();
    loop {
        sleep(FLUSH_CHECK_INTERVAL).await;
        let shard = replica.shard();
        // A full disk is a reason to flush: the purge of the log after the flush frees more space than the flush takes.
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

/// Checks the free space once. Appends are refused until the next check if the next flush and the reserve together need
/// more.
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

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use proto::Tier;

    use super::*;
    use crate::clock::Clock;
    use crate::consensus::Proposal;
    use crate::directory::DataDirectory;
    use crate::error::failed_sync;
    use crate::metrics::Metrics;
    use crate::node::Node;
    use crate::{Config, Retention};

    fn config(folder: &tempfile::TempDir) -> Config {
        let day = Duration::from_secs(86_400);
        let retention = Retention { raw: day, minutes: day, hours: day, days: day };
        Config::new(folder.path().to_owned(), retention, 1 << 30)
    }

    async fn opened(folder: &tempfile::TempDir) -> (Arc<Node>, Arc<Replica>) {
        let node = Node::open(config(folder), &mut Registry::default()).await.unwrap();
        node.ready().await;
        let State::Serving(replica) = node.shared.state() else { panic!("it does not serve") };
        (node, replica)
    }

    /// Checks that a failed sync after damage ends the node. With `hold`, a query runs, so that the sync fails while
    /// the repair waits for this query.
    async fn fails_after_damage(hold: bool) {
        let folder = tempfile::tempdir().unwrap();
        let (node, replica) = opened(&folder).await;
        let query = hold.then(|| Arc::clone(&node.shared.queries).try_acquire_owned().unwrap());
        replica.failure().report(ReplicaError::Damaged);
        sleep(if hold { 2 * REPAIR_INTERVAL } else { REPAIR_INTERVAL / 2 }).await;
        replica.failure().report(failed_sync());
        drop(replica);
        let failed = tokio::time::timeout(Duration::from_secs(5), node.failed()).await;
        assert!(matches!(*failed.expect("the replica was opened again"), ReplicaError::Sync(_)));
        drop(query);
        node.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_sync_before_a_repair_ends_the_node() {
        fails_after_damage(false).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_sync_while_a_repair_waits_for_queries_ends_the_node() {
        fails_after_damage(true).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn errors_of_work_that_a_repair_interrupts_are_not_final() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder);
        let metrics = Metrics::register(&mut Registry::default());
        let clock = Arc::new(Clock::new(config.retention, metrics.clone()));
        let directory = DataDirectory::open(&config.data_dir).unwrap();
        let shared = Arc::new(Shared::new(config, directory, metrics, clock));
        let replica = shared.open_replica().await.unwrap();
        replica.recovered().await;
        replica.stop().await;
        let error = replica.flush().await.expect_err("the log is purged without consensus");
        assert!(replica.failure().get().is_none(), "the stop is reported as a failure: {error}");
        let interrupted = {
            let shared = Arc::clone(&shared);
            let replica = Arc::clone(&replica);
            async move {
                shared.reached(|state| matches!(state, State::Repairing).then_some(())).await;
                // The close waits for this work.
                sleep(Duration::from_millis(50)).await;
                replica.failure().report(ReplicaError::Consensus("the work was interrupted".into()));
            }
        };
        let interrupted = tokio::spawn(interrupted);
        let opened = close_and_open(&shared, replica, Duration::ZERO, &State::Repairing).await;
        interrupted.await.unwrap();
        let (opened, _held) = opened.expect("the replica was not opened again");
        opened.close().await;
    }

    // Regression: the node makes the folder of the state before it opens it. The repair took the empty folder for the
    // new state, and deleted the old one.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_repair_that_died_between_its_renames_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (node, replica) = opened(&folder).await;
        replica.propose(Proposal::expire(Tier::Raw, 0, 0)).await.unwrap();
        replica.flush().await.unwrap();
        let flushed = replica.shard().flushed_index();
        assert!(flushed.is_some());
        drop(replica);
        node.shutdown().await;
        let state = folder.path().join("shard-0001");
        std::fs::rename(&state, folder.path().join("shard-0001.damaged")).unwrap();
        let (node, replica) = opened(&folder).await;
        assert!(replica.shard().flushed_index() >= flushed, "the state is new");
        drop(replica);
        node.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn damage_alone_opens_the_replica_again() {
        let folder = tempfile::tempdir().unwrap();
        let (node, replica) = opened(&folder).await;
        let first = Arc::downgrade(&replica);
        replica.failure().report(ReplicaError::Damaged);
        drop(replica);
        let is_another = |state: &State| match state {
            State::Serving(replica) => (Arc::downgrade(replica).as_ptr() != first.as_ptr()).then_some(()),
            _ => None,
        };
        let repaired = tokio::time::timeout(Duration::from_secs(20), node.shared.reached(is_another));
        repaired.await.expect("the replica was not opened again");
        node.shutdown().await;
    }
}
