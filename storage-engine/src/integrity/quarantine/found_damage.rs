//! Quarantine of damage that was found by a query, an append or a flush.

use std::collections::BTreeSet;

use proto::{Tier, limits};

use crate::database::key::{PartitionKey, Section, numbered, two_numbers};
use crate::engine::store::Store;
use crate::error::EngineError;
use crate::integrity::quarantine::area::{Area, area_of};
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::damaged_keys::{DamagedKeys, Walk, after};
use crate::integrity::quarantine::mark::StoredTimes;

/// Quarantines damage. Returns true if the damage was unknown.
pub(crate) fn quarantine(store: &Store, found: &NewDamage) -> bool {
    store.database().note_file(&found.what);
    store.state_mut().quarantine(found)
}

/// Quarantines the value of a series in a window.
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

/// Quarantines a partition whose definitions are damaged. Returns the error for a caller that needs the definitions.
pub(crate) fn quarantine_partition(store: &Store, key: PartitionKey, error: &EngineError) -> EngineError {
    store.database().note_error(error);
    let quarantined = EngineError::Quarantined { tier: key.tier, end_ns: key.end_ns() };
    let stored = match stored_times(store, key) {
        Ok(stored) => stored,
        Err(error) => return error,
    };
    store.state_mut().quarantine_partition(key, &error.to_string(), &stored);
    quarantined
}

/// Returns the times for which a partition of any tier may have stored values.
pub(crate) fn stored_times(store: &Store, key: PartitionKey) -> Result<StoredTimes, EngineError> {
    let in_head = head_windows(store, key)?;
    let until_ns = store.state().clock.sealing_ns().saturating_add(limits::TIME_AHEAD_MAX_NS);
    if until_ns >= key.end_ns() {
        return Ok(StoredTimes { until_ns: key.end_ns(), in_head });
    }
    // Samples may be later still if the system clock was ahead and was set back, because the log's time follows slowly.
    let after = numbered(key.tier).window_of(until_ns).saturating_add(1);
    let raw = key.in_tier(Tier::Raw);
    let is_ahead = in_head.last().is_some_and(|last| *last >= after)
        || (key.tier != Tier::Raw && has_values_from(store, key, Section::Windows, after)?)
        || (key.tier <= Tier::Minute && has_values_from(store, raw, Section::Chunks, after)?);
    Ok(StoredTimes { until_ns: if is_ahead { key.end_ns() } else { until_ns }, in_head })
}

/// Returns whether any series may have a stored value of this window or of a later one.
fn has_values_from(store: &Store, key: PartitionKey, section: Section, window: u32) -> Result<bool, EngineError> {
    let snapshot = store.database().snapshot();
    let first = key.series_window(section, 0, window);
    let mut walk = Walk::between(&snapshot, first, after(&key.section(section)), false);
    while let Some(item) = walk.next()? {
        let numbers = item.ok().and_then(|(at, _)| {
            let (_, rest) = PartitionKey::section_of(&at)?;
            two_numbers(rest).map(|(series, window, _)| (series, window))
        });
        match numbers {
            Some((series, early)) if early < window => walk.seek(key.series_window(section, series, window)),
            // Keys that cannot be read may be of such windows, too.
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Returns the windows with samples in the stored head of a partition of minutes.
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
