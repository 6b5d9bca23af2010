//! Data that a query reads, as of one moment.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use proto::LabelSet;
use roaring::RoaringBitmap;

use crate::database::Snapshot;
use crate::database::key::PartitionKey;
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::part_damage::PartDamage;
use crate::memory::partition::{Lengths, Partition};
use crate::memory::run::Run;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::select::plan::PartPlan;
use crate::select::read::known_samples::FoundTimes;

/// Data that all partitions of a query share.
pub(crate) struct View<'a> {
    pub(crate) shared: Option<Arc<RwLock<TenantDictionary>>>,
    pub(crate) snapshot: Snapshot<'a>,
    /// Function `is_wanted` of the query. It returns false if the caller no longer waits.
    pub(crate) is_wanted: &'a (dyn Fn() -> bool + Sync),
    /// Damage that the query found and that was unknown before. A query that finds any is planned again.
    pub(crate) found: Mutex<Vec<NewDamage>>,
    /// Times of samples that the query found in chunks.
    pub(crate) sample_times: Mutex<Vec<FoundTimes>>,
}

impl<'a> View<'a> {
    /// Returns the view of a query that has found nothing yet.
    pub(crate) fn new(
        shared: Option<Arc<RwLock<TenantDictionary>>>,
        snapshot: Snapshot<'a>,
        is_wanted: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        Self { shared, snapshot, is_wanted, found: Mutex::default(), sample_times: Mutex::default() }
    }
}

/// Data that a query reads from one partition.
pub(crate) struct PartView {
    pub(crate) key: PartitionKey,
    pub(crate) partition: Arc<RwLock<Partition>>,
    pub(crate) plan: PartPlan,
    /// Numbers of the series that match the query.
    pub(crate) matching: RoaringBitmap,
    /// The same series, ascending by number.
    pub(crate) series: Vec<SeriesView>,
    /// Planned runs of the head, ascending by series, then by window.
    pub(crate) runs: Vec<Arc<Run>>,
    /// Lengths of the partition's lists. The data that the query reads refers only to numbers below these lengths.
    pub(crate) known: Lengths,
    pub(crate) damage: PartDamage,
}

impl PartView {
    /// Returns the labels of a series. A query of many series that needs only a few labels resolves groups instead
    /// ([`crate::select::grouping`]).
    pub(crate) fn labels(&self, series: &SeriesView) -> Arc<LabelSet> {
        self.partition.read().labels(series.number).map(Arc::clone).unwrap_or_default()
    }

    /// Returns the planned runs of a series in the head, ascending by window.
    pub(crate) fn runs_of(&self, series: &SeriesView) -> &[Arc<Run>] {
        self.runs.get(series.runs.start as usize..series.runs.end as usize).unwrap_or_default()
    }
}

/// A series that matches the query.
#[derive(Clone, Debug)]
pub(crate) struct SeriesView {
    pub(crate) number: u32,
    /// Indexes of its runs in [`PartView::runs`].
    pub(crate) runs: Range<u32>,
    /// True if the series is known to have planned samples that match. The runs of the series are then left out if the
    /// head has such samples.
    pub(crate) has_samples: bool,
}

impl SeriesView {
    /// Returns a series without its part of the head.
    pub(crate) fn without_head(number: u32) -> Self {
        Self { number, runs: 0..0, has_samples: false }
    }
}
