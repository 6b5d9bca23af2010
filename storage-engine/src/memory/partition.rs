//! A partition in memory: its series, and its dictionary in the form of numbers that refer to the tenant's dictionary.
//! A partition of minutes also holds the head of the raw samples of the same time.
//!
//! Pairs, attribute sets and series are numbered consecutively, in the order of their arrival. Chunks and windows on
//! disk refer to these numbers. The lists only grow. `persisted` counts the entries of each list that are in the state
//! database, so a flush writes only new entries.

pub(crate) mod sample_times;
pub(crate) mod stored_partition;
pub(crate) mod unwritten;

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use indexmap::map::Entry;
use indexmap::{IndexMap, IndexSet};
use prost::Message as _;
use proto::label::{PROFILE_TYPE_LABEL, sanitize_label_name};
use proto::{Batch, Fingerprint, LabelSet, ProfileType, Tier, wire};
use roaring::RoaringBitmap;

use crate::database::key::PartitionKey;
use crate::memory::dictionary_block::{self, Block, LEVEL_FINAL, LEVEL_GROWING};
use crate::memory::dropped_name::{self, DroppedName};
use crate::memory::footprint::{Footprint, MemoryTotal};
use crate::memory::head::Head;
use crate::memory::interner::{Interner, saturating_u32};
use crate::memory::label_index::LabelIndex;
use crate::memory::partition::sample_times::SampleTimes;
use crate::memory::partition::unwritten::{FramedValue, UncompressedValue, Unwritten};
use crate::memory::tenant_dictionary::{BatchNodes, Pair, ROOT, TenantDictionary, label_set_bytes};

/// Approximate memory of a name in a set, in addition to its text, in bytes.
const NAME_BYTES: usize = 64;

/// Approximate memory of a series in the list of series, without its label set, in bytes.
const SERIES_BYTES: usize = 56;

/// zstd level of blocks of series.
const SERIES_LEVEL: i32 = 3;

/// Number of entries in each of a partition's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) pairs: usize,
    pub(crate) attribute_sets: usize,
    pub(crate) series: usize,
    pub(crate) dropped_names: usize,
}

/// A partition in memory.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Key of the partition. It is never a key of raw samples.
    pub(crate) key: PartitionKey,
    /// Generation of the tenant's dictionary that the numbers of the partition refer to.
    pub(crate) generation: u64,
    pub(crate) pairs: Interner<Pair>,
    /// Nodes of the tenant's dictionary at which a stacktrace of a pair ends.
    stacks: RoaringBitmap,
    pub(crate) attribute_sets: Interner<u32>,
    /// Keys of the samples' attributes. Each is the number of a string in the tenant's dictionary. `attribute_names`
    /// holds the same keys in the form that queries use.
    attribute_keys: RoaringBitmap,
    attribute_names: BTreeSet<String>,
    /// Approximate memory of `attribute_names` and `dropped_names`, in bytes.
    name_bytes: usize,
    pub(crate) series: IndexMap<Fingerprint, Arc<LabelSet>, FixedState>,
    gauges: RoaringBitmap,
    pub(crate) index: LabelIndex,
    /// Labels and attributes that samples had, but that the windows of this tier do not have.
    dropped_names: IndexSet<DroppedName, FixedState>,
    pub(crate) head: Head,
    pub(crate) sample_times: SampleTimes,
    persisted: Lengths,
    dictionary_blocks: u32,
    dropped_name_blocks: u32,
    /// Approximate memory of the label sets, in bytes, if they are not in the tenant's dictionary.
    label_set_bytes: usize,
    footprint: Footprint,
}

impl Partition {
    pub(crate) fn new(key: PartitionKey, generation: u64) -> Self {
        let mut partition = Self {
            key,
            generation,
            pairs: [Pair::default()].into_iter().collect(),
            stacks: RoaringBitmap::new(),
            attribute_sets: [0].into_iter().collect(),
            attribute_keys: RoaringBitmap::new(),
            attribute_names: BTreeSet::new(),
            name_bytes: 0,
            series: IndexMap::default(),
            gauges: RoaringBitmap::new(),
            index: LabelIndex::default(),
            dropped_names: IndexSet::default(),
            head: Head::default(),
            sample_times: SampleTimes::default(),
            persisted: Lengths::default(),
            dictionary_blocks: 0,
            dropped_name_blocks: 0,
            label_set_bytes: 0,
            footprint: Footprint::default(),
        };
        partition.persisted = partition.lengths();
        partition
    }

    /// Adds the entries of a dictionary block. Returns false if the partition already has one of them.
    pub(crate) fn add_block(&mut self, block: &Block, shared: &mut TenantDictionary) -> bool {
        let Some(added) = block.add_to(shared) else { return false };
        let mut is_new = true;
        for pair in added.pairs {
            is_new &= self.add_pair(pair).1;
        }
        for set in added.attribute_sets {
            is_new &= self.add_attribute_set(set, shared).1;
        }
        is_new
    }

    /// Completes a partition that was read from the database. Records the generation of the tenant's dictionary,
    /// replaces label sets by the tenant's equal ones, and records that all entries are in the state database.
    pub(crate) fn join(&mut self, shared: &mut TenantDictionary) {
        self.generation = shared.generation();
        let nothing = Arc::<LabelSet>::default();
        for labels in self.series.values_mut() {
            // A set that nobody else holds is changed in place.
            *labels = shared.share_labels(std::mem::replace(labels, Arc::clone(&nothing)));
        }
        self.persisted = self.lengths();
        shared.recount();
    }

    /// Sets the number of dictionary blocks and of blocks of dropped names that are in the state database.
    pub(crate) fn restored(&mut self, dictionary_blocks: u32, dropped_name_blocks: u32) {
        self.dictionary_blocks = dictionary_blocks;
        self.dropped_name_blocks = dropped_name_blocks;
    }

    pub(crate) fn lengths(&self) -> Lengths {
        Lengths {
            pairs: self.pairs.len(),
            attribute_sets: self.attribute_sets.len(),
            series: self.series.len(),
            dropped_names: self.dropped_names.len(),
        }
    }

    /// Returns the number of a pair, and whether the pair is new. Adds a new pair.
    pub(crate) fn add_pair(&mut self, pair: Pair) -> (u32, bool) {
        let (number, is_new) = self.pairs.insert(pair);
        if is_new {
            [pair.user, pair.kernel].into_iter().filter(|&node| node != ROOT).for_each(|node| {
                self.stacks.insert(node);
            });
        }
        (number, is_new)
    }

    /// Returns the number that an attribute set of the tenant's dictionary has in the partition, and whether the set is
    /// new.
    pub(crate) fn add_attribute_set(&mut self, set: u32, shared: &TenantDictionary) -> (u32, bool) {
        let (number, is_new) = self.attribute_sets.insert(set);
        if is_new {
            let dictionary = &shared.dictionary;
            for attribute in dictionary.attribute_sets.get(set) {
                if self.attribute_keys.insert(attribute.key) {
                    let name = sanitize_label_name(dictionary.strings.get(attribute.key));
                    self.add_dropped_name(DroppedName::Attribute(name));
                }
            }
        }
        (number, is_new)
    }

    /// Returns the number of a series. Calls `labels` and keeps the result if the series is new.
    pub(crate) fn add_series(&mut self, fingerprint: Fingerprint, labels: impl FnOnce() -> Arc<LabelSet>) -> u32 {
        let entry = self.series.entry(fingerprint);
        let number = saturating_u32(entry.index());
        if let Entry::Vacant(entry) = entry {
            let labels = labels();
            self.index.insert(number, &labels);
            if ProfileType::parse(labels.get(PROFILE_TYPE_LABEL)).is_some_and(|kind| kind.is_gauge()) {
                self.gauges.insert(number);
            }
            entry.insert(labels);
        }
        number
    }

    /// Returns the labels of a series; `None` if there is no such series.
    pub(crate) fn labels(&self, series: u32) -> Option<&Arc<LabelSet>> {
        self.series.get_index(series as usize).map(|(_, labels)| labels)
    }

    /// Records a name that the windows of this tier do not have.
    pub(crate) fn add_dropped_name(&mut self, name: DroppedName) {
        // A partition of minutes is also that of raw samples, which keep their attributes.
        if let DroppedName::Attribute(name) = &name
            && self.key.tier == Tier::Minute
        {
            self.add_attribute_name(name.clone());
        }
        let bytes = name.text().len() + NAME_BYTES;
        if self.dropped_names.insert(name) {
            self.name_bytes += bytes;
        }
    }

    fn add_attribute_name(&mut self, name: String) {
        let bytes = name.len() + NAME_BYTES;
        if self.attribute_names.insert(name) {
            self.name_bytes += bytes;
        }
    }

    /// Returns the names that samples had, but that the windows of this tier do not have.
    pub(crate) fn dropped_names(&self) -> impl Iterator<Item = &DroppedName> {
        self.dropped_names.iter()
    }

    /// Returns whether any raw sample of the partition's time has an attribute of this name.
    pub(crate) fn is_attribute(&self, name: &str) -> bool {
        self.attribute_names.contains(name)
    }

    pub(crate) fn is_gauge(&self, series: u32) -> bool {
        self.gauges.contains(series)
    }

    /// Returns the numbers of the series of gauges.
    pub(crate) fn gauges(&self) -> &RoaringBitmap {
        &self.gauges
    }

    pub(crate) fn knows_stack(&self, node: u32) -> bool {
        node == ROOT || self.stacks.contains(node)
    }

    /// Returns whether the partition has every definition that a batch omits. `nodes` holds the nodes of the batch's
    /// stacks in the current generation.
    pub(crate) fn has_stripped_definitions(&self, batch: &Batch, nodes: &BatchNodes) -> bool {
        let stacks = batch.dictionary.stacks.iter().zip(&nodes.nodes);
        let mut stripped = stacks.filter(|((_, stack), _)| stack.is_none());
        stripped.all(|(_, node)| node.is_some_and(|node| self.knows_stack(node)))
            && batch
                .series
                .iter()
                .all(|series| series.labels.is_some() || self.series.contains_key(&series.fingerprint))
    }

    /// Returns the definitions that are not in the state database, of the first `to` entries of each list. The caller
    /// must call [`Partition::wrote`] after it has written them.
    pub(crate) fn unwritten(&self, to: &Lengths, shared: &TenantDictionary) -> Unwritten {
        let from = &self.persisted;
        let mut unwritten = Unwritten::default();
        if (from.pairs, from.attribute_sets) != (to.pairs, to.attribute_sets) {
            let key = self.key.dictionary_block(self.dictionary_blocks);
            let pairs = &self.pairs.as_slice()[from.pairs..to.pairs];
            let sets = &self.attribute_sets.as_slice()[from.attribute_sets..to.attribute_sets];
            let payload = dictionary_block::encode(shared, pairs, sets);
            unwritten.uncompressed.push(UncompressedValue { key, payload, zstd_level: LEVEL_GROWING });
        }
        if from.series != to.series {
            let key = self.key.series_block(saturating_u32(from.series));
            let new = self.series.iter().take(to.series).skip(from.series);
            let block = wire::Batch {
                series: new.map(|(fingerprint, labels)| series_to_wire(*fingerprint, labels)).collect(),
                ..wire::Batch::default()
            };
            let payload = block.encode_to_vec();
            unwritten.uncompressed.push(UncompressedValue { key, payload, zstd_level: SERIES_LEVEL });
        }
        if from.dropped_names != to.dropped_names {
            let key = self.key.dropped_names_block(self.dropped_name_blocks);
            let new = self.dropped_names.iter().take(to.dropped_names).skip(from.dropped_names);
            let value = dropped_name::encode(&key, new);
            unwritten.dropped_names = Some(FramedValue { key, value });
        }
        unwritten
    }

    /// Records that the first `to` entries of each list are in the state database.
    pub(crate) fn wrote(&mut self, to: Lengths) {
        let from = &self.persisted;
        if (from.pairs, from.attribute_sets) != (to.pairs, to.attribute_sets) {
            self.dictionary_blocks += 1;
        }
        if from.dropped_names != to.dropped_names {
            self.dropped_name_blocks += 1;
        }
        self.persisted = to;
    }

    /// Returns whether any definition is not in the state database.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.persisted != self.lengths()
    }

    /// Returns the number of dictionary blocks in the state database.
    pub(crate) fn dictionary_blocks(&self) -> u32 {
        self.dictionary_blocks
    }

    /// Returns the written part of the dictionary as one block that replaces all its blocks. The caller must call
    /// [`Partition::joined_dictionary`] after it has written the block.
    pub(crate) fn whole_dictionary(&self, shared: &TenantDictionary) -> Unwritten {
        let pairs = &self.pairs.as_slice()[1..self.persisted.pairs];
        let sets = &self.attribute_sets.as_slice()[1..self.persisted.attribute_sets];
        let payload = dictionary_block::encode(shared, pairs, sets);
        let block = UncompressedValue { key: self.key.dictionary_block(0), payload, zstd_level: LEVEL_FINAL };
        Unwritten { uncompressed: vec![block], dropped_names: None }
    }

    /// Records that the dictionary is now one block in the state database.
    pub(crate) fn joined_dictionary(&mut self) {
        self.dictionary_blocks = 1;
    }

    /// Replaces the numbers of the tenant's dictionary by those of the rebuilt one. `node` maps an old node to the new
    /// one. `attribute_sets` holds the new number of each attribute set of the partition, in order.
    pub(crate) fn move_to(
        &mut self,
        shared: &mut TenantDictionary,
        node: impl Fn(u32) -> u32,
        attribute_sets: Vec<u32>,
    ) {
        self.generation = shared.generation();
        let moved = |pair: &Pair| Pair { user: node(pair.user), kernel: node(pair.kernel) };
        self.pairs = self.pairs.as_slice().iter().map(moved).collect();
        self.stacks = self.stacks.iter().map(&node).collect();
        self.attribute_sets = attribute_sets.into_iter().collect();
        self.attribute_keys.clear();
        for labels in self.series.values_mut() {
            *labels = shared.share_labels(Arc::clone(labels));
        }
        self.recount();
    }

    /// Adds the partition's memory use to a total for as long as the partition lives.
    pub(crate) fn count_in(&mut self, total: &MemoryTotal) {
        self.footprint = Footprint::new(total);
        self.recount();
    }

    /// Updates the total memory use. Must be called after every change of the partition.
    pub(crate) fn recount(&mut self) {
        self.footprint.set(self.memory_bytes());
    }

    /// Counts the memory of the label sets, which no dictionary shares. Their values are those of the label index.
    pub(crate) fn own_label_sets(&mut self) {
        self.label_set_bytes = self.series.values().map(|labels| label_set_bytes(labels)).sum();
    }

    /// Returns the nodes at which stacktraces end.
    pub(crate) fn stacks(&self) -> &RoaringBitmap {
        &self.stacks
    }

    /// Returns the approximate memory use, in bytes, without the tenant's dictionary and the head.
    pub(crate) fn memory_bytes(&self) -> usize {
        // Only partitions of minutes have chunks.
        let sample_times_bytes = if self.key.tier == Tier::Minute { sample_times::SERIES_BYTES } else { 0 };
        self.pairs.memory_bytes()
            + self.attribute_sets.memory_bytes()
            + self.name_bytes
            + self.label_set_bytes
            + self.series.len() * (SERIES_BYTES + sample_times_bytes)
            + self.stacks.serialized_size()
            + self.index.memory_bytes()
    }
}

fn series_to_wire(fingerprint: Fingerprint, labels: &LabelSet) -> wire::SeriesSamples {
    wire::SeriesSamples {
        fingerprint: fingerprint.0.to_be_bytes().to_vec().into(),
        labels: labels.to_wire(),
        ..wire::SeriesSamples::default()
    }
}
