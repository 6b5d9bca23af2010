//! Labels of the samples in a pprof response: sample attributes, and the labels in which series differ.
//!
//! Only raw samples have attributes, so a labelled response reads raw samples instead of stored sums. If there are too
//! many samples, the profile has fewer labels, and a note with the reason.

use std::collections::BTreeSet;

use proto::label::PROFILE_TYPE_LABEL;
use proto::{Selection, SeriesAnswer, SeriesQuery, StackDetail};

use crate::query::error::{ErrorKind, QueryError};
use crate::query::limits::{LABELLED_SAMPLES_MAX, SAMPLE_LABELS_MAX};
use crate::query::reader::Reader;
use crate::query::run::Run;
use crate::query::selection::fetch::Fetched;
use crate::query::selection::selector::Selector;

/// Stacks with labels, and one note for each reason why labels are missing.
#[derive(Debug, Default)]
pub(crate) struct Labelled {
    pub(crate) fetched: Fetched,
    pub(crate) notes: Vec<String>,
}

impl Reader {
    /// Fetches stacks from all shards, grouped by as many labels as possible.
    pub(crate) async fn select_labelled(
        &self,
        selection: &Selection,
        selector: &Selector,
        run: &mut Run,
    ) -> Result<Labelled, QueryError> {
        let window = selection.fold.window();
        let tenant = selection.tenant.clone();
        let query = SeriesQuery { tenant, matchers: selection.matchers.clone(), window, label: None };
        let series = self.list_series_and_attributes(&query, run).await?;
        let Choice { of_series, of_samples, mut notes } = Choice::of(&series);
        let by_series = of_series.clone();
        let mut choices = vec![of_series.clone()];
        if !of_samples.is_empty() {
            let counting = Selection { stacks: StackDetail::None, ..selection.clone() };
            let counted = self.fetch(&counting, &selector.stack_matchers, run).await?;
            let samples: u64 = counted.plain().map(|answer| answer.samples).sum();
            if samples <= LABELLED_SAMPLES_MAX {
                choices.insert(0, of_series.into_iter().chain(of_samples).collect());
            } else {
                let max = LABELLED_SAMPLES_MAX;
                let names = of_samples.join(", ");
                notes.push(format!(
                    "no labels for {names}: {samples} samples are more than {max}; choose a shorter range"
                ));
            }
        }
        for group_by in choices.into_iter().filter(|names| !names.is_empty()) {
            let names = group_by.join(", ");
            let attributes: Vec<String> = group_by.iter().filter(|name| !by_series.contains(name)).cloned().collect();
            let labelled = Selection { group_by, ..selection.clone() };
            match self.fetch_newest(&labelled, &attributes, &selector.stack_matchers, run).await {
                Ok(fetched) => return Ok(Labelled { fetched, notes }),
                // The request may succeed without these labels.
                Err(error) if matches!(error.kind(), ErrorKind::BadData | ErrorKind::Execution) => {
                    notes.push(format!("no labels for {names}: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        let fetched = self.fetch_newest(selection, &[], &selector.stack_matchers, run).await?;
        Ok(Labelled { fetched, notes })
    }
}

/// Names of the labels to group by, sorted.
struct Choice {
    of_series: Vec<String>,
    of_samples: Vec<String>,
    notes: Vec<String>,
}

impl Choice {
    fn of(found: &SeriesAnswer) -> Self {
        let labels = || found.series.iter().flat_map(|labels| labels.iter());
        let mut of_series: BTreeSet<&str> = BTreeSet::new();
        if let Some(first) = found.series.first() {
            // A label that a series lacks counts as a label with the value "".
            let differs = |name: &str| found.series.iter().any(|labels| labels.get(name) != first.get(name));
            let names: BTreeSet<&str> = labels().map(|label| label.name.as_str()).collect();
            of_series.extend(names.into_iter().filter(|name| *name != PROFILE_TYPE_LABEL && differs(name)));
        }
        let of_samples = found.attribute_names.iter().map(String::as_str).filter(|name| !of_series.contains(name));
        let of_samples: BTreeSet<&str> = of_samples.collect();
        let all = of_series.len() + of_samples.len();
        let mut budget = SAMPLE_LABELS_MAX;
        let mut take = |names: BTreeSet<&str>| {
            let taken: Vec<String> = names.into_iter().take(budget).map(str::to_owned).collect();
            budget -= taken.len();
            taken
        };
        let of_series = take(of_series);
        let of_samples = take(of_samples);
        let notes = (all > SAMPLE_LABELS_MAX)
            .then(|| format!("labels for {SAMPLE_LABELS_MAX} of {all} names only: group by others with a query"));
        Self { of_series, of_samples, notes: notes.into_iter().collect() }
    }
}
