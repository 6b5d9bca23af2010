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

use crate::database::{Snapshot, scan_at};
use crate::dictionary_block::{self, LEVEL_FINAL, LEVEL_GROWING};
use crate::encoding::frame;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::head::Head;
use crate::head_block;
use crate::key::{PartitionKey, Section, two_numbers};
use crate::label_index::LabelIndex;
use crate::vocabulary::{ROOT, Vocabulary};

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
pub(crate) enum LeftOut {
    /// A series' label, by configuration.
    Label(String),
    /// A sample attribute, as queries write it: always.
    Attribute(String),
}

impl LeftOut {
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
    pub(crate) left_out: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Never of raw samples.
    pub(crate) key: PartitionKey,
    /// Of the vocabulary.
    pub(crate) generation: u64,
    pub(crate) pairs: IndexSet<Pair, FixedState>,
    /// Nodes at which a stacktrace of a pair ends.
    stacks: RoaringBitmap,
    pub(crate) attribute_sets: IndexSet<u32, FixedState>,
    /// Keys of attributes, as queries write them.
    attribute_names: BTreeSet<String>,
    pub(crate) series: IndexMap<Fingerprint, Arc<LabelSet>, FixedState>,
    gauges: RoaringBitmap,
    pub(crate) index: LabelIndex,
    /// Labels and attributes that samples had and this tier has not.
    left_out: IndexSet<LeftOut, FixedState>,
    pub(crate) head: Head,
    persisted: Lengths,
    dictionary_blocks: u32,
    left_out_blocks: u32,
}

impl Partition {
    pub(crate) fn new(key: PartitionKey, generation: u64) -> Self {
        let (mut pairs, mut attribute_sets) = (IndexSet::default(), IndexSet::default());
        pairs.insert(Pair::default());
        attribute_sets.insert(0);
        let mut partition = Self {
            key,
            generation,
            pairs,
            stacks: RoaringBitmap::new(),
            attribute_sets,
            attribute_names: BTreeSet::new(),
            series: IndexMap::default(),
            gauges: RoaringBitmap::new(),
            index: LabelIndex::default(),
            left_out: IndexSet::default(),
            head: Head::default(),
            persisted: Lengths::default(),
            dictionary_blocks: 0,
            left_out_blocks: 0,
        };
        partition.persisted = partition.lengths();
        partition
    }

    /// Reads a partition, what of the head was written included, from the state database as of one moment.
    pub(crate) fn load(
        snapshot: &Snapshot<'_>,
        key: PartitionKey,
        vocabulary: &mut Vocabulary,
        now_ns: i64,
    ) -> Result<Self, EngineError> {
        let mut partition = Self::new(key, vocabulary.generation());
        for item in scan_at(snapshot, &key.section(Section::Dictionary)) {
            let (at, value) = item?;
            // A block that is missing would give its numbers to the next.
            check_key(&at, &key.dictionary_block(partition.dictionary_blocks))?;
            let gained = dictionary_block::decode(&at, &value, vocabulary)?;
            let mut is_new = true;
            for pair in gained.pairs {
                is_new &= partition.add_pair(pair).1;
            }
            for set in gained.attribute_sets {
                is_new &= partition.add_attribute_set(set, vocabulary).1;
            }
            if !is_new {
                return Err(corrupt(&at).into());
            }
            partition.dictionary_blocks += 1;
        }
        for item in scan_at(snapshot, &key.section(Section::Series)) {
            let (at, value) = item?;
            check_key(&at, &key.series_block(partition.series.len() as u32))?;
            let block = wire::Batch::decode(frame::unpack(&at, &value)?.as_slice());
            for series in block.map_err(|_undecodable| corrupt(&at))?.series {
                let fingerprint = series.fingerprint.as_ref().try_into().map_err(|_length| corrupt(&at))?;
                let labels = LabelSet::from_wire(series.labels);
                let before = partition.series.len();
                partition.add_series(Fingerprint(u128::from_be_bytes(fingerprint)), labels, vocabulary);
                if partition.series.len() == before {
                    return Err(corrupt(&at).into());
                }
            }
        }
        for item in scan_at(snapshot, &key.section(Section::LeftOut)) {
            let (at, value) = item?;
            check_key(&at, &key.left_out_block(partition.left_out_blocks))?;
            partition.left_out.extend(dictionary_block::decode_left_out(&at, &value)?);
            partition.left_out_blocks += 1;
        }
        partition.persisted = partition.lengths();
        if key.tier == Tier::Minute {
            partition.load_head(snapshot, now_ns)?;
        }
        Ok(partition)
    }

    fn load_head(&mut self, snapshot: &Snapshot<'_>, now_ns: i64) -> Result<(), EngineError> {
        for item in scan_at(snapshot, &self.key.in_tier(Tier::Raw).section(Section::Head)) {
            let (at, value) = item?;
            let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
            let (window, series, index) = numbers.ok_or_else(|| corrupt(&at))?;
            let index = u64::from_be_bytes(index.try_into().map_err(|_length| corrupt(&at))?);
            let samples = head_block::decode(&at, &value)?;
            let dangles = series as usize >= self.series.len()
                || samples.pairs.iter().any(|&pair| pair as usize >= self.pairs.len())
                || samples.attribute_sets.iter().any(|&set| set as usize >= self.attribute_sets.len());
            if dangles || samples.times_ns.iter().any(|&time| Tier::Raw.window_of(time) != window) {
                return Err(corrupt(&at).into());
            }
            self.head.restore((window, series), index, samples, now_ns);
        }
        Ok(())
    }

    pub(crate) fn lengths(&self) -> Lengths {
        Lengths {
            pairs: self.pairs.len(),
            attribute_sets: self.attribute_sets.len(),
            series: self.series.len(),
            left_out: self.left_out.len(),
        }
    }

    /// The number of a pair, and whether it is new.
    pub(crate) fn add_pair(&mut self, pair: Pair) -> (u32, bool) {
        let (number, is_new) = self.pairs.insert_full(pair);
        if is_new {
            [pair.user, pair.kernel].into_iter().filter(|&node| node != ROOT).for_each(|node| {
                self.stacks.insert(node);
            });
        }
        (dense(number), is_new)
    }

    /// The number of an attribute set of the vocabulary, and whether it is new.
    pub(crate) fn add_attribute_set(&mut self, set: u32, vocabulary: &Vocabulary) -> (u32, bool) {
        let (number, is_new) = self.attribute_sets.insert_full(set);
        if is_new {
            let dictionary = &vocabulary.dictionary;
            for attribute in &dictionary.attribute_sets[set as usize] {
                let key = dictionary.strings.get(attribute.key);
                if !self.attribute_names.contains(key) {
                    self.attribute_names.insert(sanitize_label_name(key));
                }
            }
        }
        (dense(number), is_new)
    }

    /// The number of a series; its labels are kept if it is new.
    pub(crate) fn add_series(
        &mut self,
        fingerprint: Fingerprint,
        labels: LabelSet,
        vocabulary: &mut Vocabulary,
    ) -> u32 {
        let entry = self.series.entry(fingerprint);
        let number = dense(entry.index());
        if let Entry::Vacant(entry) = entry {
            self.index.insert(number, &labels);
            if ProfileType::parse(labels.get(PROFILE_TYPE_LABEL)).is_some_and(|kind| kind.is_gauge()) {
                self.gauges.insert(number);
            }
            entry.insert(vocabulary.share_labels(labels));
        }
        number
    }

    /// Notes that this tier has not what is called so.
    pub(crate) fn leave_out(&mut self, name: LeftOut) {
        self.left_out.insert(name);
    }

    /// What this tier has not and samples had.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = &LeftOut> {
        self.left_out.iter()
    }

    /// Whether any sample has an attribute of this name.
    pub(crate) fn is_attribute(&self, name: &str) -> bool {
        self.attribute_names.contains(name)
    }

    pub(crate) fn attribute_names(&self) -> &BTreeSet<String> {
        &self.attribute_names
    }

    pub(crate) fn is_gauge(&self, series: u32) -> bool {
        self.gauges.contains(series)
    }

    pub(crate) fn knows_stack(&self, node: u32) -> bool {
        node == ROOT || self.stacks.contains(node)
    }

    /// Whether every definition that a batch leaves out is here.
    pub(crate) fn knows_what_is_stripped(&self, batch: &Batch, vocabulary: &Vocabulary) -> bool {
        let stripped = |stack: &Option<_>| stack.is_none();
        let mut stacks = batch.dictionary.stacks.iter().filter(|(_, stack)| stripped(stack));
        stacks.all(|(&hash, _)| vocabulary.find_stack(hash).is_some_and(|node| self.knows_stack(node)))
            && batch
                .series
                .iter()
                .all(|series| series.labels.is_some() || self.series.contains_key(&series.fingerprint))
    }

    /// Writes the definitions up to `to` that are not in the state database yet; [`Partition::wrote`] must follow when the
    /// batch is written.
    pub(crate) fn write_definitions(
        &self,
        to: &Lengths,
        vocabulary: &Vocabulary,
        batch: &mut WriteBatch,
    ) -> Result<(), EngineError> {
        let from = &self.persisted;
        if (from.pairs, from.attribute_sets) != (to.pairs, to.attribute_sets) {
            let key = self.key.dictionary_block(self.dictionary_blocks);
            let pairs: Vec<Pair> = self.pairs.iter().take(to.pairs).skip(from.pairs).copied().collect();
            let sets: Vec<u32> =
                self.attribute_sets.iter().take(to.attribute_sets).skip(from.attribute_sets).copied().collect();
            batch.put(&key, dictionary_block::encode(&key, vocabulary, &pairs, &sets, LEVEL_GROWING)?);
        }
        if from.series != to.series {
            let key = self.key.series_block(dense(from.series));
            let new = self.series.iter().take(to.series).skip(from.series);
            let block = wire::Batch { series: new.map(series_to_wire).collect(), ..wire::Batch::default() };
            batch.put(&key, frame::pack(&key, &block.encode_to_vec(), SERIES_LEVEL)?);
        }
        if from.left_out != to.left_out {
            let key = self.key.left_out_block(self.left_out_blocks);
            let new = self.left_out.iter().take(to.left_out).skip(from.left_out);
            batch.put(&key, dictionary_block::encode_left_out(&key, new));
        }
        Ok(())
    }

    /// Definitions up to `to` are in the state database.
    pub(crate) fn wrote(&mut self, to: Lengths) {
        let from = &self.persisted;
        if (from.pairs, from.attribute_sets) != (to.pairs, to.attribute_sets) {
            self.dictionary_blocks += 1;
        }
        if from.left_out != to.left_out {
            self.left_out_blocks += 1;
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
    pub(crate) fn join_dictionary(&self, vocabulary: &Vocabulary, batch: &mut WriteBatch) -> Result<(), EngineError> {
        (0..self.dictionary_blocks).for_each(|block| batch.delete(self.key.dictionary_block(block)));
        let key = self.key.dictionary_block(0);
        let pairs: Vec<Pair> = self.pairs.iter().take(self.persisted.pairs).skip(1).copied().collect();
        let sets: Vec<u32> = self.attribute_sets.iter().take(self.persisted.attribute_sets).skip(1).copied().collect();
        batch.put(&key, dictionary_block::encode(&key, vocabulary, &pairs, &sets, LEVEL_FINAL)?);
        Ok(())
    }

    /// The dictionary is one block now.
    pub(crate) fn joined_dictionary(&mut self) {
        self.dictionary_blocks = 1;
    }

    /// Changes all numbers of the vocabulary to those of another; `attribute_sets` in the same order.
    pub(crate) fn move_to(&mut self, vocabulary: &mut Vocabulary, node: impl Fn(u32) -> u32, attribute_sets: Vec<u32>) {
        self.generation = vocabulary.generation();
        self.pairs = self.pairs.iter().map(|pair| Pair { user: node(pair.user), kernel: node(pair.kernel) }).collect();
        self.stacks = self.stacks.iter().map(&node).collect();
        self.attribute_sets = attribute_sets.into_iter().collect();
        for labels in self.series.values_mut() {
            *labels = vocabulary.share_labels(LabelSet::clone(labels));
        }
    }

    /// Nodes at which stacktraces end.
    pub(crate) fn stacks(&self) -> &RoaringBitmap {
        &self.stacks
    }

    /// About how many bytes it takes beside vocabulary and head.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pairs.len() * (size_of::<Pair>() + 16)
            + self.attribute_sets.len() * 24
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

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}

fn check_key(got: &[u8], wanted: &[u8]) -> Result<(), Corruption> {
    if got == wanted { Ok(()) } else { Err(corrupt(got)) }
}

/// Numbers are dense u32: a partition is bounded (`limits`) long before it holds 2^32 of anything.
pub(crate) fn dense(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
