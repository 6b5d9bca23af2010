//! Applies batches: adds definitions to the tenant dictionary and to partitions, and samples to heads.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Batch, BatchId, Importer, Samples, StackPair, TenantId, Tier, limits};

use crate::database::key::PartitionKey;
use crate::engine::Engine;
use crate::engine::apply::split::{self, Part};
use crate::engine::state::State;
use crate::engine::state::partitions::SharedPartition;
use crate::error::EngineError;
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::replace::replace_partition;
use crate::memory::batch_ids;
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::{BatchNodes, Pair, TenantDictionary};
use crate::{Outcome, Position};

/// Partition that a batch has samples for: its key, the partition if it exists, and the batch's samples for it.
struct Destination<'a> {
    key: PartitionKey,
    partition: Option<SharedPartition>,
    parts: Vec<Part<'a>>,
}

/// Samples of a batch, with the numbers that one partition gives to series, pairs and attribute sets.
struct Imported {
    key: PartitionKey,
    partition: SharedPartition,
    /// Samples by number of the series.
    samples: Vec<(u32, Samples)>,
    /// Windows of chunks in which samples were skipped because their definitions are damaged.
    skipped: BTreeSet<u32>,
}

impl Imported {
    /// Adds the samples to the head, and quarantines the windows of skipped samples.
    fn add_to(self, state: &mut State) {
        for window in self.skipped {
            let area = Area::of_windows(window, window);
            state.quarantine_in_all_tiers(self.key, area, "definitions of new samples were damaged");
        }
        let now_ns = state.clock.entries_ns();
        state.partitions.add_samples(&mut self.partition.write(), self.samples, now_ns);
    }
}

/// Applies a batch.
pub(crate) fn append(engine: &Engine, position: Position, now_ns: i64, batch: &Batch) -> Result<Outcome, EngineError> {
    let tenant = engine.store.state().tenants.number_or_next(&batch.tenant);
    let parts = split::parts(tenant, batch);
    let state = engine.store.state();
    let keys: Vec<PartitionKey> = parts.keys().copied().collect();
    let id_partitions = batch_ids::partitions_of(&keys, &state.partitions);
    // Samples whose partition of raw samples expired while the batch was on its way are not stored. They would create a
    // chunk without the expired samples.
    let (parts, late): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(key, _)| !is_expired(&state, *key));
    drop(state);
    let pass = |outcome| {
        engine.store.state_mut().apply(position.clone(), now_ns);
        Ok(outcome)
    };
    let samples_too_old: u64 = late.iter().flat_map(|(_, parts)| parts).map(Part::samples).sum();
    let outcome = if samples_too_old > 0 { Outcome::Partial { samples_too_old } } else { Outcome::Applied };
    let Some(newest) = parts.last().map(|(key, _)| key.in_tier(Tier::Raw)) else { return pass(outcome) };
    if let Some(id) = batch.id
        && is_known(engine, id, &id_partitions)?
    {
        return pass(Outcome::Duplicate);
    }
    let mut destinations = Vec::new();
    for (key, parts) in parts {
        destinations.push(Destination { key, partition: partition_or_replacement(engine, key)?, parts });
    }
    let shared = engine.store.tenant_dictionary(tenant);
    let (nodes, incomplete) = known_nodes(batch, &destinations, &shared.read());
    // A partition that replaced a damaged one lacks definitions that the entry may omit. Samples that need them are
    // skipped, and their windows are quarantined. The outcome must not depend on the damage, because other replicas do
    // not have it.
    if incomplete.iter().any(|&key| engine.store.state().damage.newest_replaced_file(key).is_none()) {
        return pass(Outcome::Dangling);
    }
    // Definitions are added first. Nothing refers to them yet, so the state is locked only while samples are
    // added.
    let mut imported = Vec::new();
    for destination in destinations {
        let is_complete = !incomplete.contains(&destination.key);
        imported.push(import(engine, batch, destination, &shared, &nodes, is_complete));
    }
    let mut state = engine.store.state_mut();
    state.apply(position, now_ns);
    state.tenants.add(&batch.tenant);
    state.label_drops.note_samples(tenant, newest.end_ns());
    imported.into_iter().for_each(|imported| imported.add_to(&mut state));
    if let Some(id) = batch.id {
        state.batch_ids.insert(id, newest);
    }
    Ok(outcome)
}

/// Returns whether the raw samples of a partition of minutes have expired: those of its class, or those that the tenant
/// has in another class. The IDs of batches expire with the raw samples, and a retry must not be added to the sums of
/// the other class.
fn is_expired(state: &State, minutes: PartitionKey) -> bool {
    let expired = state.horizons.expired().filter(|&(tier, _)| tier == Tier::Raw);
    let classes = expired
        .map(|(_, class)| class)
        .filter(|&class| class == minutes.class || state.partitions.exists(&minutes.in_class(class)));
    classes.map(|class| state.horizons.horizon_ns(Tier::Raw, class)).any(|horizon_ns| minutes.end_ns() <= horizon_ns)
}

/// Adds the definitions of a batch to a partition. Returns the samples with the partition's numbers. Unless
/// `is_complete`, skips samples whose series or stack is not defined.
fn import(
    engine: &Engine,
    batch: &Batch,
    Destination { key, partition, parts }: Destination<'_>,
    shared: &RwLock<TenantDictionary>,
    nodes: &BatchNodes,
    is_complete: bool,
) -> Imported {
    let partition = existing_or_new(engine, key, partition, shared);
    let mut shared = shared.write();
    let mut inner = partition.write();
    let mut stacks = match shared.current(nodes) {
        Some(nodes) => nodes.to_vec(),
        None => shared.nodes_of(&batch.dictionary, |node| inner.knows_stack(node)).nodes,
    };
    if !is_complete {
        // A reference to a lost stack may look like one to a stack of another partition.
        for (node, (_, stack)) in stacks.iter_mut().zip(batch.dictionary.stacks.iter()) {
            *node = node.filter(|&node| stack.is_some() || inner.knows_stack(node));
        }
    }
    let mut import = Import::new(batch, stacks, !is_complete);
    let samples = parts.iter().filter_map(|part| import.part(&mut inner, &mut shared, part)).collect();
    inner.recount();
    shared.recount();
    let skipped = import.skipped;
    drop(inner);
    Imported { key, partition, samples, skipped }
}

/// Returns a partition; `None` if it does not exist. Replaces it first if its definitions are damaged.
pub(crate) fn partition_or_replacement(
    engine: &Engine,
    key: PartitionKey,
) -> Result<Option<SharedPartition>, EngineError> {
    match engine.store.partition(key) {
        Err(EngineError::Quarantined { .. }) => {
            let writing = engine.writing();
            replace_partition(&writing, key).inspect_err(|error| writing.database().note_error(error))
        }
        partition => partition,
    }
}

/// Returns whether a batch of a tenant with this ID is in a partition of the last
/// [`limits::IDEMPOTENCY_WINDOW_NS`], or ahead of the time of the entries by as much as samples may be.
pub(crate) fn holds_batch(engine: &Engine, tenant: &TenantId, id: BatchId) -> Result<bool, EngineError> {
    let partitions = {
        let state = engine.store.state();
        let Some(tenant) = state.tenants.number(tenant) else { return Ok(false) };
        let now_ns = state.clock.entries_ns();
        let oldest_ns = now_ns.saturating_sub(limits::IDEMPOTENCY_WINDOW_NS);
        let newest_ns = now_ns.saturating_add(limits::TIME_AHEAD_MAX_NS);
        let partition = |time_ns| PartitionKey::of(Tier::Minute, 0, tenant, time_ns);
        batch_ids::partitions_of(&[partition(oldest_ns), partition(newest_ns)], &state.partitions)
    };
    is_known(engine, id, &partitions)
}

fn is_known(engine: &Engine, id: BatchId, partitions: &[PartitionKey]) -> Result<bool, EngineError> {
    if engine.store.state().batch_ids.is_unwritten(id, partitions) {
        return Ok(true);
    }
    // The disk is read without the lock. An ID that a flush writes meanwhile is briefly in both places, never in
    // none.
    let found = engine.store.database().find_batch(id, partitions)?;
    for (partition, error) in found.unreadable {
        engine.store.database().note_file(error.as_ref());
        engine.store.state_mut().damage.lose_batch_ids(partition);
    }
    Ok(found.is_written)
}

/// Returns the partition, creating it if it is missing. Adds the partition to the state first, so that a rebuild of the
/// tenant dictionary includes it.
fn existing_or_new(
    engine: &Engine,
    key: PartitionKey,
    partition: Option<SharedPartition>,
    shared: &RwLock<TenantDictionary>,
) -> SharedPartition {
    let mut state = engine.store.state_mut();
    state.partitions.add(key.in_tier(Tier::Raw));
    if let Some(partition) = partition {
        return partition;
    }
    state.partitions.add(key);
    let generation = shared.read().generation();
    state.partitions.keep(Partition::new(key, generation))
}

/// Returns the known nodes of a batch's stacks, and the partitions that lack a definition that the batch omits.
fn known_nodes(
    batch: &Batch,
    partitions: &[Destination<'_>],
    shared: &TenantDictionary,
) -> (BatchNodes, Vec<PartitionKey>) {
    let is_known = |node| {
        let of = partitions.iter().filter_map(|destination| destination.partition.as_ref());
        { of }.any(|partition| partition.read().knows_stack(node))
    };
    let nodes = shared.nodes_of(&batch.dictionary, is_known);
    let knows = |Destination { key, partition, .. }: &Destination<'_>| match partition {
        Some(partition) => partition.read().has_stripped_definitions(batch, &nodes),
        None => Partition::new(*key, 0).has_stripped_definitions(batch, &nodes),
    };
    let incomplete =
        partitions.iter().filter(|partition| !knows(partition)).map(|destination| destination.key).collect();
    (nodes, incomplete)
}

/// Import of a batch into one partition. It maps the batch's definitions to their numbers in the partition.
struct Import<'a> {
    batch: &'a Batch,
    importer: Importer<'a>,
    /// For each stack of the batch, its node in the tenant dictionary; `None` if the stack is not known.
    stacks: Vec<Option<u32>>,
    pairs: Vec<u32>,
    attribute_sets: Vec<u32>,
    /// True if samples are skipped when their series or stack is not defined.
    skips_undefined: bool,
    /// Windows of chunks in which samples were skipped.
    skipped: BTreeSet<u32>,
}

/// Stands for a number of the partition that is not known yet.
const UNKNOWN: u32 = u32::MAX;

impl<'a> Import<'a> {
    /// Creates an import. `stacks` holds the known nodes of the batch's stacks.
    fn new(batch: &'a Batch, stacks: Vec<Option<u32>>, skips_undefined: bool) -> Self {
        let dictionary = &batch.dictionary;
        Self {
            batch,
            importer: Importer::new(dictionary),
            stacks,
            pairs: vec![UNKNOWN; dictionary.pairs.len()],
            attribute_sets: vec![UNKNOWN; dictionary.attribute_sets.len()],
            skips_undefined,
            skipped: BTreeSet::new(),
        }
    }

    /// Adds the definitions of a part to the partition. Returns the number of the series, and the samples with the
    /// partition's numbers. Returns `None` if the series is not defined and undefined samples are skipped.
    fn part(&mut self, to: &mut Partition, shared: &mut TenantDictionary, part: &Part<'_>) -> Option<(u32, Samples)> {
        let series = part.series;
        if self.skips_undefined && series.labels.is_none() && !to.series.contains_key(&series.fingerprint) {
            part.for_each(|i| self.skip(series.samples.times_ns[i]));
            return None;
        }
        let labels = || series.labels.clone().unwrap_or_default();
        let number = match to.series.get_index_of(&series.fingerprint) {
            Some(number) => crate::memory::interner::saturating_u32(number),
            None => to.add_series(series.fingerprint, || shared.share_labels(Arc::new(labels()))),
        };
        let from = &series.samples;
        let mut samples = Samples::with_capacity(part.samples() as usize);
        part.for_each(|i| {
            if self.skips_undefined && !self.defines(from.pairs[i]) {
                self.skip(from.times_ns[i]);
                return;
            }
            let pair = self.pair(to, shared, from.pairs[i]);
            let set = self.attribute_set(to, shared, from.attribute_sets[i]);
            samples.push(from.times_ns[i], pair, from.values[i], set);
        });
        Some((number, samples))
    }

    fn skip(&mut self, time_ns: i64) {
        self.skipped.insert(Tier::Raw.window_of(time_ns));
    }

    /// Returns whether both stacks of a pair are defined: known in the tenant dictionary, or defined by the batch.
    fn defines(&self, pair: u32) -> bool {
        let dictionary = &self.batch.dictionary;
        let StackPair { user, kernel } = dictionary.pairs[pair as usize];
        [user, kernel].into_iter().all(|id| self.stacks[id as usize].is_some() || dictionary.stacks.get(id).is_some())
    }

    fn pair(&mut self, to: &mut Partition, shared: &mut TenantDictionary, id: u32) -> u32 {
        if self.pairs[id as usize] == UNKNOWN {
            let StackPair { user, kernel } = self.batch.dictionary.pairs[id as usize];
            let pair = Pair { user: self.stack(shared, user), kernel: self.stack(shared, kernel) };
            self.pairs[id as usize] = to.add_pair(pair).0;
        }
        self.pairs[id as usize]
    }

    fn stack(&mut self, shared: &mut TenantDictionary, id: u32) -> u32 {
        let node = self.stacks[id as usize]
            .unwrap_or_else(|| shared.import_stack(&mut self.importer, &self.batch.dictionary, id).unwrap_or_default());
        self.stacks[id as usize] = Some(node);
        node
    }

    fn attribute_set(&mut self, to: &mut Partition, shared: &mut TenantDictionary, id: u32) -> u32 {
        if self.attribute_sets[id as usize] == UNKNOWN {
            let set = self.importer.attributes(&mut shared.dictionary, id);
            self.attribute_sets[id as usize] = to.add_attribute_set(set, shared).0;
        }
        self.attribute_sets[id as usize]
    }
}

#[cfg(test)]
mod tests;
