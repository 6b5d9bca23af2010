//! A replica of one shard: engine and consensus, which are opened and closed together.

use std::sync::{Arc, Weak};
use std::time::Duration;

use storage_engine::{Budgets, LogBarrier, Outcome};
use tokio::task::spawn_blocking;

use crate::clock::Clock;
use crate::config::Config;
use crate::consensus::{ConsensusError, Group, LogDatabase, LogStore, Proposal};
use crate::directory::DataDirectory;
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::{Metrics, gauge};
use crate::shard::Shard;
use crate::snapshot::receiver::discard_overtaken;

/// An open replica.
#[derive(Debug)]
pub(crate) struct Replica {
    group: Group,
    shard: Arc<Shard>,
    log: Arc<LogDatabase>,
    /// Reference that can be upgraded until no task of openraft uses the shard's log any more.
    log_in_use: Weak<()>,
    failure: Failure,
    clock: Arc<Clock>,
}

impl Replica {
    /// Opens the engine, and joins the Raft group, whose log is in `log`. [`Replica::recovered`] returns when the
    /// replica can serve requests.
    pub(crate) async fn open(
        shard: u32,
        config: &Config,
        directory: &Arc<DataDirectory>,
        log: Arc<LogDatabase>,
        budgets: &Budgets,
        metrics: &Metrics,
        clock: Arc<Clock>,
    ) -> Result<Arc<Self>, NodeError> {
        let failure = log.failure().of_replica(shard);
        let open = {
            let log = Arc::clone(&log);
            let metrics = metrics.of_shard(shard);
            let directory = Arc::clone(directory);
            let budgets = budgets.clone();
            move || {
                let purged = log.last_purged(shard)?.map(|log_id| log_id.index);
                metrics.first_log_index.set(gauge(purged.map_or(0, |index| index + 1)));
                tracing::info!(shard, "opening the state, after a repair of its damaged files");
                let state = directory.shard(shard).recover()?;
                // The only member applies an entry after it has synced the entry, so nothing has to wait.
                let barrier = LogBarrier::default();
                let opened = Shard::open(shard, &directory, state, budgets, barrier, metrics)?;
                let flushed = opened.flushed_index();
                if let Err(error) = discard_overtaken(&opened.directory(), flushed) {
                    tracing::warn!(shard, %error, "an old snapshot cannot be deleted");
                }
                // Consensus would wait for the missing entries forever.
                if purged > flushed {
                    let purged = purged.unwrap_or_default();
                    let flushed = flushed.unwrap_or_default();
                    return Err(ReplicaError::Gap { shard, flushed, purged });
                }
                Ok(Arc::new(opened))
            }
        };
        let opened = spawn_blocking(open).await.map_err(panicked)??;
        let store = LogStore::new(shard, Arc::clone(&log));
        let log_in_use = store.while_open();
        let group = Group::join(config.node_id, &config.advertise_address, store, &opened, failure.clone()).await?;
        Ok(Arc::new(Self { group, shard: opened, log, log_in_use, failure, clock }))
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

    /// Returns when everything that was acknowledged before the start is applied, and the clock has the stored times.
    /// Never returns if the replica fails earlier.
    pub(crate) async fn recovered(&self) {
        self.group.recovered().await;
        self.clock.start(self.shard.engine().clock_ns(), self.log.accepted_ns());
    }

    /// Proposes a command. After a majority has synced the command, returns the outcome of applying it.
    pub(crate) async fn propose(&self, proposal: Proposal) -> Result<Outcome, ConsensusError> {
        self.group.propose(|| proposal.at(self.clock.log_ns().unsigned_abs())).await
    }

    /// Returns when a read would see everything that was acknowledged before this call.
    pub(crate) async fn linearize(&self) -> Result<(), ConsensusError> {
        self.group.linearize().await
    }

    /// Returns true if no other node has a vote. The engine then has everything that was acknowledged, even if
    /// consensus does not run.
    pub(crate) fn is_alone(&self) -> bool {
        self.group.is_alone()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.group.is_leader()
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

    /// Flushes the engine, then purges the log up to the flush.
    pub(crate) async fn flush(&self) -> Result<(), Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        self.blocking(move || shard.flush()).await?;
        self.group.purge_flushed().await
    }

    /// Seals, rolls up and compacts everything, then purges the log.
    pub(crate) async fn compact(&self) -> Result<(), Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        self.blocking(move || shard.compact()).await?;
        self.group.purge_flushed().await
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

fn panicked(error: tokio::task::JoinError) -> ReplicaError {
    ReplicaError::Consensus(error.into())
}
