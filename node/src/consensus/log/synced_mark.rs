//! The mark: RocksDB's number of the last synced write. It is one mark record ([`record`]) in the file `raft/SYNCED`.
//!
//! RocksDB cannot distinguish two cases. In the first, a power cut has torn the end of the WAL, and nothing after the
//! tear was acknowledged. In the second, the WAL was damaged later, and all writes in it may have been acknowledged.
//! The mark distinguishes the two cases.
//!
//! The mark is written after every sync, and is not synced. After the process dies, the mark is exact. After a power
//! cut, the mark may be too small; damage after the mark then passes for a tear. The mark is never too large, because
//! opening would then refuse an intact log.
//!
//! Invariant: every write up to the mark was synced before the mark was written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::consensus::record;
use crate::error::ReplicaError;

/// The file of the mark, open for writing.
#[derive(Debug)]
pub(super) struct SyncedMark(File);

fn path(raft: &Path) -> PathBuf {
    raft.join("SYNCED")
}

impl SyncedMark {
    /// Opens the mark of the database in `raft`, or makes an empty one.
    pub(super) fn open(raft: &Path) -> Result<Self, ReplicaError> {
        let file = File::options().write(true).create(true).truncate(false).open(path(raft));
        file.map(Self).map_err(ReplicaError::Mark)
    }

    /// Returns RocksDB's number of the last synced write; `None` if it is unknown.
    pub(super) fn read(raft: &Path) -> Result<Option<u64>, ReplicaError> {
        match std::fs::read(path(raft)) {
            // A power cut leaves a new file empty or filled with zeros.
            Ok(bytes) if bytes.iter().all(|&byte| byte == 0) => Ok(None),
            Ok(bytes) => Ok(Some(record::decode_mark(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ReplicaError::Mark(error)),
        }
    }

    /// Writes the mark in place and within one sector, so that a power cut never leaves a torn mark.
    pub(super) fn write(&self, synced: u64) -> Result<(), ReplicaError> {
        self.0.write_all_at(&record::encode_mark(synced), 0).map_err(ReplicaError::Mark)
    }
}
