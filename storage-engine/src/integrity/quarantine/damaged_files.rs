//! Damaged table files of an open database, and their list for repair.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use parking_lot::Mutex;

use crate::error::EngineError;
use crate::integrity::quarantine::repair::{self, Repair};

/// Table files that were found to be damaged while the database is open, and the result of the last repair.
pub(crate) struct DamagedFiles {
    /// Result of the repair when the database was opened.
    repair: Repair,
    found: Mutex<Found>,
}

/// Table files that were found damaged since the database was opened.
#[derive(Default)]
struct Found {
    numbers: BTreeSet<u64>,
    /// True if one of these files was not listed for repair when the database was opened.
    needs_repair: bool,
}

impl DamagedFiles {
    pub(crate) fn after_repair(repair: Repair) -> Self {
        Self { repair, found: Mutex::default() }
    }

    pub(crate) fn needs_repair(&self) -> bool {
        self.found.lock().needs_repair
    }

    pub(crate) fn repair_failure(&self) -> Option<&EngineError> {
        match &self.repair {
            Repair::Failed(error) => Some(error),
            Repair::Unneeded | Repair::Done => None,
        }
    }

    pub(crate) fn are_repaired(&self) -> bool {
        matches!(self.repair, Repair::Done)
    }

    /// Adds a file to the list for repair. Calls `stop_compactions` first. Does neither if the file was found already.
    ///
    /// # Errors
    /// The list cannot be written. The next call for the same file tries again.
    pub(crate) fn note(&self, directory: &Path, number: u64, stop_compactions: impl FnOnce()) -> io::Result<()> {
        let mut found = self.found.lock();
        if found.numbers.contains(&number) {
            return Ok(());
        }
        stop_compactions();
        let is_new = repair::note_file(directory, number)?;
        found.numbers.insert(number);
        // A file that was listed before is one that the repair at opening could not repair.
        found.needs_repair |= is_new;
        Ok(())
    }
}
