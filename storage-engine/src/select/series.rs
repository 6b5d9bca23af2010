//! Which series there are in a window, and which attributes their samples have.
//!
//! Where the matchers say the same of all samples of a series, one sample in the window is enough and nothing more is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::answer::LeftOutLabel;
use proto::{Fold, LabelSet, LocationSets, Matcher, Selection, SeriesAnswer, StackDetail, TenantId, Window};

use crate::engine::Engine;
use crate::error::SelectError;
use crate::memory::matcher::{ReadyMatcher, on_series};
use crate::memory::partition::DroppedName;
use crate::select::gather::{Asks, PartView, Question, View, Work};
use crate::select::missing::AnySample;
use crate::select::plan::Tiers;
use crate::select::read::PartReader;

impl Engine {
    /// Series that have samples in the window, whole where any tier still has their labels, and what is known to lack.
    ///
    /// # Errors
    /// As [`Engine::select`].
    pub fn series(&self, tenant: &TenantId, matchers: &[Matcher], window: Window) -> Result<SeriesAnswer, SelectError> {
        self.series_while(tenant, matchers, window, &|| true)
    }

    /// As [`Engine::series`], for as long as somebody wants the answer.
    ///
    /// # Errors
    /// As [`Engine::select_while`].
    pub fn series_while(
        &self,
        tenant: &TenantId,
        matchers: &[Matcher],
        window: Window,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<SeriesAnswer, SelectError> {
        match self.series_as(tenant, matchers, window, true, is_wanted) {
            // A list is for finding names: without those that are nowhere any more it is better than none.
            Err(SelectError::DroppedName { name, .. }) if !matchers.iter().any(|matcher| matcher.name == name) => {
                self.series_as(tenant, matchers, window, false, is_wanted)
            }
            answer => answer,
        }
    }

    fn series_as(
        &self,
        tenant: &TenantId,
        matchers: &[Matcher],
        window: Window,
        whole: bool,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<SeriesAnswer, SelectError> {
        let ready = ReadyMatcher::all(matchers)?;
        let question = Question {
            tenant,
            matchers: &ready,
            buckets: &[window],
            group_by: &[],
            by_series: whole,
            asks: Asks::Any,
            tiers: Tiers::ALL,
            needs_stacks: false,
            is_wanted,
        };
        let (list, found) = self.read(&question, || List { matchers: &ready, ..List::default() })?;
        let mut answer = SeriesAnswer {
            series: Vec::new(),
            left_out: list.left_out.into_iter().collect(),
            missing: found.missing,
            attribute_names: Vec::new(),
        };
        // A matcher on a name that no attribute has says the same of every sample.
        if list.left_to_samples.iter().any(|name| list.attribute_names.contains(*name)) {
            let by_samples = self.select_as(&selection_of(tenant, matchers, window), Asks::Any, whole, is_wanted)?;
            answer.series = by_samples.groups;
            answer.missing = by_samples.missing;
        } else {
            answer.series = list.series.iter().map(|labels| LabelSet::clone(labels)).collect();
        }
        answer.series.sort_unstable();
        answer.attribute_names = list.attribute_names.into_iter().collect();
        Ok(answer)
    }
}

/// The series are its groups.
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

/// What there is.
#[derive(Default)]
struct List<'a> {
    matchers: &'a [ReadyMatcher],
    series: BTreeSet<Arc<LabelSet>>,
    /// Of all samples in the partitions, those included that tiers have left out.
    attribute_names: BTreeSet<String>,
    /// Names of matchers that some series has not.
    left_to_samples: BTreeSet<&'a str>,
    left_out: BTreeSet<LeftOutLabel>,
}

impl Work for List<'_> {
    fn add(&mut self, view: &View<'_>, part: &PartView) -> Result<Option<()>, SelectError> {
        let mut left_out = Vec::new();
        {
            let partition = part.partition.read();
            for of_tier in partition.dropped_names() {
                match of_tier {
                    DroppedName::Attribute(name) => {
                        self.attribute_names.insert(name.clone());
                    }
                    DroppedName::Label(name) => left_out.push(LeftOutLabel { tier: part.key.tier, name: name.clone() }),
                }
            }
        }
        let mut reader = PartReader::new(view, part);
        let mut has_any = false;
        for series in &part.series {
            let on_samples = on_series(self.matchers, &series.labels).unwrap_or_default();
            self.left_to_samples.extend(on_samples.into_iter().map(|matcher| matcher.name.as_str()));
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
            self.left_out.extend(left_out);
        }
        Ok(Some(()))
    }

    fn lacks(&self, labels: &LabelSet, _end_ns: i64) -> bool {
        !self.series.contains(labels)
    }
}
