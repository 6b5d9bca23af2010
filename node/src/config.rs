//! What a node is told when it is opened.

use std::path::PathBuf;
use std::time::Duration;

use proto::Tier;

use crate::error::NodeError;

/// The smallest cap on disk use: the Raft log alone may take half of it between two flushes.
pub const DISK_BYTES_MIN: u64 = 256 << 20;

/// Where the data is, who the node is, and how much it may take.
#[derive(Clone, Debug)]
pub struct Config {
    /// Made if it is not there.
    pub data_dir: PathBuf,
    /// Of this node in the cluster, from 1; the same as long as the data directory lives.
    pub node_id: u64,
    /// Where other nodes reach this one, `host:port`; goes into the membership when the group is made.
    pub advertise_address: String,
    /// Partitions that ended longer ago are dropped.
    pub retention: Retention,
    /// Space that Raft logs and states of the shards may take together; the oldest partitions are dropped when it is nearly
    /// reached. At least [`DISK_BYTES_MIN`].
    pub disk_bytes_max: u64,
    /// The state is flushed, and the log cut behind it, at least this often...
    pub flush_interval: Duration,
    /// ...and when this many bytes of entries were applied since: bounds what a restart applies again...
    pub flush_bytes: u64,
    /// ...and when unsealed samples take this much memory.
    pub head_bytes_max: usize,
    /// The engine's block cache.
    pub cache_bytes: usize,
}

/// How long each tier is kept. A coarser one is kept at least as long as a finer one, whatever is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Every sample with its own time; what is older is refused.
    pub raw: Duration,
    /// Sums of minutes.
    pub minutes: Duration,
    /// Sums of hours.
    pub hours: Duration,
    /// Sums of days.
    pub days: Duration,
}

impl Retention {
    pub(crate) fn of(self, tier: Tier) -> Duration {
        let all = [self.raw, self.minutes, self.hours, self.days];
        all.into_iter().take(usize::from(tier.number()) + 1).max().unwrap_or_default()
    }
}

impl Config {
    /// A single node that flushes every minute or 64 MiB.
    #[must_use]
    pub fn new(data_dir: PathBuf, retention: Retention, disk_bytes_max: u64) -> Self {
        Self {
            data_dir,
            node_id: 1,
            advertise_address: "127.0.0.1:4041".to_owned(),
            retention,
            disk_bytes_max,
            flush_interval: Duration::from_secs(60),
            flush_bytes: 64 << 20,
            head_bytes_max: 64 << 20,
            cache_bytes: 128 << 20,
        }
    }

    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let at_least = |option, value, minimum| {
            if value >= minimum { Ok(()) } else { Err(NodeError::Config { option, value, minimum }) }
        };
        at_least("the node id", self.node_id, 1)?;
        at_least("disk_bytes_max", self.disk_bytes_max, DISK_BYTES_MIN)?;
        at_least("flush_bytes", self.flush_bytes, 1)?;
        at_least("the retention in seconds", self.retention.raw.as_secs(), 1)
    }
}
