//! Disk space: what partitions take, and getting it back from those that were dropped.

use std::collections::BTreeMap;

use proto::Tier;
use rocksdb::{CompactOptions, Range};

use crate::database::read_partition_keys;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::key::PartitionKey;

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
        let ranges: Vec<_> = bounds.iter().map(|(from, to)| Range::new(from, to)).collect();
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
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        let tiers: &[Tier] = if tier == Tier::Minute { &[Tier::Raw, Tier::Minute] } else { &[tier] };
        for &tier in tiers {
            let from = PartitionKey::of(tier, retention_class, 0, i64::MIN).prefix();
            // The first partition that does not end by then.
            let to = PartitionKey::of(tier, retention_class, 0, before_ns.saturating_add(1)).prefix();
            self.database.compact_range_opt(Some(from), Some(to), &options);
        }
    }
}
