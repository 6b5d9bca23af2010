//! What an engine has in memory beside its database, and which of it is where.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use proto::{TenantId, Tier};

use crate::Position;
use crate::batch_ids::BatchIds;
use crate::database::Expired;
use crate::head::SAMPLE_BYTES;
use crate::key::{PartitionKey, StaleKey};
use crate::partition::Partition;
use crate::vocabulary::Vocabulary;

/// Partitions that are kept in memory without new samples, for queries; older ones are read again when needed.
const IDLE_PARTITIONS_MAX: usize = 64;

/// Locks are taken in this order: state, vocabulary, partitions in the order of their keys, so finer tiers first.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) applied: Option<Position>,
    pub(crate) membership: Option<Bytes>,
    /// The largest `proposed_at_ns` so far: the only clock here.
    pub(crate) clock_ns: i64,
    pub(crate) tenants: BTreeMap<TenantId, u32>,
    pub(crate) unwritten_tenants: BTreeMap<u32, TenantId>,
    pub(crate) batch_ids: BatchIds,
    /// All partitions that exist, loaded or not.
    pub(crate) existing: BTreeSet<PartitionKey>,
    /// Never of raw samples: those are in the partition of their minutes.
    pub(crate) loaded: BTreeMap<PartitionKey, Arc<RwLock<Partition>>>,
    pub(crate) vocabularies: BTreeMap<u32, Arc<RwLock<Vocabulary>>>,
    pub(crate) generations: u64,
    /// Windows that are not the sum of their finer ones (yet).
    pub(crate) stale: BTreeSet<StaleKey>,
    pub(crate) expired: Expired,
    pub(crate) head_samples: usize,
    /// How often partitions were let go: what was read of one before may lack what came since.
    pub(crate) lettings_go: u64,
}

impl State {
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_samples * SAMPLE_BYTES
    }

    /// A tenant's vocabulary.
    pub(crate) fn vocabulary(&mut self, tenant: u32) -> Arc<RwLock<Vocabulary>> {
        let Self { vocabularies, generations, .. } = self;
        let vocabulary = vocabularies.entry(tenant).or_insert_with(|| {
            *generations += 1;
            Arc::new(RwLock::new(Vocabulary::new(*generations)))
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
        let vocabularies = self.vocabularies.values().map(|vocabulary| vocabulary.read().memory_bytes());
        let partitions = self.loaded.values().map(|partition| partition.read().memory_bytes());
        vocabularies.chain(partitions).sum()
    }

    /// Forgets partitions that nobody uses until few enough are left, those of the oldest times first: new samples and most
    /// queries go to the newest. One that a selection holds stays: a second copy of it would get what the first then lacks.
    pub(crate) fn let_go(&mut self, bytes_max: usize) {
        let mut bytes = self.dictionary_bytes();
        let mut count = self.loaded.len();
        let mut oldest_first: Vec<PartitionKey> = self.loaded.keys().copied().collect();
        oldest_first.sort_by_key(|key| key.end_ns());
        let mut tenants = BTreeSet::new();
        for key in oldest_first {
            if count <= 1 || (count <= IDLE_PARTITIONS_MAX && bytes <= bytes_max) {
                break;
            }
            let Some(partition) = self.loaded.get(&key) else { continue };
            let inner = partition.read();
            if !inner.head.is_empty() || inner.has_unwritten() || Arc::strong_count(partition) > 1 {
                continue;
            }
            // What it alone needs of the vocabulary goes too, about as much again.
            bytes = bytes.saturating_sub(inner.memory_bytes() * 2);
            drop(inner);
            count -= 1;
            self.loaded.remove(&key);
            self.lettings_go += 1;
            tenants.insert(key.tenant);
        }
        for tenant in tenants {
            self.renew_vocabulary(tenant);
        }
    }

    /// Makes a tenant's vocabulary anew, of what its partitions in memory need.
    fn renew_vocabulary(&mut self, tenant: u32) {
        let partitions: Vec<_> = self.loaded.iter().filter(|(key, _)| key.tenant == tenant).collect();
        let Some(vocabulary) = self.vocabularies.get(&tenant) else { return };
        self.generations += 1;
        let mut old = vocabulary.write();
        let mut partitions: Vec<_> = partitions.iter().map(|(_, partition)| partition.write()).collect();
        *old = old.renewed(self.generations, &mut partitions);
    }
}
