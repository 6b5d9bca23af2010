//! What a node does by itself: flush and cut the log, expire partitions, watch the disk, open a replica again after a full disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use proto::placement::FIRST_DATA_SHARD;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::TaskTracker;

use crate::directory::used_bytes;
use crate::metrics::{DiskLabels, gauge};
use crate::node::{Shared, State};
use crate::proposal::Proposal;
use crate::replica::Replica;
use crate::space::Space;
use crate::{NodeError, ReplicaError};

/// A disk that takes 1 GB/s loses a quarter of the largest reserve in this time.
const SPACE_INTERVAL: Duration = Duration::from_millis(100);
const FLUSH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
const RETENTION_INTERVAL: Duration = Duration::from_secs(1);
/// What was dropped may take space until a compaction: nothing more is dropped before that is seen.
const SPACE_RETURNS_WITHIN: Duration = Duration::from_secs(10);
/// Between two tries to open a replica again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Starts all of it; it ends when the node is stopping.
pub(crate) fn start(shared: &Arc<Shared>, tasks: &TaskTracker, replica: Arc<Replica>) {
    tasks.spawn(supervise(Arc::clone(shared), replica));
    tasks.spawn(every(Arc::clone(shared), SPACE_INTERVAL, async |shared| watch_space(shared)));
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
    loop {
        let error = tokio::select! {
            error = serve(&shared, &replica) => error,
            () = shared.closing.cancelled() => {
                if let Err(error) = replica.flush().await {
                    tracing::error!(%error, "the last flush failed; the next start applies the log again");
                }
                shared.set_state(State::Stopped);
                return replica.close().await;
            }
        };
        if !error.is_disk_full() {
            shared.set_state(State::Failed(error));
            return replica.close().await;
        }
        // What has not replayed its log must not answer.
        let was_serving = matches!(shared.state(), State::Serving(_));
        shared.set_state(if was_serving { State::ReadOnly(Arc::clone(&replica)) } else { State::Starting });
        replica.stop().await;
        let Some(opened) = reopen_when_there_is_space(&shared, replica).await else { return };
        replica = opened;
    }
}

/// Serves until the replica fails.
async fn serve(shared: &Arc<Shared>, replica: &Arc<Replica>) -> Arc<ReplicaError> {
    let recovered = async {
        replica.recovered().await;
        shared.set_state(State::Serving(Arc::clone(replica)));
        keep_flushed(shared, replica).await
    };
    tokio::select! {
        biased;
        error = replica.failure().wait() => error,
        error = recovered => error,
    }
}

/// None: the node stops, or the replica failed for good.
async fn reopen_when_there_is_space(shared: &Arc<Shared>, replica: Arc<Replica>) -> Option<Arc<Replica>> {
    let mut old = Some(replica);
    loop {
        shared.closing.run_until_cancelled(sleep(REOPEN_INTERVAL)).await?;
        if shared.is_full.load(Ordering::Relaxed) {
            continue;
        }
        shared.set_state(State::Starting);
        if let Some(old) = old.take() {
            old.close().await;
        }
        match Replica::open(&shared.config, &shared.directory, FIRST_DATA_SHARD, &shared.metrics).await {
            Ok(replica) => return Some(replica),
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

/// Flushes when it is time, and has the log cut and its space given back. Returns when that fails.
async fn keep_flushed(shared: &Shared, replica: &Replica) -> Arc<ReplicaError> {
    let mut flushed_at = Instant::now();
    loop {
        sleep(FLUSH_CHECK_INTERVAL).await;
        let shard = replica.shard();
        // On a full disk at once: the log that is cut behind a flush is larger than what the flush writes.
        let is_full = shared.is_full.load(Ordering::Relaxed);
        let is_late = flushed_at.elapsed() >= shared.config.flush_interval;
        let is_due = (is_late || is_full) && shard.unflushed_bytes() > 0;
        if is_due || shard.unflushed_bytes() >= shared.config.flush_bytes || shard.engine().wants_flush() {
            if let Err(error) = replica.flush().await {
                return error;
            }
            flushed_at = Instant::now();
        }
        // Openraft cuts a moment after the flush; there is nothing to do most of the time.
        if let Err(error) = replica.reclaim().await {
            return error;
        }
    }
}

/// Has appends refused while free space is below what a flush and the reserve need.
pub(crate) fn watch_space(shared: &Arc<Shared>) {
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
    if shared.is_full.swap(is_full, Ordering::Relaxed) != is_full {
        tracing::warn!(is_full, "space for appends");
    }
}

/// What is older is not kept: partitions that ended before are dropped, and samples from before are not taken.
pub(crate) fn expired_before_ns(now_ns: i64, retention: Duration) -> i64 {
    now_ns.saturating_sub(i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX))
}

/// Drops what is older than the retention, and the oldest while the data takes more than it may.
async fn keep_retention(shared: &Arc<Shared>) {
    let Some(disk_bytes) = measure(shared).await else { return };
    let State::Serving(replica) = shared.state() else { return };
    if !replica.is_leader() {
        return;
    }
    let oldest_end_ns = replica.shard().engine().oldest_end_ns();
    let is_over_cap = disk_bytes > shared.config.disk_bytes_max;
    let now_ns = now_ns();
    let expired_before_ns = expired_before_ns(now_ns, shared.config.retention);
    let before_ns = match oldest_end_ns {
        Some(end_ns) if end_ns <= expired_before_ns => Some(expired_before_ns),
        // One at a time. What is still being written to is not dropped.
        Some(end_ns) if is_over_cap && end_ns <= now_ns => Some(end_ns),
        _ => None,
    };
    shared.is_over_cap.store(is_over_cap && before_ns.is_none(), Ordering::Relaxed);
    let Some(before_ns) = before_ns else { return };
    tracing::info!(before_ns, disk_bytes, "dropping partitions that ended before");
    let expired = replica.propose(Proposal::expire(before_ns)).await.map_err(|error| error.to_string());
    // The engine gives the space back when it flushes.
    let flushed = match expired {
        Ok(_outcome) => replica.flush().await.map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    if let Err(error) = flushed {
        tracing::warn!(error, "old partitions were not dropped; tried again soon");
    }
    shared.closing.run_until_cancelled(sleep(SPACE_RETURNS_WITHIN)).await;
}

/// Bytes that the data directory takes.
async fn measure(shared: &Arc<Shared>) -> Option<u64> {
    let (raft, all) = (shared.directory.raft(), shared.directory.path().to_owned());
    let measured = spawn_blocking(move || Ok::<_, std::io::Error>((used_bytes(&raft)?, used_bytes(&all)?))).await;
    let measured = measured.map_err(std::io::Error::other).and_then(|measured| measured);
    match measured {
        Ok((raft, all)) => {
            let set = |part, bytes| {
                shared.metrics.disk_bytes.get_or_create_owned(&DiskLabels { part }).set(gauge(bytes));
            };
            set("raft", raft);
            set("shards", all.saturating_sub(raft));
            Some(all)
        }
        Err(error) => {
            tracing::error!(%error, "the space that the data directory takes cannot be measured");
            None
        }
    }
}

/// The system clock, nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}
