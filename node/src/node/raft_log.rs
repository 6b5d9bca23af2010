//! The node's Raft log, which the replicas of all shards share. It is opened before the replicas and closed after them.
//!
//! A write to a full disk makes RocksDB refuse all later writes. The log is then closed and opened again, which needs
//! all replicas to be closed: each of them stops by itself, and the first that is to be opened again waits for the
//! others.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::config::Config;
use crate::consensus::{DirectoryId, LogDatabase, Terms};
use crate::directory::DataDirectory;
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::Metrics;

/// The log of a node.
#[derive(Debug)]
pub(super) struct RaftLog {
    node_id: u64,
    directory: Arc<DataDirectory>,
    metrics: Metrics,
    failure: Failure,
    /// The log, unless it is closed. A task that holds a replica, which holds the log, must not wait for this lock.
    open: Mutex<Option<Arc<LogDatabase>>>,
}

impl RaftLog {
    /// Opens the log. Returns it with the number of shards and the identity of the data directory.
    pub(super) async fn open(
        config: &Config,
        directory: &Arc<DataDirectory>,
        metrics: &Metrics,
    ) -> Result<(Self, NonZeroU16, DirectoryId), NodeError> {
        let log = Self {
            node_id: config.node_id,
            directory: Arc::clone(directory),
            metrics: metrics.clone(),
            failure: Failure::of_log(),
            open: Mutex::default(),
        };
        let database = match log.open_database(config.shards).await {
            Err(NodeError::Replica(error)) if error.is_log_damage() && config.has_others() => {
                tracing::error!(
                    %error,
                    "the Raft log is damaged: the node takes no part in the cluster until its replicas are built again \
                     from the other members"
                );
                log.open_new(config.shards).await?
            }
            opened => opened?,
        };
        let shards = database.shards();
        let directory_id = database.directory_id();
        *log.open.lock().await = Some(database);
        Ok((log, shards, directory_id))
    }

    /// Sets a damaged log aside, and opens a new one, which has another identity.
    async fn open_new(&self, shards: Option<NonZeroU16>) -> Result<Arc<LogDatabase>, NodeError> {
        let failed = |source| NodeError::Directory { directory: self.directory.path().to_owned(), source };
        // The number was only in the log. It follows from the folders of the shards, unless the configuration has it.
        let last = self.directory.shards().map_err(failed)?.last().copied();
        let of_folders = last.and_then(|last| NonZeroU16::new(u16::try_from(last).ok()?));
        let directory = Arc::clone(&self.directory);
        let set_aside = spawn_blocking(move || directory.set_raft_aside()).await;
        set_aside.map_err(|panic| ReplicaError::Consensus(panic.into()))?.map_err(failed)?;
        self.open_database(shards.or(of_folders)).await
    }

    async fn open_database(&self, shards: Option<NonZeroU16>) -> Result<Arc<LogDatabase>, NodeError> {
        tracing::info!("opening the Raft log");
        let directory = Arc::clone(&self.directory);
        let failure = self.failure.clone();
        let metrics = self.metrics.clone();
        let node_id = self.node_id;
        let open = move || LogDatabase::open(&directory, node_id, shards, failure, metrics);
        let opened = spawn_blocking(open).await.map_err(|panic| ReplicaError::Consensus(panic.into()))?;
        Ok(Arc::new(opened?))
    }

    /// Failure of the log, which ends all replicas.
    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Returns the error after which the process must end, if there is one.
    pub(super) fn final_error(&self) -> Option<Arc<ReplicaError>> {
        self.failure.get().filter(|error| error.is_final())
    }

    /// Returns the log. If it has failed, first waits until all replicas are closed, and opens it again.
    pub(super) async fn opened(&self) -> Result<Arc<LogDatabase>, NodeError> {
        let mut open = self.open.lock().await;
        if let Some(log) = open.as_ref().filter(|_log| self.failure.get().is_none()) {
            return Ok(Arc::clone(log));
        }
        if let Some(log) = open.take() {
            close(log).await;
        }
        // A failed sync may have been reported meanwhile.
        if let Some(error) = self.final_error() {
            return Err(ReplicaError::Consensus(error.to_string().into()).into());
        }
        self.failure.clear();
        // The number of shards was checked when the node was opened.
        let log = self.open_database(None).await?;
        *open = Some(Arc::clone(&log));
        Ok(log)
    }

    /// Returns the log; `None` while it is closed, opened or closing.
    pub(super) fn current(&self) -> Option<Arc<LogDatabase>> {
        self.open.try_lock().ok().and_then(|open| open.clone())
    }

    /// Returns the space of purged entries to the file system ([`LogDatabase::reclaim`]). Does nothing while the log is
    /// closed. Returns true if it was tried.
    pub(super) async fn reclaim(&self, terms: Terms) -> bool {
        match self.current().filter(|log| log.is_reclaimable()) {
            // An error is reported, and ends the replicas.
            Some(log) => reclaim(log, terms).await.unwrap_or(false),
            None => false,
        }
    }

    /// Closes the log. Returns when all its files are closed, after all replicas.
    pub(super) async fn close(&self) {
        if let Some(log) = self.open.lock().await.take() {
            close(log).await;
        }
    }
}

/// Returns the space of purged entries to the file system ([`LogDatabase::reclaim`]). If another call of this function
/// is running, waits for it first.
async fn reclaim(log: Arc<LogDatabase>, terms: Terms) -> Result<bool, Arc<ReplicaError>> {
    // The error is reported before this reference to the log is dropped. Otherwise, the log could be closed and opened
    // again in between, and the error would count as one of the new log.
    let reclaim = move || log.reclaim(&terms).map_err(|error| log.failure().report(error));
    let reclaimed = spawn_blocking(reclaim).await;
    reclaimed.unwrap_or_else(|panic| Err(Arc::new(ReplicaError::Consensus(panic.into()))))
}

async fn close(log: Arc<LogDatabase>) {
    let open = log.while_open();
    log.stop_merges();
    // On a blocking thread, because closing writes to disk.
    if let Err(error) = spawn_blocking(move || drop(log)).await {
        tracing::error!(%error, "closing the Raft log panicked");
    }
    while open.strong_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
