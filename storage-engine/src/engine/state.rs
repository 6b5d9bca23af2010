//! What an engine has in memory beside its database, and which of it is where.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use proto::{TenantId, Tier};

use crate::Position;
use crate::database::Expired;
use crate::database::key::{PartitionKey, StaleKey};
use crate::integrity::quarantine::damage::Damage;
use crate::memory::batch_ids::BatchIds;
use crate::memory::footprint::MemoryTotal;
use crate::memory::head::HeadSize;
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;

/// Partitions that are kept in memory without new samples, for queries; older ones are read again when needed. Where there are more,
/// a quarter is let go at once: making room is not for each of many that are asked for one after the other.
const IDLE_PARTITIONS_MAX: usize = 64;

/// Locks are taken in this order: state, vocabulary, partitions in the order of their keys, so finer tiers first.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) applied: Option<Position>,
    pub(crate) membership: Option<Bytes>,
    /// The largest `proposed_at_ns` so far: the only clock of what is applied.
    pub(crate) clock_ns: i64,
    /// What [`crate::Engine::pass_time`] said last.
    pub(crate) now_ns: i64,
    pub(crate) tenants: BTreeMap<TenantId, u32>,
    pub(crate) unwritten_tenants: BTreeMap<u32, TenantId>,
    pub(crate) batch_ids: BatchIds,
    /// All partitions that exist, loaded or not.
    pub(crate) existing: BTreeSet<PartitionKey>,
    /// Never of raw samples: those are in the partition of their minutes.
    pub(crate) loaded: BTreeMap<PartitionKey, Arc<RwLock<Partition>>>,
    pub(crate) vocabularies: BTreeMap<u32, Arc<RwLock<TenantDictionary>>>,
    pub(crate) generations: u64,
    /// Windows that are not the sum of their finer ones (yet).
    pub(crate) stale: BTreeSet<StaleKey>,
    pub(crate) expired: Expired,
    pub(crate) damage: Damage,
    /// Partitions that replaced one with damaged definitions, never of raw samples, with the number of the newest table file that the
    /// old partition may have values in.
    pub(crate) replaced: BTreeMap<PartitionKey, u64>,
    pub(crate) head: HeadSize,
    /// How often partitions were dropped: what was read of one before may be of another than there is now.
    pub(crate) drops: u64,
    /// What vocabularies and partitions take, those too that a query still holds.
    pub(crate) definitions: MemoryTotal,
    /// Tenants of which the vocabulary may hold what no partition in memory needs.
    pub(crate) outgrown: BTreeSet<u32>,
}

impl State {
    /// What time it is for sealing and rolling up, which change no answer.
    pub(crate) fn sealing_clock_ns(&self) -> i64 {
        self.clock_ns.max(self.now_ns)
    }

    /// A tenant's vocabulary.
    pub(crate) fn vocabulary(&mut self, tenant: u32) -> Arc<RwLock<TenantDictionary>> {
        let Self { vocabularies, generations, definitions, .. } = self;
        let vocabulary = vocabularies.entry(tenant).or_insert_with(|| {
            *generations += 1;
            let mut vocabulary = TenantDictionary::new(*generations);
            vocabulary.count_in(definitions);
            Arc::new(RwLock::new(vocabulary))
        });
        Arc::clone(vocabulary)
    }

    /// The end of the last partition of a tier that was dropped: of times up to it, there is nothing in this tier.
    pub(crate) fn horizon_ns(&self, tier: Tier, class: u8) -> i64 {
        let before_ns = self.expired.get(&(tier, class)).copied().unwrap_or_default();
        before_ns.div_euclid(tier.partition_ns()) * tier.partition_ns()
    }

    /// About how many bytes all definitions in memory take.
    pub(crate) fn dictionary_bytes(&self) -> usize {
        self.definitions.bytes()
    }

    /// Whether a window of hours or days that ends at or before a time must be summed up.
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

    /// Keeps a partition in memory, if there is none of this key.
    pub(crate) fn keep(&mut self, mut partition: Partition) -> Arc<RwLock<Partition>> {
        let Self { loaded, definitions, .. } = self;
        let kept = loaded.entry(partition.key).or_insert_with(|| {
            partition.count_in(definitions);
            Arc::new(RwLock::new(partition))
        });
        Arc::clone(kept)
    }

    /// Forgets a partition, or all that is in memory of it.
    pub(crate) fn forget(&mut self, key: &PartitionKey) {
        if self.loaded.remove(key).is_some() {
            self.outgrown.insert(key.tenant);
        }
    }

    /// Forgets partitions that nobody uses until few enough are left, those of the oldest times first: new samples and most
    /// queries go to the newest. One that a selection holds stays: a second copy of it would get what the first then lacks.
    pub(crate) fn let_go(&mut self, bytes_max: usize) {
        let is_over = |state: &Self| state.dictionary_bytes() > bytes_max;
        if is_over(self) {
            // What nothing needs any more goes before what may be asked for.
            self.renew_vocabularies(true);
        }
        let is_over = is_over(self);
        let count = self.loaded.len();
        if !is_over && count <= IDLE_PARTITIONS_MAX {
            return self.renew_vocabularies(false);
        }
        let bytes_left = if is_over { bytes_max / 4 * 3 } else { bytes_max };
        let count_left = if count > IDLE_PARTITIONS_MAX { IDLE_PARTITIONS_MAX / 4 * 3 } else { count };
        let mut oldest_first: Vec<PartitionKey> = self.loaded.keys().copied().collect();
        oldest_first.sort_by_key(|key| key.end_ns());
        let mut freed = 0;
        for key in oldest_first {
            // What a partition alone needs of the vocabulary goes later, about as much again.
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
        self.renew_vocabularies(is_over);
    }

    /// Makes vocabularies anew, of what the partitions in memory need, where it is worth it: all that may hold more, or those that
    /// hold far more, or of which nothing is needed. It takes long, and everybody waits.
    pub(crate) fn renew_vocabularies(&mut self, all: bool) {
        let mut kept = BTreeSet::new();
        for tenant in std::mem::take(&mut self.outgrown) {
            let Some(vocabulary) = self.vocabularies.get(&tenant).map(Arc::clone) else { continue };
            let is_needed = self.loaded.keys().any(|key| key.tenant == tenant);
            if is_needed && !all && !vocabulary.read().has_doubled() {
                kept.insert(tenant);
                continue;
            }
            self.generations += 1;
            let partitions: Vec<_> = self.loaded.iter().filter(|(key, _)| key.tenant == tenant).collect();
            let mut vocabulary = vocabulary.write();
            let mut partitions: Vec<_> = partitions.iter().map(|(_, partition)| partition.write()).collect();
            vocabulary.renew(self.generations, &mut partitions);
        }
        self.outgrown = kept;
    }
}

#[cfg(test)]
mod tests {
    use proto::{Label, LabelSet};

    use super::*;

    const TENANT: u32 = 0;

    /// A partition of minutes with a series that no other one has, all of it written, and how many there are before it.
    fn partition(state: &mut State, place: u32, label_bytes: usize) {
        let vocabulary = state.vocabulary(TENANT);
        let mut vocabulary = vocabulary.write();
        let key = PartitionKey::of(Tier::Minute, 0, TENANT, i64::from(place + 1) * Tier::Minute.partition_ns());
        let mut partition = Partition::new(key, vocabulary.generation());
        let value = format!("{place}{}", "x".repeat(label_bytes));
        let labels = LabelSet::new(vec![Label::new("pod", &value)]);
        let fingerprint = labels.fingerprint(&TenantId::default_tenant());
        partition.add_series(fingerprint, || vocabulary.share_labels(Arc::new(labels)));
        partition.wrote(partition.lengths());
        vocabulary.recount();
        state.keep(partition);
    }

    #[test]
    fn many_partitions_are_let_go_at_once_and_the_vocabulary_is_made_anew_only_where_that_saves_much() {
        let mut state = State::default();
        for place in 0..1500 {
            partition(&mut state, place, 10);
            state.let_go(usize::MAX);
            assert!(state.loaded.len() <= IDLE_PARTITIONS_MAX);
        }
        assert!(state.loaded.len() >= IDLE_PARTITIONS_MAX / 4 * 3, "{}", state.loaded.len());
        assert_eq!(state.generations, 1, "a small one was made anew");
        // 64 MiB of labels in all, of which few are needed.
        for place in 1500..1564 {
            partition(&mut state, place, 1 << 20);
            state.let_go(usize::MAX);
        }
        assert!(state.generations <= 4, "{} times", state.generations - 1);
    }

    #[test]
    fn what_nothing_needs_any_more_goes_before_what_may_be_asked_for() {
        let mut state = State::default();
        for place in 0..20 {
            partition(&mut state, place, 1 << 20);
        }
        let first: Vec<PartitionKey> = state.loaded.keys().copied().take(18).collect();
        first.iter().for_each(|key| state.forget(key));
        assert!(state.dictionary_bytes() > 18 << 20);
        state.let_go(10 << 20);
        assert_eq!(state.loaded.len(), 2);
        assert!(state.dictionary_bytes() < 5 << 20, "{} bytes", state.dictionary_bytes());
        // And nothing is left of a tenant without partitions.
        let rest: Vec<PartitionKey> = state.loaded.keys().copied().collect();
        rest.iter().for_each(|key| state.forget(key));
        state.let_go(usize::MAX);
        assert!(state.dictionary_bytes() < 10_000, "{} bytes", state.dictionary_bytes());
    }
}
