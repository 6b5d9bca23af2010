//! Configuration of an engine.

use std::path::PathBuf;

use proto::Tier;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of this shard alone; created if it does not exist.
    pub directory: PathBuf,
    /// Bytes of unsealed samples from which [`Engine::wants_flush`](crate::Engine::wants_flush) is true.
    pub head_bytes_max: usize,
    /// Budget of dictionaries and series in memory, in bytes.
    /// Beyond it, [`Engine::strip`](crate::Engine::strip) refuses new ones.
    pub dictionary_bytes_max: usize,
    /// Bytes of RocksDB's block cache and write buffers. The write buffers may always take 64 MiB.
    pub cache_bytes: usize,
    /// Resolution of stored times.
    pub time_resolution: TimeResolution,
    /// Labels that hours drop, and labels that days drop. They are those of instances, because the churn of
    /// instances would make years of them large.
    pub dropped_labels: [Vec<String>; 2],
}

impl Config {
    /// Bytes of dictionaries from which idle partitions are evicted. The rest of the budget is for partitions in use.
    /// If queries need more partitions than fit, each query loads them again, which takes seconds with many stacks.
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

/// Resolution of stored times, which are most of the bytes of raw samples. A time is rounded up, so no sum over whole
/// minutes changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeResolution {
    /// As received.
    #[default]
    Nanoseconds,
    /// To the millisecond.
    Milliseconds,
    /// To the minute, the finest window.
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
