//! Table files with damaged blocks: the list for their repair, and the rules until they are repaired.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::engine::Engine;
use crate::error::{EngineError, is_corruption};
use crate::integrity::quarantine::repair;

/// Damaged table files of an open engine.
#[derive(Default)]
pub(crate) struct DamagedFiles {
    /// Error that the repair failed with when the engine was opened.
    repair_failure: Option<EngineError>,
    found: Mutex<Found>,
}

/// Files found damaged since the engine was opened.
#[derive(Default)]
struct Found {
    numbers: BTreeSet<u64>,
    /// True if one of them was not listed when the engine was opened.
    needs_repair: bool,
}

impl DamagedFiles {
    pub(crate) fn after_repair(failure: Option<EngineError>) -> Self {
        Self { repair_failure: failure, ..Self::default() }
    }
}

impl Engine {
    /// Returns whether table files with damaged blocks were found: they are repaired when the engine is opened again.
    /// Until then nothing is compacted, because RocksDB refuses all writes after a compaction that read such a block.
    pub fn needs_repair(&self) -> bool {
        self.damaged_files.found.lock().needs_repair
    }

    /// Returns whether there are table files with damaged blocks, including those that the last repair failed on. Until
    /// they are repaired nothing is compacted, so dropped partitions still take disk space.
    pub fn has_damaged_files(&self) -> bool {
        self.repair_failure().is_some() || self.needs_repair()
    }

    /// Returns the error of the repair if it failed when the engine was opened. The state is served unrepaired, but
    /// nothing is compacted, so it grows.
    pub fn repair_failure(&self) -> Option<&EngineError> {
        self.damaged_files.repair_failure.as_ref()
    }

    /// Lists the table file that an error of RocksDB names for repair, if the error is of damage.
    pub(crate) fn note_error(&self, error: &EngineError) {
        if let EngineError::Database(error) = error
            && is_corruption(error)
        {
            self.note_file(error.as_ref());
        }
    }

    /// Lists the table file that a description of damage names for repair.
    pub(crate) fn note_file(&self, what: &str) {
        let Some(number) = repair::file_named(what) else { return };
        let mut found = self.damaged_files.found.lock();
        if found.numbers.contains(&number) {
            return;
        }
        // If this fails, the next compaction fails, and the engine is opened again after that.
        let _is_stopped = self.database.set_options(&[("disable_auto_compactions", "true")]);
        let Ok(is_new) = repair::note_file(&self.config.directory, number) else { return };
        found.numbers.insert(number);
        // A file that was listed before could not be repaired when the engine was opened.
        found.needs_repair |= is_new;
    }
}
