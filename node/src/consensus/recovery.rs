//! Opening the log's database after any end: in order, killed, power cut, damaged.
//!
//! Invariant: a write that was synced is there, or opening fails and drops nothing that can be read. A tear behind the last
//! synced write is cut: a power cut may leave any of its pages, in any order.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rocksdb::{BlockBasedOptions, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, ErrorKind, Options};
use rocksdb_files::manifest::TornTail;
use rocksdb_files::record_file;

use crate::consensus::log_database::{LOG, META};
use crate::consensus::synced_mark::SyncedMark;
use crate::error::ReplicaError;

/// Entries gather here before they become a file: most are cut off again soon after.
const LOG_WRITE_BUFFER_BYTES: usize = 32 << 20;
const META_WRITE_BUFFER_BYTES: usize = 1 << 20;
/// A column family that is written rarely keeps old WAL files until this much has gathered.
const WAL_BYTES_MAX: u64 = 128 << 20;

/// Opens or makes the database in `raft`.
///
/// # Errors
/// [`ReplicaError::Lost`] where synced writes cannot be read; [`ReplicaError::Record`] where the mark is damaged;
/// [`ReplicaError::Files`] where RocksDB would never end reading.
pub(crate) fn open(raft: &Path) -> Result<DB, ReplicaError> {
    let expected = Expected {
        synced: SyncedMark::read(raft)?.unwrap_or_default(),
        raft: raft.to_owned(),
        files: wal_files(raft)?,
    };
    if let Some(torn) = TornTail::find(raft).map_err(ReplicaError::Files)? {
        cut_list(raft, &expected, &torn)?;
    }
    expected.files.iter().try_for_each(|file| record_file::check(file)).map_err(ReplicaError::Files)?;
    let database = match DB::open_cf_descriptors(&options(DBRecoveryMode::AbsoluteConsistency), raft, families()) {
        Err(damage) if damage.kind() == ErrorKind::Corruption => cut_tear(raft, &expected, damage)?,
        opened => opened.map_err(ReplicaError::Log)?,
    };
    // A file that ends early, at the end of a record, looks like one that is whole.
    expected.check(&database, None)?;
    Ok(database)
}

/// Cuts a torn end off the list of files, if what it says has never counted.
///
/// RocksDB syncs a change of the list before it deletes what the change makes superfluous. So behind a power cut in the middle of one, the
/// oldest WAL that the list without it needs is there; where it is gone, the change was synced and the list was damaged later, and files
/// would be deleted that hold entries, or a vote. That is looked for in a copy, of links: RocksDB changes what it looks at.
fn cut_list(raft: &Path, expected: &Expected, torn: &TornTail) -> Result<(), ReplicaError> {
    let TornTail { path, length } = torn;
    let look = raft.with_file_name("raft-look");
    let linked = link_files(raft, &look, path).and_then(|list| TornTail { path: list, length: *length }.truncate());
    linked.map_err(ReplicaError::Files)?;
    let options = options(DBRecoveryMode::PointInTime);
    let readable = DB::open_cf_descriptors_read_only(&options, &look, families(), false).map_err(ReplicaError::Log)?;
    let needed = readable.property_int_value(OLDEST_WAL).map_err(ReplicaError::Log)?.unwrap_or(u64::MAX);
    let number = |file: &Path| file.file_stem()?.to_str()?.parse::<u64>().ok();
    let oldest = expected.files.iter().find(|file| number(file).is_some_and(|number| needed <= number));
    tracing::warn!(list = %path.display(), length, needed, ?oldest, "the end of the Raft log's list of files is torn");
    let is_there = match oldest {
        // Up to the first change that names a file, all is in the WAL.
        Some(oldest) if needed == 0 => first_write(oldest).map_err(ReplicaError::Files)?.is_none_or(|first| first <= 1),
        Some(oldest) => number(oldest) == Some(needed),
        None => true,
    };
    let readable = readable.latest_sequence_number();
    fs::remove_dir_all(&look).map_err(ReplicaError::Files)?;
    if !is_there || readable < expected.synced {
        let what = format!(
            "{} is damaged from byte {length} on, and writes that were synced are only in files that it names from there on; put the whole data \
             directory back from a copy",
            path.display(),
        );
        return Err(ReplicaError::Files(io::Error::new(io::ErrorKind::InvalidData, what)));
    }
    torn.truncate().map_err(ReplicaError::Files)
}

/// RocksDB's number of the oldest WAL that its list of files needs.
const OLDEST_WAL: &str = "rocksdb.min-log-number-to-keep";

/// RocksDB's number of the first write in a WAL; `None`: there is none.
fn first_write(wal: &Path) -> io::Result<Option<u64>> {
    // Behind the header of a record of 7 bytes, a batch of writes begins with the number of its first.
    let mut bytes = [0; 15];
    match File::open(wal)?.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(bytes.last_chunk().map(|number| u64::from_le_bytes(*number))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Links all files of a directory into another, which is made anew, but copies `list`; where it is then.
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

/// Opens without what is behind the first bad record, if nothing of that was synced.
fn cut_tear(raft: &Path, expected: &Expected, damage: rocksdb::Error) -> Result<DB, ReplicaError> {
    // Of the modes that go on behind a bad record this one alone leaves no gap. It also deletes the WAL, so first a look.
    let options = options(DBRecoveryMode::PointInTime);
    let readable = DB::open_cf_descriptors_read_only(&options, raft, families(), false).map_err(ReplicaError::Log)?;
    let synced = expected.synced;
    tracing::warn!(%damage, readable = readable.latest_sequence_number(), synced, "a record of the Raft log cannot be read");
    expected.check(&readable, Some(damage))?;
    drop(readable);
    DB::open_cf_descriptors(&options, raft, families()).map_err(ReplicaError::Log)
}

/// What there must be at least, and where it was before opening moved it.
struct Expected {
    synced: u64,
    raft: PathBuf,
    files: Vec<PathBuf>,
}

impl Expected {
    fn check(&self, database: &DB, damage: Option<rocksdb::Error>) -> Result<(), ReplicaError> {
        let (readable, synced) = (database.latest_sequence_number(), self.synced);
        if readable >= synced {
            return Ok(());
        }
        let files = if self.files.is_empty() { vec![self.raft.clone()] } else { self.files.clone() };
        Err(ReplicaError::Lost { files, readable, synced, damage })
    }
}

/// The files of the WAL.
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

fn options(mode: DBRecoveryMode) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(2);
    options.set_max_total_wal_size(WAL_BYTES_MAX);
    options.set_keep_log_file_num(4);
    options.set_wal_recovery_mode(mode);
    options
}

fn families() -> [ColumnFamilyDescriptor; 2] {
    [
        ColumnFamilyDescriptor::new(LOG, log_options()),
        ColumnFamilyDescriptor::new(META, family_options(META_WRITE_BUFFER_BYTES)),
    ]
}

fn family_options(write_buffer_bytes: usize) -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(write_buffer_bytes);
    options.set_compression_type(DBCompressionType::None);
    options
}

fn log_options() -> Options {
    let mut options = family_options(LOG_WRITE_BUFFER_BYTES);
    let mut table = BlockBasedOptions::default();
    // Read once, in order, at a restart: caching would only push out what the engine needs.
    table.disable_cache();
    options.set_block_based_table_factory(&table);
    options
}
