//! Configuration of an engine.

use std::path::PathBuf;

use proto::Tier;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory that only this shard uses; created if it does not exist.
    pub directory: PathBuf,
    /// Bytes of unsealed samples in memory at which [`Engine::wants_flush`](crate::Engine::wants_flush) becomes true.
    pub head_bytes_max: usize,
    /// Budget of dictionaries and series in memory, in bytes. Beyond it, [`Engine::strip`](crate::Engine::strip)
    /// refuses new definitions.
    pub dictionary_bytes_max: usize,
    /// Size of RocksDB's block cache, in bytes. Write buffers count against it, but may always take 64 MiB.
    pub cache_bytes: usize,
    /// Precision with which the times of samples are stored.
    pub time_resolution: TimeResolution,
    /// Names of labels that are dropped: first those that hours drop, then those that days drop. They should be labels
    /// that identify instances. Instances change often, so years of hours and days that kept these labels would be
    /// large.
    pub dropped_labels: [Vec<String>; 2],
}

impl Config {
    /// Returns the size of all dictionaries, in bytes, above which partitions that are not in use are evicted. The rest
    /// of the budget is for partitions in use. If queries need more partitions than fit, each query loads them again,
    /// which takes seconds if there are many stacks.
    pub(crate) fn idle_dictionary_bytes_max(&self) -> usize {
        self.dictionary_bytes_max / 4 * 3
    }

    pub(crate) fn dropped_labels(&self, tier: Tier) -> &[String] {
        match tier {
            Tier::Raw | Tier::Minute => &[],
            Tier::Hour => &self.dropped_labels[0],
            Tier::Day => &self.dropped_labels[1],
        }
    }
}

/// Precision with which the times of samples are stored. Times are most of the bytes of raw samples, so a lower
/// precision saves space. Times are rounded up, which keeps each sample in its minute, so sums over whole minutes do
/// not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeResolution {
    /// Times are stored as received.
    #[default]
    Nanoseconds,
    /// Times are rounded up to the millisecond.
    Milliseconds,
    /// Times are rounded up to the minute, the finest window of sums.
    Window,
}

impl TimeResolution {
    pub(crate) fn round(self, time_ns: i64) -> i64 {
        let unit_ns = match self {
            Self::Nanoseconds => return time_ns,
            Self::Milliseconds => 1_000_000,
            Self::Window => Tier::Minute.window_ns(),
        };
        time_ns.saturating_sub(1).div_euclid(unit_ns).saturating_add(1).saturating_mul(unit_ns)
    }
}
