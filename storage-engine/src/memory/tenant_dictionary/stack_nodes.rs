//! Nodes of stacktraces, by the hash of the stacktrace and by the first half of the hash.
//!
//! An entry of the log refers to a stacktrace by half of its hash. Two stacktraces with the same half are rare, unless
//! a sender searches for them. However many there are, one of them is found in logarithmic time.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::StackHash;

/// Map from stacktraces to their nodes.
#[derive(Debug, Default)]
pub(super) struct StackNodes {
    /// Second half of the hash, and node, of one stacktrace for each first half.
    first: HashMap<u64, (u64, u32), FixedState>,
    /// All other stacktraces.
    others: BTreeMap<u128, u32>,
}

fn second_half(hash: StackHash) -> u64 {
    hash.0 as u64
}

fn joined(first_half: u64, second_half: u64) -> u128 {
    u128::from(first_half) << 64 | u128::from(second_half)
}

impl StackNodes {
    #[inline]
    pub(super) fn get(&self, hash: StackHash) -> Option<u32> {
        let &(second, node) = self.first.get(&hash.first_half())?;
        if second == second_half(hash) { Some(node) } else { self.others.get(&hash.0).copied() }
    }

    /// Returns the node of a stacktrace. If it has none, it gets this one.
    pub(super) fn get_or_insert(&mut self, hash: StackHash, node: u32) -> u32 {
        let second = second_half(hash);
        let &mut (found, first_node) = self.first.entry(hash.first_half()).or_insert((second, node));
        if found == second { first_node } else { *self.others.entry(hash.0).or_insert(node) }
    }

    /// Returns the nodes of all stacktraces whose hash begins with this half.
    pub(super) fn with_first_half(&self, half: u64) -> impl Iterator<Item = u32> + '_ {
        let first = self.first.get(&half).map(|&(_, node)| node);
        let others = (!self.others.is_empty()).then(|| self.others.range(joined(half, 0)..=joined(half, u64::MAX)));
        first.into_iter().chain(others.into_iter().flatten().map(|(_, &node)| node))
    }

    /// Returns the hash and the node of each stacktrace.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StackHash, u32)> + '_ {
        let first = self.first.iter().map(|(&half, &(second, node))| (StackHash(joined(half, second)), node));
        first.chain(self.others.iter().map(|(&hash, &node)| (StackHash(hash), node)))
    }

    /// Returns the approximate memory use, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        // An entry of a map of this kind takes about half as much again as its content.
        self.first.allocation_size() + self.others.len() * size_of::<(u128, u32)>() * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Few halves, so that many hashes share one.
        #[test]
        fn a_stacktrace_is_found_by_its_hash_and_by_half_of_it(
            all in prop::collection::vec((0..4_u64, 0..9_u64, any::<u32>()), 0..60)
        ) {
            let mut nodes = StackNodes::default();
            let mut model: HashMap<StackHash, u32> = HashMap::new();
            for (first, second, node) in all {
                let hash = StackHash(joined(first << 60, second));
                let expected = *model.entry(hash).or_insert(node);
                prop_assert_eq!(nodes.get_or_insert(hash, node), expected);
            }
            for hash in (0..5).flat_map(|first| (0..10).map(move |second| StackHash(joined(first << 60, second)))) {
                prop_assert_eq!(nodes.get(hash), model.get(&hash).copied());
                let half = hash.first_half();
                let mut found: Vec<u32> = nodes.with_first_half(half).collect();
                let same = model.iter().filter(|(hash, _)| hash.first_half() == half);
                let mut expected: Vec<u32> = same.map(|(_, &node)| node).collect();
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
            prop_assert_eq!(nodes.iter().collect::<HashMap<_, _>>(), model);
        }
    }
}
