//! What holds for every sample of one interval.

use super::clock::WallClock;

/// What holds for every sample of one interval.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Start of the interval, on CLOCK_MONOTONIC.
    pub(crate) start_ktime_ns: u64,
    /// End of the interval, on CLOCK_MONOTONIC.
    pub(crate) end_ktime_ns: u64,
    pub(crate) clock: WallClock,
    /// CPU time that one sample stands for.
    pub(crate) period_ns: i64,
    pub(crate) host_name: String,
}
