//! One table of a request's dictionary: its entries as they were sent, and what became of each that was referred to.
//!
//! Invariant: an entry is read once, however often it is referred to, and whether it can be read or not: else a request costs
//! the product of its references and its entries. (Once more where it must be defined: see `dictionary`.)

use std::collections::HashMap;

use crate::ingest::error::ProfileError;

/// See the module. `T`: what an entry becomes.
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

    /// Of all entries as they were sent.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.len()).sum()
    }

    /// The place of an entry, and its bytes.
    pub(crate) fn get(&self, index: i64) -> Result<(usize, &'a [u8]), ProfileError> {
        let out_of_range = || ProfileError::OutOfRange { table: self.name, index, length: self.entries.len() };
        let at = usize::try_from(index).map_err(|_negative| out_of_range())?;
        match self.entries.get(at) {
            Some(entry) => Ok((at, entry)),
            // Index 0 means "not set"; a sender without anything in a table may leave its zero entry out, too.
            None if at == 0 => Ok((0, &[])),
            None => Err(out_of_range()),
        }
    }

    /// What became of an entry that could be read: the short way, which nearly all references go.
    #[inline]
    pub(crate) fn read(&self, index: i64) -> Option<T> {
        self.read.get(usize::try_from(index).ok()?).copied().flatten()
    }

    /// What became of an entry, if it was read.
    pub(crate) fn known(&self, at: usize) -> Option<Result<T, ProfileError>> {
        let read = self.read.get(at).copied().flatten();
        read.map(Ok).or_else(|| self.broken.get(&at).cloned().map(Err))
    }

    /// Remembers what became of an entry.
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
