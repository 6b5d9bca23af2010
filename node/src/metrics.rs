//! Metrics of a node, with the prefix `varve_node_`. Those of a shard have the label `shard`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Metrics of one node. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) syncs: Counter,
    pub(crate) sync_seconds: Histogram,
    pub(crate) sync_entries: Histogram,
    pub(crate) entries: Counter,
    pub(crate) entry_bytes: Counter,
    applied_index: Family<ShardLabels, Gauge>,
    flushed_index: Family<ShardLabels, Gauge>,
    first_log_index: Family<ShardLabels, Gauge>,
    snapshots_installed: Family<ShardLabels, Counter>,
    flush_seconds: Histogram,
    pub(crate) disk_bytes: Family<DiskLabels, Gauge>,
    dictionary_memory_bytes: Family<ShardLabels, Gauge>,
    head_memory_bytes: Family<ShardLabels, Gauge>,
    quarantined_windows: Family<ShardLabels, Gauge>,
    partitions_without_batch_ids: Family<ShardLabels, Gauge>,
    damaged_reads: Family<ShardLabels, Counter>,
    unrepaired: Family<ShardLabels, Gauge>,
    repairs: Family<RepairLabels, Counter>,
    pub(crate) appends_refused: Family<RefusalLabels, Counter>,
    pub(crate) replica_state: Family<StateLabels, Gauge>,
    pub(crate) clock_jump_seconds: Gauge,
    pub(crate) clock_jumps: Family<DirectionLabels, Counter>,
}

/// Metrics of one shard. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ShardMetrics {
    pub(crate) applied_index: Gauge,
    pub(crate) flushed_index: Gauge,
    pub(crate) first_log_index: Gauge,
    pub(crate) snapshots_installed: Counter,
    /// Histogram of all shards.
    pub(crate) flush_seconds: Histogram,
    pub(crate) dictionary_memory_bytes: Gauge,
    pub(crate) head_memory_bytes: Gauge,
    pub(crate) quarantined_windows: Gauge,
    pub(crate) partitions_without_batch_ids: Gauge,
    pub(crate) damaged_reads: Counter,
    pub(crate) unrepaired: Gauge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardLabels {
    shard: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DiskLabels {
    /// Part of the data directory: `raft` or `shards`.
    pub(crate) part: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    shard: u32,
    /// `repaired` or `failed`.
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RefusalLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabels {
    pub(crate) state: &'static str,
    pub(crate) shard: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabels {
    /// Direction of a jump of the system clock: `ahead` or `behind`.
    pub(crate) direction: &'static str,
}

/// Reason to refuse an append.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// The replica of the shard is starting or stopping, or has failed.
    NotReady,
    /// The shard is not on this node, or the request names another epoch of the placement than the node.
    Misplaced,
    /// The batch contradicts itself, spreads over too many partitions, or cannot be split into entries.
    Invalid,
    /// The batch omits definitions that the shard does not have. The router sends the batch again with all definitions.
    Dangling,
    /// Too many bytes are in flight.
    Busy,
    /// The file system has no space, or the data exceeds the cap on disk use.
    DiskFull,
    /// The batch was proposed, but this node does not know whether a majority has it.
    Uncommitted,
    /// Stored values that the append needs are damaged.
    Damage,
}

impl Refusal {
    fn name(self) -> &'static str {
        match self {
            Self::NotReady => "not_ready",
            Self::Misplaced => "misplaced",
            Self::Invalid => "invalid",
            Self::Dangling => "dangling",
            Self::Busy => "busy",
            Self::DiskFull => "disk_full",
            Self::Uncommitted => "uncommitted",
            Self::Damage => "damage",
        }
    }
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            syncs: Counter::default(),
            sync_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            sync_entries: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            entries: Counter::default(),
            entry_bytes: Counter::default(),
            applied_index: Family::default(),
            flushed_index: Family::default(),
            first_log_index: Family::default(),
            snapshots_installed: Family::default(),
            flush_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            disk_bytes: Family::default(),
            dictionary_memory_bytes: Family::default(),
            head_memory_bytes: Family::default(),
            quarantined_windows: Family::default(),
            partitions_without_batch_ids: Family::default(),
            unrepaired: Family::default(),
            damaged_reads: Family::default(),
            repairs: Family::default(),
            appends_refused: Family::default(),
            replica_state: Family::default(),
            clock_jump_seconds: Gauge::default(),
            clock_jumps: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("varve_node");
        let it = metrics.clone();
        registry.register("log_syncs", "Syncs of the Raft log to disk", it.syncs);
        registry.register("log_sync_seconds", "Duration of one sync of the Raft log", it.sync_seconds);
        registry.register("log_sync_entries", "Entries that one sync made durable", it.sync_entries);
        registry.register("log_entries", "Entries appended to the Raft log", it.entries);
        registry.register("log_entry_bytes", "Bytes of entries appended to the Raft log", it.entry_bytes);
        registry.register("log_first_index", "Index of the first entry in the Raft log", it.first_log_index);
        registry.register(
            "snapshots_installed",
            "Snapshots of other members that replaced the state, because the log was not kept long enough",
            it.snapshots_installed,
        );
        registry.register("applied_index", "Index of the last entry in the state", it.applied_index);
        registry.register("flushed_index", "Index of the last log entry whose effects are on disk", it.flushed_index);
        registry.register("flush_seconds", "Duration of one flush of the state", it.flush_seconds);
        registry.register("disk_bytes", "Space of the data on disk", it.disk_bytes);
        registry.register(
            "dictionary_memory_bytes",
            "Memory of dictionaries and series, including cached ones that no query uses",
            it.dictionary_memory_bytes,
        );
        registry.register("head_memory_bytes", "Memory of samples that are not sealed yet", it.head_memory_bytes);
        registry.register("quarantined_windows", "Damaged windows, reported as missing", it.quarantined_windows);
        registry.register(
            "partitions_without_batch_ids",
            "Partitions that lost batch IDs, so that a retry of an old push may count twice",
            it.partitions_without_batch_ids,
        );
        registry.register("damaged_reads", "Damaged values and blocks found when they were read", it.damaged_reads);
        registry.register(
            "unrepaired",
            "1 if damaged table files cannot be repaired, so that nothing is compacted and space is not freed",
            it.unrepaired,
        );
        registry.register("repairs", "Attempts to replace a damaged state, by outcome", it.repairs);
        registry.register("appends_refused", "Appends that were refused", it.appends_refused);
        registry.register("replica_state", "1 for the present state of the replica, else 0", it.replica_state);
        registry.register(
            "clock_jump_seconds",
            "System clock minus the time expected from the elapsed time; 0 if they agree",
            it.clock_jump_seconds,
        );
        registry.register("clock_jumps", "Jumps of the system clock that retention does not follow", it.clock_jumps);
        metrics
    }

    pub(crate) fn of_shard(&self, shard: u32) -> ShardMetrics {
        let labels = ShardLabels { shard };
        ShardMetrics {
            applied_index: self.applied_index.get_or_create_owned(&labels),
            flushed_index: self.flushed_index.get_or_create_owned(&labels),
            first_log_index: self.first_log_index.get_or_create_owned(&labels),
            snapshots_installed: self.snapshots_installed.get_or_create_owned(&labels),
            flush_seconds: self.flush_seconds.clone(),
            dictionary_memory_bytes: self.dictionary_memory_bytes.get_or_create_owned(&labels),
            head_memory_bytes: self.head_memory_bytes.get_or_create_owned(&labels),
            quarantined_windows: self.quarantined_windows.get_or_create_owned(&labels),
            partitions_without_batch_ids: self.partitions_without_batch_ids.get_or_create_owned(&labels),
            damaged_reads: self.damaged_reads.get_or_create_owned(&labels),
            unrepaired: self.unrepaired.get_or_create_owned(&labels),
        }
    }

    /// Counts an attempt to replace the state of a shard by that of another member.
    pub(crate) fn repaired(&self, shard: u32, is_repaired: bool) {
        let outcome = if is_repaired { "repaired" } else { "failed" };
        self.repairs.get_or_create(&RepairLabels { shard, outcome }).inc();
    }

    pub(crate) fn refused(&self, reason: Refusal) {
        self.appends_refused.get_or_create(&RefusalLabels { reason: reason.name() }).inc();
    }
}

/// Converts a number to the value of a gauge, which is an i64. No log index exceeds an i64.
pub(crate) fn gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
