//! Interner: gives each distinct value a number, consecutively. A partition interns its pairs and attribute sets, of
//! which there may be millions.

use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Values by number, and numbers by value.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    values: Vec<T>,
    /// Numbers of the values, hashed by value.
    numbers: HashTable<u32>,
    hashes: FixedState,
}

impl<T: Copy + Eq + Hash> Interner<T> {
    /// Returns the number of a value, and whether the value is new.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> (u32, bool) {
        let Self { values, numbers, hashes } = self;
        let new = saturating_u32(values.len());
        let is_it = |&number: &u32| values.get(number as usize) == Some(&value);
        let hash_of = |&number: &u32| values.get(number as usize).map_or(0, |value| hashes.hash_one(value));
        let number = *numbers.entry(hashes.hash_one(value), is_it, hash_of).or_insert(new).get();
        if number == new {
            values.push(value);
        }
        (number, number == new)
    }

    pub(crate) fn get(&self, number: u32) -> Option<T> {
        self.values.get(number as usize).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns all values, in the order of their numbers.
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.values
    }

    /// Returns the memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<T>() + self.numbers.allocation_size()
    }
}

impl<T: Copy + Eq + Hash> FromIterator<T> for Interner<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut all = Self { values: Vec::new(), numbers: HashTable::new(), hashes: FixedState::default() };
        values.into_iter().for_each(|value| {
            all.insert(value);
        });
        all
    }
}

/// Converts an index to a number of 32 bits. The limits of a partition keep the number of its entries far below 2^32.
pub(crate) fn saturating_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_number() {
        let mut all: Interner<u64> = [7].into_iter().collect();
        let first: Vec<_> = (0..1000).map(|i| all.insert(i * i % 601)).collect();
        let again: Vec<_> = (0..1000).map(|i| all.insert(i * i % 601)).collect();
        assert!(again.iter().zip(&first).all(|(again, first)| *again == (first.0, false)));
        assert_eq!(first.iter().filter(|(_, is_new)| *is_new).count() + 1, all.len());
        assert_eq!((all.insert(7), all.get(0), all.get(all.len() as u32)), ((0, false), Some(7), None));
    }
}
