//! A set of series, by their fingerprints. A partition has each series once, so the series of the first partition need
//! no hash table. Most queries read only one partition.

use std::cell::OnceCell;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use proto::Fingerprint;

/// Fingerprints of series, each once.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints {
    list: Vec<Fingerprint>,
    /// The same fingerprints; empty until it is needed.
    known: OnceCell<HashSet<Fingerprint, FixedState>>,
}

impl Fingerprints {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn contains(&self, fingerprint: Fingerprint) -> bool {
        !self.list.is_empty() && self.known.get_or_init(|| self.list.iter().copied().collect()).contains(&fingerprint)
    }

    /// Adds a series that is not in the set.
    pub(crate) fn add_new(&mut self, fingerprint: Fingerprint) {
        self.list.push(fingerprint);
        if let Some(known) = self.known.get_mut() {
            known.insert(fingerprint);
        }
    }

    /// Adds series of one partition, each of which occurs once. Some may be in the set already.
    pub(crate) fn add_partition(&mut self, series: impl Iterator<Item = Fingerprint>) {
        let is_first = self.list.is_empty();
        for fingerprint in series {
            if is_first || !self.contains(fingerprint) {
                self.add_new(fingerprint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn series_of_several_partitions_are_counted_once(
            partitions in prop::collection::vec(prop::collection::btree_set(0..20_u128, 0..10), 0..5),
            looked_up in 0..25_u128,
        ) {
            let mut of_all = Fingerprints::default();
            let mut wanted: BTreeSet<u128> = BTreeSet::new();
            for partition in &partitions {
                of_all.add_partition(partition.iter().copied().map(Fingerprint));
                wanted.extend(partition);
                prop_assert_eq!(of_all.len(), wanted.len());
                prop_assert_eq!(of_all.contains(Fingerprint(looked_up)), wanted.contains(&looked_up));
            }
        }
    }
}
