//! What is found by the hash of what it stands for: functions and locations.

use std::ops::Index;

use crate::dictionary::ids::{Ids, dense, kept};
use crate::dictionary::location::{Function, Location};

/// Functions of a dictionary.
pub type Functions = Hashed<Function>;

/// Locations of a dictionary.
pub type Locations = Hashed<Location>;

/// Entries by dense ids, each once. Two are the same if their hashes are: what is copied from one dictionary into another is found
/// there by its hash, without a look at its names.
#[derive(Clone, Debug)]
pub struct Hashed<T> {
    entries: Vec<T>,
    hashes: Vec<u128>,
    ids: Ids,
}

impl<T> Default for Hashed<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), hashes: Vec::new(), ids: Ids::default() }
    }
}

impl<T> Hashed<T> {
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
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }

    /// The entry of an id, if it is of this table.
    #[must_use]
    pub fn get_index(&self, id: usize) -> Option<&T> {
        self.entries.get(id)
    }

    /// The hash of an id of this table.
    #[must_use]
    #[inline]
    pub fn hash(&self, id: u32) -> u128 {
        self.hashes[id as usize]
    }

    /// The id of a hash that is here.
    #[must_use]
    #[inline]
    pub fn find(&self, hash: u128) -> Option<u32> {
        self.ids.find(kept(hash), |id| self.hashes[id as usize] == hash)
    }

    /// The id of an entry by its hash, new or old.
    #[inline]
    pub(crate) fn intern(&mut self, hash: u128, entry: T) -> u32 {
        let (new, hashes) = (dense(self.hashes.len()), &self.hashes);
        let id = self.ids.find_or_insert(kept(hash), new, |id| hashes[id as usize] == hash);
        if id == new {
            self.entries.push(entry);
            self.hashes.push(hash);
        }
        id
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional);
        self.hashes.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Bytes that it takes in memory, but for what entries hold elsewhere.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<T>() + self.hashes.capacity() * size_of::<u128>() + self.ids.memory_bytes()
    }
}

impl<T> Index<usize> for Hashed<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: usize) -> &T {
        &self.entries[id]
    }
}

impl<'a, T> IntoIterator for &'a Hashed<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use crate::formats::definitions::tests::filled;
    use crate::{Dictionary, Importer};

    fn import_all(from: &Dictionary, to: &mut Dictionary) {
        let mut importer = Importer::new(from);
        for id in 0..from.locations.len() as u32 {
            let copy = importer.location(to, id);
            assert_eq!(to.location_hash(copy), from.location_hash(id));
        }
    }

    #[test]
    fn a_location_that_is_known_by_other_ids_brings_nothing() {
        let mut to = Dictionary::default();
        to.strings.intern("shifts all ids");
        import_all(&filled(5), &mut to);
        let before = to.lengths();
        import_all(&filled(3), &mut to);
        assert_eq!(to.lengths(), before);
        // The hash that was copied is the one that its names have here.
        for id in 0..to.locations.len() as u32 {
            let again = to.locations[id as usize].clone();
            assert_eq!(to.intern_location(again), id);
        }
    }
}
