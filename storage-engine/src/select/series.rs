//! Lists the series that have samples in a window, or the values of one of their labels, and the attribute names of
//! these samples.
//!
//! A series is listed as soon as one of its samples in the window is found. If a matcher depends on attributes, the
//! samples of the series are read one by one instead.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::answer::DroppedLabel;
use proto::{Fingerprint, Fold, LabelSet, LocationSets, Selection, SeriesAnswer, SeriesQuery, StackDetail};

use crate::engine::store::Store;
use crate::error::SelectError;
use crate::memory::dropped_name::DroppedName;
use crate::memory::matcher::ReadyMatcher;
use crate::select::gather::{Aggregate, Collector, Progress, Query, read};
use crate::select::plan::Tiers;
use crate::select::read::PartReader;
use crate::select::select_as;
use crate::select::view::{PartView, SeriesView, View};

/// Returns the series that have samples in the window, and the times for which the list may be incomplete. A label that
/// one tier dropped is listed if another tier still has it for these times. Stops when `is_wanted` returns false.
pub(crate) fn series(
    store: &Store,
    query: &SeriesQuery,
    is_wanted: &dyn Fn() -> bool,
) -> Result<SeriesAnswer, SelectError> {
    match series_as(store, query, true, is_wanted) {
        // Callers use the list to find names, so an incomplete list is better than an error. Dropped labels are
        // then missing from it.
        Err(SelectError::DroppedName { name, .. }) if !query.matchers.iter().any(|matcher| matcher.name == name) => {
            series_as(store, query, false, is_wanted)
        }
        response => response,
    }
}

/// Lists series or values. If `whole`, tiers that dropped a listed label are not read.
fn series_as(
    store: &Store,
    of: &SeriesQuery,
    whole: bool,
    is_wanted: &dyn Fn() -> bool,
) -> Result<SeriesAnswer, SelectError> {
    let ready = ReadyMatcher::all(&of.matchers)?;
    let query = Query {
        tenant: &of.tenant,
        matchers: &ready,
        buckets: &[of.window],
        group_by: if whole { of.label.as_slice() } else { &[] },
        by_series: whole && of.label.is_none(),
        aggregate: Aggregate::Any,
        tiers: Tiers::ALL,
        needs_stacks: false,
        is_wanted,
    };
    let (list, summary) = read(store, &query, || List::new(of, &ready))?;
    let mut response = SeriesAnswer {
        dropped_labels: list.dropped_labels.into_iter().collect(),
        missing: summary.missing,
        ..SeriesAnswer::default()
    };
    // A matcher on a name that no attribute has gives the same result for every sample of a series.
    if list.names_without_label.iter().any(|name| list.attribute_names.contains(*name)) {
        let by_samples = select_as(store, &selection_of(of), Aggregate::Groups, query.by_series, is_wanted)?;
        response.missing = by_samples.missing;
        match &of.label {
            Some(label) => {
                response.values = by_samples.groups.iter().map(|group| group.get(label).to_owned()).collect()
            }
            None => response.series = by_samples.groups.into_iter().map(Arc::new).collect(),
        }
    } else {
        response.series = list.series.into_values().collect();
        response.values = list.values;
    }
    response.values.retain(|value| !value.is_empty());
    response.values.sort_unstable();
    response.attribute_names = list.attribute_names.into_iter().collect();
    Ok(response)
}

/// Returns a selection that has one group for each series or value.
fn selection_of(of: &SeriesQuery) -> Selection {
    Selection {
        tenant: of.tenant.clone(),
        matchers: of.matchers.clone(),
        fold: Fold::Sum(vec![of.window]),
        group_by: of.label.as_slice().to_vec(),
        group_by_series: of.label.is_none(),
        stacks: StackDetail::None,
        locations: LocationSets::default(),
    }
}

/// Series, or values of a label, and names that were found so far.
struct List<'a> {
    of: &'a SeriesQuery,
    matchers: &'a [ReadyMatcher],
    series: HashMap<Fingerprint, Arc<LabelSet>, FixedState>,
    /// Values of the label, ascending.
    values: Vec<String>,
    /// Attribute names of all samples in the partitions that were read, and attribute names that tiers dropped.
    attribute_names: BTreeSet<String>,
    /// Names of matchers that apply to attributes, because some series has no label of that name.
    names_without_label: BTreeSet<&'a str>,
    dropped_labels: BTreeSet<DroppedLabel>,
}

impl<'a> List<'a> {
    fn new(of: &'a SeriesQuery, matchers: &'a [ReadyMatcher]) -> Self {
        Self {
            of,
            matchers,
            series: HashMap::default(),
            values: Vec::new(),
            attribute_names: BTreeSet::new(),
            names_without_label: BTreeSet::new(),
            dropped_labels: BTreeSet::new(),
        }
    }

    /// Adds the series of a partition that have samples. Returns whether there is any that was not known.
    fn add_series(&mut self, view: &View<'_>, part: &PartView) -> Result<bool, SelectError> {
        let fingerprints: Vec<Fingerprint> = {
            let partition = part.partition.read();
            let of_number = |series: &SeriesView| partition.series.get_index(series.number as usize);
            part.series.iter().filter_map(of_number).map(|(fingerprint, _)| *fingerprint).collect()
        };
        let mut reader = PartReader::new(view, part);
        let mut has_any = false;
        for (series, fingerprint) in part.series.iter().zip(fingerprints) {
            if !self.series.contains_key(&fingerprint) && reader.has_samples(series)? {
                has_any = true;
                self.series.insert(fingerprint, part.labels(series));
            }
        }
        Ok(has_any)
    }

    /// Adds the values that a label has among the series of a partition that have samples. Finds one such series for
    /// each value. Returns whether there is any value that was not known.
    fn add_values(&mut self, view: &View<'_>, part: &PartView, label: &str) -> Result<bool, SelectError> {
        let mut values: Vec<String> = Vec::new();
        // Index in `values` of the value of each series of the partition.
        let mut value_of = vec![usize::MAX; part.known.series];
        if let Some(of_name) = part.partition.read().index.of_name(label) {
            for (value, with_value) in of_name.values() {
                for series in with_value {
                    if let Some(value_of) = value_of.get_mut(series as usize) {
                        *value_of = values.len();
                    }
                }
                values.push(value.to_owned());
            }
        }
        let is_known = |value: &String| self.values.binary_search(value).is_ok();
        let was_known: Vec<bool> = values.iter().map(is_known).collect();
        let mut is_found = was_known.clone();
        let mut reader = PartReader::new(view, part);
        for series in &part.series {
            let value = value_of.get(series.number as usize).copied().unwrap_or(usize::MAX);
            if let Some(is_found) = is_found.get_mut(value) {
                *is_found = *is_found || reader.has_samples(series)?;
            }
        }
        let is_new = is_found.into_iter().zip(was_known).map(|(is_found, was_known)| is_found && !was_known);
        let new: Vec<String> =
            values.into_iter().zip(is_new).filter_map(|(value, is_new)| is_new.then_some(value)).collect();
        let has_any = !new.is_empty();
        self.values.extend(new);
        self.values.sort_unstable();
        Ok(has_any)
    }
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
        {
            let partition = part.partition.read();
            let lacks = |name: &str| !partition.index.without(name).is_disjoint(&part.matching);
            let names = self.matchers.iter().map(|matcher| matcher.name.as_str());
            self.names_without_label.extend(names.filter(|name| lacks(name)));
        }
        let of = self.of;
        let has_any = match &of.label {
            Some(label) => self.add_values(view, part, label)?,
            None => self.add_series(view, part)?,
        };
        if has_any && !part.plan.windows.is_empty() {
            self.dropped_labels.extend(dropped_labels);
        }
        Ok(Progress::Done)
    }

    fn is_affected(&self, labels: &LabelSet, _end_ns: i64) -> bool {
        match &self.of.label {
            Some(label) => self.values.binary_search_by(|known| known.as_str().cmp(labels.get(label))).is_err(),
            None => !self.series.contains_key(&labels.fingerprint(&self.of.tenant)),
        }
    }
}
