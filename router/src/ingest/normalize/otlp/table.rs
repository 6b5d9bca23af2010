//! One table of a request's dictionary: the entries as they were sent, and the result of reading each used entry.
//!
//! Invariant: an entry is read once, for any number of references, even if reading it fails. Otherwise the cost of a
//! request would be the product of its references and its entries. (An entry that must be defined is read a second
//! time, see `dictionary`.)

use std::collections::HashMap;

use crate::ingest::error::ProfileError;

/// A table, and the result of type `T` of each entry that was read.
#[derive(Debug)]
pub(crate) struct Table<'a, T> {
    name: &'static str,
    entries: &'a [&'a [u8]],
    read: Vec<Option<T>>,
    broken: HashMap<usize, ProfileError>,
}

impl<'a, T: Copy> Table<'a, T> {
    pub(crate) fn new(name: &'static str, entries: &'a [&'a [u8]]) -> Self {
        Self { name, entries, read: Vec::new(), broken: HashMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Total size of the entries as they were sent, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.len()).sum()
    }

    /// Returns the index and the bytes of an entry.
    pub(crate) fn get(&self, index: i64) -> Result<(usize, &'a [u8]), ProfileError> {
        let out_of_range = || ProfileError::OutOfRange { table: self.name, index, length: self.entries.len() };
        let at = usize::try_from(index).map_err(|_negative| out_of_range())?;
        match self.entries.get(at) {
            Some(entry) => Ok((at, entry)),
            // Index 0 means "not set", and a sender without entries may omit the zero entry too.
            None if at == 0 => Ok((0, &[])),
            None => Err(out_of_range()),
        }
    }

    /// Returns the result of an entry that was read without error; `None` for any other entry. This is the fast path of
    /// nearly all references.
    #[inline]
    pub(crate) fn read(&self, index: i64) -> Option<T> {
        self.read.get(usize::try_from(index).ok()?).copied().flatten()
    }

    /// Returns the result or the error of an entry; `None` if the entry was not read yet.
    pub(crate) fn known(&self, at: usize) -> Option<Result<T, ProfileError>> {
        let read = self.read.get(at).copied().flatten();
        read.map(Ok).or_else(|| self.broken.get(&at).cloned().map(Err))
    }

    /// Stores the result or the error of an entry.
    #[inline]
    pub(crate) fn remember(&mut self, at: usize, outcome: Result<T, ProfileError>) -> Result<T, ProfileError> {
        match &outcome {
            Ok(read) => {
                if self.read.len() <= at {
                    self.read.resize(self.entries.len().max(at + 1), None);
                }
                self.read[at] = Some(*read);
            }
            Err(error) => {
                self.broken.insert(at, error.clone());
            }
        }
        outcome
    }
}
