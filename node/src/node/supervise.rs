//! Supervision of one shard's replica: flushes, purges of the log, snapshots, and reopening after damage or a full
//! disk.

mod install;
mod refetch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedRwLockWriteGuard, mpsc};
use tokio::time::sleep;

use crate::consensus::Install;
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::node::hosted::{Hosted, State};
use crate::node::replica::Replica;
use crate::node::shared::Shared;
use crate::shard::snapshot::receiver::Staged;

/// Interval of checks if a flush is due, while there are unflushed entries.
const FLUSH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of these checks without unflushed entries. Only the end of a window, or samples in memory, can then make a
/// flush due. An idle node has many shards to check.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a replica with damage is opened again. The pause doubles if damage is found again within
/// [`REPAIR_MEMORY`].
const REPAIR_INTERVAL: Duration = Duration::from_millis(250);
/// Largest number of times that the pause before a repair is doubled.
const REPAIR_DOUBLINGS_MAX: u32 = 8;
/// Time since the last repair within which new damage doubles the pause before the next repair.
const REPAIR_MEMORY: Duration = Duration::from_secs(300);
/// Interval of attempts to open a replica again after a full disk.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Guard that makes the queries of a shard wait until its replica serves.
type QueriesHeld = OwnedRwLockWriteGuard<()>;

/// Supervises a shard's replica. If the supervision panics, the shard has failed.
pub(super) async fn supervised(shared: Arc<Shared>, hosted: Arc<Hosted>) {
    if let Err(error) = tokio::spawn(supervise(shared, Arc::clone(&hosted))).await {
        tracing::error!(shard = hosted.number(), %error, "the supervision of a replica panicked");
        hosted.set_state(State::Failed(Arc::new(ReplicaError::Consensus(error.into()))));
    }
    hosted.closed.cancel();
}

/// Opens a shard's replica and runs it. If its state cannot be used, fetches the state of another member. Returns when
/// the node stops, or when the replica has failed for good. The other shards go on.
async fn supervise(shared: Arc<Shared>, hosted: Arc<Hosted>) {
    let mut installs = shared.peers.installs(hosted.number(), hosted.identity());
    let mut repairs = Repairs::default();
    let mut opened = open_first(&shared, &hosted).await;
    loop {
        if let Some((replica, queries_held)) = opened {
            run(&shared, &hosted, (replica, queries_held), &mut installs, &mut repairs).await;
        }
        let State::Damaged(error) = hosted.state() else { return };
        opened = refetch::rebuild(&shared, &hosted, error, &mut repairs.of_peers).await;
    }
}

/// Pauses before the repairs of a replica.
#[derive(Debug, Default)]
struct Repairs {
    /// Pauses before the replica is opened again, which repairs its files.
    of_files: Repaired,
    /// Pauses before the state of another member is fetched.
    of_peers: Repaired,
}

/// Runs an open replica. Opens it again after damage or a full disk, and with a snapshot. Returns when the node stops,
/// or when the replica has failed and is closed.
async fn run(
    shared: &Shared,
    hosted: &Hosted,
    (mut replica, mut queries_held): (Arc<Replica>, Option<QueriesHeld>),
    installs: &mut mpsc::Receiver<Install>,
    repairs: &mut Repairs,
) {
    loop {
        let error = tokio::select! {
            error = serve(shared, hosted, &replica, queries_held.take()) => error,
            fetched = refetch::next(shared, hosted, &replica, &mut repairs.of_peers) => {
                let Some((opened, held)) = refetch::install(shared, hosted, replica, fetched).await else { return };
                (replica, queries_held) = (opened, Some(held));
                continue;
            }
            received = install::receive_next(shared, &replica, installs) => {
                let Some((opened, held)) = install::install(shared, hosted, replica, received).await else { return };
                (replica, queries_held) = (opened, Some(held));
                continue;
            }
            () = hosted.closing.cancelled() => {
                if let Err(error) = replica.flush().await {
                    let shard = hosted.number();
                    tracing::error!(shard, %error, "the last flush failed; the next start applies the log again");
                }
                hosted.set_state(State::Stopped);
                return replica.close().await;
            }
        };
        if error.is_damage() {
            let Some((opened, held)) = repair(shared, hosted, replica, &error, &mut repairs.of_files).await else {
                return;
            };
            (replica, queries_held) = (opened, Some(held));
            continue;
        }
        if error.is_final() {
            hosted.set_state(State::after(error));
            return replica.close().await;
        }
        // A replica that has not replayed its log must not serve queries.
        let was_serving = matches!(hosted.state(), State::Serving(_));
        hosted.set_state(if was_serving { State::ReadOnly(Arc::clone(&replica)) } else { State::Starting });
        replica.stop().await;
        let Some((opened, held)) = reopen_when_there_is_space(shared, hosted, replica).await else { return };
        replica = opened;
        queries_held = Some(held);
    }
}

/// Opens the replica after the start of the node. If the disk is full, waits for space. Returns the same as [`repair`],
/// without a guard if the replica opens at once: no query has been accepted yet.
async fn open_first(shared: &Shared, hosted: &Hosted) -> Option<(Arc<Replica>, Option<QueriesHeld>)> {
    hosted.set_state(State::Starting);
    let opened = hosted.closing.run_until_cancelled(shared.open_replica(hosted)).await;
    let state = match opened {
        Some(Ok(replica)) => return Some((replica, None)),
        Some(Err(error)) => end_after(shared, hosted, error),
        None => Some(State::Stopped),
    };
    if let Some(state) = state {
        hosted.set_state(state);
        return None;
    }
    let failure = shared.raft_log.failure().clone();
    match reopen(shared, hosted, &failure, Replaced::default(), REOPEN_INTERVAL, &State::Starting).await {
        Ok((replica, held)) => Some((replica, Some(held))),
        Err((end, _never_opened)) => {
            hosted.set_state(end);
            None
        }
    }
}

/// Returns the state in which a shard ends after an attempt to open its replica has failed with `error`. Returns `None`
/// if another attempt may succeed, because the disk is full.
fn end_after(shared: &Shared, hosted: &Hosted, error: NodeError) -> Option<State> {
    let shard = hosted.number();
    let error = match error {
        NodeError::Replica(error) => error,
        other => ReplicaError::Consensus(other.into()),
    };
    // The failure of the log precedes, because it is the cause.
    match shared.raft_log.failure().get() {
        Some(error) if error.is_final() => Some(State::Failed(error)),
        None if !error.is_disk_full() => {
            tracing::error!(shard, %error, "the shard does not open: requests to it fail, and other shards are served");
            Some(State::after(Arc::new(error)))
        }
        _ => {
            tracing::warn!(shard, %error, "the replica does not open yet");
            None
        }
    }
}

/// Runs the replica until it or the log fails, and returns the error. `queries_held` makes queries wait; it is dropped
/// as soon as the replica serves.
async fn serve(
    shared: &Shared,
    hosted: &Hosted,
    replica: &Arc<Replica>,
    queries_held: Option<QueriesHeld>,
) -> Arc<ReplicaError> {
    let recovered = async move {
        if let Err(error) = create_if_named(shared, replica).await {
            return replica.failure().report(error);
        }
        replica.recovered().await;
        hosted.set_state(State::Serving(Arc::clone(replica)));
        drop(queries_held);
        keep_flushed(shared, replica).await
    };
    tokio::select! {
        biased;
        error = replica.failure().wait() => error,
        error = recovered => error,
    }
}

/// Creates the Raft group of the shard, if the meta group has named this node for that and the group does not exist.
async fn create_if_named(shared: &Shared, replica: &Replica) -> Result<(), ReplicaError> {
    let shard = replica.shard().id();
    let mut states = shared.cluster.state.subscribe();
    while !replica.is_created().await? {
        if let Some(members) = shared.cluster.to_create(shard) {
            tracing::info!(shard, members = members.len(), "creating the group of the shard");
            return replica.create(members).await;
        }
        let is_of_others = |known: &proto::meta::Shard| known.is_created || known.creator != shared.config.node_id;
        if shared.cluster.state().shards.get(&shard).is_some_and(is_of_others) {
            return Ok(());
        }
        // The sender of the states lives as long as `shared`.
        if states.changed().await.is_err() {
            return Ok(());
        }
    }
    Ok(())
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

/// Opens the replica again, which repairs its files. Returns the replica, and a guard that makes queries wait until the
/// replica serves. Returns `None` if the node stops, or if the replica failed for good and is closed.
async fn repair(
    shared: &Shared,
    hosted: &Hosted,
    replica: Arc<Replica>,
    error: &ReplicaError,
    repaired: &mut Repaired,
) -> Option<(Arc<Replica>, QueriesHeld)> {
    let shard = hosted.number();
    tracing::error!(shard, %error, "stored values are damaged: the replica is opened again and repaired");
    if !matches!(error, ReplicaError::Damaged) {
        // The replica may apply no more entries, so requests wait from now on. With `Damaged`, it serves until it is
        // closed.
        hosted.set_state(State::Repairing);
    }
    close_and_open(shared, hosted, replica, repaired.pause(), &State::Repairing).await
}

/// Waits for free space and opens the replica again. Returns the same as [`repair`].
async fn reopen_when_there_is_space(
    shared: &Shared,
    hosted: &Hosted,
    replica: Arc<Replica>,
) -> Option<(Arc<Replica>, QueriesHeld)> {
    close_and_open(shared, hosted, replica, REOPEN_INTERVAL, &State::Starting).await
}

/// Opens a replica again after `pause`. The shard is in `state` while the replica is closed. Returns the same as
/// [`repair`].
async fn close_and_open(
    shared: &Shared,
    hosted: &Hosted,
    replica: Arc<Replica>,
    pause: Duration,
    state: &State,
) -> Option<(Arc<Replica>, QueriesHeld)> {
    close_and_install(shared, hosted, replica, None, pause, state).await
}

/// Closes a replica, installs a snapshot, if there is one, and opens the replica again, as [`close_and_open`] does.
async fn close_and_install(
    shared: &Shared,
    hosted: &Hosted,
    replica: Arc<Replica>,
    staged: Option<Staged>,
    pause: Duration,
    state: &State,
) -> Option<(Arc<Replica>, QueriesHeld)> {
    let failure = replica.failure().clone();
    let replaced = Replaced { replica: Some(replica), staged };
    match reopen(shared, hosted, &failure, replaced, pause, state).await {
        Ok(opened) => Some(opened),
        Err((end, old)) => {
            // The old state may hold a reference to the replica, which would keep the replica from being closed.
            hosted.set_state(end);
            if let Some(old) = old {
                old.close().await;
            }
            None
        }
    }
}

/// The replica that is closed before another one opens, and the snapshot that replaces its state, if there is one.
#[derive(Default)]
struct Replaced {
    replica: Option<Arc<Replica>>,
    staged: Option<Staged>,
}

/// Closes the old replica, installs the snapshot, and opens the replica again once there is space. If the log has
/// failed, it is opened again, too. `failure` is the [`Failure`] of the old replica.
///
/// # Errors
/// Returns the state in which the shard ends, and the old replica, if it is not closed yet.
async fn reopen(
    shared: &Shared,
    hosted: &Hosted,
    failure: &Failure,
    Replaced { replica: mut old, mut staged }: Replaced,
    pause: Duration,
    state: &State,
) -> Result<(Arc<Replica>, QueriesHeld), (State, Option<Arc<Replica>>)> {
    let log = &shared.raft_log;
    loop {
        let held = tokio::select! {
            biased;
            // Consensus may still run during the wait, and a sync of the log may fail.
            error = failure.wait_for_final(), if old.is_some() => return Err((State::after(error), old)),
            error = log.failure().wait_for_final() => return Err((State::Failed(error), old)),
            held = hold_queries(shared, hosted, pause) => held,
        };
        let Some(held) = held else { return Err((State::Stopped, old)) };
        hosted.set_state(state.clone());
        if let Some(old) = old.take() {
            old.close().await;
        }
        // No thread of the old replica reports errors any more. Work that the close interrupted may have reported an
        // error, so only an error of the log counts.
        if let Some(error) = log.final_error() {
            return Err((State::Failed(error), None));
        }
        let error = match shared.open_with(hosted, staged.take()).await {
            Ok(replica) => return Ok((replica, held)),
            Err(error) => error,
        };
        if let Some(end) = end_after(shared, hosted, error) {
            return Err((end, None));
        }
    }
}

/// Waits for `pause`, then for free space, and then for the end of the shard's running queries. Returns a guard that
/// makes new queries wait, so that no query is refused while files are closed and opened. Returns `None` if the node
/// stops.
async fn hold_queries(shared: &Shared, hosted: &Hosted, pause: Duration) -> Option<QueriesHeld> {
    let log = shared.raft_log.failure();
    let held = async {
        // If the log fails during the pause, the replicas of all shards have to be closed before the log is opened
        // again. A pause for the repair of this shard must not keep the other shards waiting.
        match log.get() {
            Some(_failed) => sleep(pause).await,
            None => drop(tokio::time::timeout(pause, log.wait()).await),
        }
        while shared.is_full() {
            sleep(pause).await;
        }
        Arc::clone(&hosted.queries).write_owned().await
    };
    hosted.closing.run_until_cancelled(held).await
}

/// Flushes when a flush is due, and purges the log. Returns the error of the first step that fails.
async fn keep_flushed(shared: &Shared, replica: &Replica) -> Arc<ReplicaError> {
    let shard = replica.shard();
    let mut flushed_at = Instant::now();
    loop {
        sleep(if shard.unflushed_bytes() > 0 { FLUSH_CHECK_INTERVAL } else { IDLE_CHECK_INTERVAL }).await;
        // A full disk is a reason to flush: the purge of the log after the flush frees more space than the flush takes.
        let is_full = shared.is_full();
        let is_late = flushed_at.elapsed() >= shared.config.flush_interval;
        let is_due = (is_late || is_full) && shard.unflushed_bytes() > 0;
        // Called in any case, because it also sets the memory metrics.
        let wants_flush = replica.wants_flush().await;
        if is_due || wants_flush || has_many_unflushed(shared, shard.unflushed_bytes()) {
            if let Err(error) = replica.flush().await {
                return error;
            }
            flushed_at = Instant::now();
        }
        // Members that lag can do without the log. This one cannot do without space.
        if is_full && let Err(error) = replica.save_log_space().await {
            return error;
        }
        if shard.engine().needs_repair() {
            // Flushed entries need not be applied again after the repair.
            let flushed = replica.flush().await;
            return flushed.err().unwrap_or_else(|| Arc::new(ReplicaError::Damaged));
        }
    }
}

/// Returns true if the unflushed entries of all shards exceed their limit, and those of this shard, `bytes`, an equal
/// part of it.
fn has_many_unflushed(shared: &Shared, bytes: u64) -> bool {
    let flush_bytes = shared.config.flush_bytes;
    let of_all = shared.unflushed_bytes().max(bytes);
    of_all >= flush_bytes && bytes >= flush_bytes / shared.shards().len().max(1) as u64
}

#[cfg(test)]
mod tests;
