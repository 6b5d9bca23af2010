//! Recording damage that a query, an append or a flush finds, and keys that a repair lost.

use std::collections::BTreeSet;

use proto::Tier;

use crate::database::key::{PartitionKey, Section, stale_key, two_numbers};
use crate::database::that_may_exist;
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::error::EngineError;
use crate::integrity::quarantine::area::{Area, area_between, area_of};
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::damaged_keys::{DamagedKeys, Walk, after};
use crate::integrity::quarantine::repair::{self, Lost};
use crate::integrity::quarantine::replace::replace_partition;

/// Quarantines damage. Returns whether it was unknown.
pub(crate) fn quarantine(store: &Store, found: &NewDamage) -> bool {
    store.database().note_damaged_file(&found.what);
    store.state_mut().quarantine(found)
}

/// Quarantines the keys that were lost in a repair.
pub(crate) fn quarantine_lost(writing: &Writing<'_>) -> Result<(), EngineError> {
    let lost = repair::read_lost(&writing.database().snapshot())?;
    for (_, lost) in &lost {
        let is_hit = |key: &PartitionKey| lost.from < key.end() && key.prefix() < lost.to;
        // A partition that lost all of its keys is found by the times that other tiers have.
        let hit: BTreeSet<PartitionKey> = {
            let state = writing.state();
            let tenants = state.tenants.numbers();
            that_may_exist(state.partitions.existing(), &tenants, state.clock.entries_ns()).filter(is_hit).collect()
        };
        let file = repair::file_named(&lost.what);
        for key in hit {
            if key.end_ns() <= writing.state().horizons.horizon_ns(key.tier, key.class) {
                continue;
            }
            // The old partition's values were lost, of which all is quarantined already.
            let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
            let newest = writing.state().damage.newest_replaced_file(named);
            if file.zip(newest).is_some_and(|(file, newest)| file <= newest) {
                continue;
            }
            writing.state_mut().partitions.add(key);
            for section in Section::ALL {
                quarantine_lost_section(writing, key, section, lost)?;
            }
        }
    }
    writing.state_mut().damage.quarantined_lost(lost.into_iter().map(|(at, _)| at).collect());
    Ok(())
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
            let windows = head_windows(writing, key)?;
            writing.state_mut().quarantine_partition(key, what, &windows);
            replace_partition(writing, key)?;
        }
        // A retry of a batch whose ID was lost counts twice.
        _ => {}
    }
    Ok(())
}

/// Quarantines the value of a series and window.
pub(crate) fn quarantine_value(store: &Store, key: PartitionKey, series: u32, window: u32, error: &EngineError) {
    quarantine(store, &NewDamage { key, area: Area::value(series, window), what: error.to_string(), skipped: None });
}

/// Quarantines keys of a section that cannot be read.
pub(crate) fn quarantine_keys(store: &Store, key: PartitionKey, section: Section, keys: &DamagedKeys) {
    quarantine(
        store,
        &NewDamage { key, area: area_of(key, section, keys), what: keys.error.to_string(), skipped: None },
    );
}

/// Quarantines an area of minutes whose keys were lost. Those that have readable chunks are made again from them.
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

/// Quarantines a partition whose definitions are damaged. Returns the error for callers that need them.
pub(crate) fn quarantine_partition(store: &Store, key: PartitionKey, error: &EngineError) -> EngineError {
    store.database().note_damaged_file(&error.to_string());
    let quarantined = EngineError::Quarantined { tier: key.tier, end_ns: key.end_ns() };
    let in_head = match head_windows(store, key) {
        Ok(windows) => windows,
        Err(error) => return error,
    };
    store.state_mut().quarantine_partition(key, &error.to_string(), &in_head);
    quarantined
}

/// The windows that have samples in the stored head of a partition of minutes.
fn head_windows(store: &Store, key: PartitionKey) -> Result<BTreeSet<u32>, EngineError> {
    let mut windows = BTreeSet::new();
    if key.tier != Tier::Minute {
        return Ok(windows);
    }
    let raw = key.in_tier(Tier::Raw);
    let snapshot = store.database().snapshot();
    let mut walk = Walk::new(&snapshot, raw.section(Section::Head));
    while let Some(item) = walk.next()? {
        match item {
            Ok((at, _)) => {
                let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
                windows.extend(numbers.map(|(window, ..)| window));
            }
            Err(keys) => {
                let (first, last) = area_of(raw, Section::Head, &keys).windows;
                windows.extend(first..=last);
            }
        }
    }
    Ok(windows)
}
