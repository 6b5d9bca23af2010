//! The state database of a shard: reads its values, and tracks damage of its files. Writes need the guard of the write
//! lock.

use std::ops::Range;
use std::path::{Path, PathBuf};

use proto::BatchId;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{BottommostLevelCompaction, CompactOptions, DB, DBPinnableSlice, LiveFile, WriteBatch};

use crate::Config;
use crate::database::key::PartitionKey;
use crate::database::{self, Snapshot, unlogged};
use crate::error::{EngineError, is_corruption};
use crate::integrity::quarantine::damaged_files::DamagedFiles;
use crate::integrity::quarantine::repair::{self, Repair};
use crate::memory::batch_ids;

/// An open state database.
pub(crate) struct StateDatabase {
    database: DB,
    directory: PathBuf,
    /// Damaged table files. While there are any, nothing is compacted, because RocksDB refuses all writes after a
    /// compaction that read a damaged block.
    damaged_files: DamagedFiles,
}

impl StateDatabase {
    /// Repairs the table files that are listed as damaged or that RocksDB finds damaged now. Then opens the database.
    pub(crate) fn open(config: &Config) -> Result<Self, EngineError> {
        let mut last = Repair::Unneeded;
        loop {
            match repair::repair(config)? {
                Repair::Unneeded => {}
                done_or_failed => last = done_or_failed,
            }
            match database::open(config, matches!(last, Repair::Failed(_))) {
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
                        damaged_files: DamagedFiles::after_repair(last),
                    });
                }
            }
        }
    }

    /// Returns the database as of this moment.
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        self.database.snapshot()
    }

    /// Returns the current value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, rocksdb::Error> {
        self.database.get_pinned(key)
    }

    /// Searches for the ID of a batch in these partitions.
    pub(crate) fn find_batch(&self, id: BatchId, partitions: &[PartitionKey]) -> Result<batch_ids::Found, EngineError> {
        batch_ids::find(&self.database, id, partitions)
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

    /// Compacts a key range, unless there are damaged table files.
    pub(crate) fn compact(&self, Range { start, end }: Range<Vec<u8>>) {
        if !self.has_damaged_files() {
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            self.database.compact_range_opt(Some(start), Some(end), &options);
        }
    }

    /// Compacts everything into files of one level, unless there are damaged table files.
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
        self.damaged_files.needs_repair()
    }

    /// Returns whether there are table files with damaged blocks, including files whose repair failed at opening.
    pub(crate) fn has_damaged_files(&self) -> bool {
        self.repair_failure().is_some() || self.needs_repair()
    }

    /// Returns whether damaged table files were repaired at opening.
    pub(crate) fn are_files_repaired(&self) -> bool {
        self.damaged_files.are_repaired()
    }

    /// Returns the error of the repair at opening, if the repair failed.
    pub(crate) fn repair_failure(&self) -> Option<&EngineError> {
        self.damaged_files.repair_failure()
    }

    /// Adds a table file to the list for repair, if an error of RocksDB reports damage and names the file.
    pub(crate) fn note_error(&self, error: &EngineError) {
        if let EngineError::Database(error) = error
            && is_corruption(error)
        {
            self.note_file(error.as_ref());
        }
    }

    /// Adds a table file to the list for repair, if a description of damage names the file.
    pub(crate) fn note_file(&self, what: &str) {
        let Some(number) = repair::file_named(what) else { return };
        // If the file cannot be noted or compactions cannot be stopped, the next compaction fails. The file is then
        // noted when the database is opened again.
        let _is_noted = self.damaged_files.note(&self.directory, number, || {
            let _is_stopped = self.database.set_options(&[("disable_auto_compactions", "true")]);
        });
    }

    /// Writes a batch. The batch is durable after [`StateDatabase::flush`].
    pub(super) fn write(&self, batch: WriteBatch) -> Result<(), EngineError> {
        Ok(self.database.write_opt(batch, &unlogged())?)
    }

    /// Makes everything that was written durable.
    pub(super) fn flush(&self) -> Result<(), EngineError> {
        Ok(self.database.flush()?)
    }
}
