//! A replica of one shard: log, engine and consensus, which are opened and closed together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use storage_engine::Outcome;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::clock::Clock;
use crate::config::Config;
use crate::consensus::{ConsensusError, Group, LogDatabase, Proposal};
use crate::directory::DataDirectory;
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::{Metrics, gauge};
use crate::shard::Shard;

/// An open replica.
#[derive(Debug)]
pub(crate) struct Replica {
    group: Group,
    shard: Arc<Shard>,
    log: Arc<LogDatabase>,
    failure: Failure,
    clock: Arc<Clock>,
    /// Lock that is held while the accepted time is read, stored and set, so that no older time replaces a newer one.
    storing_time: Mutex<()>,
}

impl Replica {
    /// Opens log and engine, and joins the Raft group. [`Replica::recovered`] returns when the replica can serve
    /// requests.
    pub(crate) async fn open(
        config: &Config,
        directory: &Arc<DataDirectory>,
        shard: u32,
        metrics: &Metrics,
        clock: Arc<Clock>,
    ) -> Result<Arc<Self>, NodeError> {
        let failure = Failure::new();
        let open = {
            let failure = failure.clone();
            let metrics = metrics.clone();
            let directory = Arc::clone(directory);
            let Config { node_id, head_bytes_max, cache_bytes, .. } = *config;
            move || {
                tracing::info!("opening the Raft log");
                let log = LogDatabase::open(&directory, node_id, failure, metrics.clone())?;
                let purged = log.last_purged(shard)?.map(|log_id| log_id.index);
                metrics.first_log_index.set(gauge(purged.map_or(0, |index| index + 1)));
                tracing::info!(shard, "opening the state, after a repair of its damaged files");
                let opened = Shard::open(shard, &directory, head_bytes_max, cache_bytes, metrics)?;
                let flushed = opened.flushed_index();
                // Consensus would wait for the missing entries forever.
                if purged > flushed {
                    let purged = purged.unwrap_or_default();
                    let flushed = flushed.unwrap_or_default();
                    return Err(ReplicaError::Gap { shard, flushed, purged }.into());
                }
                Ok::<_, NodeError>((Arc::new(log), Arc::new(opened)))
            }
        };
        let (log, shard) = spawn_blocking(open).await.map_err(panicked)??;
        let group = Group::join(config.node_id, &config.advertise_address, &log, &shard, failure.clone()).await?;
        Ok(Arc::new(Self { group, shard, log, failure, clock, storing_time: Mutex::default() }))
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
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

    /// Returns the present time of retention (accepted time), in nanoseconds since 1970. If the stored limit of
    /// accepted time is too old, first stores a new limit. The next start continues from the stored limit.
    ///
    /// # Errors
    /// The new limit could not be stored, so retention must not drop anything.
    pub(crate) async fn retention_ns(&self) -> Result<i64, Arc<ReplicaError>> {
        let _storing = self.storing_time.lock().await;
        let (now_ns, to_store_ns) = self.clock.now_and_to_store_ns(self.log.accepted_ns());
        // A log without entries has no data that the time could affect.
        if let Some(limit_ns) = to_store_ns
            && self.shard.engine().clock_ns() != 0
        {
            self.store_accepted(limit_ns).await?;
        }
        Ok(now_ns)
    }

    /// Sets the accepted time to the system clock, which an operator has confirmed. The time is stored first, because
    /// retention must not follow a confirmation that a restart would forget.
    pub(crate) async fn accept_clock(&self) -> Result<(), Arc<ReplicaError>> {
        let _storing = self.storing_time.lock().await;
        let read_at = Instant::now();
        let system_ns = self.clock.report().system_ns;
        self.store_accepted(system_ns).await?;
        let stored_for_ns = i64::try_from(read_at.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.clock.accept(system_ns.saturating_add(stored_for_ns));
        Ok(())
    }

    /// Stores an accepted time for the next start. Returns when the write is synced.
    async fn store_accepted(&self, accepted_ns: i64) -> Result<(), Arc<ReplicaError>> {
        self.log.store_accepted(accepted_ns).await.map_err(|error| self.failure.report(error))
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

    /// Returns true if the samples in memory exceed their budget, or a window is due to be sealed or summed up.
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
        read.map(|log_id| log_id.map(|log_id| log_id.index)).map_err(|error| self.failure.report(error))
    }

    /// Returns true if purged entries still take space.
    pub(crate) fn is_reclaimable(&self) -> bool {
        self.log.is_reclaimable()
    }

    /// Returns the space of purged entries to the file system. If another call of this function is running, waits for
    /// it first.
    pub(crate) async fn reclaim(&self) -> Result<(), Arc<ReplicaError>> {
        let log = Arc::clone(&self.log);
        self.blocking(move || log.reclaim()).await
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

    /// Closes the files. Returns when no thread uses the files, so that they can be opened again.
    pub(crate) async fn close(self: Arc<Self>) {
        self.stop().await;
        let shard = self.shard.while_open();
        let log = self.log.while_open();
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

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::Retention;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_accepted_clock_is_not_overwritten_with_an_older_time() {
        let folder = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(86_400);
        let retention = Retention { raw: day, minutes: day, hours: day, days: day };
        let config = Config::new(folder.path().to_owned(), retention, 1 << 30);
        let metrics = Metrics::register(&mut Registry::default());
        let clock = Arc::new(Clock::new(retention, metrics.clone()));
        // The clock starts in 1970, so the system clock is decades ahead of it.
        clock.start(1, Some(1));
        let directory = Arc::new(DataDirectory::open(&config.data_dir).unwrap());
        let replica = Replica::open(&config, &directory, 1, &metrics, Arc::clone(&clock)).await.unwrap();
        replica.recovered().await;
        replica.propose(Proposal::expire(proto::Tier::Raw, 0, 0)).await.unwrap();
        let (accepted, read) = tokio::join!(replica.accept_clock(), replica.retention_ns());
        accepted.unwrap();
        let system_ns = clock.report().system_ns;
        for ns in [read.unwrap(), replica.log.accepted_ns().unwrap(), replica.log.read_accepted().unwrap().unwrap()] {
            assert!(ns.abs_diff(system_ns) < 60_000_000_000, "{ns} is stored or used instead of {system_ns}");
        }
        replica.close().await;
    }
}
