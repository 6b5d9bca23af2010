//! Up to where the log is known to be synced: the file `raft/SYNCED`, one mark record (see [`record`]), beside the database.
//!
//! RocksDB cannot tell a WAL that a power cut has torn, where nothing behind the tear was acknowledged, from one that was
//! damaged later, where all of it was. The mark can: it holds the number of the last write that was synced.
//!
//! It is written after every sync and not synced itself. When the process dies it is exact; after a power cut it may say too
//! little, which finds less damage, and never too much, which would refuse a log that is whole.
//!
//! Invariant: what the mark says was synced before it was written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::consensus::record;
use crate::error::ReplicaError;

/// The file, open for writing.
#[derive(Debug)]
pub(crate) struct SyncedMark(File);

fn path(raft: &Path) -> PathBuf {
    raft.join("SYNCED")
}

impl SyncedMark {
    /// Opens the mark of the database in `raft`; makes it, empty, if it is not there.
    pub(crate) fn open(raft: &Path) -> Result<Self, ReplicaError> {
        let file = File::options().write(true).create(true).truncate(false).open(path(raft));
        file.map(Self).map_err(ReplicaError::Mark)
    }

    /// The last write that was synced, by RocksDB's count. None: nothing is known.
    pub(crate) fn read(raft: &Path) -> Result<Option<u64>, ReplicaError> {
        match std::fs::read(path(raft)) {
            // Nothing or zeros: what a power cut leaves of a file that is new.
            Ok(bytes) if bytes.iter().all(|&byte| byte == 0) => Ok(None),
            Ok(bytes) => Ok(Some(record::decode_mark(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ReplicaError::Mark(error)),
        }
    }

    /// Always in place, within one sector: it is never torn.
    pub(crate) fn write(&self, synced: u64) -> Result<(), ReplicaError> {
        self.0.write_all_at(&record::encode_mark(synced), 0).map_err(ReplicaError::Mark)
    }
}
