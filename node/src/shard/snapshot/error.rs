//! Errors of sending, receiving and installing snapshots.

use std::io;
use std::path::PathBuf;

use crate::error::{RecordError, ReplicaError};

/// Error for which a snapshot is not sent, received or installed. The present state of the shard is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The shard has no entries yet, so the log has everything.
    #[error("shard {shard}: no entry was applied yet, so there is no snapshot")]
    Empty { shard: u32 },
    /// The checkpoint cannot be made, or the received state cannot be read.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The manifest of the other member cannot be read.
    #[error("the manifest of the snapshot cannot be read: {0}")]
    Manifest(#[from] RecordError),
    /// The snapshot is of another shard than the requested one.
    #[error("the snapshot is of shard {found}, not of shard {expected}")]
    OtherShard { found: u32, expected: u32 },
    /// The received files are not those of the manifest.
    #[error("file {file} of the snapshot is damaged on the way or at the sender: it is requested again")]
    Damaged { file: String },
    /// The received state is not at the position of the manifest.
    #[error("the snapshot has a state as of entry {found}, and its manifest says entry {expected}: it is not used")]
    Position { found: u64, expected: u64 },
    /// The snapshot lacks the requested entry. A lease may be older than the purge of the sender's log.
    #[error("the snapshot is as of entry {found}, and entry {requested} is needed: it is requested again")]
    TooOld { found: u64, requested: u64 },
    /// The address of the other member is invalid.
    #[error("the address of the member that sends the snapshot: {0}")]
    Address(String),
    /// The log of this member has failed.
    #[error("{0}")]
    Log(String),
    /// The disk has too little space for the snapshot.
    #[error(
        "the snapshot needs {needed_bytes} more bytes, and the disk has {free_bytes} free bytes beyond its reserve: \
         free some space"
    )]
    DiskFull { needed_bytes: u64, free_bytes: u64 },
    /// The other member refused the request or cannot be reached.
    #[error("the member that sends the snapshot: {0}")]
    Sender(#[source] Box<tonic::Status>),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Files { path: PathBuf, source: io::Error },
    /// A task panicked.
    #[error("{0}")]
    Panicked(#[from] tokio::task::JoinError),
}

impl SnapshotError {
    /// Returns a function that adds the path to an error of the operating system.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Files { path, source }
    }
}

impl From<storage_engine::EngineError> for SnapshotError {
    fn from(error: storage_engine::EngineError) -> Self {
        Self::Replica(error.into())
    }
}

impl From<tonic::Status> for SnapshotError {
    fn from(status: tonic::Status) -> Self {
        Self::Sender(Box::new(status))
    }
}
