//! Opening the log database after a shutdown, a kill, a power cut or damage.
//!
//! Invariant: the opened database has every synced write, or opening fails and deletes nothing that can be read. A torn
//! tail after the last synced write is truncated: a power cut may leave any of its pages, in any order.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rocksdb::{DB, DBRecoveryMode, ErrorKind};
use rocksdb_files::manifest::TornTail;
use rocksdb_files::record_file;

use crate::consensus::log::families::{families, options};
use crate::consensus::log::synced_mark::SyncedMark;
use crate::error::ReplicaError;
use crate::host::planted::is_planted;

/// Opens or makes the database in the folder `raft`.
///
/// # Errors
/// [`ReplicaError::Lost`]: synced writes cannot be read. [`ReplicaError::Record`]: the mark is damaged.
/// [`ReplicaError::Files`]: a file has damage that would make RocksDB read without end.
pub(super) fn open(raft: &Path) -> Result<DB, ReplicaError> {
    let expected = Expected {
        synced: SyncedMark::read(raft)?.unwrap_or_default(),
        raft: raft.to_owned(),
        files: wal_files(raft)?,
    };
    if let Some(torn) = TornTail::find(raft).map_err(ReplicaError::Files)? {
        truncate_manifest(raft, &expected, &torn)?;
    }
    expected.files.iter().try_for_each(|file| record_file::check(file)).map_err(ReplicaError::Files)?;
    let database = match DB::open_cf_descriptors(&options(DBRecoveryMode::AbsoluteConsistency), raft, families()) {
        Err(damage) if damage.kind() == ErrorKind::Corruption => truncate_wal(raft, &expected, damage)?,
        opened => opened.map_err(ReplicaError::Log)?,
    };
    // RocksDB takes a file that ends early, at the end of a record, for intact. So the last write is checked here.
    expected.check(&database, None)?;
    Ok(database)
}

/// Truncates a torn end of the manifest, RocksDB's list of files, if the torn change never took effect.
///
/// RocksDB syncs a change of the manifest before it deletes the files that the change makes superfluous. After a power
/// cut during a change, the oldest WAL file that the manifest needs without this change therefore still exists. If that
/// file is gone, the change was synced, and the manifest was damaged later. If the change were truncated in this case,
/// RocksDB would delete files that hold entries or a vote. The check truncates and opens a copy, made of hard links, so
/// that the original stays as it is until the check has passed.
fn truncate_manifest(raft: &Path, expected: &Expected, torn: &TornTail) -> Result<(), ReplicaError> {
    let TornTail { path, length } = torn;
    let copy = raft.with_file_name("raft-look");
    let linked = link_files(raft, &copy, path).and_then(|list| TornTail { path: list, length: *length }.truncate());
    linked.map_err(ReplicaError::Files)?;
    let options = options(DBRecoveryMode::PointInTime);
    let readable = DB::open_cf_descriptors_read_only(&options, &copy, families(), false).map_err(ReplicaError::Log)?;
    let needed = readable.property_int_value(OLDEST_WAL).map_err(ReplicaError::Log)?.unwrap_or(u64::MAX);
    let number = |file: &Path| file.file_stem()?.to_str()?.parse::<u64>().ok();
    let oldest = expected.files.iter().find(|file| number(file).is_some_and(|number| needed <= number));
    tracing::warn!(list = %path.display(), length, needed, ?oldest, "the end of the Raft log's manifest is torn");
    let is_there = match oldest {
        // The manifest names no table file yet, so all writes must be in the WAL, from the first on.
        Some(oldest) if needed == 0 => first_write(oldest).map_err(ReplicaError::Files)?.is_none_or(|first| first <= 1),
        Some(oldest) => number(oldest) == Some(needed),
        None => true,
    };
    let readable = readable.latest_sequence_number();
    fs::remove_dir_all(&copy).map_err(ReplicaError::Files)?;
    if !is_there || readable < expected.synced {
        let what = format!(
            "{} is damaged from byte {length} on, and synced writes are only in files that it names from there on; \
             restore the whole data directory from a backup",
            path.display(),
        );
        return Err(ReplicaError::Files(io::Error::new(io::ErrorKind::InvalidData, what)));
    }
    torn.truncate().map_err(ReplicaError::Files)
}

/// RocksDB's property for the number of the oldest WAL file that the manifest needs.
const OLDEST_WAL: &str = "rocksdb.min-log-number-to-keep";

/// Returns RocksDB's number of the first write in a WAL file; `None` if the file has no write.
fn first_write(wal: &Path) -> io::Result<Option<u64>> {
    // After the record's header of 7 bytes, a batch of writes begins with the number of its first write.
    let mut bytes = [0; 15];
    match File::open(wal)?.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(bytes.last_chunk().map(|number| u64::from_le_bytes(*number))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a new directory with hard links to all files of a directory, but with a real copy of the manifest `list`.
/// Returns the path of the copy.
fn link_files(from: &Path, to: &Path, list: &Path) -> io::Result<PathBuf> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir(to)?;
    let mut copied = to.to_owned();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let there = to.join(entry.file_name());
        if entry.path() == list {
            fs::copy(list, &there)?;
            copied = there;
        } else {
            fs::hard_link(entry.path(), there)?;
        }
    }
    Ok(copied)
}

/// If this loses no synced write, truncates the WAL at its first bad record and opens the database.
fn truncate_wal(raft: &Path, expected: &Expected, damage: rocksdb::Error) -> Result<DB, ReplicaError> {
    // `PointInTime` is the only mode that stops at a bad record and so leaves no gap. Opening in this mode deletes the
    // WAL. Therefore the database is first opened read-only, to check the last write that can be read.
    let options = options(DBRecoveryMode::PointInTime);
    let readable = DB::open_cf_descriptors_read_only(&options, raft, families(), false).map_err(ReplicaError::Log)?;
    let synced = expected.synced;
    let last = readable.latest_sequence_number();
    tracing::warn!(%damage, readable = last, synced, "a record of the Raft log cannot be read");
    expected.check(&readable, Some(damage))?;
    drop(readable);
    DB::open_cf_descriptors(&options, raft, families()).map_err(ReplicaError::Log)
}

/// The last synced write, which the opened database must have, and the WAL files as they were before opening.
struct Expected {
    synced: u64,
    raft: PathBuf,
    files: Vec<PathBuf>,
}

impl Expected {
    fn check(&self, database: &DB, damage: Option<rocksdb::Error>) -> Result<(), ReplicaError> {
        let readable = database.latest_sequence_number();
        let synced = self.synced;
        if readable >= synced || is_planted("skip-bad-records") {
            return Ok(());
        }
        let files = if self.files.is_empty() { vec![self.raft.clone()] } else { self.files.clone() };
        Err(ReplicaError::Lost { files, readable, synced, damage })
    }
}

/// Returns the paths of the WAL files, sorted.
fn wal_files(raft: &Path) -> Result<Vec<PathBuf>, ReplicaError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(raft).into_iter().flatten() {
        let path = entry.map_err(ReplicaError::Mark)?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
