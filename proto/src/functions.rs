//! Functions by the hash of what they stand for.

use std::ops::Index;

use crate::dictionary::dense;
use crate::ids::{Ids, kept};
use crate::location::Function;

/// Functions by dense ids, each once. Two are the same if their hashes are, as [`Locations`](crate::locations::Locations) are.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    entries: Vec<Function>,
    hashes: Vec<u128>,
    ids: Ids,
}

impl Functions {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All, by id.
    pub fn iter(&self) -> std::slice::Iter<'_, Function> {
        self.entries.iter()
    }

    /// The function of an id, if it is of this table.
    #[must_use]
    pub fn get_index(&self, id: usize) -> Option<&Function> {
        self.entries.get(id)
    }

    /// The hash of an id of this table.
    #[inline]
    pub(crate) fn hash(&self, id: u32) -> u128 {
        self.hashes[id as usize]
    }

    /// The id of a hash that is here.
    #[inline]
    pub(crate) fn find(&self, hash: u128) -> Option<u32> {
        self.ids.find(kept(hash), |id| self.hashes[id as usize] == hash)
    }

    /// The id of a function by its hash, new or old.
    #[inline]
    pub(crate) fn intern(&mut self, hash: u128, function: Function) -> u32 {
        let (new, hashes) = (dense(self.hashes.len()), &self.hashes);
        let id = self.ids.find_or_insert(kept(hash), new, |id| hashes[id as usize] == hash);
        if id == new {
            self.entries.push(function);
            self.hashes.push(hash);
        }
        id
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional);
        self.hashes.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Function>()
            + self.hashes.capacity() * size_of::<u128>()
            + self.ids.memory_bytes()
    }
}

impl Index<usize> for Functions {
    type Output = Function;

    #[inline]
    fn index(&self, id: usize) -> &Function {
        &self.entries[id]
    }
}

impl<'a> IntoIterator for &'a Functions {
    type Item = &'a Function;
    type IntoIter = std::slice::Iter<'a, Function>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
