//! The interval of an export: its times, and the weight of its samples.

use super::clock::WallClock;

/// Properties that all samples of one interval share.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Start of the interval, on CLOCK_MONOTONIC.
    pub(crate) start_ktime_ns: u64,
    /// End of the interval, on CLOCK_MONOTONIC.
    pub(crate) end_ktime_ns: u64,
    pub(crate) clock: WallClock,
    /// CPU time that one sample represents, in nanoseconds.
    pub(crate) period_ns: i64,
    pub(crate) host_name: String,
}
