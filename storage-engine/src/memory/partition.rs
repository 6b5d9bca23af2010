//! A partition in memory: its dictionary and series, as numbers of the tenant's vocabulary, and, of minutes, the head of the raw
//! samples of the same time.
//!
//! Pairs, attribute sets and series have dense numbers, in the order in which they came; chunks and windows on disk hold those.
//! They only grow; `persisted` says how much of them is in the state database, so that a flush writes what is new.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use indexmap::map::Entry;
use indexmap::{IndexMap, IndexSet};
use prost::Message as _;
use proto::label::{PROFILE_TYPE_LABEL, sanitize_label_name};
use proto::{Batch, Fingerprint, LabelSet, ProfileType, Tier, wire};
use roaring::RoaringBitmap;
use rocksdb::WriteBatch;

use crate::database::Snapshot;
use crate::database::frame;
use crate::database::key::PartitionKey;
use crate::encoding::dictionary_block::{self, Block, LEVEL_FINAL, LEVEL_GROWING};
use crate::error::EngineError;
use crate::memory::footprint::{Footprint, MemoryTotal};
use crate::memory::head::Head;
use crate::memory::interner::Interner;
use crate::memory::label_index::LabelIndex;
use crate::memory::stored_partition::StoredPartition;
use crate::memory::tenant_dictionary::{BatchNodes, ROOT, TenantDictionary};

/// What a name takes in a set beside its text, about.
const NAME_BYTES: usize = 64;

/// zstd level of blocks of series.
const SERIES_LEVEL: i32 = 3;

/// What a sample's stack is: where its user part and its kernel part end in the vocabulary's tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) user: u32,
    pub(crate) kernel: u32,
}

/// What a tier has not that the samples it was made of had.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DroppedName {
    /// A series' label, by configuration.
    Label(String),
    /// A sample attribute, as queries write it: always.
    Attribute(String),
}

impl DroppedName {
    /// The name of a label or an attribute.
    fn text(&self) -> &str {
        match self {
            Self::Label(name) | Self::Attribute(name) => name,
        }
    }

    /// The name of a label.
    pub(crate) fn label(&self) -> Option<&String> {
        match self {
            Self::Label(name) => Some(name),
            Self::Attribute(_) => None,
        }
    }
}

/// How many of each there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) pairs: usize,
    pub(crate) attribute_sets: usize,
    pub(crate) series: usize,
    pub(crate) dropped_names: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Never of raw samples.
    pub(crate) key: PartitionKey,
    /// Of the vocabulary.
    pub(crate) generation: u64,
    pub(crate) pairs: Interner<Pair>,
    /// Nodes at which a stacktrace of a pair ends.
    stacks: RoaringBitmap,
    pub(crate) attribute_sets: Interner<u32>,
    /// Keys of attributes: as texts of the vocabulary, as far as they were met in it, and as queries write them.
    attribute_keys: RoaringBitmap,
    attribute_names: BTreeSet<String>,
    /// About what those names take, here and among `dropped_names`.
    name_bytes: usize,
    pub(crate) series: IndexMap<Fingerprint, Arc<LabelSet>, FixedState>,
    gauges: RoaringBitmap,
    pub(crate) index: LabelIndex,
    /// Labels and attributes that samples had and this tier's windows have not.
    dropped_names: IndexSet<DroppedName, FixedState>,
    pub(crate) head: Head,
    persisted: Lengths,
    dictionary_blocks: u32,
    dropped_name_blocks: u32,
    footprint: Footprint,
}

/// Definitions on their way to the state database; packed when no lock is held any more, since that takes longest.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// Keys, what their values are packed from, and zstd levels.
    packed: Vec<(Vec<u8>, Vec<u8>, i32)>,
    dropped_names: Option<(Vec<u8>, Vec<u8>)>,
}

impl Unwritten {
    pub(crate) fn write(self, batch: &mut WriteBatch) -> Result<(), EngineError> {
        for (key, plain, level) in self.packed {
            batch.put(&key, frame::pack(&key, &plain, level)?);
        }
        if let Some((key, value)) = self.dropped_names {
            batch.put(key, value);
        }
        Ok(())
    }
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
            persisted: Lengths::default(),
            dictionary_blocks: 0,
            dropped_name_blocks: 0,
            footprint: Footprint::default(),
        };
        partition.persisted = partition.lengths();
        partition
    }

    /// Reads a partition, what of the head was written included, from the state database as of one moment.
    pub(crate) fn load(
        snapshot: &Snapshot<'_>,
        key: PartitionKey,
        vocabulary: &mut TenantDictionary,
        now_ns: i64,
    ) -> Result<Self, EngineError> {
        Ok(StoredPartition::read(snapshot, key, now_ns)?.into_partition(vocabulary)?)
    }

    /// Adds what a block of its dictionary holds; `false` if anything of it is there already.
    pub(crate) fn learn(&mut self, block: &Block, vocabulary: &mut TenantDictionary) -> bool {
        let Some(added) = block.add_to(vocabulary) else { return false };
        let mut is_new = true;
        for pair in added.pairs {
            is_new &= self.add_pair(pair).1;
        }
        for set in added.attribute_sets {
            is_new &= self.add_attribute_set(set, vocabulary).1;
        }
        is_new
    }

    /// Its numbers are the vocabulary's, and its series share the labels of the others; all of it is in the state database.
    pub(crate) fn join(&mut self, vocabulary: &mut TenantDictionary) {
        self.generation = vocabulary.generation();
        for labels in self.series.values_mut() {
            *labels = vocabulary.share_labels(Arc::clone(labels));
        }
        self.persisted = self.lengths();
        vocabulary.recount();
    }

    /// So many blocks of it are in the state database.
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

    /// The number of a pair, and whether it is new.
    pub(crate) fn add_pair(&mut self, pair: Pair) -> (u32, bool) {
        let (number, is_new) = self.pairs.insert(pair);
        if is_new {
            [pair.user, pair.kernel].into_iter().filter(|&node| node != ROOT).for_each(|node| {
                self.stacks.insert(node);
            });
        }
        (number, is_new)
    }

    /// The number of an attribute set of the vocabulary, and whether it is new.
    pub(crate) fn add_attribute_set(&mut self, set: u32, vocabulary: &TenantDictionary) -> (u32, bool) {
        let (number, is_new) = self.attribute_sets.insert(set);
        if is_new {
            let dictionary = &vocabulary.dictionary;
            for attribute in dictionary.attribute_sets.get(set) {
                if self.attribute_keys.insert(attribute.key) {
                    let name = sanitize_label_name(dictionary.strings.get(attribute.key));
                    self.add_dropped_name(DroppedName::Attribute(name));
                }
            }
        }
        (number, is_new)
    }

    /// The number of a series; its labels are kept if it is new.
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

    /// Notes that this tier's windows have not what is called so.
    pub(crate) fn add_dropped_name(&mut self, name: DroppedName) {
        // Raw samples, which are of the minutes' partition, have their attributes.
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

    /// What this tier's windows have not and samples had.
    pub(crate) fn dropped_names(&self) -> impl Iterator<Item = &DroppedName> {
        self.dropped_names.iter()
    }

    /// Whether any raw sample of its time has an attribute of this name.
    pub(crate) fn is_attribute(&self, name: &str) -> bool {
        self.attribute_names.contains(name)
    }

    pub(crate) fn is_gauge(&self, series: u32) -> bool {
        self.gauges.contains(series)
    }

    pub(crate) fn knows_stack(&self, node: u32) -> bool {
        node == ROOT || self.stacks.contains(node)
    }

    /// Whether every definition that a batch leaves out is here; `nodes`: of its stacks, as they are now.
    pub(crate) fn has_stripped_definitions(&self, batch: &Batch, nodes: &BatchNodes) -> bool {
        let stacks = batch.dictionary.stacks.iter().zip(&nodes.nodes);
        let mut stripped = stacks.filter(|((_, stack), _)| stack.is_none());
        stripped.all(|(_, node)| node.is_some_and(|node| self.knows_stack(node)))
            && batch
                .series
                .iter()
                .all(|series| series.labels.is_some() || self.series.contains_key(&series.fingerprint))
    }

    /// The definitions up to `to` that are not in the state database yet; [`Partition::wrote`] must follow when they are.
    pub(crate) fn unwritten(&self, to: &Lengths, vocabulary: &TenantDictionary) -> Unwritten {
        let from = &self.persisted;
        let mut unwritten = Unwritten::default();
        if (from.pairs, from.attribute_sets) != (to.pairs, to.attribute_sets) {
            let key = self.key.dictionary_block(self.dictionary_blocks);
            let pairs = &self.pairs.as_slice()[from.pairs..to.pairs];
            let sets = &self.attribute_sets.as_slice()[from.attribute_sets..to.attribute_sets];
            unwritten.packed.push((key, dictionary_block::encode(vocabulary, pairs, sets), LEVEL_GROWING));
        }
        if from.series != to.series {
            let key = self.key.series_block(saturating_u32(from.series));
            let new = self.series.iter().take(to.series).skip(from.series);
            let block = wire::Batch { series: new.map(series_to_wire).collect(), ..wire::Batch::default() };
            unwritten.packed.push((key, block.encode_to_vec(), SERIES_LEVEL));
        }
        if from.dropped_names != to.dropped_names {
            let key = self.key.dropped_names_block(self.dropped_name_blocks);
            let new = self.dropped_names.iter().take(to.dropped_names).skip(from.dropped_names);
            let value = dictionary_block::encode_dropped_names(&key, new);
            unwritten.dropped_names = Some((key, value));
        }
        unwritten
    }

    /// Definitions up to `to` are in the state database.
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

    /// Whether there are definitions that the state database has not.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.persisted != self.lengths()
    }

    /// Blocks of the dictionary in the state database.
    pub(crate) fn dictionary_blocks(&self) -> u32 {
        self.dictionary_blocks
    }

    /// What is written of the dictionary, in one block in place of those there are; [`Partition::joined_dictionary`] must follow.
    pub(crate) fn whole_dictionary(&self, vocabulary: &TenantDictionary) -> Unwritten {
        let pairs = &self.pairs.as_slice()[1..self.persisted.pairs];
        let sets = &self.attribute_sets.as_slice()[1..self.persisted.attribute_sets];
        let block = dictionary_block::encode(vocabulary, pairs, sets);
        Unwritten { packed: vec![(self.key.dictionary_block(0), block, LEVEL_FINAL)], dropped_names: None }
    }

    /// The dictionary is one block now.
    pub(crate) fn joined_dictionary(&mut self) {
        self.dictionary_blocks = 1;
    }

    /// Changes all numbers of the vocabulary to those of another; `attribute_sets` in the same order.
    pub(crate) fn move_to(
        &mut self,
        vocabulary: &mut TenantDictionary,
        node: impl Fn(u32) -> u32,
        attribute_sets: Vec<u32>,
    ) {
        self.generation = vocabulary.generation();
        let moved = |pair: &Pair| Pair { user: node(pair.user), kernel: node(pair.kernel) };
        self.pairs = self.pairs.as_slice().iter().map(moved).collect();
        self.stacks = self.stacks.iter().map(&node).collect();
        self.attribute_sets = attribute_sets.into_iter().collect();
        self.attribute_keys.clear();
        for labels in self.series.values_mut() {
            *labels = vocabulary.share_labels(Arc::clone(labels));
        }
        self.recount();
    }

    /// Counts it in a total, from now on.
    pub(crate) fn count_in(&mut self, total: &MemoryTotal) {
        self.footprint = Footprint::new(total);
        self.recount();
    }

    /// To be called when it has changed.
    pub(crate) fn recount(&mut self) {
        self.footprint.set(self.memory_bytes());
    }

    /// Nodes at which stacktraces end.
    pub(crate) fn stacks(&self) -> &RoaringBitmap {
        &self.stacks
    }

    /// About how many bytes it takes beside vocabulary and head.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pairs.memory_bytes()
            + self.attribute_sets.memory_bytes()
            + self.name_bytes
            + self.series.len() * 56
            + self.stacks.serialized_size()
            + self.index.memory_bytes()
    }
}

fn series_to_wire((fingerprint, labels): (&Fingerprint, &Arc<LabelSet>)) -> wire::SeriesSamples {
    wire::SeriesSamples {
        fingerprint: fingerprint.0.to_be_bytes().to_vec().into(),
        labels: labels.to_wire(),
        ..wire::SeriesSamples::default()
    }
}

/// Numbers are dense u32: a partition is bounded (`limits`) long before it holds 2^32 of anything.
pub(crate) fn saturating_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
