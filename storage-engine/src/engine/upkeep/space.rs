//! Disk space: what partitions take, and getting it back from those that were dropped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use proto::Tier;
use rocksdb::CompactOptions;

use crate::database::key::PartitionKey;
use crate::database::read_partition_keys;
use crate::engine::Engine;
use crate::error::EngineError;

/// What the partitions of one tier, class and time take, of all tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Of the partitions.
    pub tier: Tier,
    /// Of the partitions.
    pub retention_class: u8,
    /// Nanoseconds since 1970.
    pub end_ns: i64,
    /// On disk, about; what is only in memory counts nothing.
    pub disk_bytes: u64,
}

impl Engine {
    /// What is on disk, by the end of its time, the oldest first, and of the same end the finest first.
    ///
    /// # Errors
    /// [`EngineError`] where the disk cannot be read.
    pub fn extents(&self) -> Result<Vec<Extent>, EngineError> {
        let keys = read_partition_keys(&self.database)?;
        let bounds: Vec<_> = keys.iter().map(|key| (key.prefix(), key.end())).collect();
        let ranges: Vec<_> = bounds.iter().map(|(from, to)| rocksdb::Range::new(from, to)).collect();
        let mut extents: BTreeMap<(i64, Tier, u8), u64> = BTreeMap::new();
        for (key, bytes) in keys.iter().zip(self.database.get_approximate_sizes(&ranges)) {
            *extents.entry((key.end_ns(), key.tier, key.class)).or_default() += bytes;
        }
        let extent =
            |((end_ns, tier, retention_class), disk_bytes)| Extent { tier, retention_class, end_ns, disk_bytes };
        Ok(extents.into_iter().map(extent).collect())
    }

    /// Gives back the space of partitions of a tier and class that ended at or before a time and were dropped, of minutes that of the
    /// raw samples, too: what was not a file of its own lies among other keys until it is compacted. Takes long; what was dropped
    /// must be flushed.
    pub fn reclaim(&self, tier: Tier, retention_class: u8, before_ns: i64) {
        if self.has_damaged_files.load(Ordering::Relaxed) {
            // RocksDB refuses all writes after a compaction that read a damaged block.
            return;
        }
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        let tiers: &[Tier] = if tier == Tier::Minute { &[Tier::Raw, Tier::Minute] } else { &[tier] };
        for &tier in tiers {
            let Range { start, end } = ended(tier, retention_class, before_ns);
            self.database.compact_range_opt(Some(start), Some(end), &options);
        }
    }
}

/// The keys of all partitions of a tier and class that end at or before a time.
fn ended(tier: Tier, class: u8, before_ns: i64) -> Range<Vec<u8>> {
    // The first that does not.
    let end = PartitionKey::of(tier, class, 0, before_ns.saturating_add(1));
    PartitionKey::of(tier, class, 0, i64::MIN).prefix()..end.prefix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_by_a_time_is_all_tenants_partitions_up_to_it_and_no_later_one() {
        let ends_ns = 100 * Tier::Raw.partition_ns();
        let of = |tenant, end_ns| PartitionKey::of(Tier::Raw, 3, tenant, end_ns);
        for before_ns in [ends_ns, ends_ns + 1, ends_ns + Tier::Raw.partition_ns() - 1] {
            let ended = ended(Tier::Raw, 3, before_ns);
            for tenant in [0, 1, u32::MAX] {
                assert!(ended.start <= of(tenant, 1).prefix() && of(tenant, ends_ns).end() <= ended.end);
                assert!(ended.end <= of(tenant, ends_ns + 1).prefix());
            }
        }
    }
}
