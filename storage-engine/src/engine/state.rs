//! State of an engine in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use proto::{Samples, TenantId, Tier};

use crate::Position;
use crate::database::Expired;
use crate::database::key::{PartitionKey, StaleKey};
use crate::integrity::quarantine::damage::Damage;
use crate::memory::batch_ids::BatchIds;
use crate::memory::footprint::MemoryTotal;
use crate::memory::head::HeadSize;
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;

/// Most partitions without new samples that are kept in memory for queries. Beyond it, a quarter is evicted at once, so
/// that a query of many partitions does not evict for each of them.
const IDLE_PARTITIONS_MAX: usize = 64;

/// State of an engine in memory.
///
/// Lock order: state, tenant dictionary, then partitions in the order of their keys, so finer tiers first.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) applied: Option<Position>,
    pub(crate) membership: Option<Bytes>,
    /// Largest `proposed_at_ns` so far, in nanoseconds: the only clock for applying entries.
    pub(crate) clock_ns: i64,
    /// Latest time given to [`crate::Engine::pass_time`], in nanoseconds.
    pub(crate) now_ns: i64,
    pub(crate) tenants: BTreeMap<TenantId, u32>,
    pub(crate) unwritten_tenants: BTreeMap<u32, TenantId>,
    pub(crate) batch_ids: BatchIds,
    /// All existing partitions, loaded or not.
    pub(crate) existing: BTreeSet<PartitionKey>,
    /// Partitions in memory. Raw samples are in the partition of their minutes.
    pub(crate) loaded: BTreeMap<PartitionKey, Arc<RwLock<Partition>>>,
    pub(crate) dictionaries: BTreeMap<u32, Arc<RwLock<TenantDictionary>>>,
    pub(crate) generations: u64,
    /// Windows that are not, or not yet, the sum of their finer windows.
    pub(crate) stale: BTreeSet<StaleKey>,
    pub(crate) expired: Expired,
    pub(crate) damage: Damage,
    /// Partitions that replaced one with damaged definitions. The value is the number of the newest table file that
    /// may hold values of the old partition. Never of raw samples.
    pub(crate) replaced: BTreeMap<PartitionKey, u64>,
    pub(crate) head: HeadSize,
    /// Number of times that partitions were dropped. If it changed during a read, the data may belong to a dropped
    /// partition.
    pub(crate) drops: u64,
    /// Memory of tenants' dictionaries and partitions, including those that only a query still holds.
    pub(crate) definitions: MemoryTotal,
    /// Tenants whose tenant dictionary may hold entries that no partition in memory needs.
    pub(crate) outgrown: BTreeSet<u32>,
}

impl State {
    /// Returns the clock for sealing and rolling up, which change no response, in nanoseconds.
    pub(crate) fn sealing_clock_ns(&self) -> i64 {
        self.clock_ns.max(self.now_ns)
    }

    /// Adds samples by series to the head of a partition.
    pub(crate) fn add_samples(&mut self, partition: &mut Partition, samples: Vec<(u32, Samples)>, now_ns: i64) {
        let before = partition.head.size();
        samples.into_iter().for_each(|(series, samples)| partition.head.add(series, samples, now_ns));
        self.head += partition.head.size();
        self.head -= before;
    }

    /// Returns a tenant's dictionary.
    pub(crate) fn tenant_dictionary(&mut self, tenant: u32) -> Arc<RwLock<TenantDictionary>> {
        let Self { dictionaries, generations, definitions, .. } = self;
        let shared = dictionaries.entry(tenant).or_insert_with(|| {
            *generations += 1;
            let mut shared = TenantDictionary::new(*generations);
            shared.count_in(definitions);
            Arc::new(RwLock::new(shared))
        });
        Arc::clone(shared)
    }

    /// Returns the end of the last dropped partition of a tier, in nanoseconds. The tier has no data up to this time.
    pub(crate) fn horizon_ns(&self, tier: Tier, class: u8) -> i64 {
        let before_ns = self.expired.get(&(tier, class)).copied().unwrap_or_default();
        before_ns.div_euclid(tier.partition_ns()) * tier.partition_ns()
    }

    /// Returns the approximate memory of all definitions, in bytes.
    pub(crate) fn dictionary_bytes(&self) -> usize {
        self.definitions.bytes()
    }

    /// Returns whether a window of hours or days that ends at or before a time must be summed up.
    pub(crate) fn is_stale(&self, before_ns: i64) -> bool {
        [Tier::Hour, Tier::Day].into_iter().any(|tier| {
            let mut from = StaleKey { tier, class: 0, window: 0, tenant: 0, series: 0 };
            while let Some(oldest) = self.stale.range(from..).next().filter(|key| key.tier == tier) {
                if tier.window_end_ns(oldest.window) <= before_ns {
                    return true;
                }
                let Some(class) = oldest.class.checked_add(1) else { return false };
                from = StaleKey { class, ..from };
            }
            false
        })
    }

    /// Keeps a partition in memory, unless there is already one with this key. Returns the kept one.
    pub(crate) fn keep(&mut self, mut partition: Partition) -> Arc<RwLock<Partition>> {
        let Self { loaded, definitions, .. } = self;
        let kept = loaded.entry(partition.key).or_insert_with(|| {
            partition.count_in(definitions);
            Arc::new(RwLock::new(partition))
        });
        Arc::clone(kept)
    }

    /// Removes a partition from memory.
    pub(crate) fn forget(&mut self, key: &PartitionKey) {
        if self.loaded.remove(key).is_some() {
            self.outgrown.insert(key.tenant);
        }
    }

    /// Evicts unused partitions until the others fit, those with the oldest times first: new samples and most queries
    /// use the newest. A partition that a query uses stays, because new samples would go to a second copy that the
    /// query does not see.
    pub(crate) fn evict(&mut self, bytes_max: usize) {
        let is_over = |state: &Self| state.dictionary_bytes() > bytes_max;
        if is_over(self) {
            // Unneeded entries of tenants' dictionaries go before partitions that a query may need.
            self.renew_dictionaries(true);
        }
        let is_over = is_over(self);
        let count = self.loaded.len();
        if !is_over && count <= IDLE_PARTITIONS_MAX {
            return self.renew_dictionaries(false);
        }
        let bytes_left = if is_over { bytes_max / 4 * 3 } else { bytes_max };
        let count_left = if count > IDLE_PARTITIONS_MAX { IDLE_PARTITIONS_MAX / 4 * 3 } else { count };
        let mut oldest_first: Vec<PartitionKey> = self.loaded.keys().copied().collect();
        oldest_first.sort_by_key(|key| key.end_ns());
        let mut freed = 0;
        for key in oldest_first {
            // Entries of the tenant dictionary that only this partition needs are freed later, about as much again.
            let bytes = self.dictionary_bytes().saturating_sub(freed);
            if self.loaded.len() <= 1 || (self.loaded.len() <= count_left && bytes <= bytes_left) {
                break;
            }
            let Some(partition) = self.loaded.get(&key) else { continue };
            let inner = partition.read();
            if !inner.head.is_empty() || inner.has_unwritten() || Arc::strong_count(partition) > 1 {
                continue;
            }
            freed += inner.memory_bytes();
            drop(inner);
            self.forget(&key);
        }
        self.renew_dictionaries(is_over);
    }

    /// Rebuilds tenants' dictionaries from the entries that partitions in memory need. `all`: every tenant dictionary
    /// with unneeded entries. Otherwise, only those that doubled in size or that no partition needs. Takes long, and
    /// blocks all other threads.
    pub(crate) fn renew_dictionaries(&mut self, all: bool) {
        let mut kept = BTreeSet::new();
        for tenant in std::mem::take(&mut self.outgrown) {
            let Some(shared) = self.dictionaries.get(&tenant).map(Arc::clone) else { continue };
            let is_needed = self.loaded.keys().any(|key| key.tenant == tenant);
            if is_needed && !all && !shared.read().has_doubled() {
                kept.insert(tenant);
                continue;
            }
            self.generations += 1;
            let partitions: Vec<_> = self.loaded.iter().filter(|(key, _)| key.tenant == tenant).collect();
            let mut shared = shared.write();
            let mut partitions: Vec<_> = partitions.iter().map(|(_, partition)| partition.write()).collect();
            shared.renew(self.generations, &mut partitions);
        }
        self.outgrown = kept;
    }
}

#[cfg(test)]
mod tests {
    use proto::{Label, LabelSet};

    use super::*;

    const TENANT: u32 = 0;

    /// Adds a written partition of minutes, `number` partitions after the first, with a series that no other one has.
    fn partition(state: &mut State, number: u32, label_bytes: usize) {
        let shared = state.tenant_dictionary(TENANT);
        let mut shared = shared.write();
        let key = PartitionKey::of(Tier::Minute, 0, TENANT, i64::from(number + 1) * Tier::Minute.partition_ns());
        let mut partition = Partition::new(key, shared.generation());
        let value = format!("{number}{}", "x".repeat(label_bytes));
        let labels = LabelSet::new(vec![Label::new("pod", &value)]);
        let fingerprint = labels.fingerprint(&TenantId::default_tenant());
        partition.add_series(fingerprint, || shared.share_labels(Arc::new(labels)));
        partition.wrote(partition.lengths());
        shared.recount();
        state.keep(partition);
    }

    #[test]
    fn many_partitions_are_evicted_at_once_and_few_dictionaries_rebuilt() {
        let mut state = State::default();
        for number in 0..1500 {
            partition(&mut state, number, 10);
            state.evict(usize::MAX);
            assert!(state.loaded.len() <= IDLE_PARTITIONS_MAX);
        }
        assert!(state.loaded.len() >= IDLE_PARTITIONS_MAX / 4 * 3, "{}", state.loaded.len());
        assert_eq!(state.generations, 1, "a small dictionary was rebuilt");
        // 64 MiB of labels in total, few of which are needed.
        for number in 1500..1564 {
            partition(&mut state, number, 1 << 20);
            state.evict(usize::MAX);
        }
        assert!(state.generations <= 4, "{} times", state.generations - 1);
    }

    #[test]
    fn unneeded_definitions_are_evicted_before_loaded_partitions() {
        let mut state = State::default();
        for number in 0..20 {
            partition(&mut state, number, 1 << 20);
        }
        let first: Vec<PartitionKey> = state.loaded.keys().copied().take(18).collect();
        first.iter().for_each(|key| state.forget(key));
        assert!(state.dictionary_bytes() > 18 << 20);
        state.evict(10 << 20);
        assert_eq!(state.loaded.len(), 2);
        assert!(state.dictionary_bytes() < 5 << 20, "{} bytes", state.dictionary_bytes());
        // A tenant without partitions uses no memory.
        let rest: Vec<PartitionKey> = state.loaded.keys().copied().collect();
        rest.iter().for_each(|key| state.forget(key));
        state.evict(usize::MAX);
        assert!(state.dictionary_bytes() < 10_000, "{} bytes", state.dictionary_bytes());
    }
}
