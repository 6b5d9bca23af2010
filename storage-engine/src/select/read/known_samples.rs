//! Known times of samples ([`SampleTimes`](crate::memory::partition::sample_times::SampleTimes)), as a list of series
//! uses and teaches them.
//!
//! Invariant: a query sees the samples of one moment. It does not use times of samples that later flushes wrote, and
//! teaches no times of samples that a later deletion removed.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::engine::state::State;
use crate::engine::store::Store;
use crate::memory::partition::Partition;
use crate::select::view::PartView;

/// Times of samples in chunks of one partition: the number of each series, and the times of two of its samples, the
/// earlier one first.
pub(crate) struct FoundTimes {
    pub(crate) partition: Arc<RwLock<Partition>>,
    pub(crate) of_series: Vec<(u32, (i64, i64))>,
}

/// The moment of a query: numbers of flushes and of deletions until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownSince {
    flushes: u64,
    deletions: u64,
}

impl KnownSince {
    /// Returns the moment of a query that is planned now.
    pub(crate) fn now(state: &State) -> Self {
        Self { flushes: state.partitions.flushes(), deletions: state.partitions.deletions() }
    }

    /// Marks the series that are known to have planned samples, whatever their attributes are. If the partition knows
    /// samples of later flushes, no series is marked.
    pub(crate) fn mark_known(self, part: &mut PartView) {
        let PartView { key, partition, plan, series, .. } = part;
        let partition = partition.read();
        if partition.sample_times.flushes() > self.flushes {
            return;
        }
        for series in series.iter_mut().filter(|series| !series.has_samples) {
            let times = partition.sample_times.of(series.number);
            series.has_samples =
                times.is_some_and(|(first, last)| plan.has_time(key.tier, first) || plan.has_time(key.tier, last));
        }
    }

    /// Keeps the times of samples that the query found, for later queries. Keeps nothing if samples were deleted
    /// meanwhile.
    pub(crate) fn keep(self, store: &Store, found: Vec<FoundTimes>) {
        if found.is_empty() {
            return;
        }
        let state = store.state();
        if state.partitions.deletions() != self.deletions {
            return;
        }
        for FoundTimes { partition, of_series } in found {
            // Others may read the partition for long, and entries wait for the state. A later list finds the times.
            if let Some(mut partition) = partition.try_write() {
                let series = partition.series.len();
                partition.sample_times.add(series, self.flushes, of_series);
            }
        }
    }
}
