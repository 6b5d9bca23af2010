//! A partition as stored in the state database. It is read, decompressed and checked without the lock on the tenant's
//! dictionary, because appends need that lock.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use prost::Message as _;
use proto::{ArcStr, Fingerprint, LabelSet, Tier, wire};

use crate::database::frame;
use crate::database::key::{PartitionKey, Section, two_numbers};
use crate::database::{Snapshot, scan};
use crate::encoding::head_block;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::area::{Area, area_of};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::memory::dictionary_block::Block;
use crate::memory::dropped_name;
use crate::memory::partition::{Lengths, Partition};
use crate::memory::tenant_dictionary::TenantDictionary;

/// A partition that was read, and whose definitions are not in the tenant's dictionary yet.
#[derive(Debug)]
pub(crate) struct StoredPartition {
    /// The partition without its pairs and attribute sets, because these are numbers of a tenant's dictionary.
    partition: Partition,
    /// Dictionary blocks, each with its key.
    blocks: Vec<(Box<[u8]>, Block)>,
    /// Areas (ranges of series and windows) with damaged head values, each with the error.
    pub(crate) damaged_head: Vec<(Area, String)>,
}

impl StoredPartition {
    fn new(key: PartitionKey) -> Self {
        Self { partition: Partition::new(key, 0), blocks: Vec::new(), damaged_head: Vec::new() }
    }

    /// Reads a partition and its head values from a snapshot of the state database.
    pub(crate) fn read(snapshot: &Snapshot<'_>, key: PartitionKey, now_ns: i64) -> Result<Self, EngineError> {
        let mut stored = Self::new(key);
        for item in scan(snapshot, &key.section(Section::Dictionary)) {
            let (at, value) = item?;
            // A missing block would shift the numbers of the next one.
            check_key(&at, &key.dictionary_block(stored.blocks.len() as u32))?;
            let block = Block::read(&at, &value)?;
            stored.blocks.push((at, block));
        }
        let dropped_name_blocks = stored.read_outline(snapshot)?;
        if key.tier == Tier::Minute {
            stored.read_head(snapshot, now_ns)?;
        }
        stored.partition.restored(stored.blocks.len() as u32, dropped_name_blocks);
        Ok(stored)
    }

    /// Reads a partition without its dictionary and its head.
    pub(crate) fn outline(snapshot: &Snapshot<'_>, key: PartitionKey) -> Result<Partition, EngineError> {
        let mut stored = Self::new(key);
        stored.read_outline(snapshot)?;
        stored.partition.own_label_sets();
        Ok(stored.partition)
    }

    /// Reads the series and the dropped names. Returns the number of blocks of dropped names.
    fn read_outline(&mut self, snapshot: &Snapshot<'_>) -> Result<u32, EngineError> {
        let key = self.partition.key;
        let mut texts = HashSet::default();
        for item in scan(snapshot, &key.section(Section::Series)) {
            let (at, value) = item?;
            self.read_series(&at, &value, &mut texts)?;
        }
        let mut dropped_name_blocks = 0;
        for item in scan(snapshot, &key.section(Section::DroppedNames)) {
            let (at, value) = item?;
            check_key(&at, &key.dropped_names_block(dropped_name_blocks))?;
            dropped_name::decode(&at, &value)?.into_iter().for_each(|name| self.partition.add_dropped_name(name));
            dropped_name_blocks += 1;
        }
        Ok(dropped_name_blocks)
    }

    fn read_series(
        &mut self,
        at: &[u8],
        value: &[u8],
        texts: &mut HashSet<ArcStr, FixedState>,
    ) -> Result<(), EngineError> {
        let Self { partition, .. } = self;
        check_key(at, &partition.key.series_block(partition.series.len() as u32))?;
        let block = wire::Batch::decode(frame::unpack(at, value)?.as_slice());
        for series in block.map_err(|_undecodable| corrupt(at))?.series {
            let fingerprint = series.fingerprint.as_ref().try_into().map_err(|_length| corrupt(at))?;
            // Texts that many series have are made once. So the other texts of all series are next to each other in
            // memory, and are read fast.
            let share = |text: &str| texts.get_or_insert_with(text, |text| ArcStr::from(text)).clone();
            let labels = LabelSet::from_wire_with(&series.labels, share);
            let before = partition.series.len();
            partition.add_series(Fingerprint(u128::from_be_bytes(fingerprint)), || Arc::new(labels));
            if partition.series.len() == before {
                return Err(corrupt(at).into());
            }
        }
        Ok(())
    }

    fn read_head(&mut self, snapshot: &Snapshot<'_>, now_ns: i64) -> Result<(), EngineError> {
        let known = self.lengths();
        let raw = self.partition.key.in_tier(Tier::Raw);
        let mut walk = Walk::new(snapshot, raw.section(Section::Head));
        while let Some(item) = walk.next()? {
            let (at, value) = match item {
                Ok(item) => item,
                Err(keys) => {
                    self.damaged_head.push((area_of(raw, Section::Head, &keys), keys.error.to_string()));
                    continue;
                }
            };
            let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
            let (window, series, index) = numbers.ok_or_else(|| corrupt(&at))?;
            let index = u64::from_be_bytes(index.try_into().map_err(|_length| corrupt(&at))?);
            let samples = match head_block::decode(&at, &value) {
                Ok(samples) => samples,
                Err(damage) => {
                    self.damaged_head.push((Area::value(series, window), damage.to_string()));
                    continue;
                }
            };
            let dangles = series as usize >= known.series
                || samples.pairs.iter().any(|&pair| pair as usize >= known.pairs)
                || samples.attribute_sets.iter().any(|&set| set as usize >= known.attribute_sets);
            if dangles || samples.times_ns.iter().any(|&time| Tier::Raw.window_of(time) != window) {
                self.damaged_head.push((Area::value(series, window), corrupt(&at).to_string()));
                continue;
            }
            self.partition.head.restore(window, series, index, samples, now_ns);
        }
        Ok(())
    }

    /// Returns the number of entries of each list of the partition.
    fn lengths(&self) -> Lengths {
        let mut lengths = self.partition.lengths();
        for (_, block) in &self.blocks {
            lengths.pairs += block.pairs();
            lengths.attribute_sets += block.attribute_sets();
        }
        lengths
    }

    /// Adds the definitions to the tenant's dictionary. Returns the partition with numbers of that dictionary.
    ///
    /// # Errors
    /// A definition occurs twice in the stored partition.
    pub(crate) fn into_partition(self, shared: &mut TenantDictionary) -> Result<Partition, Corruption> {
        let Self { mut partition, blocks, .. } = self;
        for (at, block) in blocks {
            if !partition.add_block(&block, shared) {
                return Err(corrupt(&at));
            }
        }
        partition.join(shared);
        Ok(partition)
    }
}

impl Partition {
    /// Reads a partition and its head values from a snapshot of the state database.
    pub(crate) fn load(
        snapshot: &Snapshot<'_>,
        key: PartitionKey,
        shared: &mut TenantDictionary,
        now_ns: i64,
    ) -> Result<Self, EngineError> {
        Ok(StoredPartition::read(snapshot, key, now_ns)?.into_partition(shared)?)
    }
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}

fn check_key(got: &[u8], wanted: &[u8]) -> Result<(), Corruption> {
    if got == wanted { Ok(()) } else { Err(corrupt(got)) }
}
