//! A run: samples of one series in one window of the head, sorted by time.
//!
//! A run also stores its first and last time, and the value that all samples have in common. These suffice for most
//! queries, so most queries do not read the samples.

use std::ops::Deref;
use std::sync::Arc;

use proto::Samples;

/// Samples sorted by time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    first_ns: i64,
    last_ns: i64,
    /// Value of every sample; `None` if values differ or there are no samples.
    value: Option<i64>,
    samples: Samples,
}

impl Run {
    /// Creates a run of samples in any order.
    pub(crate) fn new(mut samples: Samples) -> Self {
        samples.sort_by_time();
        let value = common_value(&samples.values);
        let mut run = Self { value, samples, ..Self::default() };
        run.note_times();
        run
    }

    /// Adds samples, which must be sorted by time.
    pub(crate) fn append(&mut self, samples: Samples) {
        let value = common_value(&samples.values);
        if self.samples.is_empty() {
            self.value = value;
        } else if !samples.is_empty() {
            self.value = self.value.filter(|_| self.value == value);
        }
        let is_in_order = self.samples.times_ns.last() <= samples.times_ns.first();
        // A quarter, not twice the length: runs of a large fleet stay short, and its head holds most of the memory.
        let more = samples.len().max(self.samples.len() / 4);
        let Samples { times_ns, pairs, values, attribute_sets } = &mut self.samples;
        if times_ns.capacity() - times_ns.len() < samples.len() {
            times_ns.reserve_exact(more);
            pairs.reserve_exact(more);
            values.reserve_exact(more);
            attribute_sets.reserve_exact(more);
        }
        self.samples.append(samples);
        if !is_in_order {
            self.samples.sort_by_time();
        }
        self.note_times();
    }

    fn note_times(&mut self) {
        let times = &self.samples.times_ns;
        self.first_ns = times.first().copied().unwrap_or_default();
        self.last_ns = times.last().copied().unwrap_or_default();
    }

    /// Returns the times of the first and of the last sample, in nanoseconds since 1970.
    pub(crate) fn times_ns(&self) -> (i64, i64) {
        (self.first_ns, self.last_ns)
    }

    /// Returns the value of every sample; `None` if values differ or there are no samples.
    pub(crate) fn value(&self) -> Option<i64> {
        self.value
    }
}

impl Deref for Run {
    type Target = Samples;

    fn deref(&self) -> &Samples {
        &self.samples
    }
}

/// Returns all samples of the runs, sorted by time.
pub(crate) fn joined(runs: &[Arc<Run>]) -> Samples {
    let mut all = Samples::default();
    runs.iter().for_each(|run| all.append(Samples::clone(run)));
    all.sort_by_time();
    all
}

fn common_value(values: &[i64]) -> Option<i64> {
    let (&first, rest) = values.split_first()?;
    rest.iter().all(|&value| value == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_run_is_sorted_by_time_and_has_its_common_value(
            parts in prop::collection::vec(prop::collection::vec((1..1000_i64, 0..3_i64), 0..5), 1..6),
            is_same: bool,
        ) {
            let mut run = Run::default();
            let mut rows = Vec::new();
            for (number, part) in parts.iter().enumerate() {
                let mut samples = Samples::default();
                for &(time, value) in part {
                    let value = if is_same { 7 } else { value };
                    samples.push(time, 0, value, 0);
                    rows.push((time, value));
                }
                if number == 0 {
                    run = Run::new(samples);
                } else {
                    run.append(Run::new(samples).samples);
                }
            }
            let mut got: Vec<_> = run.times_ns.iter().copied().zip(run.values.iter().copied()).collect();
            prop_assert!(run.times_ns.is_sorted());
            got.sort_unstable();
            rows.sort_unstable();
            prop_assert_eq!(&got, &rows);
            let ends = (rows.first().map_or(0, |row| row.0), rows.last().map_or(0, |row| row.0));
            prop_assert_eq!(run.times_ns(), ends);
            let mut values: Vec<i64> = rows.iter().map(|row| row.1).collect();
            values.sort_unstable();
            values.dedup();
            prop_assert_eq!(run.value(), values.first().copied().filter(|_| values.len() == 1));
        }
    }
}
