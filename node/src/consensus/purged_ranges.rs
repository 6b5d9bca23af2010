//! Key ranges that were purged from the logs of several shards and still take space on disk.
//!
//! Each shard has a range of its own. A single range for all shards would span the live entries of the shards between them, and
//! would forget a range that begins after the last one ends.

use std::collections::BTreeMap;

use crate::consensus::record::EntryKey;

/// The purged range of each shard: from the first key up to, but not including, the second.
///
/// A shard purges from where its last purge ended, so one range per shard holds everything. The size is bounded by the number of
/// shards of the node.
#[derive(Debug, Default)]
pub(crate) struct PurgedRanges(BTreeMap<u32, (EntryKey, EntryKey)>);

impl PurgedRanges {
    /// Adds a range of a shard; ranges of one shard become one.
    pub(crate) fn add(&mut self, shard: u32, from: EntryKey, to: EntryKey) {
        let range = self.0.entry(shard).or_insert((from, to));
        *range = (range.0.min(from), range.1.max(to));
    }

    /// Adds all ranges of another set.
    pub(crate) fn add_all(&mut self, other: Self) {
        other.0.into_iter().for_each(|(shard, (from, to))| self.add(shard, from, to));
    }

    /// Returns whether no range takes space.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryKey, EntryKey)> + '_ {
        self.0.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::record::entry_key;

    fn add(ranges: &mut PurgedRanges, shard: u32, from: u64, to: u64) {
        ranges.add(shard, entry_key(shard, from), entry_key(shard, to));
    }

    fn all(ranges: &PurgedRanges) -> Vec<(EntryKey, EntryKey)> {
        ranges.iter().collect()
    }

    #[test]
    fn each_shard_has_a_range_of_its_own_in_any_order_of_purges() {
        let mut ranges = PurgedRanges::default();
        for (shard, from, to) in [(3, 0, 5), (1, 0, 9), (3, 5, 7), (1, 9, 12)] {
            add(&mut ranges, shard, from, to);
        }
        let want = [(entry_key(1, 0), entry_key(1, 12)), (entry_key(3, 0), entry_key(3, 7))];
        assert_eq!(all(&ranges), want);
    }

    #[test]
    fn ranges_that_come_back_join_those_purged_since() {
        let mut ranges = PurgedRanges::default();
        add(&mut ranges, 1, 0, 5);
        add(&mut ranges, 2, 0, 3);
        let taken = std::mem::take(&mut ranges);
        assert!(ranges.is_empty());
        add(&mut ranges, 1, 5, 8);
        ranges.add_all(taken);
        assert_eq!(all(&ranges), [(entry_key(1, 0), entry_key(1, 8)), (entry_key(2, 0), entry_key(2, 3))]);
    }
}
