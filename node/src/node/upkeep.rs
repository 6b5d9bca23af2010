//! Background work of a node: supervision of its replicas, checks of the free space, retention, and the space of the
//! log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::TaskTracker;

use crate::node::cluster;
use crate::node::retention::{keep_retention, watch_cap};
use crate::node::shared::Shared;
use crate::space::Space;

/// Interval of checks of the free space. A disk that writes 1 GB/s fills less than half of the largest reserve in this
/// time.
const SPACE_INTERVAL: Duration = Duration::from_millis(100);
const CAP_INTERVAL: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks for snapshots that no other node reads any more.
const LEASE_INTERVAL: Duration = Duration::from_secs(5);
const RECLAIM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two reclaims of the log's space while there is enough space. A reclaim writes the unpurged
/// entries of all shards to a file, so it must not follow each flush of one of many shards.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(10);

/// Starts all background tasks, which open the member of the meta group and the replicas of all shards. The tasks end
/// when the node closes.
pub(super) fn start(shared: &Arc<Shared>, tasks: &TaskTracker) {
    shared.supervisors.spawn(cluster::supervise(Arc::clone(shared)));
    let closer = Arc::clone(shared);
    tasks.spawn(async move {
        closer.closing.cancelled().await;
        // Only a supervisor starts another one.
        closer.supervisors.close();
        closer.supervisors.wait().await;
        closer.raft_log.close().await;
    });
    tasks.spawn(every(Arc::clone(shared), SPACE_INTERVAL, async |shared| watch_space(shared)));
    // Separate from `keep_retention`, which takes long when it drops partitions.
    tasks.spawn(every(Arc::clone(shared), CAP_INTERVAL, watch_cap));
    tasks.spawn(every(Arc::clone(shared), RETENTION_INTERVAL, keep_retention));
    tasks.spawn(reclaim_log(Arc::clone(shared)));
    tasks.spawn(every(Arc::clone(shared), LEASE_INTERVAL, end_idle_leases));
}

async fn every(shared: Arc<Shared>, period: Duration, work: impl AsyncFn(&Arc<Shared>)) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shared.closing.run_until_cancelled(ticks.tick()).await.is_some() {
        work(&shared).await;
    }
}

async fn end_idle_leases(shared: &Arc<Shared>) {
    let leases = Arc::clone(&shared.leases);
    if let Err(error) = spawn_blocking(move || leases.end_idle()).await {
        tracing::error!(%error, "ending the leases of snapshots panicked");
    }
}

/// Reclaims the space of purged log entries: at once if space is short, and otherwise at most once in
/// [`RECLAIM_INTERVAL`]. It then also waits until they take as much space as the other entries, because a reclaim
/// writes these again.
async fn reclaim_log(shared: Arc<Shared>) {
    let mut last = Instant::now();
    let mut ticks = interval(RECLAIM_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shared.closing.run_until_cancelled(ticks.tick()).await.is_some() {
        let is_short = shared.is_full() || shared.is_over_cap();
        let is_due = is_short || last.elapsed() >= RECLAIM_INTERVAL;
        if is_due && shared.reclaim_log(if is_short { u64::MAX } else { 1 }).await {
            last = Instant::now();
        }
    }
}

/// Checks the free space once. Appends are refused until the next check if the next flush and the reserve together need
/// more.
pub(super) fn watch_space(shared: &Arc<Shared>) {
    let unflushed_bytes = shared.sum_unflushed_bytes();
    let is_full = match Space::of(shared.directory.path()) {
        Ok(space) => space.is_full(unflushed_bytes),
        Err(error) => {
            tracing::error!(%error, "the free space of the data directory cannot be read: appends are refused");
            true
        }
    };
    shared.set_full(is_full);
}
