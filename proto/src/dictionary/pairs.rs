//! Pairs of a user and a kernel stack.

use std::ops::Index;

use crate::dictionary::ids::{Ids, dense};

/// The user part and the kernel part of one stack, by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackPair {
    /// Id of the user stacktrace; 0: none.
    pub user: u32,
    /// Id of the kernel stacktrace; 0: none.
    pub kernel: u32,
}

/// Pairs by dense ids, each once.
///
/// Most have no kernel part. Those are found by their user stack's id alone, in a column as long as the stacks are many, so
/// that looking one up is one look into little memory.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    pairs: Vec<StackPair>,
    /// By id of a user stack, that of its pair without a kernel part; [`NONE`]: it has none.
    without_kernel: Vec<u32>,
    with_kernel: Ids,
}

const NONE: u32 = u32::MAX;

fn hash(pair: StackPair) -> u32 {
    // As `ids` spreads: both ids in all bits of the upper half.
    let both = u64::from(pair.user) << 32 | u64::from(pair.kernel);
    ((both ^ both >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

impl Pairs {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// All, by id.
    pub fn iter(&self) -> std::slice::Iter<'_, StackPair> {
        self.pairs.iter()
    }

    /// The id of a pair, new or old.
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

    /// Bytes that it takes in memory.
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
    fn each_pair_is_there_once_with_and_without_a_kernel_part() {
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
