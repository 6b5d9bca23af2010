//! A token bucket that may go into debt.

use std::time::{Duration, Instant};

/// Time over which an unused rate accumulates, so that a burst after a pause is accepted.
const BURST: Duration = Duration::from_secs(1);

/// A rate of units, such as bytes, over time.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Units that may be taken now; negative while a large take is being paid off. `None` before the first use.
    level: Option<(f64, Instant)>,
}

impl Bucket {
    /// Returns true if something may be taken now at `rate` units per second.
    pub(super) fn has_some(&mut self, rate: u64, now: Instant) -> bool {
        self.refill(rate, now) > 0.0
    }

    /// Takes units, of which there may be fewer.
    pub(super) fn take(&mut self, units: u64, rate: u64, now: Instant) {
        let level = self.refill(rate, now) - units as f64;
        self.level = Some((level, now));
    }

    fn refill(&mut self, rate: u64, now: Instant) -> f64 {
        let full = rate as f64 * BURST.as_secs_f64();
        let level = match self.level {
            None => full,
            Some((level, at)) => (level + rate as f64 * now.saturating_duration_since(at).as_secs_f64()).min(full),
        };
        self.level = Some((level, now));
        level
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_large_take_is_paid_off_before_the_next() {
        let mut bucket = Bucket::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs_f64(seconds);
        assert!(bucket.has_some(100, start));
        bucket.take(1_000, 100, start);
        assert!(!bucket.has_some(100, at(8.9)));
        assert!(bucket.has_some(100, at(9.1)));
        // A long pause saves no more than one second of the rate.
        bucket.take(200, 100, at(1_000.0));
        assert!(!bucket.has_some(100, at(1_000.9)));
        assert!(bucket.has_some(100, at(1_001.1)));
    }

    proptest! {
        /// Over any time, takes that are only made while there is something amount to at most the rate, the burst and
        /// one take.
        #[test]
        fn the_rate_is_kept_over_any_time(
            rate in 1_u64..10_000,
            takes in prop::collection::vec((0_u64..20_000, 0_u64..3_000), 1..100),
        ) {
            let mut bucket = Bucket::default();
            let mut now = Instant::now();
            let start = now;
            let mut taken = 0;
            let mut largest = 0;
            for (units, pause_ms) in takes {
                now += Duration::from_millis(pause_ms);
                if bucket.has_some(rate, now) {
                    bucket.take(units, rate, now);
                    taken += units;
                    largest = largest.max(units);
                }
            }
            let allowed = rate as f64 * ((now - start) + BURST).as_secs_f64() + largest as f64;
            prop_assert!(taken as f64 <= allowed + 1e-3, "{taken} > {allowed}");
        }
    }
}
