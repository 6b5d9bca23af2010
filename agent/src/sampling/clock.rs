//! Conversion of the kernel's monotonic time to UTC.
//!
//! The offset between the two clocks is measured in each interval, because CLOCK_REALTIME can be set and slewed.

use crate::process::sys::{Clock, clock_ns};

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, measured at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    offset_ns: i64,
}

impl WallClock {
    /// Measures the offset four times, and returns the result of the measurement that took the least time. So the error
    /// is below a microsecond even if the thread is interrupted during another measurement.
    pub(crate) fn measure() -> Self {
        let tries = (0..4).map(|_| {
            let before = clock_ns(Clock::Monotonic);
            let wall = clock_ns(Clock::Realtime);
            let after = clock_ns(Clock::Monotonic);
            let middle = before + (after - before) / 2;
            (after - before, wall.cast_signed() - middle.cast_signed())
        });
        Self { offset_ns: tries.min().map_or(0, |(_, offset_ns)| offset_ns) }
    }

    /// Converts a time on CLOCK_MONOTONIC to UTC, in nanoseconds since the Unix epoch.
    pub(crate) fn unix_ns(self, ktime_ns: u64) -> u64 {
        ktime_ns.saturating_add_signed(self.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_time_is_the_same_on_both_clocks() {
        let clock = WallClock::measure();
        let wall = clock_ns(Clock::Realtime);
        let ktime = clock_ns(Clock::Monotonic);
        // Readings are microseconds apart; a second allows for a busy machine.
        assert!(clock.unix_ns(ktime).abs_diff(wall) < 1_000_000_000);
    }
}
