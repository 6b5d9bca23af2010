//! Small things by dense numbers, each once: pairs and attribute sets of a partition, of which there may be millions.

use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// See the module.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    things: Vec<T>,
    /// Numbers by what they stand for.
    numbers: HashTable<u32>,
    hashes: FixedState,
}

impl<T: Copy + Eq + Hash> Interner<T> {
    /// The number of a thing, and whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, thing: T) -> (u32, bool) {
        let Self { things, numbers, hashes } = self;
        let new = crate::memory::partition::saturating_u32(things.len());
        let is_it = |&number: &u32| things.get(number as usize) == Some(&thing);
        let hash_of = |&number: &u32| things.get(number as usize).map_or(0, |thing| hashes.hash_one(thing));
        let number = *numbers.entry(hashes.hash_one(thing), is_it, hash_of).or_insert(new).get();
        if number == new {
            things.push(thing);
        }
        (number, number == new)
    }

    pub(crate) fn get(&self, number: u32) -> Option<T> {
        self.things.get(number as usize).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.things.len()
    }

    /// All, by number.
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.things
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.things.capacity() * size_of::<T>() + self.numbers.allocation_size()
    }
}

impl<T: Copy + Eq + Hash> FromIterator<T> for Interner<T> {
    fn from_iter<I: IntoIterator<Item = T>>(things: I) -> Self {
        let mut all = Self { things: Vec::new(), numbers: HashTable::new(), hashes: FixedState::default() };
        things.into_iter().for_each(|thing| {
            all.insert(thing);
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_keeps_its_number() {
        let mut all: Interner<u64> = [7].into_iter().collect();
        let first: Vec<_> = (0..1000).map(|i| all.insert(i * i % 601)).collect();
        let again: Vec<_> = (0..1000).map(|i| all.insert(i * i % 601)).collect();
        assert!(again.iter().zip(&first).all(|(again, first)| *again == (first.0, false)));
        assert_eq!(first.iter().filter(|(_, is_new)| *is_new).count() + 1, all.len());
        assert_eq!((all.insert(7), all.get(0), all.get(all.len() as u32)), ((0, false), Some(7), None));
    }
}
