//! Splits the samples of a batch by partition, in one pass over the batch.

use std::collections::BTreeMap;

use proto::{Batch, SeriesSamples, Tier};

use crate::database::key::PartitionKey;

/// Samples of one series for one partition.
pub(crate) struct Part<'a> {
    pub(crate) series: &'a SeriesSamples,
    /// Indexes of the samples that belong to the partition; `None` if all do, as in nearly every batch.
    rows: Option<Vec<usize>>,
}

impl Part<'_> {
    /// Returns the number of samples.
    pub(crate) fn samples(&self) -> u64 {
        self.rows.as_ref().map_or(self.series.samples.len(), Vec::len) as u64
    }

    /// Calls `visit` with the index of each sample.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize)) {
        match &self.rows {
            None => (0..self.series.samples.len()).for_each(visit),
            Some(rows) => rows.iter().for_each(|&row| visit(row)),
        }
    }
}

/// Returns the parts of a batch by partition of minutes, because the heads of those partitions get the samples. Series
/// without samples have no part.
pub(crate) fn parts(tenant: u32, batch: &Batch) -> BTreeMap<PartitionKey, Vec<Part<'_>>> {
    let key = |time_ns| PartitionKey::of(Tier::Minute, batch.retention_class, tenant, time_ns);
    let mut out: BTreeMap<PartitionKey, Vec<Part<'_>>> = BTreeMap::new();
    for series in &batch.series {
        let times = &series.samples.times_ns;
        let Some(&first) = times.first() else { continue };
        let first = key(first);
        if times.iter().all(|&time| first.start_ns() < time && time <= first.end_ns()) {
            out.entry(first).or_default().push(Part { series, rows: None });
            continue;
        }
        let mut rows: BTreeMap<PartitionKey, Vec<usize>> = BTreeMap::new();
        for (row, &time) in times.iter().enumerate() {
            rows.entry(key(time)).or_default().push(row);
        }
        for (key, rows) in rows {
            out.entry(key).or_default().push(Part { series, rows: Some(rows) });
        }
    }
    out
}
