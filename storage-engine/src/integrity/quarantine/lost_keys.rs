//! Keys that cannot be read or that a repair lost: the values that they may have held are quarantined or become stale.

use std::collections::BTreeSet;

use proto::Tier;

use crate::database::frame;
use crate::database::key::{self, PartitionKey, Section, StaleKey, numbered, stale_key, two_numbers};
use crate::database::that_may_exist;
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::error::{EngineError, is_corruption};
use crate::integrity::quarantine::area::{Area, area_between};
use crate::integrity::quarantine::damaged_keys::{DamagedKeys, Walk, after};
use crate::integrity::quarantine::found_damage::{quarantine_keys, quarantine_value, stored_times};
use crate::integrity::quarantine::repair::{self, Lost};
use crate::integrity::quarantine::replace::replace_partition;
use crate::memory::interner::saturating_u32;

/// Maximum number of windows that become stale because stale marks were lost. It bounds the memory of the marks. If
/// more windows may be stale, their areas are quarantined.
const RESTORED_MAX: usize = 1 << 20;

/// Quarantines the keys that repairs lost, and keys of stale marks, areas and records of lost keys that cannot be read.
pub(crate) fn quarantine_lost(writing: &Writing<'_>) -> Result<(), EngineError> {
    let (records, mut lost): (Vec<_>, Vec<_>) = repair::read_lost(&writing.database().snapshot())?.into_iter().unzip();
    lost.extend(unreadable_records(writing)?);
    for lost in &lost {
        let may_exist: BTreeSet<PartitionKey> = {
            let state = writing.state();
            let tenants = state.tenants.numbers();
            let existing = state.partitions.existing();
            that_may_exist(existing, &lost.from, &tenants, state.partitions.oldest_ns(), state.clock.entries_ns())
                .chain(existing.iter().copied())
                .filter(|key| state.horizons.horizon_ns(key.tier, key.class) < key.end_ns())
                .collect()
        };
        let touches = |from: &[u8], end: &[u8]| lost.from.as_slice() < end && from < lost.to.as_slice();
        // A record of lost keys that was itself lost may have been about any partition.
        let are_records_lost = touches(&key::losses(), &after(&key::losses()));
        for &key in &may_exist {
            let areas = key::damage_of(key);
            if are_records_lost || touches(&areas, &after(&areas)) {
                quarantine_lost_areas(writing, key, &lost.what)?;
            }
            if touches(&key.prefix(), &key.end()) {
                quarantine_lost_partition(writing, key, lost)?;
            }
        }
    }
    // Now all areas are known, and so are the partitions that lost all of their keys.
    let mut restored = 0;
    for lost in &lost {
        if lost.from < after(&key::stale()) && key::stale().as_slice() < lost.to.as_slice() {
            restore_stale(writing, lost, &mut restored)?;
        }
    }
    writing.state_mut().damage.quarantined_lost(records);
    Ok(())
}

/// Returns the unreadable key ranges among the stale marks, the areas and the records of lost keys.
fn unreadable_records(store: &Store) -> Result<Vec<Lost>, EngineError> {
    let snapshot = store.database().snapshot();
    let mut walk = Walk::between(&snapshot, key::stale().to_vec(), key::partitions().to_vec(), false);
    let mut unreadable = Vec::new();
    while let Some(item) = walk.next()? {
        if let Err(DamagedKeys { from, to, error }) = item {
            store.database().note_file(error.as_ref());
            unreadable.push(Lost { from, to, what: error.into_string() });
        }
    }
    Ok(unreadable)
}

/// Marks all windows as stale whose stale marks may be among the lost keys. If a window was exact, summing it again
/// from undamaged windows changes nothing. A window with damaged finer windows is not summed again, but quarantined.
/// `restored` counts the windows that became stale.
fn restore_stale(store: &Store, lost: &Lost, restored: &mut usize) -> Result<(), EngineError> {
    let sources: BTreeSet<PartitionKey> = {
        let state = store.state();
        let has_values = |key: &PartitionKey| state.horizons.horizon_ns(key.tier, key.class) < key.end_ns();
        let damaged = state.damage.iter().map(|(key, ..)| key);
        state.partitions.existing().iter().copied().chain(damaged).filter(has_values).collect()
    };
    for source in sources {
        let Some(tier) = source.tier.coarser() else { continue };
        let numbered = numbered(tier);
        let first = numbered.window_of(source.start_ns().saturating_add(1));
        let is_lost = |window: &u32| {
            let mark = |series| stale_key(source, tier, *window, series).bytes();
            lost.from <= mark(u32::MAX) && mark(0) < lost.to
        };
        let windows: Vec<u32> = (first..=numbered.window_of(source.end_ns())).filter(is_lost).collect();
        let marks = marks_of(store, source, &windows, RESTORED_MAX - *restored)?;
        *restored += marks.as_ref().map_or(0, Vec::len);
        let mut state = store.state_mut();
        for window in windows {
            let finer = finer_windows(tier, window);
            let is_damaged = state.damage.areas_of(source).any(|area| area.touches(finer));
            let Some(marks) = marks.as_ref().filter(|_| !is_damaged) else {
                state.add_damage_from(source, window, &lost.what);
                continue;
            };
            for mark in marks.iter().filter(|mark| mark.window == window) {
                state.damage.make_stale(*mark);
                state.stale.insert(*mark);
            }
        }
    }
    Ok(())
}

/// Quarantines the damage of the values in `source`, and returns the marks of the windows that may be stale. `windows`
/// are the numbers of the windows that are made of `source`, ascending. Returns `None` if there are more than
/// `count_max` marks, or if the series of the partition are unknown.
fn marks_of(
    store: &Store,
    source: PartitionKey,
    windows: &[u32],
    count_max: usize,
) -> Result<Option<Vec<StaleKey>>, EngineError> {
    let (Some(tier), Some(first), Some(last)) = (source.tier.coarser(), windows.first(), windows.last()) else {
        return Ok(Some(Vec::new()));
    };
    let finer = (finer_windows(tier, *first).0, finer_windows(tier, *last).1);
    if source.tier == Tier::Raw {
        find_damage(store, source, finer)?;
        let marks = marks_of_minutes(store, source, finer, count_max)?;
        return Ok((marks.len() <= count_max).then_some(marks));
    }
    let series = match store.outline(source) {
        Ok(Some(outline)) => outline.read().series.len(),
        Ok(None) => return Ok(None),
        Err(error) if error.is_damage() => return Ok(None),
        Err(error) => return Err(error),
    };
    if series.saturating_mul(windows.len()) > count_max {
        return Ok(None);
    }
    find_damage(store, source, finer)?;
    let of_window = |&window: &u32| (0..saturating_u32(series)).map(move |at| stale_key(source, tier, window, at));
    Ok(Some(windows.iter().flat_map(of_window).collect()))
}

/// Returns the marks of the windows whose minutes may not be the sums of all their chunks: those with several chunks,
/// and those without minutes. To write all other windows anew would take long. Stops after more than `count_max` marks.
fn marks_of_minutes(
    store: &Store,
    raw: PartitionKey,
    (first, last): (u32, u32),
    count_max: usize,
) -> Result<Vec<StaleKey>, EngineError> {
    let snapshot = store.database().snapshot();
    let from = raw.series_window(Section::Chunks, 0, first);
    let mut walk = Walk::between(&snapshot, from, after(&raw.section(Section::Chunks)), false);
    let mut marks: Vec<StaleKey> = Vec::new();
    let mut before = None;
    while let Some(item) = walk.next()?
        && marks.len() <= count_max
    {
        // Keys that cannot be read are quarantined already.
        let Ok((at, _)) = item else { continue };
        let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
        let Some((series, window, _)) = numbers.filter(|(_, window, _)| (first..=last).contains(window)) else {
            continue;
        };
        let mark = stale_key(raw, Tier::Minute, window, series);
        let is_first = before.replace(mark) != Some(mark);
        if marks.last() != Some(&mark) && (!is_first || !has_minutes(store, raw, series, window)?) {
            marks.push(mark);
        }
    }
    Ok(marks)
}

/// Returns whether the minutes of a window are in the database and can be read.
fn has_minutes(store: &Store, raw: PartitionKey, series: u32, window: u32) -> Result<bool, EngineError> {
    let minutes = raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window);
    match store.database().get(&minutes) {
        Ok(found) => Ok(found.is_some()),
        Err(error) if is_corruption(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the first and last number of the finer values that a window is made from.
fn finer_windows(tier: Tier, window: u32) -> (u32, u32) {
    let count = match tier {
        Tier::Day => Tier::Hour.windows_in(tier),
        Tier::Hour => Tier::Raw.windows_in(tier),
        Tier::Minute | Tier::Raw => 1,
    };
    let first = window.saturating_mul(count);
    (first, first.saturating_add(count - 1))
}

/// Quarantines the damaged values of a partition in a range of windows.
fn find_damage(store: &Store, key: PartitionKey, (first, last): (u32, u32)) -> Result<(), EngineError> {
    let sections: &[Section] =
        if key.tier == Tier::Raw { &[Section::Chunks, Section::Events] } else { &[Section::Windows] };
    let snapshot = store.database().snapshot();
    for &section in sections {
        let end = after(&key.section(section));
        let mut walk = Walk::between(&snapshot, key.series_window(section, 0, first), end, false);
        while let Some(item) = walk.next()? {
            let (at, value) = match item {
                Ok(item) => item,
                Err(keys) => {
                    quarantine_keys(store, key, section, &keys);
                    continue;
                }
            };
            let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
            let Some((series, window, _)) = numbers else { continue };
            if window < first {
                walk.seek(key.series_window(section, series, first));
            } else if window > last {
                walk.seek(key.series_window(section, series.saturating_add(1), first));
            } else if let Err(damage) = frame::open(&at, &value) {
                quarantine_value(store, key, series, window, &damage.into());
            }
        }
    }
    Ok(())
}

/// Quarantines a whole partition whose records of damage were lost, because any part of it may be damaged.
fn quarantine_lost_areas(store: &Store, key: PartitionKey, what: &str) -> Result<(), EngineError> {
    let until_ns = stored_times(store, key)?.until_ns;
    let mut state = store.state_mut();
    state.add_damage(key, Area::whole(key, until_ns), what);
    state.add_damage(key, Area::of_defined(key, until_ns), what);
    if key.tier == Tier::Raw {
        state.damage.lose_batch_ids(key);
    }
    Ok(())
}

fn quarantine_lost_partition(writing: &Writing<'_>, key: PartitionKey, lost: &Lost) -> Result<(), EngineError> {
    {
        let mut state = writing.state_mut();
        // The lost values are those of the old partition, and all of its time is quarantined already.
        let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
        let newest = state.damage.newest_replaced_file(named);
        let file = repair::file_named(&lost.what);
        if file.is_some_and(|file| newest.is_some_and(|newest| file <= newest)) {
            return Ok(());
        }
        state.partitions.add(key);
    }
    Section::ALL.into_iter().try_for_each(|section| quarantine_lost_section(writing, key, section, lost))
}

fn quarantine_lost_section(
    writing: &Writing<'_>,
    key: PartitionKey,
    section: Section,
    lost: &Lost,
) -> Result<(), EngineError> {
    let prefix = key.section(section);
    let end = after(&prefix);
    if lost.to <= prefix || end <= lost.from {
        return Ok(());
    }
    let from = lost.from.clone().max(prefix);
    let to = lost.to.clone().min(end);
    let area = area_between(key, section, &from, &to);
    let what = lost.what.as_str();
    let is_raw = key.tier == Tier::Raw;
    match section {
        Section::Chunks | Section::Events if is_raw => {
            writing.state_mut().add_damage(key, area, what);
        }
        Section::Head if is_raw => writing.state_mut().quarantine_in_all_tiers(key.in_tier(Tier::Minute), area, what),
        Section::Windows if key.tier == Tier::Minute => quarantine_lost_minutes(writing, key, area, what)?,
        Section::Windows if !is_raw => {
            writing.state_mut().add_damage(key, area, what);
        }
        Section::Series | Section::Dictionary | Section::DroppedNames if !is_raw => {
            let stored = stored_times(writing, key)?;
            writing.state_mut().quarantine_partition(key, what, &stored);
            replace_partition(writing, key)?;
        }
        Section::BatchIds => writing.state_mut().damage.lose_batch_ids(key),
        _ => {}
    }
    Ok(())
}

/// Quarantines an area of minutes whose keys were lost. Minutes with readable chunks become stale, and are made again.
fn quarantine_lost_minutes(store: &Store, key: PartitionKey, area: Area, what: &str) -> Result<(), EngineError> {
    let raw = key.in_tier(Tier::Raw);
    {
        let mut state = store.state_mut();
        let is_raw_gone = raw.end_ns() <= state.horizons.horizon_ns(Tier::Raw, raw.class);
        if is_raw_gone || state.damage.areas_of(raw).any(|damaged| damaged.overlaps(area)) {
            state.add_damage(key, area, what);
        }
        if is_raw_gone {
            return Ok(());
        }
    }
    let snapshot = store.database().snapshot();
    let first = raw.series_window(Section::Chunks, area.series.0, area.windows.0);
    let mut walk = Walk::between(&snapshot, first, after(&raw.section(Section::Chunks)), false);
    while let Some(item) = walk.next()? {
        let Ok((at, _)) = item else { continue };
        let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
        let Some((series, window, _)) = numbers else { continue };
        if series > area.series.1 {
            break;
        }
        if area.holds(series, window) {
            let stale = stale_key(raw, Tier::Minute, window, series);
            let mut state = store.state_mut();
            state.stale.insert(stale);
            state.damage.make_stale(stale);
        }
    }
    Ok(())
}
