//! Cache of the stacks that shards hold. A push skips the definitions of stacks that its shard already holds.
//!
//! The cache contains hashes, has a fixed size, and may be wrong. A wrong entry only costs time: a shard refuses a
//! batch that refers to a missing stack, and then receives the batch with all definitions. A cache entry is a hash of
//! the stack, and of the tenant, shard and partition that hold it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::label::SERVICE_NAME_LABEL;
use proto::placement::{Placement, Route};
use proto::tier::interval_of;
use proto::{LabelSet, StackHash, TenantId, Tier, Window};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of keys in one set. The keys of a set share a cache line of the processor.
const WAYS: usize = 4;

/// Number of sets, with four keys each: 2^20 keys in all, 8 MiB.
const SETS: usize = 1 << 18;

/// Maximum number of keys of one push that are added to the cache. If a push has more, none of its keys are added,
/// because they would evict too many keys of other pushes.
const PUSH_KEYS_MAX: usize = SETS * WAYS / 16;

/// Set-associative cache of the stacks that shards hold.
#[derive(Debug)]
pub(crate) struct KnownStacks {
    /// Keys of the cache; 0 is a free slot. Every slot is independent, so relaxed ordering is enough.
    sets: Box<[[AtomicU64; WAYS]]>,
}

impl Default for KnownStacks {
    fn default() -> Self {
        Self { sets: (0..SETS).map(|_| Default::default()).collect() }
    }
}

/// Hash of a stack and of the partition that holds it. It is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackKey(u64);

impl KnownStacks {
    fn set(&self, key: StackKey) -> &[AtomicU64; WAYS] {
        &self.sets[(key.0 >> 32) as usize % SETS]
    }

    fn contains(&self, key: StackKey) -> bool {
        self.set(key).iter().any(|slot| slot.load(Ordering::Relaxed) == key.0)
    }

    /// Adds stacks that shards have acknowledged. Evicts other stacks from full sets. Adds nothing if there are more
    /// than [`PUSH_KEYS_MAX`].
    pub(crate) fn add(&self, keys: &[StackKey]) {
        if keys.len() > PUSH_KEYS_MAX {
            return;
        }
        for &key in keys.iter().filter(|key| !self.contains(**key)) {
            let set = self.set(key);
            let free = set.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
            free.unwrap_or(&set[key.0 as usize / 2 % WAYS]).store(key.0, Ordering::Relaxed);
        }
    }
}

/// Hash of a tenant, a shard, and the time range of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionKey(u64);

/// Finds the partition of each sample of one series, by the sample's time.
#[derive(Debug)]
pub(crate) struct SeriesPartitions {
    route: Route,
    /// Time range and key of the last returned partition. The next sample is nearly always in the same partition.
    last: Option<(Window, PartitionKey)>,
}

impl SeriesPartitions {
    /// Finds the partition that contains `time_ns`, and returns its key. Adds the partition to `plan`.
    pub(crate) fn at(&mut self, time_ns: i64, plan: &mut DefinitionPlan<'_>) -> PartitionKey {
        if let Some((Window { start_ns, end_ns }, partition)) = self.last
            && start_ns < time_ns
            && time_ns <= end_ns
        {
            return partition;
        }
        let length = Tier::Raw.partition_ns();
        let interval = interval_of(time_ns, length);
        let start_ns = i64::from(interval) * length;
        let (shard, leg) = self.route.leg_at(time_ns);
        let seed = xxh3_64_with_seed(plan.tenant.as_str().as_bytes(), shard.into());
        let partition = PartitionKey(xxh3_64_with_seed(&interval.to_le_bytes(), seed));
        let range = Window { start_ns: start_ns.max(leg.start_ns), end_ns: (start_ns + length).min(leg.end_ns) };
        self.last = Some((range, partition));
        plan.reaches(shard, partition);
        partition
    }
}

/// The stacks that one push defines, and the partitions that the push writes to.
#[derive(Debug)]
pub(crate) struct DefinitionPlan<'k> {
    /// Stacks that need no definition; `None` if the push defines every stack.
    known: Option<&'k KnownStacks>,
    tenant: &'k TenantId,
    placement: &'k Placement,
    /// Stacks that the push defines.
    defined: Vec<StackKey>,
    /// For each shard, the first partition that the push writes to.
    partitions: BTreeMap<u32, PartitionKey>,
    /// True if the push writes to several partitions of one shard.
    is_spread: bool,
}

impl<'k> DefinitionPlan<'k> {
    /// Makes a plan. If `known` is `None`, the push defines every stack.
    pub(crate) fn new(known: Option<&'k KnownStacks>, tenant: &'k TenantId, placement: &'k Placement) -> Self {
        Self { known, tenant, placement, defined: Vec::new(), partitions: BTreeMap::new(), is_spread: false }
    }

    /// Returns whether the push defines every stack.
    pub(crate) fn defines_all(&self) -> bool {
        self.known.is_none()
    }

    /// Returns a value that finds the partition of each sample of a series.
    pub(crate) fn partitions(&self, series: &LabelSet) -> SeriesPartitions {
        let fingerprint = || series.fingerprint(self.tenant);
        let route = self.placement.route(self.tenant, series.get(SERVICE_NAME_LABEL), fingerprint);
        SeriesPartitions { route, last: None }
    }

    fn reaches(&mut self, shard: u32, partition: PartitionKey) {
        self.is_spread |= *self.partitions.entry(shard).or_insert(partition) != partition;
    }

    /// Returns whether the push writes to several partitions of a shard. Such a push defines all its stacks. A stack
    /// may be omitted only if every partition that the push writes to holds it, even the partitions that do not use it.
    pub(crate) fn is_spread(&self) -> bool {
        self.is_spread
    }

    /// Returns the key of a stack; `None` if the cache says that the partition holds the stack.
    pub(crate) fn key_of_unknown(&self, partition: PartitionKey, stack: StackHash) -> Option<StackKey> {
        let halves = (stack.0 as u64) ^ (stack.0 >> 64) as u64;
        let key = StackKey((halves ^ partition.0) | 1);
        self.known.is_none_or(|known| !known.contains(key)).then_some(key)
    }

    /// Records a stack that the push defines.
    pub(crate) fn define(&mut self, key: StackKey) {
        self.defined.push(key);
    }

    /// Returns the number of stacks recorded so far, for [`DefinitionPlan::truncate`].
    pub(crate) fn defined_count(&self) -> usize {
        self.defined.len()
    }

    /// Forgets all stacks except the first `count`. The profile that defines the other stacks is refused, so no shard
    /// receives them.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.defined.truncate(count);
    }

    /// Returns the stacks that the push defines. The caller adds them to the cache when shards have acknowledged the
    /// push.
    pub(crate) fn into_defined(self) -> Vec<StackKey> {
        self.defined
    }
}

/// Calls `decode` with a plan for a single shard. Also returns the stacks that the push defines.
#[cfg(test)]
pub(crate) fn planned<T, E>(
    known: Option<&KnownStacks>,
    decode: impl FnOnce(&mut DefinitionPlan<'_>) -> Result<T, E>,
) -> Result<(T, Vec<StackKey>), E> {
    let tenant = TenantId::default_tenant();
    let placement = Placement::uniform(std::num::NonZeroU16::MIN);
    let mut plan = DefinitionPlan::new(known, &tenant, &placement);
    let decoded = decode(&mut plan)?;
    Ok((decoded, plan.into_defined()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::sync::Arc;

    use proto::Label;
    use proto::placement::{Epoch, SLOTS};

    use super::*;

    #[test]
    fn a_stack_is_known_only_in_the_partition_that_acknowledged_it() {
        let known = KnownStacks::default();
        let placement = Placement::uniform(NonZeroU16::MIN);
        let tenants = ["one", "two"].map(|name| TenantId::new(name).unwrap());
        let stack = StackHash(7 << 64 | 9);
        let api = LabelSet::new(vec![Label::new(SERVICE_NAME_LABEL, "api")]);
        let hours = |n: i64| n * 3_600_000_000_000;
        let is_new = |tenant, time_ns, acknowledged: bool| {
            let mut plan = DefinitionPlan::new(Some(&known), tenant, &placement);
            let partition = plan.partitions(&api).at(time_ns, &mut plan);
            let unknown = plan.key_of_unknown(partition, stack);
            if acknowledged {
                known.add(unknown.as_slice());
            }
            unknown.is_some()
        };
        assert!(is_new(&tenants[0], hours(1), false));
        assert!(is_new(&tenants[0], hours(1), true));
        assert!(!is_new(&tenants[0], hours(6), false), "the last nanosecond of the same partition");
        assert!(is_new(&tenants[0], hours(6) + 1, false) && is_new(&tenants[1], hours(1), false));
        let mut whole = DefinitionPlan::new(None, &tenants[0], &placement);
        let mut partitions = whole.partitions(&api);
        let partition = partitions.at(hours(1), &mut whole);
        assert!(whole.key_of_unknown(partition, stack).is_some() && !whole.is_spread());
        partitions.at(hours(7), &mut whole);
        assert!(whole.is_spread());
    }

    #[test]
    fn a_stack_is_unknown_in_the_shard_of_the_next_epoch() {
        let tenant = TenantId::default_tenant();
        let minute_ns = Tier::Minute.window_ns();
        let epoch = |number: u64, begins_ns| {
            Arc::new(Epoch::new(number, begins_ns, vec![number as u32; SLOTS.into()], Default::default()).unwrap())
        };
        let placement = Placement::new([epoch(1, i64::MIN), epoch(2, 9 * minute_ns)]).unwrap();
        let api = LabelSet::new(vec![Label::new(SERVICE_NAME_LABEL, "api")]);
        let mut plan = DefinitionPlan::new(None, &tenant, &placement);
        let mut partitions = plan.partitions(&api);
        let keys = [8 * minute_ns, 9 * minute_ns, 9 * minute_ns + 1, 20 * minute_ns, 1]
            .map(|time_ns| partitions.at(time_ns, &mut plan));
        assert_eq!((keys[0], keys[1], keys[2], keys[4]), (keys[4], keys[0], keys[3], keys[0]));
        assert_ne!(keys[0], keys[2]);
        assert!(!plan.is_spread(), "each shard gets samples of one partition");
    }

    #[test]
    fn the_cache_never_grows_and_keeps_the_newest_keys() {
        let known = KnownStacks::default();
        // All these keys belong to the same set.
        let key = |n: u64| StackKey(n << 1 | 1);
        for n in 0..100 {
            known.add(&[key(n)]);
            assert!(known.contains(key(n)));
        }
        assert_eq!((0..100).filter(|&n| known.contains(key(n))).count(), WAYS);
        let flood: Vec<StackKey> = (0..=PUSH_KEYS_MAX as u64).map(|n| StackKey(n << 32 | 1)).collect();
        known.add(&flood);
        assert!(known.contains(key(99)) && !known.contains(flood[7]), "one push does not evict the keys of others");
    }
}
