//! Partitions of a shard: the existing ones, those in memory, and the tenants' dictionaries that partitions share.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Samples, Tier};

use crate::database::key::PartitionKey;
use crate::engine::state::outlines::Outlines;
use crate::memory::budgets::Shares;
use crate::memory::footprint::{Footprint, MemoryTotal};
use crate::memory::head::{Head, HeadSize};
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;

/// Number of partitions in memory above which those without new samples are evicted. At least a quarter is evicted at
/// once, so that a query of many partitions does not evict one partition at a time.
const IDLE_PARTITIONS_MAX: usize = 64;

/// Partition in memory, shared with the queries that read it.
pub(crate) type SharedPartition = Arc<RwLock<Partition>>;

/// Dictionary of a tenant, shared by the tenant's partitions in memory.
pub(crate) type SharedDictionary = Arc<RwLock<TenantDictionary>>;

/// Partitions of a shard.
///
/// Lock order: the state, a tenant's dictionary, then partitions in the order of their keys, which puts finer tiers
/// first.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// All existing partitions, in memory or not.
    existing: BTreeSet<PartitionKey>,
    /// Start of the oldest partition that was ever there, in nanoseconds since 1970. If keys cannot be read, partitions
    /// may have existed since then.
    oldest_ns: Option<i64>,
    /// Partitions in memory. Raw samples are in the partition of their minutes.
    loaded: BTreeMap<PartitionKey, SharedPartition>,
    outlines: Outlines,
    /// Number of times that a partition was read into memory or created. If the number changes while an outline is
    /// read, the outline may lack later series.
    loads: u64,
    dictionaries: BTreeMap<u32, SharedDictionary>,
    /// Generation of the newest dictionary of any tenant. Each new or rebuilt dictionary gets the next number.
    generations: u64,
    /// Size of the heads of all partitions in memory.
    head: HeadSize,
    /// Memory of these heads, which counts against the budget.
    head_footprint: Footprint,
    /// Number of times that partitions were dropped. If the number changes during a read, the data that was read may
    /// belong to a dropped partition.
    drops: u64,
    /// Memory of tenants' dictionaries and partitions, including evicted ones that a running query still holds.
    definitions: MemoryTotal,
    /// Tenants whose dictionary may hold entries that no partition in memory needs any more.
    outgrown: BTreeSet<u32>,
}

impl Partitions {
    /// Creates the partitions of a state that was just read: all are in the database, and none is in memory. Their
    /// memory counts against `shares`.
    pub(crate) fn stored(existing: BTreeSet<PartitionKey>, oldest_ns: Option<i64>, shares: &Shares) -> Self {
        // Generations begin at a random number, so that routers recognize those of an earlier process as outdated.
        let generations = RandomState::new().build_hasher().finish() / 2;
        let head_footprint = Footprint::new(shares.heads.total());
        let definitions = shares.dictionaries.total().clone();
        let oldest_ns = existing.iter().map(|key| key.start_ns()).chain(oldest_ns).min();
        Self { existing, oldest_ns, generations, head_footprint, definitions, ..Self::default() }
    }

    /// Returns all existing partitions.
    pub(crate) fn existing(&self) -> &BTreeSet<PartitionKey> {
        &self.existing
    }

    /// Returns whether a partition exists.
    pub(crate) fn exists(&self, key: &PartitionKey) -> bool {
        self.existing.contains(key)
    }

    /// Returns the retention classes of a tier's existing partitions, ascending.
    pub(crate) fn classes(&self, tier: Tier) -> impl Iterator<Item = u8> + '_ {
        let next = move |from: Option<u8>| {
            let from = PartitionKey::of(tier, from?, 0, i64::MIN);
            self.existing.range(from..).next().filter(|key| key.tier == tier).map(|key| key.class)
        };
        std::iter::successors(next(Some(0)), move |class| next(class.checked_add(1)))
    }

    /// Records that a partition exists.
    pub(crate) fn add(&mut self, key: PartitionKey) {
        self.existing.insert(key);
        self.oldest_ns = Some(self.oldest_ns.map_or(key.start_ns(), |oldest_ns| oldest_ns.min(key.start_ns())));
    }

    /// Returns the start of the oldest partition that was ever there, in nanoseconds since 1970.
    pub(crate) fn oldest_ns(&self) -> Option<i64> {
        self.oldest_ns
    }

    /// Records that a partition no longer exists, and removes it from memory.
    pub(crate) fn drop_partition(&mut self, key: &PartitionKey) {
        self.existing.remove(key);
        self.outlines.remove(key);
        self.forget(key);
    }

    /// Returns the number of times that partitions were dropped.
    pub(crate) fn drops(&self) -> u64 {
        self.drops
    }

    /// Invalidates all reads of partitions that began before this call.
    pub(crate) fn count_drop(&mut self) {
        self.drops += 1;
    }

    /// Returns a partition, if it is in memory.
    pub(crate) fn loaded(&self, key: &PartitionKey) -> Option<&SharedPartition> {
        self.loaded.get(key)
    }

    /// Returns all partitions in memory, by key.
    pub(crate) fn all_loaded(&self) -> impl Iterator<Item = (&PartitionKey, &SharedPartition)> {
        self.loaded.iter()
    }

    /// Returns the total size of all heads.
    pub(crate) fn head_size(&self) -> HeadSize {
        self.head
    }

    /// Changes the head of a partition in memory.
    pub(crate) fn change_head(&mut self, partition: &mut Partition, change: impl FnOnce(&mut Head)) {
        let before = partition.head.size();
        change(&mut partition.head);
        self.head += partition.head.size();
        self.head -= before;
        self.head_footprint.set(self.head.bytes);
    }

    /// Adds samples by series to the head of a partition in memory.
    pub(crate) fn add_samples(&mut self, partition: &mut Partition, samples: Vec<(u32, Samples)>, now_ns: i64) {
        self.change_head(partition, |head| {
            samples.into_iter().for_each(|(series, samples)| head.add(series, samples, now_ns));
        });
    }

    /// Returns a tenant's dictionary, if it is in memory.
    pub(crate) fn loaded_dictionary(&self, tenant: u32) -> Option<&SharedDictionary> {
        self.dictionaries.get(&tenant)
    }

    /// Returns a tenant's dictionary. Creates it if it is not in memory.
    pub(crate) fn dictionary(&mut self, tenant: u32) -> SharedDictionary {
        let Self { dictionaries, generations, definitions, .. } = self;
        let shared = dictionaries.entry(tenant).or_insert_with(|| {
            *generations += 1;
            let mut shared = TenantDictionary::new(*generations);
            shared.count_in(definitions);
            Arc::new(RwLock::new(shared))
        });
        Arc::clone(shared)
    }

    /// Returns the total memory of all definitions.
    pub(crate) fn definitions(&self) -> &MemoryTotal {
        &self.definitions
    }

    /// Keeps a partition in memory, unless a partition with this key is there already. Returns the partition that is in
    /// memory afterwards.
    pub(crate) fn keep(&mut self, mut partition: Partition) -> SharedPartition {
        self.outlines.remove(&partition.key);
        self.loads += 1;
        let Self { loaded, definitions, head, head_footprint, .. } = self;
        let kept = loaded.entry(partition.key).or_insert_with(|| {
            *head += partition.head.size();
            head_footprint.set(head.bytes);
            partition.count_in(definitions);
            Arc::new(RwLock::new(partition))
        });
        Arc::clone(kept)
    }

    /// Returns the outline of a partition, if it is in memory.
    pub(crate) fn outline(&self, key: &PartitionKey) -> Option<&SharedPartition> {
        self.outlines.get(key)
    }

    /// Returns a number that changes when a partition is read into memory, created or dropped.
    pub(crate) fn changes(&self) -> u64 {
        self.loads + self.drops
    }

    /// Keeps an outline in memory, if all outlines fit into `bytes_max`. `changes` is the number of changes before the
    /// outline was read: an outline that may be outdated is only for the query that has read it.
    pub(crate) fn keep_outline(&mut self, outline: Partition, changes: u64, bytes_max: usize) -> SharedPartition {
        if self.changes() != changes {
            return Arc::new(RwLock::new(outline));
        }
        self.outlines.keep(outline, &self.definitions, bytes_max)
    }

    /// Removes a partition from memory.
    pub(crate) fn forget(&mut self, key: &PartitionKey) {
        if let Some(partition) = self.loaded.remove(key) {
            self.head -= partition.read().head.size();
            self.head_footprint.set(self.head.bytes);
            self.outgrown.insert(key.tenant);
        }
    }

    /// Evicts partitions that nobody uses until the memory fits into `bytes_max`. Those with the oldest times are
    /// evicted first, because new samples and most queries use the newest. A partition that a query uses stays, because
    /// new samples would go to a second copy that the query does not see.
    pub(crate) fn evict(&mut self, bytes_max: usize) {
        let is_over = |partitions: &Self| partitions.definitions.bytes() > bytes_max;
        while is_over(self) && self.outlines.evict_oldest() {}
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
            // `freed` estimates the entries of tenant dictionaries that only evicted partitions needed. These entries
            // are freed later, and take about as much memory as the partitions themselves.
            let bytes = self.definitions.bytes().saturating_sub(freed);
            if self.loaded.len() <= count_left && bytes <= bytes_left {
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

    /// Rebuilds tenants' dictionaries from the entries that partitions in memory need. If `all`, rebuilds every
    /// dictionary with unneeded entries; otherwise only dictionaries that doubled in size or that no partition needs.
    /// Takes long, and blocks all other threads.
    fn renew_dictionaries(&mut self, all: bool) {
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
    use proto::{Label, LabelSet, TenantId};

    use super::*;

    const TENANT: u32 = 0;

    /// Adds a written partition of minutes, `number` partitions after the first. Its series is in no other partition.
    fn partition(partitions: &mut Partitions, number: u32, label_bytes: usize) {
        let shared = partitions.dictionary(TENANT);
        let mut shared = shared.write();
        let key = PartitionKey::of(Tier::Minute, 0, TENANT, i64::from(number + 1) * Tier::Minute.partition_ns());
        let mut partition = Partition::new(key, shared.generation());
        let value = format!("{number}{}", "x".repeat(label_bytes));
        let labels = LabelSet::new(vec![Label::new("pod", &value)]);
        let fingerprint = labels.fingerprint(&TenantId::default_tenant());
        partition.add_series(fingerprint, || shared.share_labels(Arc::new(labels)));
        partition.wrote(partition.lengths());
        shared.recount();
        partitions.keep(partition);
    }

    #[test]
    fn many_partitions_are_evicted_at_once_and_few_dictionaries_rebuilt() {
        let mut partitions = Partitions::default();
        for number in 0..1500 {
            partition(&mut partitions, number, 10);
            partitions.evict(usize::MAX);
            assert!(partitions.loaded.len() <= IDLE_PARTITIONS_MAX);
        }
        assert!(partitions.loaded.len() >= IDLE_PARTITIONS_MAX / 4 * 3, "{}", partitions.loaded.len());
        assert_eq!(partitions.generations, 1, "a small dictionary was rebuilt");
        // 64 MiB of labels in total, few of which are needed.
        for number in 1500..1564 {
            partition(&mut partitions, number, 1 << 20);
            partitions.evict(usize::MAX);
        }
        assert!(partitions.generations <= 4, "{} times", partitions.generations - 1);
    }

    #[test]
    fn outlines_that_may_be_outdated_are_not_kept() {
        let mut partitions = Partitions::default();
        partition(&mut partitions, 0, 10);
        let key = *partitions.all_loaded().next().unwrap().0;
        let has_outline = |partitions: &Partitions| partitions.outline(&key).is_some();
        let outline = || Partition::new(key, 0);
        // The partition was read into memory and evicted while the outline was read.
        let changes = partitions.changes();
        partitions.forget(&key);
        partition(&mut partitions, 0, 10);
        partitions.forget(&key);
        partitions.keep_outline(outline(), changes, usize::MAX);
        assert!(!has_outline(&partitions));
        let changes = partitions.changes();
        partitions.keep_outline(outline(), changes, usize::MAX);
        assert!(has_outline(&partitions));
        partition(&mut partitions, 0, 10);
        assert!(!has_outline(&partitions), "it was read into memory");
        partitions.forget(&key);
        partitions.keep_outline(outline(), partitions.changes(), usize::MAX);
        partitions.drop_partition(&key);
        assert!(!has_outline(&partitions), "it was dropped");
    }

    #[test]
    fn outlines_are_evicted_before_partitions() {
        let mut partitions = Partitions::default();
        partition(&mut partitions, 0, 1 << 20);
        let bytes = partitions.definitions.bytes();
        partition(&mut partitions, 1, 1 << 20);
        let mut outline = Partition::new(*partitions.all_loaded().nth(1).unwrap().0, 0);
        let labels = LabelSet::new(vec![Label::new("pod", "y".repeat(1 << 20))]);
        outline.add_series(labels.fingerprint(&TenantId::default_tenant()), || Arc::new(labels));
        partitions.forget(&outline.key);
        let changes = partitions.changes();
        partitions.keep_outline(outline, changes, usize::MAX);
        assert!(partitions.definitions.bytes() > bytes * 5 / 4);
        partitions.evict(bytes * 5 / 4);
        assert_eq!((partitions.loaded.len(), partitions.definitions.bytes()), (1, bytes));
    }

    #[test]
    fn an_idle_partition_that_fills_the_budget_alone_is_evicted() {
        let mut partitions = Partitions::default();
        partition(&mut partitions, 0, 1 << 20);
        partitions.evict(1 << 22);
        assert_eq!(partitions.loaded.len(), 1, "it fits");
        partitions.evict(1 << 19);
        assert_eq!((partitions.loaded.len(), partitions.dictionaries.len()), (0, 1));
        assert!(partitions.definitions.bytes() < 1 << 10, "{} bytes", partitions.definitions.bytes());
    }

    #[test]
    fn each_class_of_a_tier_is_listed_once() {
        let mut partitions = Partitions::default();
        assert_eq!(partitions.classes(Tier::Raw).count(), 0);
        for (tier, class, tenant) in [(Tier::Raw, 255, 1), (Tier::Raw, 3, 9), (Tier::Raw, 3, 1), (Tier::Minute, 4, 1)] {
            partitions.add(PartitionKey::of(tier, class, tenant, i64::from(tenant) * tier.partition_ns()));
        }
        assert_eq!(partitions.classes(Tier::Raw).collect::<Vec<_>>(), [3, 255]);
        assert_eq!(partitions.classes(Tier::Minute).collect::<Vec<_>>(), [4]);
        assert_eq!(partitions.classes(Tier::Day).count(), 0);
    }

    #[test]
    fn unneeded_definitions_are_evicted_before_loaded_partitions() {
        let mut partitions = Partitions::default();
        for number in 0..20 {
            partition(&mut partitions, number, 1 << 20);
        }
        let first: Vec<PartitionKey> = partitions.loaded.keys().copied().take(18).collect();
        first.iter().for_each(|key| partitions.forget(key));
        assert!(partitions.definitions.bytes() > 18 << 20);
        partitions.evict(10 << 20);
        assert_eq!(partitions.loaded.len(), 2);
        assert!(partitions.definitions.bytes() < 5 << 20, "{} bytes", partitions.definitions.bytes());
        // A tenant without partitions uses no memory.
        let rest: Vec<PartitionKey> = partitions.loaded.keys().copied().collect();
        rest.iter().for_each(|key| partitions.forget(key));
        partitions.evict(usize::MAX);
        assert!(partitions.definitions.bytes() < 10_000, "{} bytes", partitions.definitions.bytes());
    }
}
