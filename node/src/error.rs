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
    /// The replica does not start.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

fn of_process(holder: &Option<u32>) -> String {
    holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

fn listed(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

fn of(damage: &Option<rocksdb::Error>) -> String {
    damage.as_ref().map_or_else(|| "it ends early".to_owned(), ToString::to_string)
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
    /// Entries or votes that were synced, and so counted, cannot be read any more.
    #[error(
        "Raft log: write {readable} is the last that can be read, and write {synced} was synced: {} is damaged ({}); put \
         the whole data directory back from a copy, or remove the file SYNCED beside it to go on without what is lost",
        listed(files),
        of(damage)
    )]
    Lost {
        /// The files of the WAL: the damage is in one of them. Its folder, where there are none.
        files: Vec<PathBuf>,
        /// By RocksDB's count.
        readable: u64,
        /// By RocksDB's count.
        synced: u64,
        /// The check that failed; none: a file is too short, or missing.
        damage: Option<rocksdb::Error>,
    },
    /// The mark of what is synced cannot be read or written.
    #[error("Raft log: raft/SYNCED: {0}")]
    Mark(#[source] std::io::Error),
    /// Its files cannot be read, or are damaged in a way that RocksDB would not end with.
    #[error("Raft log: {0}; if it is damaged, put the whole data directory back from a copy")]
    Files(#[source] std::io::Error),
    /// What was cut from the log must be in the state, and is not: an entry would be missing.
    #[error(
        "shard {shard}: its state is as of entry {flushed}, and the log is cut up to entry {cut_off}: what is between is in \
         neither; put the whole data directory back from one copy"
    )]
    Behind {
        /// Which.
        shard: u32,
        /// The last entry in the state; 0: none.
        flushed: u64,
        /// The last entry that is not in the log any more.
        cut_off: u64,
    },
    /// A record of the log is not what was written.
    #[error("Raft log: {0}")]
    Record(#[from] RecordError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Table files of the state have damaged blocks.
    #[error("the state has files with damaged blocks, which are repaired when it is opened again")]
    Damaged,
    /// The thread that syncs is gone, a task panicked, or openraft stopped by itself.
    #[error("consensus stopped: {0}")]
    Consensus(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ReplicaError {
    /// Whether stored values are damaged: the replica is opened again, which repairs its files.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_damage(),
            Self::Damaged => true,
            _ => false,
        }
    }

    /// Whether the disk is full: what was acknowledged is in the log, and the replica is opened again when there is space.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            // RocksDB gives the subcode only in the text.
            Self::Log(error) => error.as_ref().contains("No space left on device"),
            Self::Engine(error) => error.is_disk_full(),
            Self::Mark(error) | Self::Files(error) => error.kind() == std::io::ErrorKind::StorageFull,
            // Not `Sync`: also a sync that fails for want of space leaves the log unknown.
            Self::Sync(_)
            | Self::Lost { .. }
            | Self::Behind { .. }
            | Self::Record(_)
            | Self::Consensus(_)
            | Self::Damaged => false,
        }
    }
}
