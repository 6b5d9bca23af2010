//! Selection: sums of samples by group, bucket and stack.
//!
//! Partition by partition, see `gather`: sum (without locks: add up by dense numbers of the partition), and name (under the
//! vocabulary's lock: from numbers to one tree of locations).

pub(crate) mod accumulator;
pub(crate) mod adders;
pub(crate) mod gather;
pub(crate) mod grouping;
pub(crate) mod locations;
pub(crate) mod missing;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod series;
pub(crate) mod stack_filter;
pub(crate) mod totals;
pub(crate) mod tree;

use proto::{Answer, Fold, Selection, StackDetail};

use crate::engine::Engine;
use crate::error::SelectError;
use crate::memory::matcher::ReadyMatcher;
use crate::select::accumulator::Accumulator;
use crate::select::gather::{Asks, Question};
use crate::select::plan::Tiers;

impl Engine {
    /// Sums of samples; consistent: all of an entry or nothing of it.
    ///
    /// # Errors
    /// [`SelectError`]: the question is wrong, its answer too large or not kept any more, or the state cannot be read.
    pub fn select(&self, selection: &Selection) -> Result<Answer, SelectError> {
        self.select_while(selection, &|| true)
    }

    /// As [`Engine::select`], for as long as somebody wants the answer: asked before each partition and each series.
    ///
    /// # Errors
    /// [`SelectError::Cancelled`] if nobody does any more.
    pub fn select_while(&self, selection: &Selection, is_wanted: &dyn Fn() -> bool) -> Result<Answer, SelectError> {
        let asks = if matches!(selection.fold, Fold::Last(_)) { Asks::Last } else { Asks::Sums };
        // A series of several that a tier made one has no last point.
        self.select_as(selection, asks, selection.group_by_series || asks == Asks::Last, is_wanted)
    }

    /// As [`Engine::select`]; where it asks for any samples only, the sums mean nothing. `by_series`: of series that a tier made
    /// one, each is asked for.
    pub(crate) fn select_as(
        &self,
        selection: &Selection,
        asks: Asks,
        by_series: bool,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Answer, SelectError> {
        let matchers = ReadyMatcher::all(&selection.matchers)?;
        let (buckets, tiers) = match &selection.fold {
            Fold::Sum(windows) => (windows.as_slice(), Tiers::ALL),
            Fold::Last(window) => (std::slice::from_ref(window), Tiers::ALL),
            Fold::Points(window) => (std::slice::from_ref(window), Tiers::RAW),
        };
        let question = Question {
            tenant: &selection.tenant,
            matchers: &matchers,
            buckets,
            group_by: &selection.group_by,
            by_series,
            asks,
            tiers,
            needs_stacks: selection.stacks != StackDetail::None
                || !selection.locations.filters.is_empty()
                || tiers != Tiers::ALL
                || asks == Asks::Last,
            is_wanted,
        };
        let (accumulator, found) = self.read(&question, || Accumulator::new(selection, &matchers))?;
        Ok(accumulator.finish(found))
    }
}
