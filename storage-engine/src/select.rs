//! Queries: sums of samples by group, bucket and stack, and the list of series.
//!
//! `plan` chooses the windows and intervals to read, and `gather` reads their partitions one after another. `read`
//! passes the data of each series to a visitor; several threads share the series of a large partition.
//! `accumulator` sums each partition by the partition's own pair numbers, without locks. It then merges the stacks of
//! the sums into one tree, under the tenant dictionary's lock.

pub(crate) mod accumulator;
mod codes;
pub(crate) mod gather;
pub(crate) mod grouping;
pub(crate) mod locations;
pub(crate) mod missing;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod selected_stacks;
pub(crate) mod series;
pub(crate) mod stack_filter;
pub(crate) mod view;

use proto::{Answer, Fold, Selection, StackDetail};

use crate::engine::store::Store;
use crate::error::SelectError;
use crate::memory::matcher::ReadyMatcher;
use crate::select::accumulator::Accumulator;
use crate::select::gather::{Aggregate, Query};
use crate::select::plan::Tiers;

/// Returns sums of samples. The response reflects each entry entirely or not at all. Stops when `is_wanted` returns
/// false. `is_wanted` is called before each partition and each series.
pub(crate) fn select(
    store: &Store,
    selection: &Selection,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<Answer, SelectError> {
    let aggregate = if matches!(selection.fold, Fold::Last(_)) { Aggregate::Last } else { Aggregate::Sums };
    let matchers = ReadyMatcher::all(&selection.matchers)?;
    let (buckets, tiers) = match &selection.fold {
        Fold::Sum(windows) => (windows.as_slice(), Tiers::ALL),
        Fold::Last(window) => (std::slice::from_ref(window), Tiers::ALL),
        Fold::Points(window) => (std::slice::from_ref(window), Tiers::RAW),
    };
    let query = Query {
        tenant: &selection.tenant,
        matchers: &matchers,
        buckets,
        group_by: &selection.group_by,
        listed_label: None,
        // If a tier merged several series into one, it does not have the last point of each of them.
        by_series: selection.group_by_series || aggregate == Aggregate::Last,
        aggregate,
        tiers: tiers.clone(),
        needs_stacks: selection.stacks != StackDetail::None
            || !selection.locations.filters.is_empty()
            || tiers != Tiers::ALL
            || aggregate == Aggregate::Last,
        is_wanted,
    };
    let (accumulator, summary) = gather::read(store, &query, || Accumulator::new(selection, &matchers))?;
    Ok(accumulator.finish(summary))
}
