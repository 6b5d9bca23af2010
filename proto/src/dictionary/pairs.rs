//! Pairs of a user stack and a kernel stack.

use std::ops::Index;

use crate::dictionary::ids::{Ids, dense};

/// The stack of a sample, as the IDs of a user stack and of a kernel stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackPair {
    /// ID of the user stack, or 0 for none.
    pub user: u32,
    /// ID of the kernel stack, or 0 for none.
    pub kernel: u32,
}

/// Table of stack pairs with dense IDs, each stored once.
///
/// Most pairs have no kernel stack. The ID of such a pair is in a list, at the index that equals the ID of the user
/// stack. So such a pair is found with one access to a small list.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    pairs: Vec<StackPair>,
    /// For the ID of each user stack: the ID of the pair that has this user stack and no kernel stack. [`NONE`] if
    /// there is no such pair.
    without_kernel: Vec<u32>,
    with_kernel: Ids,
}

const NONE: u32 = u32::MAX;

fn hash(pair: StackPair) -> u32 {
    // Spreads the bits of both IDs over the upper half of the product.
    let both = u64::from(pair.user) << 32 | u64::from(pair.kernel);
    ((both ^ both >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

impl Pairs {
    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// All pairs, by ID.
    pub fn iter(&self) -> std::slice::Iter<'_, StackPair> {
        self.pairs.iter()
    }

    /// Returns the ID of a pair. Adds the pair if it is new.
    #[inline]
    pub(crate) fn intern(&mut self, pair: StackPair) -> u32 {
        if pair.kernel != 0 {
            return self.intern_with_kernel(pair);
        }
        let user = pair.user as usize;
        if self.without_kernel.len() <= user {
            self.without_kernel.resize(user + 1, NONE);
        }
        let known = &mut self.without_kernel[user];
        if *known == NONE {
            *known = dense(self.pairs.len());
            self.pairs.push(pair);
        }
        *known
    }

    fn intern_with_kernel(&mut self, pair: StackPair) -> u32 {
        let hash = hash(pair);
        if let Some(id) = self.with_kernel.find(hash, |id| self.pairs[id as usize] == pair) {
            return id;
        }
        let id = dense(self.pairs.len());
        self.pairs.push(pair);
        self.with_kernel.insert(hash, id);
        id
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.pairs.reserve(additional);
        self.without_kernel.reserve(additional);
    }

    /// Size in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<StackPair>()
            + self.without_kernel.capacity() * size_of::<u32>()
            + self.with_kernel.memory_bytes()
    }
}

impl Index<usize> for Pairs {
    type Output = StackPair;

    #[inline]
    fn index(&self, id: usize) -> &StackPair {
        &self.pairs[id]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_one_id_with_and_without_a_kernel_part() {
        let mut pairs = Pairs::default();
        let all: Vec<_> =
            (0..100).flat_map(|user| (0..20).map(move |kernel| StackPair { user, kernel })).rev().collect();
        for round in 0..2 {
            for (id, &pair) in all.iter().enumerate() {
                assert_eq!(pairs.intern(pair) as usize, id, "{pair:?} in round {round}");
                assert_eq!(pairs[id], pair);
            }
        }
        assert!(pairs.iter().eq(&all));
    }
}
