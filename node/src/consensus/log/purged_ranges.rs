//! Key ranges of purged entries that still take space on disk.
//!
//! Each shard has its own range. A single range for all shards would also contain live entries, for example those of
//! the shards in between.

use std::collections::BTreeMap;

use crate::consensus::record::EntryKey;

/// Key range of purged entries of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PurgedRange {
    /// The first key of the range.
    pub(super) from: EntryKey,
    /// The first key after the range.
    pub(super) to: EntryKey,
}

/// The purged range of each shard.
///
/// Each purge of a shard begins where the previous one ended, so one range holds all purges of a shard.
#[derive(Debug, Default)]
pub(super) struct PurgedRanges(BTreeMap<u32, PurgedRange>);

impl PurgedRanges {
    /// Adds a range of a shard. The shard's earlier range and the added range become one range.
    pub(super) fn add(&mut self, shard: u32, added: PurgedRange) {
        let range = self.0.entry(shard).or_insert(added);
        range.from = range.from.min(added.from);
        range.to = range.to.max(added.to);
    }

    /// Adds all ranges of another set.
    pub(super) fn add_all(&mut self, other: Self) {
        other.0.into_iter().for_each(|(shard, range)| self.add(shard, range));
    }

    /// Returns true if no shard has a purged range.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = PurgedRange> + '_ {
        self.0.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::record::entry_key;

    fn range(shard: u32, from: u64, to: u64) -> PurgedRange {
        PurgedRange { from: entry_key(shard, from), to: entry_key(shard, to) }
    }

    fn add(ranges: &mut PurgedRanges, shard: u32, from: u64, to: u64) {
        ranges.add(shard, range(shard, from, to));
    }

    fn all(ranges: &PurgedRanges) -> Vec<PurgedRange> {
        ranges.iter().collect()
    }

    #[test]
    fn each_shard_has_its_own_range_in_any_order_of_purges() {
        let mut ranges = PurgedRanges::default();
        for (shard, from, to) in [(3, 0, 5), (1, 0, 9), (3, 5, 7), (1, 9, 12)] {
            add(&mut ranges, shard, from, to);
        }
        assert_eq!(all(&ranges), [range(1, 0, 12), range(3, 0, 7)]);
    }

    #[test]
    fn ranges_that_are_added_back_join_newer_ranges() {
        let mut ranges = PurgedRanges::default();
        add(&mut ranges, 1, 0, 5);
        add(&mut ranges, 2, 0, 3);
        let taken = std::mem::take(&mut ranges);
        assert!(ranges.is_empty());
        add(&mut ranges, 1, 5, 8);
        ranges.add_all(taken);
        assert_eq!(all(&ranges), [range(1, 0, 8), range(2, 0, 3)]);
    }
}
