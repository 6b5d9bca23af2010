//! The open Go programs, whose addresses can be named.

use std::fs::File;

use indexmap::IndexMap;

use super::GoTable;
use crate::names::location::Call;
use crate::process::file::FileId;

/// Largest number of programs that are open at a time, each with a file descriptor. The least recently used one is
/// closed for good, because a file can be opened only through a process that has it mapped. From then on, addresses in
/// that program are exported without names.
const PROGRAMS_MAX: usize = 64;

/// The open Go programs, the most recently used last.
#[derive(Debug, Default)]
pub(crate) struct GoPrograms {
    tables: IndexMap<FileId, GoTable>,
    /// True if a program was closed because others are open.
    pub(crate) has_closed: bool,
}

impl GoPrograms {
    /// Keeps `file` open if it is a Go program, unless a program of the same content is open already.
    pub(crate) fn insert(&mut self, id: FileId, file: &File) {
        if self.tables.contains_key(&id) {
            return;
        }
        match GoTable::open(file) {
            Ok(Some(table)) => {
                if PROGRAMS_MAX <= self.tables.len() {
                    self.tables.shift_remove_index(0);
                    self.has_closed = true;
                }
                self.tables.insert(id, table);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!("cannot name the functions of a Go program: {}", crate::status::causes(&error))
            }
        }
    }

    /// Closes every program.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the calls at an address of a file, innermost first; empty if the address is not in Go code or cannot be
    /// named.
    pub(crate) fn lookup(&mut self, id: FileId, address: u64) -> Vec<Call> {
        let Some(index) = self.tables.get_index_of(&id) else { return Vec::new() };
        self.tables.move_index(index, self.tables.len() - 1);
        let Some(table) = self.tables.get(&id) else { return Vec::new() };
        table.lookup(address).unwrap_or_else(|error| {
            tracing::debug!(address, "cannot name an address of a Go program: {}", crate::status::causes(&error));
            Vec::new()
        })
    }
}
