//! Lists the series that have samples in a window, and the attribute names of these samples.
//!
//! A series is listed as soon as one of its samples in the window is found. If a matcher depends on attributes, the
//! samples of the series are read one by one instead.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::answer::DroppedLabel;
use proto::{Fold, LabelSet, LocationSets, Matcher, Selection, SeriesAnswer, StackDetail, TenantId, Window};

use crate::engine::store::Store;
use crate::error::SelectError;
use crate::memory::dropped_name::DroppedName;
use crate::memory::matcher::{ReadyMatcher, on_series};
use crate::select::gather::{Aggregate, Collector, Progress, Query, read};
use crate::select::missing::AnySample;
use crate::select::plan::Tiers;
use crate::select::read::PartReader;
use crate::select::select_as;
use crate::select::view::{PartView, View};

/// Returns the series that have samples in the window, and the times for which the list may be incomplete. A label that
/// one tier dropped is listed if another tier still has it for these times. Stops when `is_wanted` returns false.
pub(crate) fn series(
    store: &Store,
    tenant: &TenantId,
    matchers: &[Matcher],
    window: Window,
    is_wanted: &dyn Fn() -> bool,
) -> Result<SeriesAnswer, SelectError> {
    match series_as(store, tenant, matchers, window, true, is_wanted) {
        // Callers use the list to find names, so an incomplete list is better than an error. Dropped labels are
        // then missing from it.
        Err(SelectError::DroppedName { name, .. }) if !matchers.iter().any(|matcher| matcher.name == name) => {
            series_as(store, tenant, matchers, window, false, is_wanted)
        }
        response => response,
    }
}

fn series_as(
    store: &Store,
    tenant: &TenantId,
    matchers: &[Matcher],
    window: Window,
    whole: bool,
    is_wanted: &dyn Fn() -> bool,
) -> Result<SeriesAnswer, SelectError> {
    let ready = ReadyMatcher::all(matchers)?;
    let query = Query {
        tenant,
        matchers: &ready,
        buckets: &[window],
        group_by: &[],
        by_series: whole,
        aggregate: Aggregate::Any,
        tiers: Tiers::ALL,
        needs_stacks: false,
        is_wanted,
    };
    let (list, summary) = read(store, &query, || List { matchers: &ready, ..List::default() })?;
    let mut response = SeriesAnswer {
        series: Vec::new(),
        dropped_labels: list.dropped_labels.into_iter().collect(),
        missing: summary.missing,
        attribute_names: Vec::new(),
    };
    // A matcher on a name that no attribute has gives the same result for every sample of a series.
    if list.names_without_label.iter().any(|name| list.attribute_names.contains(*name)) {
        let by_samples = select_as(store, &selection_of(tenant, matchers, window), Aggregate::Any, whole, is_wanted)?;
        response.series = by_samples.groups;
        response.missing = by_samples.missing;
    } else {
        response.series = list.series.iter().map(|labels| LabelSet::clone(labels)).collect();
    }
    response.series.sort_unstable();
    response.attribute_names = list.attribute_names.into_iter().collect();
    Ok(response)
}

/// Returns a selection that has one group for each series.
fn selection_of(tenant: &TenantId, matchers: &[Matcher], window: Window) -> Selection {
    Selection {
        tenant: tenant.clone(),
        matchers: matchers.to_vec(),
        fold: Fold::Sum(vec![window]),
        group_by: Vec::new(),
        group_by_series: true,
        stacks: StackDetail::None,
        locations: LocationSets::default(),
    }
}

/// Series and names that were found so far.
#[derive(Default)]
struct List<'a> {
    matchers: &'a [ReadyMatcher],
    series: BTreeSet<Arc<LabelSet>>,
    /// Attribute names of all samples in the partitions that were read, and attribute names that tiers dropped.
    attribute_names: BTreeSet<String>,
    /// Names of matchers that apply to attributes, because some series has no label of that name.
    names_without_label: BTreeSet<&'a str>,
    dropped_labels: BTreeSet<DroppedLabel>,
}

impl Collector for List<'_> {
    fn add(&mut self, view: &View<'_>, part: &PartView) -> Result<Progress, SelectError> {
        let mut dropped_labels = Vec::new();
        {
            let partition = part.partition.read();
            for of_tier in partition.dropped_names() {
                match of_tier {
                    DroppedName::Attribute(name) => {
                        self.attribute_names.insert(name.clone());
                    }
                    DroppedName::Label(name) => {
                        dropped_labels.push(DroppedLabel { tier: part.key.tier, name: name.clone() })
                    }
                }
            }
        }
        let mut reader = PartReader::new(view, part);
        let mut has_any = false;
        for series in &part.series {
            let on_samples = on_series(self.matchers, &series.labels).unwrap_or_default();
            self.names_without_label.extend(on_samples.into_iter().map(|matcher| matcher.name.as_str()));
            if self.series.contains(&series.labels) {
                continue;
            }
            let mut any = AnySample(false);
            reader.read(series, &mut any)?;
            if any.0 {
                has_any = true;
                self.series.insert(Arc::clone(&series.labels));
            }
        }
        if has_any && !part.plan.windows.is_empty() {
            self.dropped_labels.extend(dropped_labels);
        }
        Ok(Progress::Done)
    }

    fn is_affected(&self, labels: &LabelSet, _end_ns: i64) -> bool {
        !self.series.contains(labels)
    }
}
