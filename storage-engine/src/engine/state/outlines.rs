//! Outlines: partitions that queries have read without their dictionaries, kept for the next query.
//!
//! Invariant: a partition in memory has no outline, because it may change. So an outline has all series that the
//! database has.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::database::key::PartitionKey;
use crate::engine::state::partitions::SharedPartition;
use crate::memory::footprint::MemoryTotal;
use crate::memory::partition::Partition;

/// Outlines of a shard's partitions.
#[derive(Debug, Default)]
pub(crate) struct Outlines {
    kept: BTreeMap<PartitionKey, SharedPartition>,
    /// Memory of the kept outlines, in bytes.
    bytes: usize,
}

impl Outlines {
    /// Returns the outline of a partition, if it is kept.
    pub(crate) fn get(&self, key: &PartitionKey) -> Option<&SharedPartition> {
        self.kept.get(key)
    }

    /// Keeps an outline for as long as all outlines fit into `bytes_max`. Its memory is part of `total`. Returns the
    /// outline for the query that has read it.
    pub(crate) fn keep(&mut self, mut outline: Partition, total: &MemoryTotal, bytes_max: usize) -> SharedPartition {
        let key = outline.key;
        outline.count_in(total);
        self.remove(&key);
        self.bytes += outline.memory_bytes();
        let outline = Arc::new(RwLock::new(outline));
        self.kept.insert(key, Arc::clone(&outline));
        while self.bytes > bytes_max && self.evict_oldest() {}
        outline
    }

    /// Removes the outline of a partition.
    pub(crate) fn remove(&mut self, key: &PartitionKey) {
        if let Some(outline) = self.kept.remove(key) {
            self.bytes -= outline.read().memory_bytes();
        }
    }

    /// Removes the outline with the oldest times: most queries use the newest. Returns false if there is none.
    pub(crate) fn evict_oldest(&mut self) -> bool {
        let oldest = self.kept.keys().min_by_key(|key| key.end_ns()).copied();
        oldest.iter().for_each(|key| self.remove(key));
        oldest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use proto::{Label, LabelSet, TenantId, Tier};

    use super::*;

    /// Returns an outline with one series, `number` partitions after the first.
    fn outline(number: u32) -> Partition {
        let key = PartitionKey::of(Tier::Minute, 0, 0, i64::from(number + 1) * Tier::Minute.partition_ns());
        let mut partition = Partition::new(key, 0);
        let labels = LabelSet::new(vec![Label::new("pod", "a")]);
        partition.add_series(labels.fingerprint(&TenantId::default_tenant()), || Arc::new(labels));
        partition.own_label_sets();
        partition
    }

    #[test]
    fn the_newest_outlines_that_fit_are_kept_and_counted() {
        let all = Arc::<AtomicUsize>::default();
        let total = MemoryTotal::within(&all);
        let bytes = outline(0).memory_bytes();
        let mut outlines = Outlines::default();
        let kept =
            |outlines: &Outlines| (0..5).filter(|n| outlines.get(&outline(*n).key).is_some()).collect::<Vec<_>>();
        for number in [3, 1, 2, 0, 3] {
            outlines.keep(outline(number), &total, bytes * 2);
        }
        assert_eq!(kept(&outlines), [2, 3]);
        assert_eq!((total.bytes(), outlines.bytes), (bytes * 2, bytes * 2));
        outlines.remove(&outline(1).key);
        outlines.remove(&outline(3).key);
        assert_eq!((kept(&outlines), total.bytes(), outlines.bytes), (vec![2], bytes, bytes));
        assert!(outlines.evict_oldest() && !outlines.evict_oldest());
        outlines.keep(outline(4), &total, bytes - 1);
        assert_eq!((kept(&outlines), total.bytes(), outlines.bytes), (vec![], 0, 0));
    }
}
