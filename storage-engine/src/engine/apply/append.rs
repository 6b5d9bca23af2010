//! Applies batches: adds definitions to the tenant dictionary and to partitions, and samples to heads.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Batch, BatchId, Command, Entry, Importer, Samples, StackPair, Stripped, Tier, limits};

use crate::database::key::PartitionKey;
use crate::engine::Engine;
use crate::engine::apply::split::{self, Part};
use crate::engine::apply::strip::{defines_nothing, strip};
use crate::error::{EngineError, StripError};
use crate::integrity::quarantine::area::Area;
use crate::memory::batch_ids;
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::{BatchNodes, Pair, TenantDictionary};
use crate::{Outcome, Position, TimeResolution};

/// Key of a partition, the partition if it exists, and the parts of a batch for it.
struct Destination<'a> {
    key: PartitionKey,
    partition: Option<Arc<RwLock<Partition>>>,
    parts: Vec<Part<'a>>,
}

impl Engine {
    /// Removes definitions from the batch that the shard already has, so that only new ones are proposed.
    /// Returns what is needed to restore the batch, or `None` if it is still complete.
    ///
    /// # Errors
    /// [`StripError`]: the batch is refused, temporarily or permanently, or a partition cannot be read. The batch must
    /// not be used afterwards.
    pub fn strip(&self, batch: &mut Batch) -> Result<Option<Stripped>, StripError> {
        let tenant = self.state.read().tenants.get(&batch.tenant).copied();
        let keys: Vec<_> = split::parts(tenant.unwrap_or_default(), batch).into_keys().collect();
        let partitions = keys.len();
        let partitions_max = limits::BATCH_PARTITIONS_MAX;
        if partitions > partitions_max {
            return Err(StripError::TooManyPartitions { partitions, partitions_max });
        }
        let known =
            keys.iter().map(|&key| self.partition_or_replacement(key)).collect::<Result<Option<Vec<_>>, _>>()?;
        let known = known.filter(|_| tenant.is_some()).unwrap_or_default();
        let shared = self.tenant_dictionary(tenant.unwrap_or_default());
        let left_out = if known.is_empty() {
            if !batch.is_whole() {
                return Err(StripError::Dangling);
            }
            None
        } else {
            Some(strip(batch, &known, &shared.read()).ok_or(StripError::Dangling)?)
        };
        let new_series = batch.series.iter().filter(|series| series.labels.is_some()).count();
        if new_series > 0 {
            for partition in &known {
                check_series(&partition.read(), new_series)?;
            }
        }
        let bytes = self.dictionary_bytes();
        let bytes_max = self.config.dictionary_bytes_max;
        if bytes > bytes_max && (left_out.is_none() || !defines_nothing(batch, &shared.read())) {
            return Err(StripError::DictionaryFull { bytes, bytes_max });
        }
        Ok(left_out)
    }

    /// Applies the entry at the next position.
    ///
    /// # Errors
    /// [`EngineError`]: the state is unchanged or not trustworthy; the replica must stop.
    pub fn apply(&self, position: Position, entry: &Entry) -> Result<Outcome, EngineError> {
        self.check_order(&position)?;
        match &entry.command {
            Command::Append(batch) => self.append(position, entry.proposed_at_ns, batch),
            &Command::Expire { tier, retention_class, before_ns } => {
                self.expire(position, entry.proposed_at_ns, tier, retention_class, before_ns)
            }
            Command::Delete(deletion) => self.delete(position, entry.proposed_at_ns, deletion),
        }
    }

    /// Skips an entry that holds no command. Keeps a new membership, if any, for the log.
    ///
    /// # Errors
    /// [`EngineError::OutOfOrder`].
    pub fn skip(&self, position: Position, membership: Option<bytes::Bytes>) -> Result<(), EngineError> {
        self.check_order(&position)?;
        let mut state = self.state.write();
        state.applied = Some(position);
        if membership.is_some() {
            state.membership = membership;
        }
        Ok(())
    }

    fn check_order(&self, position: &Position) -> Result<(), EngineError> {
        let applied = self.state.read().applied.as_ref().map_or(0, |applied| applied.index);
        // A log begins at 0 or 1, and has no gaps after that.
        if applied > 0 && position.index != applied + 1 {
            return Err(EngineError::OutOfOrder { index: position.index, applied });
        }
        Ok(())
    }

    fn append(&self, position: Position, now_ns: i64, batch: &Batch) -> Result<Outcome, EngineError> {
        let (now_ns, tenant, is_new_tenant, horizon_ns) = {
            let state = self.state.read();
            let known = state.tenants.get(&batch.tenant).copied();
            let next = u32::try_from(state.tenants.len()).unwrap_or(u32::MAX);
            let horizon_ns = state.horizon_ns(Tier::Raw, batch.retention_class);
            (state.clock_ns.max(now_ns), known.unwrap_or(next), known.is_none(), horizon_ns)
        };
        let pass = |outcome| {
            let mut state = self.state.write();
            state.applied = Some(position.clone());
            state.clock_ns = now_ns;
            Ok(outcome)
        };
        // Raw samples of this time were dropped while the batch was on its way. Its samples would create a chunk
        // without the dropped ones.
        let (parts, late): (Vec<_>, Vec<_>) =
            split::parts(tenant, batch).into_iter().partition(|(key, _)| key.end_ns() > horizon_ns);
        let samples_too_old: u64 = late.iter().flat_map(|(_, parts)| parts).map(Part::samples).sum();
        let outcome = if samples_too_old > 0 { Outcome::Partial { samples_too_old } } else { Outcome::Applied };
        if parts.is_empty() {
            return pass(outcome);
        }
        let id_partitions = batch_ids::partitions_of(batch, tenant);
        if let Some(id) = batch.id
            && self.is_known(id, &id_partitions)?
        {
            return pass(Outcome::Duplicate);
        }
        let mut partitions = Vec::new();
        for (key, parts) in parts {
            partitions.push(Destination { key, partition: self.partition_or_replacement(key)?, parts });
        }
        let shared = self.tenant_dictionary(tenant);
        let (nodes, incomplete) = known_nodes(batch, &partitions, &shared.read());
        // A partition that replaced a damaged one misses definitions that the entry may rely on. The entry is applied
        // there without the samples that need them, which lie in a damaged area. No other outcome may follow from
        // damage that only this replica has.
        if incomplete.iter().any(|key| !self.state.read().replaced.contains_key(key)) {
            return pass(Outcome::Dangling);
        }
        // Definitions are added first. Nothing refers to them yet, so the state is locked only while samples are
        // added.
        let mut imported = Vec::new();
        let mut skipped = Vec::new();
        for Destination { key, partition, parts } in partitions {
            let partition = self.existing_or_new(key, partition, &shared);
            let mut shared = shared.write();
            let mut inner = partition.write();
            let skips_undefined = incomplete.contains(&key);
            let mut import = Import::new(batch, shared.current(&nodes), self.config.time_resolution, skips_undefined);
            let samples: Vec<_> = parts.iter().filter_map(|part| import.part(&mut inner, &mut shared, part)).collect();
            inner.recount();
            shared.recount();
            skipped.extend(import.skipped.into_iter().map(|window| (key, window)));
            drop(inner);
            imported.push((partition, samples));
        }
        let mut state = self.state.write();
        for (key, window) in skipped {
            let area = Area::of_windows(window, window);
            state.quarantine_in_all_tiers(key, area, "definitions of new samples were damaged");
        }
        if is_new_tenant {
            state.tenants.insert(batch.tenant.clone(), tenant);
            state.unwritten_tenants.insert(tenant, batch.tenant.clone());
        }
        for (partition, samples) in imported {
            state.add_samples(&mut partition.write(), samples, now_ns);
        }
        if let Some((id, &partition)) = batch.id.zip(id_partitions.first()) {
            state.batch_ids.insert(id, partition);
        }
        state.applied = Some(position);
        state.clock_ns = now_ns;
        Ok(outcome)
    }

    fn is_known(&self, id: BatchId, partitions: &[PartitionKey]) -> Result<bool, EngineError> {
        let is_unwritten = self.state.read().batch_ids.is_unwritten(id, partitions);
        // The disk is read without the lock. An ID that a flush writes meanwhile is briefly in both places, never in
        // none.
        Ok(is_unwritten || batch_ids::is_written(&self.database, id, partitions)?)
    }

    /// Returns the partition and adds it to the state, so that a rebuild of the tenant dictionary includes it.
    fn existing_or_new(
        &self,
        key: PartitionKey,
        partition: Option<Arc<RwLock<Partition>>>,
        shared: &RwLock<TenantDictionary>,
    ) -> Arc<RwLock<Partition>> {
        let mut state = self.state.write();
        state.existing.insert(key.in_tier(Tier::Raw));
        if let Some(partition) = partition {
            return partition;
        }
        state.existing.insert(key);
        let generation = shared.read().generation();
        state.keep(Partition::new(key, generation))
    }
}

/// Returns the known nodes of a batch's stacks, and the partitions that do not have definitions that the batch omits.
fn known_nodes(
    batch: &Batch,
    partitions: &[Destination<'_>],
    shared: &TenantDictionary,
) -> (BatchNodes, Vec<PartitionKey>) {
    let nodes = shared.nodes_of(&batch.dictionary);
    let knows = |Destination { key, partition, .. }: &Destination<'_>| match partition {
        Some(partition) => partition.read().has_stripped_definitions(batch, &nodes),
        None => Partition::new(*key, 0).has_stripped_definitions(batch, &nodes),
    };
    let incomplete =
        partitions.iter().filter(|partition| !knows(partition)).map(|destination| destination.key).collect();
    (nodes, incomplete)
}

/// Checks the number of series in one partition: each costs memory in every query.
fn check_series(partition: &Partition, new: usize) -> Result<(), StripError> {
    let series = partition.series.len() + new;
    let series_max = limits::PARTITION_SERIES_MAX;
    if series <= series_max {
        return Ok(());
    }
    let (label, values) = partition.index.widest().unwrap_or_default();
    Err(StripError::TooManySeries { series, series_max, label: label.to_owned(), values })
}

/// Import of a batch into one partition, with the numbers of its definitions there.
struct Import<'a> {
    batch: &'a Batch,
    resolution: TimeResolution,
    importer: Importer<'a>,
    /// Node in the tenant dictionary of each stack of the batch, if it is known.
    stacks: Vec<Option<u32>>,
    pairs: Vec<u32>,
    attribute_sets: Vec<u32>,
    /// True if samples are skipped whose series or stack is not defined.
    skips_undefined: bool,
    /// Windows of chunks of the skipped samples.
    skipped: BTreeSet<u32>,
}

/// Marks a number that is not known yet.
const UNKNOWN: u32 = u32::MAX;

impl<'a> Import<'a> {
    /// Creates an import. `stacks`: the known nodes of the batch's stacks.
    fn new(batch: &'a Batch, stacks: Vec<Option<u32>>, resolution: TimeResolution, skips_undefined: bool) -> Self {
        let dictionary = &batch.dictionary;
        Self {
            batch,
            resolution,
            importer: Importer::new(dictionary),
            stacks,
            pairs: vec![UNKNOWN; dictionary.pairs.len()],
            attribute_sets: vec![UNKNOWN; dictionary.attribute_sets.len()],
            skips_undefined,
            skipped: BTreeSet::new(),
        }
    }

    /// Adds the definitions of a part to the partition. Returns the number of the series, and the samples with the
    /// partition's numbers. Returns `None` if undefined samples are skipped and the series is not defined.
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
            samples.push(self.resolution.round(from.times_ns[i]), pair, from.values[i], set);
        });
        Some((number, samples))
    }

    fn skip(&mut self, time_ns: i64) {
        self.skipped.insert(Tier::Raw.window_of(self.resolution.round(time_ns)));
    }

    /// Returns whether both stacks of a pair are known, here or in the batch.
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
