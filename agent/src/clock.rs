//! From the kernel's monotonic time to UTC.
//!
//! The offset between the two is measured once an interval, not once for all: CLOCK_REALTIME is set and slewed.

use crate::sys::{Clock, clock_ns};

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, as measured at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    offset_ns: i64,
}

impl WallClock {
    /// Measures now. Of a few tries the one with the least time between its two readings counts, so that being
    /// interrupted in between does no harm: the error is then below a microsecond.
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

    /// UTC in nanoseconds since the epoch for a time on CLOCK_MONOTONIC.
    pub(crate) fn unix_ns(self, ktime_ns: u64) -> u64 {
        ktime_ns.saturating_add_signed(self.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_on_one_clock_is_the_present_on_the_other() {
        let clock = WallClock::measure();
        let (wall, ktime) = (clock_ns(Clock::Realtime), clock_ns(Clock::Monotonic));
        // Readings are microseconds apart; a second allows for a busy machine.
        assert!(clock.unix_ns(ktime).abs_diff(wall) < 1_000_000_000);
    }
}
