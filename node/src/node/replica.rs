//! A replica of one shard: engine and consensus, which are opened and closed together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use proto::ReadPoint;
use storage_engine::{Budgets, LogBarrier, LogError, Outcome};
use tokio::task::spawn_blocking;

use crate::clock::Clock;
use crate::config::Config;
use crate::consensus::{
    Change, ConsensusError, DirectoryId, Group, GroupState, Leader, LogDatabase, LogStore, Member, Outcome as Applied,
    Peers, Proposal, Receiving, Wanted,
};
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::host::planted::is_planted;
use crate::metrics::{Metrics, ShardMetrics, gauge};
use crate::shard::snapshot::lease::Leases;
use crate::shard::snapshot::receiver::{Staged, discard_overtaken};
use crate::shard::{KeepLimits, Shard};
use crate::sharers::Sharers;

/// Longest time for which flushed entries are kept in the log of a node with a full disk.
const SAVING_KEEP_TIME: Duration = Duration::from_secs(10);

/// An open replica.
#[derive(Debug)]
pub(crate) struct Replica {
    group: Group,
    /// Guard of the member: it receives messages of other members.
    _receiving: Receiving,
    shard: Arc<Shard>,
    log: Arc<LogDatabase>,
    /// Reference that can be upgraded until no task of openraft uses the shard's log any more.
    log_in_use: Weak<()>,
    failure: Failure,
    clock: Arc<Clock>,
    /// Limits on the flushed entries that the logs of all shards keep for members that lag.
    keep: KeepLimits,
    sharers: Arc<Sharers>,
    /// Snapshots that other members are reading.
    leases: Arc<Leases>,
}

/// The parts of a node that its replicas share, in addition to the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) config: &'a Config,
    pub(crate) budgets: &'a Budgets,
    pub(crate) metrics: &'a Metrics,
    pub(crate) clock: &'a Arc<Clock>,
    pub(crate) peers: &'a Arc<Peers>,
    pub(crate) leases: &'a Arc<Leases>,
    pub(crate) sharers: &'a Arc<Sharers>,
}

impl Replica {
    /// Opens the engine and its member of the Raft group, whose log is in `log`. An empty member waits for
    /// [`Replica::create`] or for a leader. [`Replica::recovered`] returns when the replica can serve requests. If a
    /// snapshot is `staged`, it replaces the state, unless it cannot be installed.
    pub(crate) async fn open(
        shard: u32,
        identity: DirectoryId,
        log: Arc<LogDatabase>,
        staged: Option<Staged>,
        surroundings: Surroundings<'_>,
    ) -> Result<Arc<Self>, NodeError> {
        let Surroundings { config, budgets, metrics, clock, peers, leases, sharers } = surroundings;
        let failure = log.failure().of_replica(shard);
        let state =
            StateToOpen { shard, log: Arc::clone(&log), budgets: budgets.clone(), metrics: metrics.of_shard(shard) };
        let opened = spawn_blocking(move || state.open(staged)).await.map_err(panicked)??;
        let keep = config.keep_limits();
        let store = LogStore::new(shard, Arc::clone(&log));
        let log_in_use = store.while_open();
        let state = Arc::clone(&opened) as Arc<dyn GroupState>;
        let group = Group::open(config.node_id, store, peers.network(shard), state, failure.clone()).await?;
        let receiving = peers.receive(shard, identity, &group);
        Ok(Arc::new(Self {
            group,
            _receiving: receiving,
            shard: opened,
            log,
            log_in_use,
            failure,
            clock: Arc::clone(clock),
            keep,
            sharers: Arc::clone(sharers),
            leases: Arc::clone(leases),
        }))
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Returns the log of all shards of the node.
    pub(crate) fn log(&self) -> &Arc<LogDatabase> {
        &self.log
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Returns true if this replica belongs to a Raft group.
    pub(crate) async fn is_created(&self) -> Result<bool, ReplicaError> {
        self.group.is_created().await
    }

    /// Creates the Raft group with these members, by node id.
    pub(crate) async fn create(&self, members: BTreeMap<u64, Member>) -> Result<(), ReplicaError> {
        self.group.create(members).await
    }

    /// Returns when everything that was acknowledged before the start is applied, and the clock has the stored times.
    /// Never returns if the replica fails earlier.
    pub(crate) async fn recovered(&self) {
        self.group.recovered().await;
        self.clock.start(self.shard.engine().clock_ns(), self.log.accepted_ns());
    }

    /// Proposes a command. After a majority has synced the command, returns the outcome of applying it.
    pub(crate) async fn propose(&self, proposal: Proposal) -> Result<Outcome, ConsensusError> {
        match self.group.propose(|| proposal.at(self.clock.log_ns().unsigned_abs())).await? {
            Applied::Shard(outcome) => Ok(outcome),
            other => {
                let error = ReplicaError::Consensus(format!("a shard's command has the outcome {other:?}").into());
                Err(ConsensusError::Failed(self.failure.report(error)))
            }
        }
    }

    /// Returns when a read would see everything that was acknowledged before this call.
    /// Returns the index that any member must have applied for such a read.
    pub(crate) async fn linearize(&self) -> Result<u64, ConsensusError> {
        self.group.linearize().await
    }

    /// Returns when this member has applied an index. Waits a short time.
    pub(crate) async fn reach(&self, index: u64) -> Result<(), ConsensusError> {
        self.group.reach(index).await
    }

    /// Returns the state that this member has now.
    pub(crate) fn read_point(&self) -> ReadPoint {
        // Read before the index: the state only becomes newer.
        let staleness = self.group.staleness();
        ReadPoint { applied_index: self.shard.applied().position.map_or(0, |position| position.index), staleness }
    }

    /// Returns true if no other node has a vote. The engine then has everything that was acknowledged, even if
    /// consensus does not run.
    pub(crate) fn is_alone(&self) -> bool {
        self.group.is_alone()
    }

    /// Returns the other member that leads the group, as far as this member knows.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.group.leader()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.group.is_leader()
    }

    /// Returns true if this member leads, and no majority has responded for some seconds.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.group.is_cut_off()
    }

    /// Returns false if the group has no leader, or the leader no majority, as far as this member knows.
    pub(crate) fn can_commit(&self) -> bool {
        self.group.can_commit()
    }

    /// Makes this member leave elections to others, or not any more.
    pub(crate) fn stand_back(&self, stands_back: bool) {
        self.group.stand_back(stands_back);
    }

    /// Asks a member to take over, if this member leads the group.
    pub(crate) async fn hand_over(&self, to: u64) {
        self.group.hand_over(to).await;
    }

    /// Returns the status of this member, without the number of the shard and the state of the replica.
    pub(crate) fn status(&self) -> proto::wire::GroupStatus {
        self.group.status()
    }

    /// Makes the next step from the members of the group to the wanted ones, if this replica leads the group.
    pub(crate) async fn change_members(&self, wanted: &Wanted) -> Result<Change, ConsensusError> {
        self.group.change_members(wanted).await
    }

    /// Returns true if a window is due to be sealed or summed up, or the samples in memory exceed their budget and this
    /// shard has most of them.
    pub(crate) async fn wants_flush(&self) -> bool {
        let shard = Arc::clone(&self.shard);
        let log_ns = self.clock.log_ns();
        let wants = move || shard.wants_flush(log_ns);
        // On a blocking thread, because a large write may hold the engine's lock for long.
        spawn_blocking(wants).await.unwrap_or(false)
    }

    /// Flushes the engine, then purges the log up to the flush, except for the entries that are kept for members that
    /// lag.
    pub(crate) async fn flush(&self) -> Result<(), Arc<ReplicaError>> {
        self.write_and_purge(Shard::flush).await
    }

    /// Seals, rolls up and compacts everything, then purges the log.
    pub(crate) async fn compact(&self) -> Result<(), Arc<ReplicaError>> {
        self.write_and_purge(Shard::compact).await
    }

    async fn write_and_purge(
        &self,
        write: impl FnOnce(&Shard) -> Result<(), ReplicaError> + Send + 'static,
    ) -> Result<(), Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        self.blocking(move || write(&shard)).await?;
        self.purge(self.keep_limits()).await
    }

    /// Purges flushed entries, although members may lag, to save space. A member that needs them then installs a
    /// snapshot. Of those that were flushed in the last [`SAVING_KEEP_TIME`], it keeps what it would keep otherwise,
    /// because nearly every member needs them.
    pub(crate) async fn save_log_space(&self) -> Result<(), Arc<ReplicaError>> {
        if self.last_purged().await? >= self.shard.flushed_index() {
            return Ok(());
        }
        let saving = |limits: KeepLimits| KeepLimits { time: limits.time.min(SAVING_KEEP_TIME), ..limits };
        self.purge(self.keep_limits().map(saving)).await
    }

    /// Purges flushed entries beyond the limits; without limits, all of them. Keeps what a snapshot in use needs.
    async fn purge(&self, limits: Option<KeepLimits>) -> Result<(), Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        let leases = Arc::clone(&self.leases);
        self.blocking(move || {
            // Read after a flush: the position of a lease that is made from now on is not before that of the flush.
            let leased = leases.kept_index(shard.id());
            shard.release_log(limits, leased.filter(|_| !is_planted("purge-leased")));
            Ok(())
        })
        .await?;
        self.group.purge_released().await
    }

    /// Returns true if the entry at `index` is applied, and on the disk of this member.
    pub(crate) async fn has_synced(&self, index: u64) -> Result<bool, Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        let log = Arc::clone(&self.log);
        let has_synced = move || {
            let applied = shard.applied().position.map(|position| position.index);
            // An entry is appended to the log before it is applied, but may be applied before it is synced.
            log.wait_until_synced().map(|()| applied >= Some(index))
        };
        spawn_blocking(has_synced).await.unwrap_or_else(|panic| Err(Arc::new(panicked(panic))))
    }

    /// Returns the limits on the flushed entries that the log keeps for members of this shard that lag; `None` if there
    /// is no other member.
    fn keep_limits(&self) -> Option<KeepLimits> {
        let KeepLimits { time, bytes } = self.keep;
        (self.group.members().len() > 1).then(|| KeepLimits { time, bytes: self.sharers.part(bytes) })
    }

    /// Returns the index of the last entry that was purged from the log; `None` if nothing was purged.
    pub(crate) async fn last_purged(&self) -> Result<Option<u64>, Arc<ReplicaError>> {
        let log = Arc::clone(&self.log);
        let shard = self.shard.id();
        let read = spawn_blocking(move || log.last_purged(shard)).await.map_err(panicked).and_then(|read| read);
        read.map(|log_id| log_id.map(|log_id| log_id.index)).map_err(|error| self.log.failure().report(error))
    }

    async fn blocking(
        &self,
        work: impl FnOnce() -> Result<(), ReplicaError> + Send + 'static,
    ) -> Result<(), Arc<ReplicaError>> {
        let done = spawn_blocking(work).await.map_err(panicked).and_then(|done| done);
        done.map_err(|error| self.failure.report(error))
    }

    /// Stops consensus: nothing is proposed, acknowledged or applied any more. The engine still serves queries.
    pub(crate) async fn stop(&self) {
        self.group.stop().await;
    }

    /// Closes the engine's files. Returns when no thread uses these files or the shard's log, so that the replica can
    /// be opened again. The log of all shards stays open.
    pub(crate) async fn close(self: Arc<Self>) {
        self.stop().await;
        let shard = self.shard.while_open();
        let log = Weak::clone(&self.log_in_use);
        // On a blocking thread, because closing writes to disk.
        let close = move || {
            // A compaction may take minutes, and its thread holds the engine.
            self.shard.engine().stop_background_work();
            drop(self);
        };
        if let Err(error) = spawn_blocking(close).await {
            tracing::error!(%error, "closing the replica panicked");
        }
        // Running queries, and tasks of openraft that end a moment later, may still hold the files open.
        while shard.strong_count() + log.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Parts from which the state of a shard is opened.
struct StateToOpen {
    shard: u32,
    log: Arc<LogDatabase>,
    budgets: Budgets,
    metrics: ShardMetrics,
}

impl StateToOpen {
    /// Installs the snapshot, if there is one, opens the state, and makes the log continue where the state ends.
    /// Blocks.
    fn open(self, staged: Option<Staged>) -> Result<Arc<Shard>, ReplicaError> {
        let Self { shard, log, metrics, .. } = &self;
        let directory = log.directory().shard(*shard);
        let installed = match staged {
            Some(staged) => self.install(staged)?,
            None => None,
        };
        // Deletes the replaced state. If the installation has failed, the pointer says which state is the current one.
        let state = directory.recover()?;
        let opened = match installed {
            Some(installed) => installed,
            None => {
                tracing::info!(shard, "opening the state");
                self.open_engine(&state)?
            }
        };
        let flushed = opened.flushed();
        let index = flushed.position.as_ref().map(|position| position.index);
        if let Err(error) = discard_overtaken(&directory, index) {
            tracing::warn!(shard, %error, "an old snapshot cannot be deleted");
        }
        let purged = log.align(*shard, flushed.position.as_ref())?;
        let purged_index = purged.as_ref().map(|position| position.index);
        metrics.first_log_index.set(gauge(purged_index.map_or(0, |index| index + 1)));
        // Consensus would wait for the missing entries forever.
        if purged_index > index {
            let purged = purged_index.unwrap_or_default();
            let flushed = index.unwrap_or_default();
            return Err(ReplicaError::Gap { shard: *shard, flushed, purged });
        }
        let bytes_from = |last: Option<u64>| log.table_bytes(*shard, last.map_or(0, |index| index.saturating_add(1)));
        let flushed_bytes = bytes_from(purged_index)?.saturating_sub(bytes_from(index)?);
        opened.begin_log(purged, flushed_bytes);
        Ok(Arc::new(opened))
    }

    fn open_engine(&self, state: &Path) -> Result<Shard, ReplicaError> {
        let Self { shard, log, budgets, metrics } = self;
        let barrier = barrier(log);
        Shard::open(*shard, log.directory(), state.to_owned(), budgets.clone(), barrier, metrics.clone())
    }

    /// Installs a snapshot. Returns the shard with the state of the snapshot; `None` if the snapshot cannot be
    /// installed.
    fn install(&self, staged: Staged) -> Result<Option<Shard>, ReplicaError> {
        let shard = self.shard;
        let index = staged.manifest().position.index;
        let purged = self.log.last_purged(shard)?.map(|log_id| log_id.index);
        if purged > Some(index) {
            tracing::warn!(shard, index, purged, "a snapshot is older than the first entry of the log: not installed");
            return Ok(None);
        }
        Ok(match staged.install(|state| self.open_engine(state)) {
            Ok(installed) => {
                tracing::info!(shard, index, "a snapshot replaces the state");
                self.metrics.snapshots_installed.inc();
                Some(installed)
            }
            Err(error) => {
                tracing::error!(shard, index, %error, "a snapshot cannot be installed");
                None
            }
        })
    }
}

/// Returns the barrier before writes of the state. A majority of other members may have synced an entry that this
/// member has applied and not yet synced. Each applied entry was appended to the log of this member before.
fn barrier(log: &Arc<LogDatabase>) -> LogBarrier {
    let log = Arc::downgrade(log);
    LogBarrier::new(move |_index| {
        if is_planted("skip-barrier") {
            return Ok(());
        }
        let log = log.upgrade().ok_or("the Raft log is closed")?;
        log.wait_until_synced().map_err(|error| LogError::from(error.to_string()))
    })
}

fn panicked(error: tokio::task::JoinError) -> ReplicaError {
    ReplicaError::Consensus(error.into())
}

#[cfg(test)]
mod power_cuts;
