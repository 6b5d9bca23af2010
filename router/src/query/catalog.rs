//! The catalog: lists of series, label names, label values and profile types.
//!
//! In a list request, a metric name means every profile type with that full ID or short name. These lists help to find
//! names, so no name is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::label::PROFILE_TYPE_LABEL;
use proto::selection::Operation;
use proto::{
    ArcStr, Fold, Label, LabelSet, LocationSets, Matcher, ProfileType, Selection, SeriesAnswer, SeriesQuery, TenantId,
    Window,
};

use crate::query::error::{ErrorKind, QueryError};
use crate::query::limits::QUERY_SELECTORS_MAX;
use crate::query::naming::stack_label::StackLabel;
use crate::query::naming::stack_values::StackGrouping;
use crate::query::promql::expr::Group;
use crate::query::promql::fold::Folding;
use crate::query::promql::parse::parse_selector;
use crate::query::reader::Reader;
use crate::query::run::{ReadOptions, Run, Timings};
use crate::query::selection::labels::NAME_LABEL;
use crate::query::selection::missing::{MissingData, list_warnings};
use crate::query::selection::resolve::is_named;
use crate::query::selection::selector::Selector;

/// A request for a list.
#[derive(Clone, Debug)]
pub(crate) struct CatalogRequest {
    pub(crate) tenant: TenantId,
    /// Selectors, at least one of which must match. An empty list of selectors matches everything.
    pub(crate) selectors: Vec<String>,
    pub(crate) window: Window,
    pub(crate) options: ReadOptions,
}

impl CatalogRequest {
    /// Returns the request to shards for series, or for the values of a label.
    fn series(&self, matchers: Vec<Matcher>, label: Option<&str>) -> SeriesQuery {
        let label = label.map(str::to_owned);
        SeriesQuery { tenant: self.tenant.clone(), matchers, window: self.window, label }
    }
}

/// A list and its warnings.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) list: Vec<T>,
    /// Warnings, with one sentence for each reason why entries may be missing.
    pub(crate) warnings: Vec<String>,
}

/// A selector, and all its matchers, including those for its metric names.
struct Matched {
    selector: Selector,
    matchers: Vec<Matcher>,
}

impl Reader {
    /// Lists the label sets of all series that have samples, sorted. [`with_name`] adds the metric name to a label set.
    pub(crate) async fn series(&self, request: CatalogRequest) -> Result<(Listed<Arc<LabelSet>>, Timings), QueryError> {
        let mut run = self.start(&request.tenant, request.options).await?;
        let mut found = loop {
            match self.found(&request, false, &mut run).await {
                Err(error) => run.place_again(error)?,
                Ok(done) => break done,
            }
        };
        run.check()?;
        let mut series: Vec<Arc<LabelSet>> =
            found.iter_mut().flat_map(|found| std::mem::take(&mut found.series)).collect();
        if found.len() > 1 {
            series.sort_unstable();
            series.dedup();
        }
        Ok((Listed { list: series, warnings: warnings(found, MissingData::default(), |_| true) }, run.timings()))
    }

    /// Lists the names of all labels and sample attributes, sorted.
    pub(crate) async fn label_names(&self, request: CatalogRequest) -> Result<(Listed<String>, Timings), QueryError> {
        let mut run = self.start(&request.tenant, request.options).await?;
        let found = loop {
            match self.found(&request, true, &mut run).await {
                Err(error) => run.place_again(error)?,
                Ok(done) => break done,
            }
        };
        run.check()?;
        let mut names: BTreeSet<&str> = BTreeSet::new();
        for found in &found {
            names.extend(found.attribute_names.iter().map(String::as_str));
            names.extend(found.series.iter().flat_map(|labels| labels.iter()).map(|label| label.name.as_str()));
            names.extend((!found.series.is_empty()).then_some(NAME_LABEL));
        }
        let list = names.into_iter().map(str::to_owned).collect();
        Ok((Listed { list, warnings: warnings(found, MissingData::default(), |_| true) }, run.timings()))
    }

    /// Lists the values of one series label, sample attribute or label of stacks, sorted.
    pub(crate) async fn label_values(
        &self,
        name: &str,
        request: CatalogRequest,
    ) -> Result<(Listed<ArcStr>, Timings), QueryError> {
        let mut run = self.start(&request.tenant, request.options).await?;
        let listed = loop {
            match self.values(name, &request, &mut run).await {
                Err(error) => run.place_again(error)?,
                Ok(done) => break done,
            }
        };
        run.check()?;
        Ok((listed, run.timings()))
    }

    async fn values(&self, name: &str, request: &CatalogRequest, run: &mut Run) -> Result<Listed<ArcStr>, QueryError> {
        let mut values: Vec<ArcStr> = Vec::new();
        // The values of one list are sorted. A check of hundreds of thousands of values would take milliseconds.
        let mut is_sorted = true;
        let mut lists = Vec::new();
        let mut missing = MissingData::default();
        let mut refused = BTreeSet::new();
        for matched in matched(request, run).await? {
            let Some(Matched { selector, matchers }) = matched else { continue };
            let is_about_stacks = StackLabel::named(name).is_some() || !selector.stack_matchers.is_empty();
            if !is_about_stacks {
                let label = if name == NAME_LABEL { PROFILE_TYPE_LABEL } else { name };
                let query = request.series(matchers.clone(), Some(label));
                let mut found = self.list_series(&query, run).await?;
                is_sorted &= values.is_empty();
                values.append(&mut found.values);
                let is_attribute = found.attribute_names.iter().any(|attribute| attribute == name);
                lists.push(found);
                if !is_attribute {
                    continue;
                }
            }
            match self.values_of_samples(name, selector, matchers, request, run).await {
                Ok((of_samples, missing_of_samples)) => {
                    is_sorted &= of_samples.is_empty();
                    values.extend(of_samples);
                    missing.extend(missing_of_samples);
                }
                // The shards have accepted the matchers, so they refuse the attribute, which a tier dropped. It may be
                // the attribute of another service in the same shard.
                Err(error) if !is_about_stacks && error.kind() == ErrorKind::BadData => {
                    refused.insert(format!("values of {name:?} as a sample attribute are missing: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        if !is_sorted {
            values.sort_unstable();
            values.dedup();
        }
        debug_assert!(values.is_sorted(), "a shard lists its values in order");
        let mut warnings = warnings(lists, missing, |label| label == name);
        warnings.extend(refused);
        Ok(Listed { list: values, warnings })
    }

    /// Lists the profile types that have samples in the window, by their full IDs; selectors do not matter. If `metric`
    /// is given, lists only the types that have it as full ID or short name.
    pub(crate) async fn profile_types(
        &self,
        request: CatalogRequest,
        metric: Option<&str>,
    ) -> Result<(BTreeMap<String, ProfileType>, Timings), QueryError> {
        let mut run = self.start(&request.tenant, request.options).await?;
        let query = request.series(Vec::new(), Some(PROFILE_TYPE_LABEL));
        let found = loop {
            match self.list_series(&query, &mut run).await {
                Err(error) => run.place_again(error)?,
                Ok(done) => break done,
            }
        };
        run.check()?;
        let types = found.values.iter().filter_map(|value| ProfileType::parse(value));
        let wanted = types.filter(|kind| metric.is_none_or(|metric| is_named(kind, metric)));
        Ok((wanted.map(|kind| (kind.to_string(), kind)).collect(), run.timings()))
    }

    /// Returns the series that each selector matches. If `with_attributes`, also returns the names of all sample
    /// attributes.
    async fn found(
        &self,
        request: &CatalogRequest,
        with_attributes: bool,
        run: &mut Run,
    ) -> Result<Vec<SeriesAnswer>, QueryError> {
        let mut all = Vec::new();
        for matched in matched(request, run).await?.into_iter().flatten() {
            if let Some(matcher) = matched.selector.stack_matchers.first() {
                return Err(QueryError::StackLabelInMatch { label: matcher.label.name() });
            }
            let query = request.series(matched.matchers, None);
            all.push(if with_attributes {
                self.list_series_and_attributes(&query, run).await?
            } else {
                self.list_series(&query, run).await?
            });
        }
        Ok(all)
    }

    /// Returns the values of a sample attribute or label of stacks. Fetches them as the groups of a sum.
    async fn values_of_samples(
        &self,
        name: &str,
        selector: Selector,
        matchers: Vec<Matcher>,
        request: &CatalogRequest,
        run: &mut Run,
    ) -> Result<(Vec<ArcStr>, MissingData), QueryError> {
        let is_name = name == NAME_LABEL;
        let group = Group::By(vec![if is_name { PROFILE_TYPE_LABEL } else { name }.to_owned()]);
        let Group::By(labels) = &group else { return Ok(Default::default()) };
        let stacks = StackGrouping::new(&selector.stack_matchers, labels).detail();
        let selection = Selection {
            tenant: request.tenant.clone(),
            matchers,
            fold: Fold::Sum(vec![request.window]),
            group_by: Folding::shard_labels(&group),
            group_by_series: false,
            stacks,
            locations: LocationSets::default(),
        };
        let fetched = self.fetch(&selection, &selector.stack_matchers, run).await?;
        let mut missing = MissingData::default();
        missing.of_answers(fetched.plain());
        missing.names(fetched.missing_names.clone());
        let namer = self.namer(&request.tenant, run);
        let cache = self.names.clone();
        let values = run.blocking(move |cancelled, timings| {
            let Group::By(labels) = &group else { return Ok(Default::default()) };
            let stacks = StackGrouping::new(&selector.stack_matchers, labels);
            let folding = Folding { group: &group, stacks, attributes: Vec::new() };
            let named = timings.measure("name", || fetched.names.name(fetched.answers, &namer));
            cache.set_size(&selection.tenant, &fetched.names, named.memory_bytes());
            let folded = timings.measure("fold", || folding.fold(&named, &selection.fold, cancelled))?;
            let values = folded.series.iter().flat_map(|series| series.labels.texts()).map(|(_, value)| value.clone());
            Ok((values.collect(), named.frames().missing_names()))
        });
        let (values, names) = values.await?;
        missing.names(names);
        Ok((values, missing))
    }
}

/// Returns the warnings about `missing` and about the data that the lists lack. `is_wanted` tells whether it matters
/// that labels of this name were dropped.
fn warnings(lists: Vec<SeriesAnswer>, mut missing: MissingData, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dropped_labels = BTreeSet::new();
    for list in lists {
        missing.times(&list.missing);
        dropped_labels.extend(list.dropped_labels.into_iter().filter(|label| is_wanted(&label.name)));
    }
    list_warnings(&missing, &dropped_labels)
}

/// Parses the selectors. The result for a selector is `None` if no profile type can have its metric name.
async fn matched(request: &CatalogRequest, run: &mut Run) -> Result<Vec<Option<Matched>>, QueryError> {
    if request.selectors.is_empty() {
        let everything = Selector { names: Vec::new(), matchers: Vec::new(), stack_matchers: Arc::default() };
        return Ok(vec![Some(Matched { selector: everything, matchers: Vec::new() })]);
    }
    if request.selectors.len() > QUERY_SELECTORS_MAX {
        return Err(QueryError::TooComplex { what: "selectors", max: QUERY_SELECTORS_MAX });
    }
    let texts = request.selectors.clone();
    let parse = move || texts.iter().map(|text| parse_selector(text).map(with_names)).collect();
    run.blocking(move |_, timings| timings.measure("parse", parse)).await
}

fn with_names(selector: Selector) -> Option<Matched> {
    let mut matchers = selector.matchers.clone();
    for name in &selector.names {
        let (operation, value) = match ProfileType::parse(name) {
            Some(_) => (Operation::Equal, name.clone()),
            None if name.is_empty() || name.contains(':') => return None,
            None => (Operation::Match, format!("{}:.*", regex::escape(name))),
        };
        matchers.push(Matcher { name: PROFILE_TYPE_LABEL.to_owned(), operation, value });
    }
    Some(Matched { selector, matchers })
}

/// Iterates over the labels of a series, sorted by name, with the metric name among them.
pub(crate) fn with_name(labels: &LabelSet) -> impl Iterator<Item = (&str, &str)> {
    let id = labels.get(PROFILE_TYPE_LABEL);
    let before = labels.iter().take_while(|label| label.name.as_str() < NAME_LABEL);
    let after = labels.iter().skip_while(|label| label.name.as_str() <= NAME_LABEL);
    let name = (!id.is_empty()).then_some((NAME_LABEL, id));
    before.map(texts).chain(name).chain(after.map(texts))
}

fn texts(label: &Label) -> (&str, &str) {
    (&label.name, &label.value)
}
