//! One table of a request's dictionary: its entries as they were sent, and what became of each that was referred to.
//!
//! Invariant: an entry is read once, however often it is referred to, and whether it can be read or not: else a request costs
//! the product of its references and its entries. (Once more where it must be defined: see `dictionary`.)

use std::collections::HashMap;

use crate::ingest::normalize::builder::Rejection;

/// See the module. `T`: what an entry becomes.
#[derive(Debug)]
pub(crate) struct Table<'a, T> {
    name: &'static str,
    entries: Vec<&'a [u8]>,
    read: Vec<Option<T>>,
    broken: HashMap<usize, Rejection>,
}

impl<'a, T: Copy> Table<'a, T> {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, entries: Vec::new(), read: Vec::new(), broken: HashMap::new() }
    }

    /// Makes room for so many entries, so that it need not grow step by step.
    pub(crate) fn reserve(&mut self, entries: usize) {
        self.entries.reserve(entries);
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn push(&mut self, entry: &'a [u8]) {
        self.entries.push(entry);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Of all entries as they were sent.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.len()).sum()
    }

    /// Its zero value, if it has any entry.
    pub(crate) fn first(&self) -> Option<&'a [u8]> {
        self.entries.first().copied()
    }

    /// The place of an entry, and its bytes.
    pub(crate) fn get(&self, index: i64) -> Result<(usize, &'a [u8]), Rejection> {
        let out_of_range = || Rejection::OutOfRange { table: self.name, index, length: self.entries.len() };
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
    pub(crate) fn known(&self, at: usize) -> Option<Result<T, Rejection>> {
        let read = self.read.get(at).copied().flatten();
        read.map(Ok).or_else(|| self.broken.get(&at).cloned().map(Err))
    }

    /// Remembers what became of an entry.
    #[inline]
    pub(crate) fn remember(&mut self, at: usize, outcome: Result<T, Rejection>) -> Result<T, Rejection> {
        match &outcome {
            Ok(read) => {
                if self.read.len() <= at {
                    self.read.resize(self.entries.len().max(at + 1), None);
                }
                self.read[at] = Some(*read);
            }
            Err(rejection) => {
                self.broken.insert(at, rejection.clone());
            }
        }
        outcome
    }
}
