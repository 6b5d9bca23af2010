//! Statistics of the stored bytes: for each tier and section, its keys and values.

use std::collections::BTreeMap;

use proto::Tier;

use crate::database::frame;
use crate::database::key::{PartitionKey, Section, two_numbers};
use crate::encoding::chunk::Chunk;
use crate::encoding::windows;
use crate::engine::store::Store;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::quarantine::report::{DamagedWindow, damaged_windows};

/// Number and size of the keys and values of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionBytes {
    /// Number of keys.
    pub keys: u64,
    /// Size of the keys in bytes, without RocksDB's compression and overhead.
    pub key_bytes: u64,
    /// Size of the values in bytes.
    pub value_bytes: u64,
}

/// Statistics of a shard's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Keys and values by tier and section name. The tier is `None` for keys that belong to no tier.
    pub sections: BTreeMap<(Option<Tier>, &'static str), SectionBytes>,
    /// Number of samples in each tier: raw samples in chunks, and samples that are summed in coarser tiers.
    pub samples: BTreeMap<Tier, u64>,
    /// Size of the files of the state database, in bytes.
    pub file_bytes: u64,
    /// Number of samples that are in no chunk yet.
    pub head_samples: u64,
    /// Memory use of dictionaries and series, in bytes.
    pub dictionary_bytes: u64,
    /// Number of series of the partitions in memory. A series that is in several partitions is counted for each.
    pub series: u64,
    /// For each label: the largest number of its values in one partition, among the partitions in memory.
    pub label_values: BTreeMap<String, u64>,
    /// All known damage.
    pub damaged: Vec<DamagedWindow>,
}

/// Reads and counts all data on disk.
pub(crate) fn statistics(store: &Store) -> Result<Statistics, EngineError> {
    let mut statistics = Statistics::default();
    {
        let state = store.state();
        statistics.head_samples = state.partitions.head_size().samples as u64;
        statistics.dictionary_bytes = state.partitions.definitions().bytes() as u64;
        for (_, partition) in state.partitions.all_loaded() {
            let partition = partition.read();
            statistics.series += partition.series.len() as u64;
            for (label, values) in partition.index.cardinalities() {
                let most = statistics.label_values.entry(label.to_owned()).or_default();
                *most = (values as u64).max(*most);
            }
        }
    }
    let snapshot = store.database().snapshot();
    let mut walk = Walk::once(&snapshot, Vec::new());
    while let Some(item) = walk.next()? {
        // Damaged values are counted as far as they can be read.
        if let Ok((key, value)) = item
            && let Err(error) = statistics.add(&key, &value)
            && !error.is_damage()
        {
            return Err(error);
        }
    }
    statistics.damaged = damaged_windows(store);
    statistics.file_bytes = store.database().live_files()?.iter().map(|file| file.size as u64).sum();
    Ok(statistics)
}

impl Statistics {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let partition = PartitionKey::of_key(key).zip(PartitionKey::section_of(key));
        let (tier, name) = match &partition {
            Some((partition, (section, _))) => (Some(partition.tier), section.name()),
            None => (None, crate::database::key::kind_name(key)),
        };
        let bytes = self.sections.entry((tier, name)).or_default();
        bytes.keys += 1;
        bytes.key_bytes += key.len() as u64;
        bytes.value_bytes += value.len() as u64;
        let Some((partition, (section, rest))) = partition else { return Ok(()) };
        if !matches!(section, Section::Chunks | Section::Windows) {
            return Ok(());
        }
        let corrupt = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
        let (_, window, _) = two_numbers(rest).ok_or_else(corrupt)?;
        let payload = frame::open(key, value)?;
        let samples = if section == Section::Chunks {
            Chunk::read(payload, window).ok_or_else(corrupt)?.samples
        } else {
            // Minutes are stored under the window number of their chunk.
            let values = if partition.tier == Tier::Minute { Tier::Raw } else { partition.tier };
            windows::decode(payload, values, window).ok_or_else(corrupt)?.iter().map(|window| window.samples).sum()
        };
        *self.samples.entry(partition.tier).or_default() += samples;
        Ok(())
    }
}
