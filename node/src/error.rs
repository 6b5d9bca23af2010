//! Errors of a node: [`NodeError`] while the node is opened, [`ReplicaError`] afterwards, and [`RecordError`] for
//! records in the log.

use std::num::NonZeroU16;
use std::path::PathBuf;

use storage_engine::EngineError;

/// Error of opening a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be made, read or written.
    #[error("the data directory {} cannot be used: {source}", directory.display())]
    Directory {
        /// Configured data directory.
        directory: PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// Another process has the data directory open.
    #[error(
        "the data directory {} is held by another process{}: stop it or use another --data-dir",
        directory.display(),
        of_process(holder)
    )]
    Held {
        /// Configured data directory.
        directory: PathBuf,
        /// Id of the process that holds the directory; `None` if it cannot be read.
        holder: Option<u32>,
    },
    /// Another version wrote the data directory.
    #[error(
        "the data directory {} has format {found:?}, this version reads {expected}: run the version that wrote it",
        directory.display()
    )]
    Format {
        /// Configured data directory.
        directory: PathBuf,
        /// The first characters of the FORMAT file.
        found: String,
        /// Format that this version reads.
        expected: u32,
    },
    /// A node with another id made the data directory. A log must stay with the member whose votes it holds.
    #[error(
        "the data directory belongs to node {found}, not to node {expected}: use the node id that it was made with"
    )]
    OtherNode {
        /// Node that made the directory.
        found: u64,
        /// Configured node id.
        expected: u64,
    },
    /// The data directory has another number of shards. The samples of a service are on the shard that the number of
    /// shards determines.
    #[error(
        "the data directory has {found} shard{}, and --shards is {expected}: the number is set on the first start and \
         cannot change; use --shards {found} or omit it, or use another --data-dir",
        if found.get() == 1 { "" } else { "s" }
    )]
    OtherShards {
        /// Number of shards of the data directory.
        found: NonZeroU16,
        /// Configured number of shards.
        expected: NonZeroU16,
    },
    /// The initial nodes of the cluster do not include this node.
    #[error(
        "--initial-nodes does not name node {node}, which is --node-id: name all nodes of the cluster, as ID=HOST:PORT"
    )]
    NotInitial {
        /// Configured node id.
        node: u64,
    },
    /// The configured number of shards is too large for one node.
    #[error("--shards is {shards}: a node has at most {maximum} shards")]
    TooManyShards {
        /// Configured number of shards.
        shards: NonZeroU16,
        /// Largest number that works.
        maximum: u16,
    },
    /// An option has an invalid value.
    #[error("{option} is {value}: it must be at least {minimum}")]
    Config {
        /// Name of the option.
        option: &'static str,
        /// Configured value.
        value: u64,
        /// Smallest value that works.
        minimum: u64,
    },
    /// The replica cannot be opened.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

/// Error of reading a record of consensus, such as a log entry, a vote or a membership.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record is shorter or longer than the length fields in it require.
    #[error("{record}: its length is wrong; the disk or the software is broken")]
    Length {
        /// Kind of the record.
        record: &'static str,
    },
    /// Another version wrote the record.
    #[error("{record}: has version {found}, this version reads {expected}: run the version that wrote it")]
    Version {
        /// Kind of the record.
        record: &'static str,
        /// Version of the record.
        found: u8,
        /// Version that this software reads.
        expected: u8,
    },
    /// The record changed after it was written.
    #[error("{record}: its checksum is wrong; the disk or the software is broken")]
    Checksum {
        /// Kind of the record.
        record: &'static str,
    },
    /// The checksum is right, but the content is invalid: broken software wrote the record.
    #[error("{record}: its content is wrong; it was written by broken software")]
    Content {
        /// Kind of the record.
        record: &'static str,
    },
    /// A record that must exist is missing.
    #[error("{record}: it is missing; the disk or the software is broken")]
    Absent {
        /// Kind of the record.
        record: &'static str,
    },
    /// The log has no entry at an index that it must have.
    #[error("shard {shard}: entry {index} is missing; the disk or the software is broken")]
    Missing {
        /// Shard of the log.
        shard: u32,
        /// Index of the entry.
        index: u64,
    },
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

/// Error that stopped a replica, which then acknowledges nothing. A final error ([`ReplicaError::is_final`]) ends the
/// process. After any other error, the replica is opened again.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A sync of the log failed. A second sync could wrongly succeed, because the kernel drops pages that it cannot
    /// write.
    #[error("the Raft log could not be synced ({0}): the content on disk is unknown; check the disk, then start again")]
    Sync(#[source] rocksdb::Error),
    /// The log's database failed.
    #[error("Raft log: {0}")]
    Log(#[source] rocksdb::Error),
    /// Entries or votes can no longer be read, although they were synced.
    #[error(
        "Raft log: write {readable} is the last that can be read, and write {synced} was synced: {} is damaged ({}); \
         restore the whole data directory from a backup, or remove the file SYNCED beside it to go on without the lost \
         writes",
        listed(files),
        of(damage)
    )]
    Lost {
        /// Files of the write-ahead log, one of which is damaged; only their folder if there are no files.
        files: Vec<PathBuf>,
        /// RocksDB's number of the last write that can be read.
        readable: u64,
        /// RocksDB's number of the last write that was synced.
        synced: u64,
        /// RocksDB's error about the damaged record; `None` if a file is too short or missing.
        damage: Option<rocksdb::Error>,
    },
    /// The mark of the last synced write cannot be read or written.
    #[error("Raft log: raft/SYNCED: {0}")]
    Mark(#[source] std::io::Error),
    /// Files of the log cannot be read, or have damage that would make RocksDB read without end.
    #[error("Raft log: {0}; if it is damaged, restore the whole data directory from a backup")]
    Files(#[source] std::io::Error),
    /// The log was purged beyond the last entry in the state. The entries in between are therefore missing.
    #[error(
        "shard {shard}: its state is as of entry {flushed}, and the log is purged up to entry {purged}: the entries \
         between are missing; restore the whole data directory from one backup"
    )]
    Gap {
        /// Shard of the log.
        shard: u32,
        /// Index of the last entry in the state; 0 if the state has no entry.
        flushed: u64,
        /// Index of the last entry that was purged from the log.
        purged: u64,
    },
    /// The directory of a shard cannot be read or written.
    #[error("the directory {} cannot be used: {source}", directory.display())]
    Directory {
        /// Directory of the shard.
        directory: PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// The pointer to the current state of a shard is damaged, or is missing although there is a state.
    #[error("{}: {source}; restore the whole data directory from a backup", file.display())]
    Pointer {
        /// File of the pointer.
        file: PathBuf,
        /// Reason why the pointer cannot be used.
        source: RecordError,
    },
    /// A record of the log cannot be read.
    #[error("Raft log: {0}")]
    Record(#[from] RecordError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Table files of the state have damaged blocks.
    #[error("the state has files with damaged blocks, which are repaired when it is opened again")]
    Damaged,
    /// The cluster uses formats that this program does not know.
    #[error(
        "the formats of the cluster are version {cluster}, and this varve knows them up to {known}: install a newer \
         varve"
    )]
    NewerFormat {
        /// Version of the cluster.
        cluster: u32,
        /// Highest version that this program knows.
        known: u32,
    },
    /// The sync thread ended, a task panicked, or openraft stopped by itself.
    #[error("consensus stopped: {0}")]
    Consensus(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ReplicaError {
    /// Returns true if the replica must not be opened again in this process.
    pub(crate) fn is_final(&self) -> bool {
        !self.is_damage() && !self.is_disk_full()
    }

    /// Returns true if stored values are damaged. The node then opens the replica again, which repairs its files.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_damage(),
            Self::Damaged => true,
            _ => false,
        }
    }

    /// Returns true if the log of all shards is damaged. A full or failing disk is no damage.
    pub(crate) fn is_log_damage(&self) -> bool {
        match self {
            Self::Lost { .. } => true,
            Self::Record(error) => matches!(
                error,
                RecordError::Length { .. }
                    | RecordError::Checksum { .. }
                    | RecordError::Absent { .. }
                    | RecordError::Missing { .. }
            ),
            Self::Files(error) | Self::Mark(error) => error.kind() == std::io::ErrorKind::InvalidData,
            Self::Log(error) => {
                error.kind() == rocksdb::ErrorKind::Corruption || error.as_ref().contains("No such file or directory")
            }
            _ => false,
        }
    }

    /// Returns true if the state cannot be used, and the log can. The state of another member can then take its place.
    pub(crate) fn is_state_lost(&self) -> bool {
        match self {
            Self::Engine(_) => !self.is_disk_full(),
            Self::Pointer { .. } | Self::Gap { .. } => true,
            _ => false,
        }
    }

    /// Returns true if the disk is full. Everything acknowledged is then in the log, and the node opens the replica
    /// again when there is space.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            // RocksDB reports the cause only in the text of the error.
            Self::Log(error) => error.as_ref().contains("No space left on device"),
            Self::Engine(error) => error.is_disk_full(),
            Self::Mark(error) | Self::Files(error) | Self::Directory { source: error, .. } => {
                error.kind() == std::io::ErrorKind::StorageFull
            }
            // `Sync` is not included: after any failed sync, even for lack of space, the content of the log on disk is
            // unknown.
            Self::Sync(_)
            | Self::Lost { .. }
            | Self::Gap { .. }
            | Self::Pointer { .. }
            | Self::Record(_)
            | Self::NewerFormat { .. }
            | Self::Consensus(_)
            | Self::Damaged => false,
        }
    }
}

/// Returns the error of a failed sync, for tests. The RocksDB error in it is an arbitrary one.
#[cfg(test)]
pub(crate) fn failed_sync() -> ReplicaError {
    let folder = tempfile::tempdir().unwrap();
    ReplicaError::Sync(rocksdb::DB::open(&rocksdb::Options::default(), folder.path()).unwrap_err())
}
