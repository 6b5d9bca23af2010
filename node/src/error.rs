//! What can go wrong: [`NodeError`] while a node is opened, [`ReplicaError`] afterwards.

use std::path::PathBuf;

use storage_engine::EngineError;

use crate::consensus::RecordError;

/// Why a node does not open.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be made, read or written.
    #[error("the data directory {} cannot be used: {source}", directory.display())]
    Directory {
        /// As configured.
        directory: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// Two processes would overwrite each other.
    #[error("the data directory {} is held by another process{}: stop it or use another --data-dir", directory.display(), of_process(holder))]
    Held {
        /// As configured.
        directory: PathBuf,
        /// Its process id as it wrote it, if it can be read.
        holder: Option<u32>,
    },
    /// Written by another version.
    #[error("the data directory {} has format {found:?}, this version reads {expected}: run the version that wrote it", directory.display())]
    Format {
        /// As configured.
        directory: PathBuf,
        /// What its FORMAT file says; the first characters.
        found: String,
        /// Of this version.
        expected: u32,
    },
    /// A log belongs to the member that voted with it.
    #[error(
        "the data directory belongs to node {found}, not to node {expected}: use the node id that it was made with"
    )]
    OtherNode {
        /// Who made it.
        found: u64,
        /// As configured.
        expected: u64,
    },
    /// A value that cannot work.
    #[error("{option} is {value}: it must be at least {minimum}")]
    Config {
        /// Which.
        option: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        minimum: u64,
    },
    /// The consensus options contradict each other.
    #[error("consensus options: {0}")]
    Consensus(#[from] openraft::ConfigError),
    /// The replica does not start.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

fn of_process(holder: &Option<u32>) -> String {
    holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

/// Why a replica stopped: it acknowledges nothing any more, refuses reads, and is never tried again in this process,
/// except where [`ReplicaError::is_disk_full`].
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// After a failed sync nobody knows what is on disk, and a second one may wrongly succeed (the kernel drops the pages).
    #[error("the Raft log could not be synced ({0}): what it has on disk is unknown; check the disk, then start again")]
    Sync(#[source] rocksdb::Error),
    /// The log's database failed.
    #[error("Raft log: {0}")]
    Log(#[source] rocksdb::Error),
    /// A record of the log is not what was written.
    #[error("Raft log: {0}")]
    Record(#[from] RecordError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The thread that syncs is gone, a task panicked, or openraft stopped by itself.
    #[error("consensus stopped: {0}")]
    Consensus(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ReplicaError {
    /// Whether the disk is full: what was acknowledged is in the log, and the replica is opened again when there is space.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            // RocksDB gives the subcode only in the text.
            Self::Log(error) => error.as_ref().contains("No space left on device"),
            Self::Engine(error) => error.is_disk_full(),
            // Not `Sync`: also a sync that fails for want of space leaves the log unknown.
            Self::Sync(_) | Self::Record(_) | Self::Consensus(_) => false,
        }
    }
}
