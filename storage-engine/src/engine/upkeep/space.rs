//! Disk space: measures partitions, and frees the space of dropped partitions.

use std::collections::BTreeMap;
use std::ops::Range;

use proto::Tier;

use crate::database::key::PartitionKey;
use crate::database::read_partition_keys;
use crate::engine::store::Store;
use crate::error::EngineError;

/// Disk space of the partitions of one tier, class and time, over all tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Tier of the partitions.
    pub tier: Tier,
    /// Retention class of the partitions.
    pub retention_class: u8,
    /// End of the partitions' time, in nanoseconds since 1970.
    pub end_ns: i64,
    /// Approximate size on disk, in bytes, without data that is only in memory.
    pub disk_bytes: u64,
}

/// Returns the disk space of the partitions of each tier, class and time, ordered by the end of the time, then by tier,
/// finest first.
pub(crate) fn extents(store: &Store) -> Result<Vec<Extent>, EngineError> {
    let keys = read_partition_keys(&store.database().snapshot())?;
    let ranges: Vec<_> = keys.iter().map(|key| key.prefix()..key.end()).collect();
    let mut extents: BTreeMap<(i64, Tier, u8), u64> = BTreeMap::new();
    for (key, bytes) in keys.iter().zip(store.database().sizes(&ranges)) {
        *extents.entry((key.end_ns(), key.tier, key.class)).or_default() += bytes;
    }
    let extent = |((end_ns, tier, retention_class), disk_bytes)| Extent { tier, retention_class, end_ns, disk_bytes };
    Ok(extents.into_iter().map(extent).collect())
}

/// Frees the disk space of the partitions of a tier and class that end at or before a time. These partitions must have
/// been dropped by an entry, and the drop must be flushed. For minutes, this includes the raw samples. Runs a
/// compaction, because until then the deleted keys still take space in files that other keys share. This takes long.
pub(crate) fn reclaim(store: &Store, tier: Tier, retention_class: u8, before_ns: i64) {
    let tiers: &[Tier] = if tier == Tier::Minute { &[Tier::Raw, Tier::Minute] } else { &[tier] };
    for &tier in tiers {
        store.database().compact(ended(tier, retention_class, before_ns));
    }
}

/// Returns the key range of all partitions of a tier and class that end at or before a time.
fn ended(tier: Tier, class: u8, before_ns: i64) -> Range<Vec<u8>> {
    // First partition that ends later.
    let end = PartitionKey::of(tier, class, 0, before_ns.saturating_add(1));
    PartitionKey::of(tier, class, 0, i64::MIN).prefix()..end.prefix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_partitions_are_those_of_all_tenants_up_to_the_time() {
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
