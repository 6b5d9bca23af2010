//! Tables of functions and locations, with an index by the hash of each entry's identity.

use std::ops::Index;

use crate::dictionary::ids::{Ids, dense, kept};
use crate::dictionary::location::{Function, Location};

/// Table of the functions of a dictionary.
pub type Functions = Hashed<Function>;

/// Table of the locations of a dictionary.
pub type Locations = Hashed<Location>;

/// Table of entries with dense IDs, each stored once. Two entries are the same if their hashes are equal.
///
/// Thanks to the hashes, no names are compared when an entry is copied from one dictionary to another.
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
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, by ID.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }

    /// Returns the entry with this ID, if the table has it.
    #[must_use]
    pub fn get_index(&self, id: usize) -> Option<&T> {
        self.entries.get(id)
    }

    /// Returns the hash of the entry with this ID. Panics if the table has no such ID.
    #[must_use]
    #[inline]
    pub fn hash(&self, id: u32) -> u128 {
        self.hashes[id as usize]
    }

    /// Returns the ID of the entry with this hash, if the table has it.
    #[must_use]
    #[inline]
    pub fn find(&self, hash: u128) -> Option<u32> {
        self.ids.find(kept(hash), |id| self.hashes[id as usize] == hash)
    }

    /// Returns the ID of the entry with this hash. Adds the entry if it is new.
    #[inline]
    pub(crate) fn intern(&mut self, hash: u128, entry: T) -> u32 {
        let new = dense(self.hashes.len());
        let hashes = &self.hashes;
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

    /// Size in memory, in bytes, without the memory that entries own.
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
    fn importing_a_known_location_adds_no_entry() {
        let mut to = Dictionary::default();
        to.strings.intern("shifts all ids");
        import_all(&filled(5), &mut to);
        let before = to.to_wire();
        import_all(&filled(3), &mut to);
        assert_eq!(to.to_wire(), before);
        // The copied hash equals the hash that is computed from the entries of the target. Otherwise a second entry is
        // added.
        for id in 0..to.locations.len() as u32 {
            let again = to.locations[id as usize].clone();
            assert_eq!(to.intern_location(again), id);
        }
    }
}
