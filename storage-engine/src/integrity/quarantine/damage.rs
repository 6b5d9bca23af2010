//! All known damage of a shard, as areas of its partitions: values that cannot be read, or that were lost because of
//! damage.
//!
//! Invariant: every value that a response, a chunk or a rollup had to skip because of damage lies in an area. An area
//! may also hold readable values. Responses include the readable values, and still report the area as damaged.
//!
//! An area is kept in memory as soon as the damage is found, and is written with the next flush. A partition has at
//! most [`AREAS_MAX`] areas. They are dropped with the partition, so retention bounds their number.

pub(crate) mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::Tier;
use rocksdb::WriteBatch;

use crate::database::key::{self, PartitionKey, StaleKey};
use crate::integrity::quarantine::area::Area;

/// Maximum number of areas of one partition. Beyond it, the areas that cover all series are joined into one area, and
/// the other areas into another.
const AREAS_MAX: usize = 64;

/// Maximum number of values in [`Damage::skipped`].
const SKIPPED_MAX: usize = 1000;

/// Maximum length of the text that describes an area, in bytes.
const TEXT_BYTES_MAX: usize = 300;

/// Damage that a read found.
#[derive(Clone, Debug)]
pub(crate) struct NewDamage {
    pub(crate) key: PartitionKey,
    pub(crate) area: Area,
    /// Text of the error that the read returned.
    pub(crate) what: String,
    /// Key of a value that passes its checksum but contradicts itself; `None` for other damage. Later reads must skip
    /// the value, because they would count its readable part before they fail.
    pub(crate) skipped: Option<Vec<u8>>,
}

/// All damage of a shard.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    areas: BTreeMap<PartitionKey, BTreeMap<Area, String>>,
    /// Partitions whose definitions cannot be read. Partitions of raw samples are not listed, because they use the
    /// definitions of their minutes.
    without_definitions: BTreeSet<PartitionKey>,
    /// Partitions of raw samples that lost batch IDs.
    without_batch_ids: BTreeSet<PartitionKey>,
    /// Keys of the values that reads must skip.
    skipped: Arc<BTreeSet<Vec<u8>>>,
    /// Partitions whose damage is not written yet.
    changed: BTreeSet<PartitionKey>,
    /// Windows that are stale because of damage, but not yet written as stale.
    unwritten_stale: BTreeSet<StaleKey>,
    /// Keys of the records in which repairs noted lost keys. The lost keys are quarantined, but the records are not
    /// deleted yet.
    lost: Vec<Vec<u8>>,
    /// Number of damaged values and blocks that were found since the engine was opened.
    damaged_reads: u64,
    /// Partitions that replaced a partition with damaged definitions. The value is the number of the newest table file
    /// that may hold values of the old partition. Partitions of raw samples are not listed.
    replaced: BTreeMap<PartitionKey, u64>,
}

impl Damage {
    /// Adds an area of damage. Returns true if the area was unknown.
    pub(crate) fn add(&mut self, key: PartitionKey, area: Area, what: &str) -> bool {
        let areas = self.areas.entry(key).or_default();
        // An area of all series does not tell which of the defined series lost chunks, so it does not replace their
        // areas.
        let replaces = |a: Area, b: Area| a.covers(b) && a.has_all_series() == b.has_all_series();
        if areas.keys().any(|known| replaces(*known, area)) {
            return false;
        }
        areas.retain(|known, _| !replaces(area, *known));
        let mut end = what.len().min(TEXT_BYTES_MAX);
        while !what.is_char_boundary(end) {
            end -= 1;
        }
        areas.insert(area, what.get(..end).unwrap_or_default().to_owned());
        if areas.len() > AREAS_MAX {
            let text = format!("more than {AREAS_MAX} damaged areas, one of them: {what}");
            let (all, some): (Vec<Area>, Vec<Area>) = areas.keys().partition(|area| area.has_all_series());
            let hulls = [all, some].into_iter().filter_map(|areas| areas.into_iter().reduce(Area::hull));
            *areas = hulls.map(|hull| (hull, text.clone())).collect();
        }
        self.changed.insert(key);
        self.damaged_reads += 1;
        true
    }

    /// Records that reads must skip a value. Returns true if the key was not recorded before. Only faulty software
    /// writes such values, so few keys are recorded. Further values are read as far as possible, and still reported as
    /// damaged.
    pub(crate) fn skip(&mut self, key: &[u8]) -> bool {
        let is_new = self.skipped.len() < SKIPPED_MAX && !self.skipped.contains(key);
        if is_new {
            Arc::make_mut(&mut self.skipped).insert(key.to_vec());
        }
        is_new
    }

    /// Removes the area of a value that was written anew from undamaged data.
    pub(crate) fn restored(&mut self, key: PartitionKey, series: u32, window: u32) {
        let Some(areas) = self.areas.get_mut(&key) else { return };
        if areas.remove(&Area::value(series, window)).is_some() {
            self.changed.insert(key);
        }
        if areas.is_empty() {
            self.areas.remove(&key);
        }
    }

    /// Forgets the damaged areas of a partition: removes them from memory, and their records from the database.
    pub(crate) fn forget(&mut self, key: PartitionKey, batch: &mut WriteBatch) {
        self.without_definitions.remove(&key);
        self.without_batch_ids.remove(&key);
        self.areas.remove(&key);
        self.changed.remove(&key);
        let records = key::damage_of(key);
        batch.delete_range(records.clone(), [records.as_slice(), &[0xff; 17]].concat());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    /// Returns the keys of the values that reads must skip.
    pub(crate) fn skipped(&self) -> &Arc<BTreeSet<Vec<u8>>> {
        &self.skipped
    }

    pub(crate) fn areas_of(&self, key: PartitionKey) -> impl Iterator<Item = Area> + '_ {
        self.areas.get(&key).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Iterates over all areas, each with its partition and description.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartitionKey, Area, &str)> {
        self.areas.iter().flat_map(|(key, areas)| areas.iter().map(|(area, what)| (*key, *area, what.as_str())))
    }

    /// Returns the partitions that have a record of damage. A partition may occur twice.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = PartitionKey> + '_ {
        self.areas.keys().chain(&self.without_batch_ids).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.areas.values().map(BTreeMap::len).sum()
    }

    /// Returns whether any values of these windows of a series are damaged.
    pub(crate) fn touches(&self, key: PartitionKey, series: u32, windows: (u32, u32)) -> bool {
        self.areas_of(key).any(|area| (area.series.0..=area.series.1).contains(&series) && area.touches(windows))
    }

    /// Returns whether a window of a series lost values, although the definitions of the partition are intact.
    pub(crate) fn is_partly_damaged(&self, key: PartitionKey, series: u32, window: u32) -> bool {
        self.areas_of(key).any(|area| !area.has_all_series() && area.holds(series, window))
    }

    pub(crate) fn has_damaged_definitions(&self, key: PartitionKey) -> bool {
        self.without_definitions.contains(&key)
    }

    pub(crate) fn without_definitions(&self) -> impl Iterator<Item = PartitionKey> + '_ {
        self.without_definitions.iter().copied()
    }

    pub(crate) fn mark_definitions_damaged(&mut self, key: PartitionKey) -> bool {
        self.without_definitions.insert(key)
    }

    /// Records that a partition of raw samples lost batch IDs. No response is wrong, but a retry may count twice.
    pub(crate) fn lose_batch_ids(&mut self, key: PartitionKey) {
        if self.without_batch_ids.insert(key) {
            self.changed.insert(key);
            self.damaged_reads += 1;
        }
    }

    /// Returns the partitions that lost batch IDs.
    pub(crate) fn without_batch_ids(&self) -> impl ExactSizeIterator<Item = PartitionKey> + '_ {
        self.without_batch_ids.iter().copied()
    }

    /// Records that an empty partition replaced one with damaged definitions. All areas become areas of all series,
    /// because no values are left to which late samples could be added, and series get new numbers. `newest` is the
    /// number of the newest table file that may hold values of the old partition.
    pub(crate) fn replace(&mut self, key: PartitionKey, newest: u64) {
        self.without_definitions.remove(&key);
        self.unwritten_stale.retain(|stale| !stale.is_made_of(key));
        self.replaced.insert(key, newest);
        let raw = (key.tier == Tier::Minute).then(|| key.in_tier(Tier::Raw));
        for key in [Some(key), raw].into_iter().flatten() {
            if let Some(areas) = self.areas.get_mut(&key) {
                let (mut kept, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    std::mem::take(areas).into_iter().partition(|(area, _)| area.has_all_series());
                for (Area { windows: (first, last), .. }, what) in others {
                    let area = Area::of_windows(first, last);
                    if !kept.keys().any(|known| known.covers(area)) {
                        kept.insert(area, what);
                    }
                }
                *areas = kept;
                self.changed.insert(key);
            }
        }
    }

    /// Returns the number of the newest table file that may hold values of the partition that the partition `key` has
    /// replaced; `None` if the partition has replaced none.
    pub(crate) fn newest_replaced_file(&self, key: PartitionKey) -> Option<u64> {
        self.replaced.get(&key).copied()
    }

    /// Returns all partitions that replaced another one, each with the number of the newest table file that may hold
    /// values of the old one.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (PartitionKey, u64)> + '_ {
        self.replaced.iter().map(|(key, newest)| (*key, *newest))
    }

    /// Forgets that a partition replaced another one.
    pub(crate) fn forget_replaced(&mut self, key: PartitionKey) {
        self.replaced.remove(&key);
    }

    /// Records that a window is stale because of damage. The next write of damage includes the stale mark.
    pub(crate) fn make_stale(&mut self, key: StaleKey) {
        self.unwritten_stale.insert(key);
    }

    /// Records that windows are no longer stale. The next write of damage does not mark them.
    pub(crate) fn no_longer_stale(&mut self, keys: &[StaleKey]) {
        keys.iter().for_each(|key| {
            self.unwritten_stale.remove(key);
        });
    }

    /// Records that the lost keys in these records are quarantined. The next write of damage deletes the records.
    pub(crate) fn quarantined_lost(&mut self, records: Vec<Vec<u8>>) {
        self.lost = records;
    }

    /// Counts a damaged value or block.
    pub(crate) fn count_read(&mut self) {
        self.damaged_reads += 1;
    }

    /// Returns the number of damaged values and blocks that were found since the engine was opened.
    pub(crate) fn damaged_reads(&self) -> u64 {
        self.damaged_reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::key::Section;
    use crate::integrity::quarantine::area::area_between;
    use crate::integrity::quarantine::damaged_keys::after;

    const HOUR_NS: i64 = 3600 * 1_000_000_000;

    #[test]
    fn areas_of_a_partition_are_bounded_and_keep_covering_all_damage() {
        let key = PartitionKey::of(Tier::Hour, 0, 1, 480_000 * HOUR_NS);
        let mut damage = Damage::default();
        let first = Area::whole(key, key.end_ns()).windows.0;
        for i in 0..1000 {
            damage.add(key, Area::value(i, first + i % 7), "what");
            assert!(damage.len() <= AREAS_MAX);
        }
        assert!((0..1000).all(|i| damage.touches(key, i, (first + i % 7, first + i % 7))));
        assert!(!damage.add(key, Area::value(3, first + 3), "what"), "it is known");
    }

    #[test]
    fn a_lost_chunk_section_is_distinguished_from_lost_definitions() {
        let key = PartitionKey::of(Tier::Raw, 0, 1, 480_000 * HOUR_NS);
        let section = key.section(Section::Chunks);
        let lost = area_between(key, Section::Chunks, &section, &after(&section));
        let window = lost.windows.0;
        assert!(lost.holds(0, window) && lost.some_series().is_none() && !lost.has_all_series());
        let mut damage = Damage::default();
        damage.add(key, lost, "lost");
        damage.add(key, Area::whole(key, key.end_ns()), "all");
        assert!(damage.is_partly_damaged(key, 7, window), "an area of all series replaced it");
        for series in 0..1000 {
            damage.add(key, Area::value(series, window - 1), "what");
            assert!(damage.len() <= AREAS_MAX);
        }
        assert!(damage.is_partly_damaged(key, 7, window) && damage.areas_of(key).any(Area::has_all_series));
    }

    // Regression: lost chunks after the time of the damaged definitions were not reported any more.
    #[test]
    fn areas_of_a_replaced_partition_become_those_of_all_series() {
        let key = PartitionKey::of(Tier::Minute, 0, 1, 480_000 * HOUR_NS);
        let raw = key.in_tier(Tier::Raw);
        let mut damage = Damage::default();
        let (first, last) = Area::whole(raw, raw.end_ns()).windows;
        damage.add(raw, Area::of_windows(first, last - 2), "definitions");
        damage.add(raw, Area::value(7, first), "known");
        damage.add(raw, Area::value(7, last), "later");
        damage.replace(key, 1);
        let areas: Vec<Area> = damage.areas_of(raw).collect();
        assert_eq!(areas, [Area::of_windows(first, last - 2), Area::of_windows(last, last)]);
    }

    #[test]
    fn a_record_reads_back_from_its_key() {
        let key = PartitionKey::of(Tier::Minute, 3, 9, 480_000 * HOUR_NS);
        let area = Area { series: (1, u32::MAX), windows: (70_000, 70_001) };
        assert_eq!(Area::read_key(&area.key(key)), Some((key, area)));
        assert!(area.key(key).starts_with(&key::damage_of(key)));
    }
}
