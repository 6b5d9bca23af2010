//! Which series there are in a window, and which attributes their samples have.
//!
//! Where the matchers say the same of all samples of a series, one sample in the window is enough and nothing more is read.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use proto::{Fold, LabelSet, Matcher, Samples, Selection, SeriesAnswer, StackDetail, TenantId, Window};

use crate::engine::Engine;
use crate::error::SelectError;
use crate::gather::{Question, View};
use crate::matcher::{ReadyMatcher, on_series};
use crate::partition::LeftOut;
use crate::plan::Tiers;
use crate::read::{ReadSums, Visitor, read_series};

impl Engine {
    /// Series that have samples in the window.
    ///
    /// # Errors
    /// As [`Engine::select`].
    pub fn series(&self, tenant: &TenantId, matchers: &[Matcher], window: Window) -> Result<SeriesAnswer, SelectError> {
        let ready = matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>()?;
        let edges = [window.start_ns, window.end_ns];
        let question = Question {
            tenant,
            matchers: &ready,
            edges: &edges,
            group_by: &[],
            by_series: false,
            adds: false,
            needs_last: false,
            tiers: Tiers::ALL,
        };
        self.read(&question, |view| {
            let attribute_names = attribute_names(view);
            // A matcher on a name that no attribute has says the same of every sample.
            let by_attributes = |labels: &LabelSet| {
                let on_samples = on_series(&ready, labels).unwrap_or_default();
                on_samples.iter().any(|matcher| attribute_names.contains(&matcher.name))
            };
            let all = || view.parts.iter().flat_map(|part| &part.series);
            let series = if all().any(|series| by_attributes(&series.labels)) {
                self.series_by_samples(tenant, matchers, window)?
            } else {
                with_samples(view)?
            };
            Ok(SeriesAnswer {
                series: series.into_iter().collect(),
                attribute_names: attribute_names.into_iter().collect(),
            })
        })
    }

    /// The series that have samples whose attributes match.
    fn series_by_samples(
        &self,
        tenant: &TenantId,
        matchers: &[Matcher],
        window: Window,
    ) -> Result<BTreeSet<LabelSet>, SelectError> {
        let selection = Selection {
            tenant: tenant.clone(),
            matchers: matchers.to_vec(),
            fold: Fold::Sum(vec![window.start_ns, window.end_ns]),
            group_by: Vec::new(),
            group_by_series: true,
            stacks: StackDetail::None,
        };
        Ok(self.select(&selection)?.groups.into_iter().collect())
    }
}

/// Of all samples in the partitions, those included that tiers have left out.
fn attribute_names(view: &View<'_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in &view.parts {
        let partition = part.partition.read();
        names.extend(partition.attribute_names().iter().cloned());
        names.extend(partition.left_out().filter_map(|left_out| match left_out {
            LeftOut::Attribute(name) => Some(name.clone()),
            LeftOut::Label(_) => None,
        }));
    }
    names
}

/// The series that have any sample in the window.
fn with_samples(view: &View<'_>) -> Result<BTreeSet<LabelSet>, SelectError> {
    let mut found: BTreeSet<Arc<LabelSet>> = BTreeSet::new();
    for part in view.parts.iter().rev() {
        for series in &part.series {
            if !found.contains(&series.labels) {
                let mut any = AnySample(false);
                read_series(&view.snapshot, part, series, &mut any)?;
                if any.0 {
                    found.insert(Arc::clone(&series.labels));
                }
            }
        }
    }
    Ok(found.into_iter().map(|labels| LabelSet::clone(&labels)).collect())
}

/// Whether there is a sample.
struct AnySample(bool);

impl Visitor for AnySample {
    fn takes_sums(&self) -> bool {
        true
    }

    fn is_done(&self) -> bool {
        self.0
    }

    fn sums(&mut self, _bucket: u32, _read: &ReadSums<'_>) -> Result<Option<()>, SelectError> {
        self.0 = true;
        Ok(Some(()))
    }

    fn samples(&mut self, _bucket: u32, _samples: &Samples, _rows: Range<usize>) -> Result<Option<()>, SelectError> {
        self.0 = true;
        Ok(Some(()))
    }
}
