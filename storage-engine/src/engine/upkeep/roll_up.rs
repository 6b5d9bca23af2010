//! Rollup: sums up windows of a finer tier into one window of the next coarser tier, hours or days. A window is summed
//! up again after one of its finer windows changed.
//!
//! The database lists the windows to sum up (`key::StaleKey`). A window is added to the list in the write of its finer
//! windows, and removed in the write of its sum. A window that is neither stale nor in a head is therefore exact.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use proto::{Fingerprint, LabelSet, TenantId, Tier};
use rocksdb::WriteBatch;

use crate::database;
use crate::database::frame;
use crate::database::key::{PartitionKey, Section, StaleKey, stale_key, two_numbers};
use crate::encoding::slot_sums::SlotSums;
use crate::encoding::sums::Row;
use crate::encoding::windows::{self, WindowRows};
use crate::engine::state::partitions::{SharedDictionary, SharedPartition};
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::quarantine::found_damage::{quarantine_keys, quarantine_value};
use crate::integrity::quarantine::replace::replace_partition;
use crate::memory::dropped_name::DroppedName;
use crate::memory::partition::Partition;

/// A stale window of one tenant, and the series for which it is stale.
pub(crate) struct DueWindow {
    tier: Tier,
    class: u8,
    window: u32,
    tenant: u32,
    /// Numbers of the stale series in the finer tier's partition.
    series: Vec<u32>,
}

/// Rollup of one window: its source and target partitions.
struct RollUp<'a> {
    due: &'a DueWindow,
    source: SharedPartition,
    target: SharedPartition,
    shared: SharedDictionary,
}

/// Sums up every stale window that ends at or before a time.
pub(crate) fn roll_up(writing: &Writing<'_>, before_ns: i64) -> Result<(), EngineError> {
    for tier in [Tier::Hour, Tier::Day] {
        for due in due(writing, tier, before_ns) {
            roll_up_window(writing, &due)?;
        }
    }
    Ok(())
}

/// Returns the stale windows of a tier that end at or before a time.
pub(crate) fn due(store: &Store, tier: Tier, before_ns: i64) -> Vec<DueWindow> {
    let mut due: Vec<DueWindow> = Vec::new();
    let state = store.state();
    for key in state.stale.due(tier, before_ns) {
        let &StaleKey { tier, class, window, tenant, series } = key;
        match due.last_mut() {
            Some(last) if (last.class, last.window, last.tenant) == (class, window, tenant) => last.series.push(series),
            _ => due.push(DueWindow { tier, class, window, tenant, series: vec![series] }),
        }
    }
    due
}

/// Sums up one window.
pub(crate) fn roll_up_window(writing: &Writing<'_>, due: &DueWindow) -> Result<(), EngineError> {
    let &DueWindow { tier, class, window, tenant, .. } = due;
    let Some(finer) = Tier::from_number(tier.number() - 1) else { return Ok(()) };
    let source = PartitionKey::of(finer, class, tenant, tier.window_end_ns(window));
    let target = PartitionKey::of_window(tier, class, tenant, window);
    let mut batch = WriteBatch::default();
    let mut stale = Vec::new();
    let mut restored = Vec::new();
    let mut written = None;
    let source = match writing.partition(source) {
        // The finer windows are quarantined, and so are those made from them.
        Err(error) if error.is_damage() => return Ok(()),
        source => source?,
    };
    if let Some(source) = source {
        let target = partition_or_new(writing, target)?;
        let shared = writing.tenant_dictionary(tenant);
        let roll_up = RollUp { due, source, target, shared };
        let dropped = writing.state().label_drops.of(tenant, tier, tier.window_end_ns(window));
        for (series, sources) in roll_up.targets(writing.tenant_name(tenant), &dropped) {
            if sum_up(writing, &roll_up, series, &sources, &mut batch)? {
                restored.push(series);
            }
            if let Some(coarser) = tier.coarser() {
                let window = window / tier.windows_in(coarser);
                stale.push(stale_key(roll_up.target.read().key, coarser, window, series));
            }
        }
        let (lengths, unwritten) = {
            let shared = roll_up.shared.read();
            let target = roll_up.target.read();
            let lengths = target.lengths();
            (lengths, target.unwritten(&lengths, &shared))
        };
        unwritten.write(&mut batch)?;
        written = Some((Arc::clone(&roll_up.target), lengths));
    }
    let done = due.series.iter().map(|&series| StaleKey { tier, class, window, tenant, series });
    let done: Vec<StaleKey> = done.collect();
    done.iter().for_each(|key| batch.delete(key.bytes()));
    stale.iter().for_each(|key| database::put(&mut batch, &key.bytes(), &[]));
    let damage = writing.state().damage.unwritten();
    damage.write(&mut batch);
    // Until the window is removed from the state's stale windows, queries read the finer windows.
    writing.write(batch)?;
    let mut state = writing.state_mut();
    let target = PartitionKey::of_window(tier, class, tenant, window);
    state.damage.wrote(&damage);
    restored.into_iter().for_each(|series| state.damage.restored(target, series, window));
    if let Some((target, lengths)) = written {
        let mut target = target.write();
        target.wrote(lengths);
        target.recount();
    }
    state.stale.remove(&done);
    state.stale.extend(stale);
    Ok(())
}

/// Returns a partition of hours or days, created if it does not exist.
fn partition_or_new(writing: &Writing<'_>, key: PartitionKey) -> Result<SharedPartition, EngineError> {
    let found = match writing.partition(key) {
        Err(EngineError::Quarantined { .. }) => replace_partition(writing, key),
        found => found,
    };
    if let Some(partition) = found? {
        return Ok(partition);
    }
    let shared = writing.tenant_dictionary(key.tenant);
    let mut state = writing.state_mut();
    state.partitions.add(key);
    let generation = shared.read().generation();
    Ok(state.partitions.keep(Partition::new(key, generation)))
}

/// Writes one window of one series of the coarser tier. Returns whether its value is the sum of all finer windows. If
/// some finer windows are damaged, the window is quarantined.
fn sum_up(
    store: &Store,
    roll_up: &RollUp<'_>,
    series: u32,
    sources: &[u32],
    batch: &mut WriteBatch,
) -> Result<bool, EngineError> {
    let (source_key, pairs) = {
        let source = roll_up.source.read();
        (source.key, source.pairs.len())
    };
    let mut dense = SlotSums::default();
    dense.resize(pairs);
    let mut samples = 0;
    let mut last_ns = None;
    for &source in sources {
        let windows = roll_up.windows();
        for item in windows_of(store, source_key, source, windows, roll_up.due.tier, pairs, &mut dense)? {
            samples += item.samples;
            last_ns = last_ns.max(item.last_ns);
        }
    }
    let &DueWindow { tier, window, .. } = roll_up.due;
    let finer = roll_up.windows();
    let finer = (finer.start, finer.end.saturating_sub(1));
    let target_key = roll_up.target.read().key;
    let is_whole = {
        let mut state = store.state_mut();
        let is_damaged = |source: &&u32| state.damage.touches(source_key, **source, finer);
        let damaged = sources.iter().find(is_damaged).is_some();
        if damaged {
            let what = "made from damaged windows";
            state.add_damage(target_key, Area::value(series, window), what);
        }
        !damaged
    };
    // Both partitions are locked, so that their numbers are of the same tenant dictionary. The finer one is locked
    // first, as everywhere.
    let source = roll_up.source.read();
    let mut target = roll_up.target.write();
    let key = target.key.series_window(Section::Windows, series, window);
    if samples == 0 {
        batch.delete(key);
        return Ok(is_whole);
    }
    let mut rows: Vec<Row> = Vec::new();
    // Values with stacks that are not defined were quarantined when they were read.
    dense.drain(|pair, sum| {
        if let Some(pair) = source.pairs.get(pair) {
            rows.push((target.add_pair(pair).0, sum));
        }
    });
    rows.sort_unstable_by_key(|row| row.0);
    let is_gauge = target.is_gauge(series);
    let rows = WindowRows { slot: 0, samples, last_ns: last_ns.unwrap_or_default(), rows };
    let value = windows::encode(&[rows], is_gauge, tier.window_start_ns(window));
    batch.put(&key, frame::seal(&key, &value));
    Ok(is_whole)
}

/// Returns the stored values of a series in a range of windows, ascending.
fn values(
    store: &Store,
    partition: PartitionKey,
    series: u32,
    windows: Range<u32>,
) -> Result<Vec<Stored>, EngineError> {
    let mut values = Vec::new();
    let end = partition.series_window(Section::Windows, series, windows.end);
    let from = partition.series_window(Section::Windows, series, windows.start);
    let snapshot = store.database().snapshot();
    let mut walk = Walk::between(&snapshot, from, end, true);
    while let Some(item) = walk.next()? {
        let (key, value) = match item {
            Ok(item) => item,
            Err(keys) => {
                quarantine_keys(store, partition, Section::Windows, &keys);
                continue;
            }
        };
        let numbers = PartitionKey::section_of(&key).and_then(|(_, rest)| two_numbers(rest));
        let wrong = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
        let (_, window, _) = numbers.ok_or_else(wrong)?;
        values.push(Stored { key, value, window });
    }
    Ok(values)
}

/// Adds up the finer windows of one source series. For a gauge, only the last window is used. Returns the added
/// windows.
fn windows_of(
    store: &Store,
    source: PartitionKey,
    series: u32,
    windows: Range<u32>,
    tier: Tier,
    pairs: usize,
    dense: &mut SlotSums,
) -> Result<Vec<Added>, EngineError> {
    let values = values(store, source, series, windows)?;
    let unit = if tier == Tier::Hour { Tier::Raw } else { Tier::Hour };
    let mut added = Vec::new();
    // Newest first, because only the last window of a gauge counts.
    for stored in values.iter().rev() {
        match add_windows(stored, unit, pairs, dense) {
            Ok(AddedWindows { windows, is_gauge }) => {
                added.extend(windows);
                if is_gauge {
                    return Ok(added);
                }
            }
            Err(damage) => quarantine_value(store, source, series, stored.window, &damage.into()),
        }
    }
    Ok(added)
}

/// Adds up the windows of one stored value. For a gauge, only the last one is used.
fn add_windows(stored: &Stored, unit: Tier, pairs: usize, dense: &mut SlotSums) -> Result<AddedWindows, Corruption> {
    let Stored { key, value, window } = stored;
    let corrupt = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
    let stored = windows::decode(frame::open(key, value)?, unit, *window).ok_or_else(corrupt)?;
    let last = stored.last().filter(|last| last.last_ns.is_some());
    let wanted = last.map_or(stored.as_slice(), std::slice::from_ref);
    let mut added = Vec::new();
    for window in windows::joined(wanted) {
        dense.resize(pairs);
        window.sums.add_to(dense, window.total).ok_or_else(corrupt)?;
        added.push(Added { samples: window.samples, last_ns: window.last_ns });
    }
    Ok(AddedWindows { windows: added, is_gauge: last.is_some() })
}

/// A stored value that holds windows.
struct Stored {
    key: Box<[u8]>,
    value: Box<[u8]>,
    window: u32,
}

/// Windows of one stored value that were added to the sums.
struct AddedWindows {
    windows: Vec<Added>,
    is_gauge: bool,
}

/// One window that was added to the sums.
struct Added {
    samples: u64,
    /// Time of a gauge's point, in nanoseconds since 1970; `None` if the series is not a gauge.
    last_ns: Option<i64>,
}

/// Source series that differ only in dropped labels and are summed into one target series.
struct Merged {
    labels: LabelSet,
    sources: Vec<u32>,
    is_due: bool,
}

impl RollUp<'_> {
    /// Returns the window numbers of the finer values that make up this window.
    fn windows(&self) -> Range<u32> {
        let &DueWindow { tier, window, .. } = self.due;
        // Minutes are stored under the window number of their chunk.
        let values = if tier == Tier::Hour { Tier::Raw } else { Tier::Hour };
        let count = values.windows_in(tier);
        window * count..(window + 1) * count
    }

    /// Maps each series number of the target tier to the source series that are summed into it.
    fn targets(&self, tenant: TenantId, dropped: &[String]) -> BTreeMap<u32, Vec<u32>> {
        let mut shared = self.shared.write();
        let source = self.source.read();
        let mut target = self.target.write();
        source.dropped_names().for_each(|name| target.add_dropped_name(name.clone()));
        let kept = |labels: &LabelSet| -> (Fingerprint, LabelSet) {
            let kept = LabelSet::new(labels.iter().filter(|label| !label.is_one_of(dropped)).cloned().collect());
            (kept.fingerprint(&tenant), kept)
        };
        let mut targets: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        if dropped.is_empty() {
            for &series in &self.due.series {
                let Some((&fingerprint, labels)) = source.series.get_index(series as usize) else { continue };
                let number = match target.series.get_index_of(&fingerprint) {
                    Some(number) => crate::memory::interner::saturating_u32(number),
                    None => target.add_series(fingerprint, || shared.share_labels(Arc::clone(labels))),
                };
                targets.entry(number).or_default().push(series);
            }
            shared.recount();
            return targets;
        }
        let due: BTreeSet<u32> = self.due.series.iter().copied().collect();
        let mut by_fingerprint: BTreeMap<Fingerprint, Merged> = BTreeMap::new();
        for (series, labels) in (0..).zip(source.series.values()) {
            for label in labels.iter().filter(|label| label.is_one_of(dropped)) {
                target.add_dropped_name(DroppedName::Label(label.name.to_string()));
            }
            let (fingerprint, kept) = kept(labels);
            let entry = by_fingerprint.entry(fingerprint).or_insert_with(|| Merged {
                labels: kept,
                sources: Vec::new(),
                is_due: false,
            });
            entry.sources.push(series);
            entry.is_due |= due.contains(&series);
        }
        shared.recount();
        for (fingerprint, Merged { labels, sources, is_due }) in by_fingerprint {
            if is_due {
                let share = || shared.share_labels(Arc::new(labels));
                targets.insert(target.add_series(fingerprint, share), sources);
            }
        }
        targets
    }
}
