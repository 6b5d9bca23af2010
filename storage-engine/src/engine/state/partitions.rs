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

/// Part of the memory of definitions that outlines may take, as a divisor.
const OUTLINES_PART: usize = 2;

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
    /// Number of flushes. If it changes during a read, the database may have got more samples meanwhile.
    flushes: u64,
    /// Number of pieces of deletions. If it changes during a read, samples that were read may have been deleted.
    deletions: u64,
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

    /// Returns the number of flushes.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Counts a flush. Returns the number of flushes.
    pub(crate) fn count_flush(&mut self) -> u64 {
        self.flushes += 1;
        self.flushes
    }

    /// Forgets which samples of these partitions of minutes the database holds, because some of them were deleted.
    pub(crate) fn forget_samples<'a>(&mut self, keys: impl IntoIterator<Item = &'a PartitionKey>) {
        self.deletions += 1;
        for key in keys {
            for partition in self.loaded.get(key).into_iter().chain(self.outlines.get(key)) {
                partition.write().sample_times.forget();
            }
        }
    }

    /// Returns the number of pieces of deletions.
    pub(crate) fn deletions(&self) -> u64 {
        self.deletions
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

    /// Keeps an outline in memory, if all definitions fit into `bytes_max`, and all outlines into a part of it: a query
    /// must not fill the memory for new definitions. `changes` is the number of changes before the outline was read: an
    /// outline that may be outdated is only for the query that has read it.
    pub(crate) fn keep_outline(&mut self, outline: Partition, changes: u64, bytes_max: usize) -> SharedPartition {
        if self.changes() != changes {
            return Arc::new(RwLock::new(outline));
        }
        let outline = self.outlines.keep(outline, &self.definitions, bytes_max / OUTLINES_PART);
        self.evict_outlines(bytes_max);
        outline
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
        self.evict_outlines(bytes_max);
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

    fn evict_outlines(&mut self, bytes_max: usize) {
        while self.definitions.bytes() > bytes_max && self.outlines.evict_oldest() {}
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
mod tests;
