//! The Go programs that are open, so that addresses in them can be named.

use std::fs::File;

use indexmap::IndexMap;

use super::{Call, GoTable};
use crate::file::FileId;

/// Programs that are open at a time, each with a file descriptor. The least recently used one is closed for good: a file can be opened
/// only through a process that has it mapped. Its addresses leave without names from then on.
const PROGRAMS_MAX: usize = 64;

/// See the module. Most recently used last.
#[derive(Debug, Default)]
pub(crate) struct GoPrograms {
    tables: IndexMap<FileId, GoTable>,
}

impl GoPrograms {
    /// Keeps `file` open if it is a Go program, and no other one of the same content is.
    pub(crate) fn insert(&mut self, id: FileId, file: &File) {
        if self.tables.contains_key(&id) {
            return;
        }
        match GoTable::open(file) {
            Ok(Some(table)) => {
                if PROGRAMS_MAX <= self.tables.len() {
                    self.tables.shift_remove_index(0);
                }
                self.tables.insert(id, table);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("a Go program is not named on this host: {}", crate::causes(&error)),
        }
    }

    /// The calls at an address of a file, innermost first; none if it is no Go code, or cannot be named.
    pub(crate) fn lookup(&mut self, id: FileId, address: u64) -> Vec<Call> {
        let Some(index) = self.tables.get_index_of(&id) else { return Vec::new() };
        self.tables.move_index(index, self.tables.len() - 1);
        let Some(table) = self.tables.get(&id) else { return Vec::new() };
        table.lookup(address).unwrap_or_else(|error| {
            tracing::debug!(address, "an address of a Go program has no name: {}", crate::causes(&error));
            Vec::new()
        })
    }
}
