//! Configuration of a node.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use proto::limits::{NODE_SHARDS_MAX, RETENTION_SECONDS_MAX};
use proto::meta;
use transport::Dialer;

use crate::error::NodeError;
use crate::shard::KeepLimits;

/// The smallest cap on disk use, in bytes. The Raft log alone may take half of this between two flushes.
pub const DISK_BYTES_MIN: u64 = 256 << 20;

/// Longest time for which flushed entries are kept in the log for members that lag. A restart of a node, or of its
/// host, takes less.
const KEEP_TIME: Duration = Duration::from_secs(15 * 60);

/// Address and zone of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Address, `host:port`, at which other nodes and routers reach the node.
    pub address: String,
    /// Name of the zone, such as a rack or a data center; "" if zones are not used. The members of a shard are in
    /// different zones as far as possible.
    pub zone: String,
}

/// The data directory, the identity of the node, and its limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Data directory; created if it does not exist.
    pub data_dir: PathBuf,
    /// Number of this node in the cluster, which is not zero. The number must not change while the data directory
    /// exists.
    pub node_id: u64,
    /// Number of shards, which is set on the first start: 1 if this is `None`. A later start must have the same number
    /// or `None`.
    pub shards: Option<NonZeroU16>,
    /// Address and zone of this node. The first start stores them in the state of the cluster.
    pub site: Site,
    /// Addresses and zones of the nodes with which a new cluster begins, by node id, including this node. Empty if this
    /// node is a cluster of its own. Later starts need them, too: a node that lost its data and has no list would make
    /// a cluster of its own.
    pub initial_nodes: BTreeMap<u64, Site>,
    /// Addresses, `host:port`, of some nodes of a cluster that this node joins. With an empty data directory, the node
    /// registers itself there. Empty if the node belongs to the cluster from its beginning.
    pub join: Vec<String>,
    /// Maker of the connections to other nodes.
    pub dialer: Dialer,
    /// Retention of each tier with which a new cluster begins, for the tenant `default`. A later start of a cluster of
    /// one node sets it again, unless that tenant has a policy.
    pub retention: Retention,
    /// Cap on the disk use of all Raft logs and states, in bytes; at least [`DISK_BYTES_MIN`]. Shortly before the cap
    /// is reached, the oldest partitions are dropped.
    pub disk_bytes_max: u64,
    /// Longest time between two flushes. After each flush, the log is purged.
    pub flush_interval: Duration,
    /// Size of the entries applied since the last flush, in bytes and over all shards, at which the next flush begins.
    /// A restart applies about this many bytes of entries again.
    pub flush_bytes: u64,
    /// Size of the unsealed samples of all shards in memory, in bytes, at which the shard with most of them flushes.
    pub head_bytes_max: usize,
    /// Size of the block cache that all shards share, in bytes.
    pub cache_bytes: usize,
    /// Longest time for which flushed entries are kept in the log for members that lag. A member that lags more
    /// installs a snapshot.
    pub log_keep_time: Duration,
    /// Largest size of the flushed entries that all shards together keep in the log for members that lag, in bytes.
    pub log_keep_bytes: u64,
}

/// Retention of samples in each tier, in whole seconds; parts of a second are rounded up. A coarser tier is kept at
/// least as long as every finer tier, even if the retention of the coarser tier is shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Retention of samples with their own times. Older samples are refused.
    pub raw: Duration,
    /// Retention of the sums per minute.
    pub minutes: Duration,
    /// Retention of the sums per hour.
    pub hours: Duration,
    /// Retention of the sums per day.
    pub days: Duration,
}

impl Retention {
    /// Returns the retention as the state of the meta group has it.
    pub(crate) fn in_seconds(self) -> meta::Retention {
        let seconds = |age: Duration| age.as_secs() + u64::from(age.subsec_nanos() > 0);
        let tiers = [self.raw, self.minutes, self.hours, self.days];
        meta::Retention(tiers.map(|age| seconds(age).clamp(1, RETENTION_SECONDS_MAX)))
    }
}

impl Config {
    /// Returns the configuration of a single node that flushes after a minute, or after 64 MiB of entries. Its log
    /// keeps at most a sixteenth of the cap on disk use for members that lag.
    #[must_use]
    pub fn new(data_dir: PathBuf, retention: Retention, disk_bytes_max: u64) -> Self {
        Self {
            data_dir,
            node_id: 1,
            shards: None,
            site: Site { address: "127.0.0.1:4041".to_owned(), zone: String::new() },
            initial_nodes: BTreeMap::new(),
            join: Vec::new(),
            dialer: Dialer::plaintext(),
            retention,
            disk_bytes_max,
            flush_interval: Duration::from_secs(60),
            flush_bytes: 64 << 20,
            head_bytes_max: 64 << 20,
            cache_bytes: 128 << 20,
            log_keep_time: KEEP_TIME,
            log_keep_bytes: disk_bytes_max / 16,
        }
    }

    /// Returns the addresses and zones of the nodes with which a new cluster begins, by node id.
    pub(crate) fn initial_nodes(&self) -> BTreeMap<u64, Site> {
        if self.initial_nodes.is_empty() {
            return BTreeMap::from([(self.node_id, self.site.clone())]);
        }
        self.initial_nodes.clone()
    }

    /// Returns true if the node is one of several, or joins others.
    pub(crate) fn has_others(&self) -> bool {
        self.initial_nodes.len() > 1 || !self.join.is_empty()
    }

    /// Returns the limits on the flushed entries that the logs of all shards keep for members that lag.
    pub(crate) fn keep_limits(&self) -> KeepLimits {
        KeepLimits { time: self.log_keep_time, bytes: self.log_keep_bytes }
    }

    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let at_least = |option, value, minimum| {
            if value >= minimum { Ok(()) } else { Err(NodeError::Config { option, value, minimum }) }
        };
        if let Some(shards) = self.shards.filter(|shards| shards.get() > NODE_SHARDS_MAX) {
            return Err(NodeError::TooManyShards { shards, maximum: NODE_SHARDS_MAX });
        }
        at_least("the node id", self.node_id, 1)?;
        if !self.initial_nodes().contains_key(&self.node_id) {
            return Err(NodeError::NotInitial { node: self.node_id });
        }
        at_least("disk_bytes_max", self.disk_bytes_max, DISK_BYTES_MIN)?;
        at_least("flush_bytes", self.flush_bytes, 1)?;
        at_least("the retention in seconds", self.retention.raw.as_secs(), 1)
    }
}
