//! What an answer lacks: of the times that no tier holds as finely as a question asks, those in which coarser windows say that a
//! series that matches has samples. So an answer that lacks nothing says so, whatever was dropped of others.

use std::ops::Range;

use proto::answer::Missing;
use proto::{LabelSet, Samples, Window};

use crate::engine::Engine;
use crate::error::SelectError;
use crate::memory::partition::DroppedName;
use crate::select::gather::{Moment, Question, gather};
use crate::select::plan::{Gap, Tiers, plan};
use crate::select::read::{Need, PartReader, ReadSums, Visitor};

/// Times that are looked at one by one; of more, all of a class are said to be lacking where there is anything in their whole span.
const LOOKED_AT_MAX: usize = 64;

impl Engine {
    /// The times that the answer lacks, ascending; `lacks`: whether samples of a series up to a time would change it.
    pub(crate) fn lacking(
        &self,
        question: &Question<'_>,
        moment: &Moment<'_>,
        lacks: impl Fn(&LabelSet, i64) -> bool,
    ) -> Result<Vec<Missing>, SelectError> {
        let gaps = &moment.plan.gaps;
        let mut lacking: Vec<Missing> = Vec::new();
        if gaps.len() <= LOOKED_AT_MAX {
            for gap in gaps {
                if self.has_samples(question, moment, gap, &lacks)? {
                    lacking.push(gap.missing);
                }
            }
        } else {
            for span in spans(gaps) {
                if self.has_samples(question, moment, &span, &lacks)? {
                    let of_span = gaps.iter().filter(|gap| (gap.class, gap.holder) == (span.class, span.holder));
                    lacking.extend(of_span.map(|gap| gap.missing));
                }
            }
        }
        sort(&mut lacking);
        Ok(lacking)
    }

    fn has_samples(
        &self,
        question: &Question<'_>,
        moment: &Moment<'_>,
        gap: &Gap,
        lacks: &impl Fn(&LabelSet, i64) -> bool,
    ) -> Result<bool, SelectError> {
        // The windows that touch it.
        let Gap { class, holder, missing } = *gap;
        let Window { start_ns, end_ns } = missing.window;
        let width_ns = holder.window_ns();
        let up = |time: i64| time.div_euclid(width_ns).saturating_add(i64::from(time.rem_euclid(width_ns) > 0));
        let start_ns = start_ns.div_euclid(width_ns).saturating_mul(width_ns);
        let touched = Window { start_ns, end_ns: up(end_ns).saturating_mul(width_ns) };
        let windows = {
            let state = self.state.read();
            let Some(&tenant) = state.tenants.get(question.tenant) else { return Ok(false) };
            plan(&state, tenant, &[touched], Tiers::ALL)
        };
        if windows.gaps.iter().any(|gap| gap.class == class) {
            return Ok(true);
        }
        for (key, part) in windows.parts.into_iter().filter(|(key, _)| key.class == class) {
            // One that was dropped meanwhile has nothing.
            let partition = match self.outline(key, &moment.view.snapshot) {
                Ok(Some(partition)) => partition,
                Ok(None) => continue,
                // Nobody can tell whether it has any.
                Err(error) if error.is_damage() => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            // Of a label that the windows have not, any value may be the one that is asked for.
            let matchers = {
                let partition = partition.read();
                let has = |name: &String| {
                    !partition.dropped_names().filter_map(DroppedName::label).any(|label| label == name)
                };
                question.matchers.iter().filter(|matcher| has(&matcher.name)).cloned().collect::<Vec<_>>()
            };
            let part = gather(key, partition, part, &Question { matchers: &matchers, ..*question });
            let mut reader = PartReader::new(&moment.view, &part);
            for series in part.series.iter().filter(|series| lacks(&series.labels, end_ns)) {
                let mut any = AnySample(false);
                reader.read(series, &mut any)?;
                if any.0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Sorts times and removes duplicates.
pub(crate) fn sort(missing: &mut Vec<Missing>) {
    missing.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest, one.is_damaged));
    missing.dedup();
}

/// From the first to the last time of each class and tier that holds them.
fn spans(gaps: &[Gap]) -> Vec<Gap> {
    let mut spans: Vec<Gap> = Vec::new();
    for gap in gaps {
        match spans.iter_mut().find(|span| (span.class, span.holder) == (gap.class, gap.holder)) {
            Some(Gap { missing: Missing { window, .. }, .. }) => {
                window.start_ns = window.start_ns.min(gap.missing.window.start_ns);
                window.end_ns = window.end_ns.max(gap.missing.window.end_ns);
            }
            None => spans.push(*gap),
        }
    }
    spans
}

/// Whether there is a sample.
pub(crate) struct AnySample(pub(crate) bool);

impl Visitor for AnySample {
    fn needs(&mut self, _first_ns: i64, _last_ns: i64) -> Need {
        // There is no chunk without one.
        self.0 = true;
        Need::Nothing
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
