//! Series that a deletion selects.

use proto::entry::Deletion;
use proto::{Tier, Window};

use crate::database::key::PartitionKey;
use crate::engine::state::label_drops::period_of;
use crate::engine::store::Store;
use crate::error::EngineError;
use crate::memory::dropped_name::DroppedName;
use crate::memory::matcher::{ReadyMatcher, on_series};

/// A series of one partition, from which samples are deleted.
#[derive(Clone, Copy)]
pub(crate) struct Selected {
    /// Partition of the series.
    pub(crate) key: PartitionKey,
    pub(crate) series: u32,
    pub(crate) is_gauge: bool,
}

/// Returns the partitions to delete from, with the time of the windows to delete: those of raw samples, and those of
/// coarser tiers where the finer tier was dropped. All other windows are summed up again.
pub(crate) fn partitions_of(store: &Store, deletion: &Deletion) -> Vec<(PartitionKey, Window)> {
    let state = store.state();
    let tenant = state.tenants.number(&deletion.tenant);
    let Window { start_ns, end_ns } = deletion.window;
    let touched = |key: &PartitionKey| {
        let finer = Tier::from_number(key.tier.number().wrapping_sub(1));
        let gone_ns = finer.map_or(i64::MAX, |finer| state.horizons.horizon_ns(finer, key.class));
        let is_touched = key.overlaps(start_ns, end_ns) && start_ns < gone_ns && key.start_ns() < gone_ns;
        (Some(key.tenant) == tenant && is_touched).then(|| (*key, Window { start_ns, end_ns: end_ns.min(gone_ns) }))
    };
    state.partitions.existing().iter().filter_map(touched).collect()
}

/// Returns the series that match in a time range. The inner error is the index of the first undecided matcher: the tier
/// dropped its label, or samples have the label as an attribute.
pub(crate) fn selected_in(
    store: &Store,
    key: PartitionKey,
    window: Window,
    matchers: &[ReadyMatcher],
) -> Result<Result<Vec<Selected>, usize>, EngineError> {
    let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
    let partition = match store.partition(named) {
        Ok(Some(partition)) => partition,
        Ok(None) => return Ok(Ok(Vec::new())),
        // The partition is dropped as a whole, because its series cannot be matched.
        Err(error) if error.is_damage() => return Ok(Ok(Vec::new())),
        Err(error) => return Err(error),
    };
    let Window { start_ns, end_ns } = window;
    let periods = [start_ns.max(key.start_ns()).saturating_add(1), end_ns.min(key.end_ns())].map(period_of);
    let dropped_labels = store.state().label_drops.between(key.tenant, key.tier, periods);
    let partition = partition.read();
    let is_undecided = |name: &str| {
        partition.is_attribute(name)
            || partition.dropped_names().any(|dropped| match dropped {
                DroppedName::Label(of) => of == name && dropped_labels.contains(of),
                DroppedName::Attribute(of) => of == name,
            })
    };
    let mut selected = Vec::new();
    let mut undecided = None;
    for series in partition.index.matching(matchers, is_undecided) {
        let labels = partition.series.get_index(series as usize);
        let Some(absent) = labels.and_then(|(_, labels)| on_series(matchers, labels)) else { continue };
        if let Some(undecided_by) = absent.iter().find(|matcher| is_undecided(&matcher.name)) {
            // The smallest index over all series is returned, because the order of series differs between replicas: it
            // depends on the time of each replica's rollups.
            let index = matchers.iter().position(|matcher| std::ptr::eq(matcher, *undecided_by)).unwrap_or_default();
            undecided = Some(undecided.map_or(index, |first: usize| first.min(index)));
        } else if absent.iter().all(|matcher| matcher.accepts("")) {
            selected.push(Selected { key, series, is_gauge: partition.is_gauge(series) });
        }
    }
    Ok(undecided.map_or(Ok(selected), Err))
}
