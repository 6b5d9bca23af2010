//! A partition in memory: dictionary, series index, and the head, which holds the samples that are not sealed yet.
//!
//! Dictionary and series only grow; `persisted_*` say how much of them is in the state database, so that sealing writes
//! what is new and nothing else. Ids are the same in memory and in chunks.

use std::collections::{BTreeMap, btree_map};

use foldhash::fast::FixedState;
use indexmap::IndexMap;
use indexmap::map::Entry;
use prost::Message;
use proto::definitions::Lengths;
use proto::{Batch, Dictionary, Fingerprint, Importer, LabelSet, Samples, wire};
use rocksdb::{DB, IteratorMode, ReadOptions, WriteBatch};

use crate::block;
use crate::chunk;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::key::{PartitionKey, window_of};
use crate::split::Part;

/// See the module.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) key: PartitionKey,
    pub(crate) dictionary: Dictionary,
    pub(crate) series: IndexMap<Fingerprint, LabelSet, FixedState>,
    /// By series id; ordered, so that sealing writes keys in order.
    pub(crate) head: BTreeMap<u32, Samples>,
    persisted_dictionary: Lengths,
    persisted_series: usize,
    dictionary_blocks: u32,
    label_bytes: usize,
}

/// Bytes of one sample in the head.
pub(crate) const HEAD_SAMPLE_BYTES: usize = 8 + 4 + 8 + 4;

impl Partition {
    pub(crate) fn new(key: PartitionKey) -> Self {
        let dictionary = Dictionary::default();
        Self {
            key,
            persisted_dictionary: dictionary.lengths(),
            dictionary,
            series: IndexMap::default(),
            head: BTreeMap::new(),
            persisted_series: 0,
            dictionary_blocks: 0,
            label_bytes: 0,
        }
    }

    /// Reads dictionary and series from the state database; the head is empty.
    pub(crate) fn load(database: &DB, key: PartitionKey) -> Result<Self, EngineError> {
        let mut partition = Self::new(key);
        for item in scan(database, &key.dictionary_section()) {
            let (at, value) = item?;
            let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
            // A block that is missing would give its ids to the next.
            if at.as_ref() != key.dictionary_block(partition.dictionary_blocks).as_slice() {
                return Err(corrupt().into());
            }
            let definitions = wire::Definitions::decode(block::unpack(&at, &value)?.as_slice());
            let definitions = definitions.map_err(|_undecodable| corrupt())?;
            partition.dictionary.extend_from_wire(&definitions).map_err(|_inconsistent| corrupt())?;
            partition.dictionary_blocks += 1;
        }
        for item in scan(database, &key.series_section()) {
            let (at, value) = item?;
            let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
            if at.as_ref() != key.series_block(u32::try_from(partition.series.len()).unwrap_or(u32::MAX)).as_slice() {
                return Err(corrupt().into());
            }
            let batch = wire::Batch::decode(block::unpack(&at, &value)?.as_slice());
            for series in batch.map_err(|_undecodable| corrupt())?.series {
                let fingerprint =
                    u128::from_be_bytes(series.fingerprint.as_ref().try_into().map_err(|_length| corrupt())?);
                let labels = LabelSet::from_wire(series.labels);
                partition.label_bytes += series_bytes(&labels);
                if partition.series.insert(Fingerprint(fingerprint), labels).is_some() {
                    return Err(corrupt().into());
                }
            }
        }
        partition.persisted_dictionary = partition.dictionary.lengths();
        partition.persisted_series = partition.series.len();
        Ok(partition)
    }

    /// Whether every definition that a batch leaves out is here.
    pub(crate) fn knows_what_is_stripped(&self, batch: &Batch) -> bool {
        let stripped = |stack: &Option<_>| stack.is_none();
        let mut stacks = batch.dictionary.stacks.iter().filter(|(_, stack)| stripped(stack));
        stacks.all(|(hash, _)| self.dictionary.stacks.contains_key(hash))
            && batch
                .series
                .iter()
                .all(|series| series.labels.is_some() || self.series.contains_key(&series.fingerprint))
    }

    /// Makes the definitions of a part its own; returns the series' id and the samples by this partition's ids, for
    /// [`Partition::add`]. What the part refers to must be in the batch or here.
    pub(crate) fn import(&mut self, importer: &mut Importer<'_>, part: &Part<'_>) -> (u32, Samples) {
        let series = part.series;
        let entry = self.series.entry(series.fingerprint);
        let id = u32::try_from(entry.index()).unwrap_or(u32::MAX);
        if let Entry::Vacant(entry) = entry {
            let labels = series.labels.clone().unwrap_or_default();
            self.label_bytes += series_bytes(&labels);
            entry.insert(labels);
        }
        let from = &series.samples;
        let mut samples = Samples::default();
        part.for_each(|i| {
            let pair = importer.pair(&mut self.dictionary, from.pairs[i]);
            let attribute_set = importer.attributes(&mut self.dictionary, from.attribute_sets[i]);
            samples.push(from.times_ns[i], pair, from.values[i], attribute_set);
        });
        (id, samples)
    }

    /// Adds samples that [`Partition::import`] made.
    pub(crate) fn add(&mut self, series: u32, samples: Samples) {
        match self.head.entry(series) {
            btree_map::Entry::Vacant(head) => {
                head.insert(samples);
            }
            btree_map::Entry::Occupied(head) => head.into_mut().append(samples),
        }
    }

    /// Writes what is new since the last sealing; [`Partition::sealed`] must follow when the batch is written.
    pub(crate) fn seal(&self, log_index: u64, batch: &mut WriteBatch) -> Result<(), EngineError> {
        let definitions = self.dictionary.to_wire_since(&self.persisted_dictionary);
        if self.dictionary.lengths() != self.persisted_dictionary {
            let packed = block::pack(&definitions.encode_to_vec()).map_err(EngineError::Compress)?;
            batch.put(self.key.dictionary_block(self.dictionary_blocks), packed);
        }
        if self.series.len() != self.persisted_series {
            let packed = block::pack(&self.new_series().encode_to_vec()).map_err(EngineError::Compress)?;
            batch.put(self.key.series_block(u32::try_from(self.persisted_series).unwrap_or(u32::MAX)), packed);
        }
        for (&series, samples) in &self.head {
            for (window, samples) in by_window(samples) {
                batch.put(self.key.chunk(series, window, log_index), chunk::encode(&samples)?);
            }
        }
        Ok(())
    }

    /// Series as a batch without samples: the same message names them on the wire and on disk.
    fn new_series(&self) -> wire::Batch {
        let series = self.series.iter().skip(self.persisted_series).map(|(fingerprint, labels)| wire::SeriesSamples {
            fingerprint: fingerprint.0.to_be_bytes().to_vec().into(),
            labels: labels.to_wire(),
            ..wire::SeriesSamples::default()
        });
        wire::Batch { series: series.collect(), ..wire::Batch::default() }
    }

    /// What [`Partition::seal`] wrote is in the state database.
    pub(crate) fn sealed(&mut self) {
        if self.dictionary.lengths() != self.persisted_dictionary {
            self.persisted_dictionary = self.dictionary.lengths();
            self.dictionary_blocks += 1;
        }
        self.persisted_series = self.series.len();
        self.head.clear();
    }

    /// About how many bytes dictionary and series take.
    pub(crate) fn dictionary_bytes(&self) -> usize {
        self.dictionary.memory_bytes() + self.label_bytes
    }
}

/// About how many bytes a series takes: its labels and the index's entry.
fn series_bytes(labels: &LabelSet) -> usize {
    48 + labels.memory_bytes()
}

/// Samples by the window they are in, ascending.
fn by_window(samples: &Samples) -> BTreeMap<i64, Samples> {
    let mut windows: BTreeMap<i64, Samples> = BTreeMap::new();
    for i in 0..samples.len() {
        let window = windows.entry(window_of(samples.times_ns[i])).or_default();
        window.push(samples.times_ns[i], samples.pairs[i], samples.values[i], samples.attribute_sets[i]);
    }
    windows
}

type Item = (Box<[u8]>, Box<[u8]>);

/// All entries whose keys begin with `prefix`, in order.
pub(crate) fn scan<'a>(database: &'a DB, prefix: &[u8]) -> impl Iterator<Item = Result<Item, rocksdb::Error>> + 'a {
    let mut end = prefix.to_vec();
    // No section's key continues with eight bytes of ones.
    end.extend([0xff; 8]);
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(end);
    database.iterator_opt(IteratorMode::From(prefix, rocksdb::Direction::Forward), options)
}
