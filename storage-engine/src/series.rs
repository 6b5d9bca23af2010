//! Which series there are in a window, and which attributes their samples have.
//!
//! Where the matchers say the same of all samples of a series, one sample in the window is enough and nothing more is read.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use proto::{Dictionary, Fold, LabelSet, Matcher, Selection, SeriesAnswer, StackDetail, TenantId, Window};

use crate::engine::{Engine, Snapshot};
use crate::error::SelectError;
use crate::matcher::{ReadyMatcher, on_series};
use crate::select::{Gathered, GatheredSeries, pieces};

impl Engine {
    /// Series that have samples in the window.
    ///
    /// # Errors
    /// As [`Engine::select`].
    pub fn series(&self, tenant: &TenantId, matchers: &[Matcher], window: Window) -> Result<SeriesAnswer, SelectError> {
        let ready = matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>()?;
        self.read(tenant, &ready, window, |gathered, snapshot| {
            let mut attribute_names = BTreeSet::new();
            for gathered in gathered {
                attribute_names.extend(attribute_names_of(&gathered.partition.read().dictionary));
            }
            // A matcher on a name that no attribute has says the same of every sample.
            let by_attributes = |series: &GatheredSeries| {
                let on_samples = on_series(&ready, &series.labels).unwrap_or_default();
                on_samples.iter().any(|matcher| !matcher.accepts("") || attribute_names.contains(&matcher.name))
            };
            let series = if gathered.iter().flat_map(|gathered| &gathered.series).any(by_attributes) {
                self.series_by_samples(tenant, matchers, window)?
            } else {
                with_samples(gathered, snapshot, window)?
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

fn attribute_names_of(dictionary: &Dictionary) -> BTreeSet<String> {
    let keys: BTreeSet<u32> = dictionary.attribute_sets.iter().flatten().map(|attribute| attribute.key).collect();
    keys.into_iter().map(|key| proto::label::sanitize_label_name(dictionary.strings.get(key))).collect()
}

/// The series that have any sample in the window.
fn with_samples(
    gathered: &[Gathered],
    snapshot: &Snapshot<'_>,
    window: Window,
) -> Result<BTreeSet<LabelSet>, SelectError> {
    let mut found = BTreeSet::new();
    for partition in gathered {
        for series in partition.series.iter() {
            let mut any = found.contains(&series.labels);
            if !any {
                pieces(snapshot, partition, series, window, |_samples| {
                    any = true;
                    Ok(ControlFlow::Break(()))
                })?;
            }
            if any {
                found.insert(series.labels.clone());
            }
        }
    }
    Ok(found)
}
