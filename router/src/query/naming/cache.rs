//! Cache of the location names of all tenants. If all names together exceed the limit, the least recently used tenants
//! are evicted. If the names of one tenant alone exceed the limit, they are not kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use proto::TenantId;

use crate::query::naming::tenant_names::{ShardNames, TenantNames};

/// Cached location names by tenant. Cheap to clone; all clones share the cached names.
#[derive(Clone, Debug)]
pub(crate) struct NameCache {
    tenants: Arc<Mutex<Tenants>>,
    bytes_max: usize,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Tenants {
    entries: HashMap<TenantId, Entry>,
    /// Number of times that any entry was used.
    uses: u64,
}

#[derive(Debug, Default)]
struct Entry {
    names: TenantNames,
    /// Value of [`Tenants::uses`] at the last use of this entry.
    last_use: u64,
    bytes: usize,
    /// True if the tenant's names were too large to be kept. New locations of shards are then loaded only for queries
    /// that need them.
    is_too_large: bool,
}

#[derive(Clone, Debug, Default)]
struct Metrics {
    bytes: Gauge,
    evicted: Family<EvictionLabel, Counter<u64, AtomicU64>>,
}

/// Metric label with the reason why names were evicted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabel {
    reason: &'static str,
}

const RENUMBERED: EvictionLabel = EvictionLabel { reason: "renumbered" };
const TOO_LARGE: EvictionLabel = EvictionLabel { reason: "too_large" };
const OVER_BUDGET: EvictionLabel = EvictionLabel { reason: "over_budget" };

impl NameCache {
    /// Makes an empty cache of at most `bytes_max` bytes. Adds its metrics to `registry`, with the prefix
    /// `varve_router`.
    pub(crate) fn new(bytes_max: usize, registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        let registry = registry.sub_registry_with_prefix("varve_router");
        registry.register("names_bytes", "Size of the cache of location names, in bytes", metrics.bytes.clone());
        registry.register(
            "names_evicted",
            "Location names that were evicted: of a shard that renumbered its locations, or of a tenant whose names \
             were too large to be kept, or whose memory other tenants' names needed",
            metrics.evicted.clone(),
        );
        Self { tenants: Arc::default(), bytes_max, metrics }
    }

    /// Returns the names of a tenant. Adds an entry if the tenant is new.
    pub(crate) fn of(&self, tenant: &TenantId) -> TenantNames {
        let Tenants { entries, uses } = &mut *self.tenants.lock();
        *uses += 1;
        let entry = entries.entry(tenant.clone()).or_default();
        entry.last_use = *uses;
        entry.names.clone()
    }

    /// Returns whether the names of a tenant were too large to be kept.
    pub(crate) fn is_too_large(&self, tenant: &TenantId) -> bool {
        self.tenants.lock().entries.get(tenant).is_some_and(|entry| entry.is_too_large)
    }

    /// Evicts the names of a shard that has given its locations new numbers. If most names of the tenant have been
    /// replaced, evicts all of them, because the table of frames still has the frames of the old ones. Returns whether
    /// the cache has other names of the tenant now.
    pub(crate) fn replace(&self, tenant: &TenantId, names: &TenantNames, shard: &ShardNames) -> bool {
        let entries = &mut self.tenants.lock().entries;
        let is_cached = entries.get(tenant).is_some_and(|entry| entry.names.is(names));
        if names.replace(shard) && is_cached {
            self.metrics.evicted.get_or_create(&RENUMBERED).inc();
            if names.is_mostly_dropped() {
                entries.remove(tenant);
                self.report(entries);
                return true;
            }
        }
        !is_cached
    }

    /// Sets the size of a tenant's names, and evicts names until the cache is within its limit.
    pub(crate) fn set_size(&self, tenant: &TenantId, names: &TenantNames, bytes: usize) {
        let entries = &mut self.tenants.lock().entries;
        if let Some(entry) = entries.get_mut(tenant).filter(|entry| entry.names.is(names)) {
            let is_too_large = bytes > self.bytes_max;
            if is_too_large {
                *entry = Entry { last_use: entry.last_use, is_too_large, ..Entry::default() };
                self.metrics.evicted.get_or_create(&TOO_LARGE).inc();
            }
            let own = if is_too_large { 0 } else { bytes };
            entry.bytes = own + size_of::<Entry>() + tenant.as_str().len();
        }
        while total(entries) > self.bytes_max {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.last_use).map(|(tenant, _)| tenant.clone());
            let Some(oldest) = oldest else { break };
            entries.remove(&oldest);
            self.metrics.evicted.get_or_create(&OVER_BUDGET).inc();
        }
        self.report(entries);
    }

    fn report(&self, entries: &HashMap<TenantId, Entry>) {
        self.metrics.bytes.set(i64::try_from(total(entries)).unwrap_or(i64::MAX));
    }
}

fn total(entries: &HashMap<TenantId, Entry>) -> usize {
    entries.values().map(|entry| entry.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::naming::tenant_names::tests::page;

    #[test]
    fn the_least_recently_used_are_evicted_and_too_large_ones_not_kept() {
        const MAX: usize = 1 << 20;
        let cache = NameCache::new(MAX, &mut Registry::default());
        let evicted = |why| cache.metrics.evicted.get_or_create(&why).get();
        let tenants = ["a", "b", "c"].map(|name| TenantId::new(name).unwrap());
        let names = [0, 1, 2].map(|i| cache.of(&tenants[i]));
        cache.set_size(&tenants[0], &names[0], MAX / 2);
        cache.set_size(&tenants[1], &names[1], MAX / 4);
        assert!(cache.of(&tenants[0]).is(&names[0]));
        assert!((MAX as i64 / 4 * 3..MAX as i64 / 4 * 3 + 1000).contains(&cache.metrics.bytes.get()));
        // The second tenant is evicted, because it was used least recently.
        cache.set_size(&tenants[2], &names[2], MAX / 2 - 1000);
        assert!(cache.of(&tenants[0]).is(&names[0]) && cache.of(&tenants[2]).is(&names[2]));
        assert!(!cache.of(&tenants[1]).is(&names[1]));
        assert_eq!((evicted(OVER_BUDGET), evicted(TOO_LARGE)), (1, 0));
        cache.set_size(&tenants[2], &names[2], MAX + 1);
        assert!(!cache.of(&tenants[2]).is(&names[2]), "too large to be kept");
        assert!(cache.is_too_large(&tenants[2]) && cache.metrics.bytes.get() < MAX as i64 / 2 + 1000);
        assert_eq!((evicted(OVER_BUDGET), evicted(TOO_LARGE)), (1, 1));
        // The size of names that the cache no longer holds does not count.
        cache.set_size(&tenants[2], &names[2], MAX * 2);
        let again = cache.of(&tenants[0]);
        for (shard, count) in [(1, 3), (2, 2)] {
            again.add(&again.of(shard), &page(1, count));
        }
        assert!(cache.replace(&tenants[0], &names[1], &names[1].of(1)), "other names are cached");
        assert!(cache.of(&tenants[0]).is(&again) && evicted(RENUMBERED) == 0);
        let of_shards = [again.of(1), again.of(2)];
        assert!(!cache.replace(&tenants[0], &again, &of_shards[1]) && cache.of(&tenants[0]).is(&again));
        assert_eq!((evicted(RENUMBERED), again.of(1).known().count, again.of(2).known().count), (1, 3, 0));
        assert!(!cache.replace(&tenants[0], &again, &of_shards[1]) && evicted(RENUMBERED) == 1, "once");
        assert!(cache.replace(&tenants[0], &again, &of_shards[0]), "most names have been replaced");
        assert!(!cache.of(&tenants[0]).is(&again) && evicted(RENUMBERED) == 2);
        assert!(cache.metrics.bytes.get() < 1000, "{:?}", cache.metrics.bytes);
        // Names that were too large once are kept when they are smaller.
        let smaller = cache.of(&tenants[2]);
        cache.set_size(&tenants[2], &smaller, MAX / 2);
        assert!(cache.metrics.bytes.get() > MAX as i64 / 2);
    }
}
