//! Times of samples in chunks, by series of a partition of minutes: the earliest and the latest that are known.
//!
//! A list of series finds out whether a series has samples in a window. If the window contains a known time, no chunk
//! of the series is read. Times become known when chunks are written or read.
//!
//! Invariant: each known time is that of a sample which was stored and not deleted: a deletion forgets the times of its
//! partitions. Raw samples may have expired since. Then plans contain only the minute of the time. A sample may also be
//! damaged. Its series is still listed, because it had the sample.

/// Memory of the times of a series, in bytes.
pub(crate) const SERIES_BYTES: usize = size_of::<(i64, i64)>();

/// Times of a series without known times.
const UNKNOWN: (i64, i64) = (i64::MAX, i64::MIN);

/// Known times of samples, in nanoseconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct SampleTimes {
    /// Earliest and latest known time of each series, by its number. Later series have no known times.
    of_series: Vec<(i64, i64)>,
    /// Number of flushes after which all these samples were in the database.
    flushes: u64,
}

impl SampleTimes {
    /// Adds times of samples that are in the database after this number of flushes. The partition has `series` series.
    /// Each item is the number of a series and the times of two samples, the earlier one first.
    pub(crate) fn add(&mut self, series: usize, flushes: u64, times: impl IntoIterator<Item = (u32, (i64, i64))>) {
        if let Some(more) = series.checked_sub(self.of_series.len()) {
            self.of_series.reserve_exact(more);
            self.of_series.resize(series, UNKNOWN);
        }
        for (number, (first_ns, last_ns)) in times {
            if let Some(known) = self.of_series.get_mut(number as usize) {
                *known = (known.0.min(first_ns), known.1.max(last_ns));
                self.flushes = self.flushes.max(flushes);
            }
        }
    }

    /// Returns the earliest and the latest known time of a series; `None` if no time is known.
    pub(crate) fn of(&self, series: u32) -> Option<(i64, i64)> {
        self.of_series.get(series as usize).copied().filter(|known| *known != UNKNOWN)
    }

    /// Returns the number of flushes after which the samples of all known times were in the database.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Forgets all times.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_and_the_latest_times_are_known_until_forgotten() {
        let mut times = SampleTimes::default();
        times.add(4, 7, [(3, (20, 30)), (3, (25, 40)), (1, (7, 7)), (4, (1, 2))]);
        let known = |times: &SampleTimes| (0..6).map(|series| times.of(series)).collect::<Vec<_>>();
        assert_eq!(known(&times), [None, Some((7, 7)), None, Some((20, 40)), None, None]);
        times.add(5, 6, [(3, (10, 15)), (4, (8, 9))]);
        assert_eq!(known(&times), [None, Some((7, 7)), None, Some((10, 40)), Some((8, 9)), None]);
        assert_eq!(times.flushes(), 7);
        times.forget();
        assert_eq!((known(&times), times.flushes()), (vec![None; 6], 0));
    }
}
