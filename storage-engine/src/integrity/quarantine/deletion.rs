//! Deletions in times that have damage. Unreadable values and everything that was summed from them are deleted, because
//! they may hold samples to delete.

use proto::entry::Deletion;
use proto::{Tier, Window};
use rocksdb::WriteBatch;

use crate::database::key::{PartitionKey, Section};
use crate::engine::apply::delete::{Changes, hour_of};
use crate::engine::apply::selected::{Selected, selected_in};
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::error::EngineError;
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::replace::drop_damaged_partitions;
use crate::memory::matcher::ReadyMatcher;

/// Description of windows that a deletion removed because they were summed from damaged values that it deleted.
const MADE_FROM_DAMAGED: &str = "deleted with the damaged values that it was made from";

/// Drops the partitions of a deletion's time whose definitions are damaged, and the moved values of replaced
/// partitions. In both cases it is unknown which series match.
pub(crate) fn delete_damaged_partitions(
    writing: &Writing<'_>,
    deletion: &Deletion,
    matchers: &[ReadyMatcher],
) -> Result<(), EngineError> {
    let Window { start_ns, end_ns } = deletion.window;
    let tenant = writing.state().tenants.number(&deletion.tenant);
    let is_touched = |key: &PartitionKey| Some(key.tenant) == tenant && key.overlaps(start_ns, end_ns);
    let touched: Vec<PartitionKey> = {
        let state = writing.state();
        let replaced = state.damage.replaced().map(|(key, _)| key);
        state.damage.without_definitions().chain(replaced).filter(is_touched).collect()
    };
    for key in touched {
        let time = Window { start_ns: start_ns.max(key.start_ns()), end_ns: end_ns.min(key.end_ns()) };
        delete_made_from(writing, key, time, matchers)?;
    }
    drop_damaged_partitions(writing, is_touched)
}

/// Deletes the coarser windows of the selected series that were summed from a part of a partition's time. These windows
/// cannot be summed again without the deleted samples.
fn delete_made_from(
    writing: &Writing<'_>,
    source: PartitionKey,
    time: Window,
    matchers: &[ReadyMatcher],
) -> Result<(), EngineError> {
    let mut batch = WriteBatch::default();
    for tier in std::iter::successors(source.tier.coarser(), |tier| tier.coarser()) {
        let last = tier.window_of(time.end_ns);
        let mut first = tier.window_of(time.start_ns.saturating_add(1));
        while first <= last {
            let target = PartitionKey::of_window(tier, source.class, source.tenant, first);
            let end = tier.window_of(target.end_ns()).min(last).saturating_add(1);
            let window = Window { start_ns: tier.window_start_ns(first), end_ns: tier.window_start_ns(end) };
            let series = selected_or_all(writing, target, window, matchers)?;
            for &series in &series {
                let from = target.series_window(Section::Windows, series, first);
                batch.delete_range(from, target.series_window(Section::Windows, series, end));
            }
            if let (Some(&least), Some(&greatest)) = (series.iter().min(), series.iter().max()) {
                let area = Area { series: (least, greatest), windows: (first, end.saturating_sub(1)) };
                writing.state_mut().add_damage(target, area, MADE_FROM_DAMAGED);
            }
            first = end;
        }
    }
    writing.write(batch)
}

/// Returns the series of a partition that match in a time range. Returns all series if it is unknown for one of them
/// whether it matches.
fn selected_or_all(
    store: &Store,
    key: PartitionKey,
    window: Window,
    matchers: &[ReadyMatcher],
) -> Result<Vec<u32>, EngineError> {
    match selected_in(store, key, window, matchers)? {
        Ok(selected) => Ok(selected.iter().map(|selected| selected.series).collect()),
        Err(_undecidable) => {
            let partition = store.partition(key)?;
            let series = partition.map_or(0, |partition| partition.read().series.len());
            Ok((0..u32::try_from(series).unwrap_or(u32::MAX)).collect())
        }
    }
}

/// Deletes the minutes of a selected series that were made from chunks which a repair lost.
pub(crate) fn delete_lost_chunks(store: &Store, selected: Selected, deleted: Window, changes: &mut Changes) {
    let Selected { key: raw, series, .. } = selected;
    let first = Tier::Raw.window_of(deleted.start_ns.max(raw.start_ns()).saturating_add(1));
    let last = Tier::Raw.window_of(deleted.end_ns.min(raw.end_ns()));
    let wanted = Area { series: (series, series), windows: (first, last) };
    let lost: Vec<Area> = {
        let state = store.state();
        let areas = state.damage.areas_of(raw);
        areas.filter(|area| !area.has_all_series() && area.overlaps(wanted)).collect()
    };
    for area in lost {
        let windows = (area.windows.0.max(first), area.windows.1.min(last));
        delete_damaged_chunks(store, selected, windows, "deleted with a damaged chunk", changes);
    }
}

/// Deletes the minutes of damaged chunks, and quarantines their windows. This includes windows that are only partly in
/// the deleted time.
pub(crate) fn delete_damaged_chunks(
    store: &Store,
    Selected { key: raw, series, .. }: Selected,
    (first, last): (u32, u32),
    what: &str,
    changes: &mut Changes,
) {
    let minutes = raw.in_tier(Tier::Minute);
    changes.batch.delete_range(
        minutes.series_window(Section::Windows, series, first),
        minutes.series_window(Section::Windows, series, last.saturating_add(1)),
    );
    changes.stale.extend((first..=last).map(|window| hour_of(raw, series, window)));
    let area = Area { series: (series, series), windows: (first, last) };
    store.state_mut().quarantine_in_all_tiers(minutes, area, what);
}
