//! Lists the series that have samples in a window, or the values of one of their labels, and the attribute names of
//! these samples.
//!
//! A series is listed as soon as one of its samples in the window is found. If a matcher applies to attributes of a
//! series' samples, these samples are read until one matches. Values and the order of series come from the label index,
//! so no label sets are compared.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::answer::DroppedLabel;
use proto::{ArcStr, Fingerprint, LabelSet, Samples, SeriesAnswer, SeriesQuery};
use roaring::RoaringBitmap;

use crate::engine::store::Store;
use crate::error::SelectError;
use crate::memory::dropped_name::DroppedName;
use crate::memory::matcher::{ReadyMatcher, on_series};
use crate::select::accumulator::fingerprints::Fingerprints;
use crate::select::gather::{Aggregate, Collector, Progress, Query, read};
use crate::select::grouping::{for_each_value, in_order_of_labels, value_in};
use crate::select::plan::Tiers;
use crate::select::read::PartReader;
use crate::select::read::known_samples::FoundTimes;
use crate::select::read::threads::{pieces, run};
use crate::select::read::visitor::{Need, ReadSums, VisitError, Visitor};
use crate::select::view::{PartView, SeriesView, View};

/// Returns the series that have samples in the window, and the times for which the list may be incomplete. A label that
/// one tier dropped is listed if another tier still has it for these times. Stops when `is_wanted` returns false.
pub(crate) fn series(
    store: &Store,
    query: &SeriesQuery,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<SeriesAnswer, SelectError> {
    match series_as(store, query, true, is_wanted) {
        // Callers use the list to find names, so an incomplete list is better than an error. Dropped labels are
        // then missing from it. The error remains if it is about a matcher.
        Err(SelectError::DroppedName { .. }) => series_as(store, query, false, is_wanted),
        response => response,
    }
}

/// Lists series or values. If `whole`, tiers that dropped a listed label are not read.
fn series_as(
    store: &Store,
    of: &SeriesQuery,
    whole: bool,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<SeriesAnswer, SelectError> {
    let ready = ReadyMatcher::all(&of.matchers)?;
    let query = Query {
        tenant: &of.tenant,
        matchers: &ready,
        buckets: &[of.window],
        group_by: &[],
        listed_label: of.label.as_ref().filter(|_| whole),
        by_series: whole && of.label.is_none(),
        aggregate: Aggregate::Any,
        tiers: Tiers::ALL,
        needs_stacks: false,
        is_wanted,
    };
    let (mut list, summary) = read(store, &query, || List::new(of, &ready))?;
    if list.partitions > 1 {
        list.series.sort_unstable();
    }
    Ok(SeriesAnswer {
        series: list.series,
        values: list.values,
        attribute_names: list.attribute_names.into_iter().collect(),
        missing: summary.missing,
        dropped_labels: list.dropped_labels.into_iter().collect(),
    })
}

/// Finds out whether series of one partition have matching samples.
struct SampleFinder<'a> {
    view: &'a View<'a>,
    part: &'a PartView,
    matchers: &'a [ReadyMatcher],
    reader: PartReader<'a>,
    /// Series without the label of a matcher that some sample of the partition has as an attribute.
    by_attributes: RoaringBitmap,
}

impl<'a> SampleFinder<'a> {
    fn new(view: &'a View<'a>, part: &'a PartView, matchers: &'a [ReadyMatcher]) -> Self {
        let partition = part.partition.read();
        let mut by_attributes = RoaringBitmap::new();
        for matcher in matchers.iter().filter(|matcher| partition.is_attribute(&matcher.name)) {
            by_attributes |= partition.index.without(&matcher.name);
        }
        Self { view, part, matchers, reader: PartReader::new(view, part), by_attributes }
    }

    fn has_samples(&mut self, series: &SeriesView) -> Result<bool, SelectError> {
        if !self.by_attributes.contains(series.number) {
            return self.reader.has_samples(series);
        }
        let Self { view, part, matchers, .. } = *self;
        let Some(matchers) = on_series(matchers, &part.labels(series)) else { return Ok(false) };
        let mut matching = MatchingSample { view, part, matchers, known: HashMap::default(), is_found: false };
        self.reader.read(series, &mut matching)?;
        Ok(matching.is_found)
    }

    /// Returns whether the series at this index of the partition's list has matching samples.
    fn has_samples_at(&mut self, at: u32) -> Result<bool, SelectError> {
        self.part.series.get(at as usize).map_or(Ok(false), |series| self.has_samples(series))
    }

    /// Hands the times of the found samples to the query.
    fn keep_times(self) {
        let of_series = self.reader.sample_times;
        if !of_series.is_empty() {
            let partition = Arc::clone(&self.part.partition);
            self.view.sample_times.lock().push(FoundTimes { partition, of_series });
        }
    }

    /// Returns whether any matching series has samples.
    fn has_any(&mut self) -> Result<bool, SelectError> {
        for series in &self.part.series {
            if self.has_samples(series)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Splits `items`, each of which is about one series of a partition, among threads. Returns what `look` returned for
/// each part of them.
fn find<T: Sync, R: Send>(
    view: &View<'_>,
    part: &PartView,
    matchers: &[ReadyMatcher],
    items: &[T],
    look: impl Fn(&mut SampleFinder<'_>, &[T]) -> Result<R, SelectError> + Sync,
) -> Result<Vec<R>, SelectError> {
    let look = &look;
    let job = |piece| {
        move || {
            let mut finder = SampleFinder::new(view, part, matchers);
            let found = look(&mut finder, piece);
            finder.keep_times();
            found
        }
    };
    run(pieces(items, usize::MAX).into_iter().map(job).collect()).into_iter().collect()
}

/// Visitor that stops at the first sample whose attributes match.
struct MatchingSample<'a> {
    view: &'a View<'a>,
    part: &'a PartView,
    matchers: Vec<&'a ReadyMatcher>,
    /// Result for each attribute set that occurred.
    known: HashMap<u32, bool, FixedState>,
    is_found: bool,
}

impl MatchingSample<'_> {
    fn matches(&mut self, attribute_set: u32) -> bool {
        let Self { view, part, matchers, known, .. } = self;
        *known.entry(attribute_set).or_insert_with(|| {
            let names = view.shared.as_ref().map(|shared| (shared, &part.partition));
            let value = |name: &str| names.map_or_else(String::new, |names| value_in(names, attribute_set, name));
            matchers.iter().all(|matcher| matcher.accepts(&value(&matcher.name)))
        })
    }
}

impl Visitor for MatchingSample<'_> {
    fn needs(&mut self, _first_ns: i64, _last_ns: i64) -> Need {
        Need::Samples
    }

    fn is_done(&self) -> bool {
        self.is_found
    }

    fn sums(&mut self, _bucket: u32, _read: &ReadSums<'_>) -> Result<(), VisitError> {
        // Windows are read only if none of their samples has an attribute of a matcher.
        self.is_found = self.is_found || self.matches(0);
        Ok(())
    }

    fn samples(&mut self, _bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<(), VisitError> {
        for &set in &samples.attribute_sets[rows] {
            if set as usize >= self.part.known.attribute_sets {
                return Err(VisitError::Damaged);
            }
            if self.matches(set) {
                self.is_found = true;
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Series, or values of a label, and names that were found so far.
struct List<'a> {
    of: &'a SeriesQuery,
    matchers: &'a [ReadyMatcher],
    /// Label sets of the series. Those of each partition are sorted.
    series: Vec<Arc<LabelSet>>,
    fingerprints: Fingerprints,
    /// Number of partitions that series were added from.
    partitions: usize,
    /// Values of the label, ascending.
    values: Vec<ArcStr>,
    /// Attribute names of all samples in the partitions that were read, and attribute names that tiers dropped.
    attribute_names: BTreeSet<String>,
    dropped_labels: BTreeSet<DroppedLabel>,
}

impl<'a> List<'a> {
    fn new(of: &'a SeriesQuery, matchers: &'a [ReadyMatcher]) -> Self {
        Self {
            of,
            matchers,
            series: Vec::new(),
            fingerprints: Fingerprints::default(),
            partitions: 0,
            values: Vec::new(),
            attribute_names: BTreeSet::new(),
            dropped_labels: BTreeSet::new(),
        }
    }

    /// Adds the series of a partition that have samples. Returns whether there is any that was not known.
    fn add_series(&mut self, view: &View<'_>, part: &PartView) -> Result<bool, SelectError> {
        let is_first = self.series.is_empty();
        let fingerprints: Vec<Fingerprint> = {
            let partition = part.partition.read();
            let of_number = |series: &SeriesView| partition.series.get_index(series.number as usize);
            part.series.iter().filter_map(of_number).map(|(fingerprint, _)| *fingerprint).collect()
        };
        let mut is_new = vec![false; part.series.len()];
        let mut to_read: Vec<u32> = Vec::new();
        for (((at, series), fingerprint), is_new) in (0..).zip(&part.series).zip(&fingerprints).zip(&mut is_new) {
            if !is_first && self.fingerprints.contains(*fingerprint) {
                continue;
            }
            if series.has_samples {
                *is_new = true;
            } else {
                to_read.push(at);
            }
        }
        let with_samples = |finder: &mut SampleFinder<'_>, piece: &[u32]| {
            let mut found = Vec::new();
            for at in piece {
                if finder.has_samples_at(*at)? {
                    found.push(*at);
                }
            }
            Ok(found)
        };
        for at in find(view, part, self.matchers, &to_read, with_samples)?.into_iter().flatten() {
            is_new[at as usize] = true;
        }
        let before = self.series.len();
        for at in in_order_of_labels(part).into_iter().map(|at| at as usize).filter(|at| is_new.get(*at) == Some(&true))
        {
            if let (Some(series), Some(fingerprint)) = (part.series.get(at), fingerprints.get(at)) {
                self.fingerprints.add_new(*fingerprint);
                self.series.push(part.labels(series));
            }
        }
        let has_any = self.series.len() > before;
        self.partitions += usize::from(has_any);
        Ok(has_any)
    }

    /// Adds the values that a label has among the series of a partition that have samples. Finds one such series for
    /// each value. Returns whether there is any value that was not known.
    fn add_values(&mut self, view: &View<'_>, part: &PartView, label: &str) -> Result<bool, SelectError> {
        // Values that are not known yet, ascending, and whether a series with the value has a sample.
        let mut new: Vec<(ArcStr, bool)> = Vec::new();
        // Series that must be read to find a sample, and the indexes of their values.
        let mut to_read: Vec<(u32, usize)> = Vec::new();
        let mut known = self.values.iter().peekable();
        // Values are not in the order of their series, so they look series up in a short list.
        let have_samples: Vec<bool> = part.series.iter().map(|series| series.has_samples).collect();
        for_each_value(part, label, true, |value, series| {
            while known.next_if(|known| *known < value).is_some() {}
            if known.peek().is_some_and(|known| *known == value) {
                return;
            }
            let is_found = series.iter().any(|at| have_samples.get(*at as usize) == Some(&true));
            if !is_found {
                to_read.extend(series.iter().map(|at| (*at, new.len())));
            }
            new.push((value.clone(), is_found));
        });
        // Reads are cheapest in the order of the series.
        to_read.sort_unstable();
        let with_samples = |finder: &mut SampleFinder<'_>, piece: &[(u32, usize)]| {
            let mut is_found = vec![false; new.len()];
            for (at, value) in piece {
                is_found[*value] = is_found[*value] || finder.has_samples_at(*at)?;
            }
            Ok(is_found)
        };
        for of_piece in find(view, part, self.matchers, &to_read, with_samples)? {
            new.iter_mut().zip(of_piece).for_each(|((_, is_found), of_piece)| *is_found |= of_piece);
        }
        let is_first = self.values.is_empty();
        let before = self.values.len();
        self.values.extend(new.into_iter().filter(|(_, is_found)| *is_found).map(|(value, _)| value));
        if !is_first {
            self.values.sort_unstable();
        }
        Ok(self.values.len() > before)
    }
}

impl Collector for List<'_> {
    fn add(&mut self, view: &View<'_>, part: &PartView) -> Result<Progress, SelectError> {
        let of = self.of;
        let mut dropped_labels = Vec::new();
        {
            let partition = part.partition.read();
            for of_tier in partition.dropped_names() {
                match of_tier {
                    DroppedName::Attribute(name) => {
                        self.attribute_names.insert(name.clone());
                    }
                    DroppedName::Label(name)
                        if part.plan.dropped_labels.contains(name)
                            && of.label.as_ref().is_none_or(|label| label == name) =>
                    {
                        dropped_labels.push(DroppedLabel { tier: part.key.tier, name: name.clone() })
                    }
                    DroppedName::Label(_) => {}
                }
            }
        }
        let has_new = match &of.label {
            Some(label) => self.add_values(view, part, label)?,
            None => self.add_series(view, part)?,
        };
        // A series without a dropped label may be known already, and may stand for several series with the label.
        let has_any = || SampleFinder::new(view, part, self.matchers).has_any();
        if !part.plan.windows.is_empty() && !dropped_labels.is_empty() && (has_new || has_any()?) {
            self.dropped_labels.extend(dropped_labels);
        }
        Ok(Progress::Done)
    }

    fn is_affected(&self, labels: &LabelSet, _end_ns: i64) -> bool {
        match &self.of.label {
            Some(label) => self.values.binary_search_by(|known| known.as_str().cmp(labels.get(label))).is_err(),
            None => !self.fingerprints.contains(labels.fingerprint(&self.of.tenant)),
        }
    }
}
