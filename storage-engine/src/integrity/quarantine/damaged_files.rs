//! Table files with damaged blocks: the list for their repair.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use parking_lot::Mutex;

use crate::error::EngineError;
use crate::integrity::quarantine::repair;

/// Damaged table files of an open database.
#[derive(Default)]
pub(crate) struct DamagedFiles {
    /// Error that the repair failed with when the database was opened.
    repair_failure: Option<EngineError>,
    found: Mutex<Found>,
}

/// Files found damaged since the database was opened.
#[derive(Default)]
struct Found {
    numbers: BTreeSet<u64>,
    /// True if one of them was not listed when the database was opened.
    needs_repair: bool,
}

impl DamagedFiles {
    pub(crate) fn after_repair(failure: Option<EngineError>) -> Self {
        Self { repair_failure: failure, ..Self::default() }
    }

    pub(crate) fn needs_repair(&self) -> bool {
        self.found.lock().needs_repair
    }

    pub(crate) fn repair_failure(&self) -> Option<&EngineError> {
        self.repair_failure.as_ref()
    }

    /// Lists a file for repair. `stop_compactions` is called before, unless the file was found already.
    ///
    /// # Errors
    /// The list cannot be written. The file counts as found when it is noted the next time.
    pub(crate) fn note(&self, directory: &Path, number: u64, stop_compactions: impl FnOnce()) -> io::Result<()> {
        let mut found = self.found.lock();
        if found.numbers.contains(&number) {
            return Ok(());
        }
        stop_compactions();
        let is_new = repair::note_file(directory, number)?;
        found.numbers.insert(number);
        // A file that was listed before could not be repaired when the database was opened.
        found.needs_repair |= is_new;
        Ok(())
    }
}
