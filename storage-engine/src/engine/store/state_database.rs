//! The state database of a shard: reads, and whether its files are damaged. Writes need the guard of the write lock.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use proto::BatchId;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{BottommostLevelCompaction, CompactOptions, DB, DBPinnableSlice, LiveFile, WriteBatch};

use crate::Config;
use crate::database::key::PartitionKey;
use crate::database::{self, Snapshot, unlogged};
use crate::error::{EngineError, is_corruption};
use crate::integrity::quarantine::repair;
use crate::memory::batch_ids;

/// State database that is open.
pub(crate) struct StateDatabase {
    database: DB,
    directory: PathBuf,
    /// True if table files with damaged blocks were found since the database was opened.
    needs_repair: AtomicBool,
    /// True if there are table files with damaged blocks. Nothing is compacted then, because RocksDB refuses all
    /// writes after a compaction that read a damaged block.
    has_damaged_files: AtomicBool,
}

impl StateDatabase {
    /// Opens the database after a repair of the table files that are listed as damaged, or that RocksDB finds damaged
    /// now.
    pub(crate) fn open(config: &Config) -> Result<Self, EngineError> {
        loop {
            let is_damaged = repair::repair(config)?;
            match database::open(config, is_damaged) {
                Err(EngineError::Database(error)) if is_corruption(&error) => {
                    let number = repair::file_named(error.as_ref());
                    let is_new = number.map(|number| repair::note_file(&config.directory, number)).transpose();
                    if is_new.map_err(EngineError::Files)? != Some(true) {
                        return Err(error.into());
                    }
                }
                opened => {
                    return Ok(Self {
                        database: opened?,
                        directory: config.directory.clone(),
                        needs_repair: AtomicBool::new(false),
                        has_damaged_files: AtomicBool::new(is_damaged),
                    });
                }
            }
        }
    }

    /// Returns the database as of now.
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        self.database.snapshot()
    }

    /// Returns a value as of now.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, rocksdb::Error> {
        self.database.get_pinned(key)
    }

    /// Returns whether one of these partitions holds the ID of a batch.
    pub(crate) fn holds_batch(&self, id: BatchId, partitions: &[PartitionKey]) -> Result<bool, EngineError> {
        batch_ids::is_written(&self.database, id, partitions)
    }

    /// Returns the approximate size on disk of each key range, in bytes.
    pub(crate) fn sizes(&self, ranges: &[Range<Vec<u8>>]) -> Vec<u64> {
        let ranges: Vec<_> = ranges.iter().map(|range| rocksdb::Range::new(&range.start, &range.end)).collect();
        self.database.get_approximate_sizes(&ranges)
    }

    /// Returns all table files.
    pub(crate) fn live_files(&self) -> Result<Vec<LiveFile>, EngineError> {
        Ok(self.database.live_files()?)
    }

    /// Copies the database to a directory, with hard links where possible.
    pub(crate) fn copy_to(&self, directory: &Path) -> Result<(), EngineError> {
        Ok(Checkpoint::new(&self.database)?.create_checkpoint(directory)?)
    }

    /// Compacts a key range, unless there are damaged files.
    pub(crate) fn compact(&self, Range { start, end }: Range<Vec<u8>>) {
        if !self.has_damaged_files() {
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            self.database.compact_range_opt(Some(start), Some(end), &options);
        }
    }

    /// Compacts everything into files of one level, unless there are damaged files.
    pub(crate) fn compact_all(&self) {
        if !self.has_damaged_files() {
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
            self.database.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        }
    }

    /// Stops compactions, which may take long.
    pub(crate) fn stop_background_work(&self) {
        self.database.cancel_all_background_work(false);
    }

    /// Returns whether table files with damaged blocks were found since the database was opened.
    pub(crate) fn needs_repair(&self) -> bool {
        self.needs_repair.load(Ordering::Relaxed)
    }

    /// Returns whether there are table files with damaged blocks.
    pub(crate) fn has_damaged_files(&self) -> bool {
        self.has_damaged_files.load(Ordering::Relaxed)
    }

    /// Lists the table file that an error of RocksDB names for repair.
    pub(crate) fn note_damaged_file(&self, what: &str) {
        let Some(number) = repair::file_named(what) else { return };
        // If this fails, the next compaction fails, and the database is opened again after that.
        let _is_stopped = self.database.set_options(&[("disable_auto_compactions", "true")]);
        // A file that was listed before could not be repaired when the database was opened.
        if repair::note_file(&self.directory, number).is_ok_and(|is_new| is_new) {
            self.has_damaged_files.store(true, Ordering::Relaxed);
            self.needs_repair.store(true, Ordering::Relaxed);
        }
    }

    /// Lists the table file that the error of a write names for repair. After a compaction read a damaged block, each
    /// write fails with an error that names the file.
    pub(crate) fn note_failed_write<T>(&self, written: &Result<T, EngineError>) {
        if let Err(EngineError::Database(error)) = written {
            self.note_damaged_file(error.as_ref());
        }
    }

    /// Writes a batch. It is durable after [`StateDatabase::flush`].
    pub(super) fn write(&self, batch: WriteBatch) -> Result<(), EngineError> {
        Ok(self.database.write_opt(batch, &unlogged())?)
    }

    /// Makes everything that was written durable.
    pub(super) fn flush(&self) -> Result<(), EngineError> {
        Ok(self.database.flush()?)
    }
}
