//! One table of a request's dictionary: its entries in the sent form, and the result of reading each used entry.
//!
//! Invariant: an entry is read once, for any number of references, and even if reading it fails. Otherwise a request
//! costs the product of its references and its entries. (An entry that must be defined is read once more: see
//! `dictionary`.)

use std::collections::HashMap;

use crate::ingest::error::ProfileError;

/// A table whose entries become `T`.
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

    /// Bytes of all entries as they were sent.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.len()).sum()
    }

    /// Index and bytes of an entry.
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

    /// The result of an entry that was read without error: the fast path of nearly all references.
    #[inline]
    pub(crate) fn read(&self, index: i64) -> Option<T> {
        self.read.get(usize::try_from(index).ok()?).copied().flatten()
    }

    /// The result of an entry, if it was read.
    pub(crate) fn known(&self, at: usize) -> Option<Result<T, ProfileError>> {
        let read = self.read.get(at).copied().flatten();
        read.map(Ok).or_else(|| self.broken.get(&at).cloned().map(Err))
    }

    /// Keeps the result of an entry.
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
