//! Errors of the engine, and the reaction that each requires from the replica.

use proto::build_id::to_hex;
use proto::{ResponseTooLarge, Tier, limits};

/// Returns whether RocksDB reports corruption: it read bytes that differ from the written ones.
pub(crate) fn is_corruption(error: &rocksdb::Error) -> bool {
    error.kind() == rocksdb::ErrorKind::Corruption
}

/// An error of the state or of the disk. The replica must stop serving unless [`EngineError::is_disk_full`] or
/// [`EngineError::is_damage`] is true.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The state database failed; a write may or may not have happened.
    #[error("state database: {0}")]
    Database(#[from] rocksdb::Error),
    /// Files of the database cannot be listed, read or repaired.
    #[error("state database: {0}")]
    Files(#[source] std::io::Error),
    /// A value differs from the one that was written.
    #[error(transparent)]
    Corruption(#[from] Corruption),
    /// The definitions of a partition are damaged, so nothing that refers to them can be read.
    #[error("the definitions of a partition of tier {} that ends at {} are damaged", tier.name(), seconds(*end_ns))]
    Quarantined {
        /// Tier of the damaged partition.
        tier: Tier,
        /// End of the damaged partition, in nanoseconds since 1970.
        end_ns: i64,
    },
    /// Another version of the engine wrote the state.
    #[error("the state has format {found}, this version reads {expected}: run the version that wrote it")]
    Format {
        /// Version of the state.
        found: u32,
        /// Version that this program reads.
        expected: u32,
    },
    /// Table files have damaged blocks, and are repaired when the state is opened again.
    #[error("table files are damaged: the state has no checkpoint until it is opened again, which repairs them")]
    Unrepaired,
    /// The log failed before it synced an entry, so the effects of the entry were not written.
    #[error("entry {index} is not synced in the log, so the state is not written: {source}")]
    Unsynced {
        /// Index of the entry.
        index: u64,
        /// Error of the log.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// zstd could not compress a value because it is out of memory.
    #[error("compress a value: {0}")]
    Compress(#[source] std::io::Error),
    /// pco could not encode the columns of events.
    #[error("encode columns of events: {0}")]
    Columns(#[source] pco::errors::PcoError),
    /// An entry is not the next one in log order. Each entry must be applied once, in log order.
    #[error("entry {index} does not follow entry {applied}, the last applied one")]
    OutOfOrder {
        /// Index of the rejected entry.
        index: u64,
        /// Index of the last applied entry.
        applied: u64,
    },
}

impl EngineError {
    /// Returns whether the disk is full. Nothing is lost then, and writes succeed again once there is space.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            // RocksDB reports the cause only in the text.
            Self::Database(error) => error.as_ref().contains("No space left on device"),
            // A repair writes files itself.
            Self::Files(error) => error.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// Returns whether the error reports a value that passes its checksum but has invalid content.
    pub(crate) fn is_content(&self) -> bool {
        matches!(self, Self::Corruption(Corruption { check: CorruptionCheck::Content, .. }))
    }

    /// Returns whether the error reports damaged data on disk. Only the damaged values are lost.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corruption(_) | Self::Quarantined { .. } => true,
            Self::Database(error) => is_corruption(error),
            _ => false,
        }
    }
}

/// Reason why a batch cannot be prepared for the log.
#[derive(Debug, thiserror::Error)]
pub enum StripError {
    /// The batch omits definitions that the shard does not have.
    #[error("the batch refers to definitions that it does not contain: send it with all of them")]
    Dangling,
    /// The samples of the batch are spread over too many partitions.
    #[error(
        "the batch covers {partitions} spans of six hours, and at most {partitions_max} are allowed: send it in parts"
    )]
    TooManyPartitions {
        /// Number of partitions of the batch.
        partitions: usize,
        /// Maximum number of partitions of a batch, from `limits`.
        partitions_max: usize,
    },
    /// The batch would give a partition too many series, and each series costs memory and time in every query.
    #[error(
        "six hours would have {series} series, and at most {series_max} are allowed: label {label:?} has {values} \
         values; make it an attribute of samples, drop it, or raise the tenant's limit on series (at most {})",
        limits::PARTITION_SERIES_MAX
    )]
    TooManySeries {
        /// Number of series of the partition, including the new series of the batch.
        series: usize,
        /// Maximum number of series of a partition.
        series_max: usize,
        /// Label with the most values in the partition.
        label: String,
        /// Number of values of this label in the partition.
        values: usize,
    },
    /// The definitions of the batch exceed the memory budget.
    #[error(
        "stacks, attributes and series take {bytes} bytes of memory, and at most {bytes_max} are allowed: new ones are \
         rejected until older partitions are evicted; look for a label or attribute whose values never repeat"
    )]
    DictionaryFull {
        /// Current memory use of definitions, in bytes.
        bytes: usize,
        /// Memory budget of definitions, in bytes.
        bytes_max: usize,
    },
    /// The state cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A value of the state database that failed a check.
#[derive(Debug, thiserror::Error)]
#[error(
    "state database: the value of key {} fails its check of {check}: the disk or the software is broken",
    to_hex(key)
)]
pub struct Corruption {
    /// Key of the value.
    pub key: Vec<u8>,
    /// The check that failed.
    pub check: CorruptionCheck,
}

/// A check of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorruptionCheck {
    /// A length is impossible.
    Length,
    /// The version is unknown.
    Version,
    /// The CRC-32C is wrong.
    Checksum,
    /// The content contradicts itself.
    Content,
    /// A value that other values refer to is missing.
    Missing,
}

impl std::fmt::Display for CorruptionCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Length => "length",
            Self::Version => "version",
            Self::Checksum => "checksum",
            Self::Content => "content",
            Self::Missing => "presence",
        })
    }
}

/// Reason why a query has no response, or why a deletion is refused.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// A regular expression does not parse or is too large.
    #[error("invalid regular expression {pattern:?}: {source}")]
    BadRegex {
        /// The invalid expression.
        pattern: String,
        /// Error of the parser.
        source: Box<regex::Error>,
    },
    /// The query has more regular expressions than [`proto::limits`] allows.
    #[error("more than {count_max} regular expressions: join those of one label with |")]
    TooManyRegexes {
        /// Maximum number of regular expressions.
        count_max: usize,
    },
    /// A deletion has no matchers.
    #[error("a deletion needs at least one matcher")]
    SelectsEverything,
    /// The response exceeds the memory budget of one query.
    #[error("{}", ResponseTooLarge::Cells { max: *cells_max })]
    TooLarge {
        /// Maximum number of cells of a response, from `limits`.
        cells_max: usize,
    },
    /// The labels of the response exceed the memory budget of one query.
    #[error("{}", ResponseTooLarge::GroupBytes { max: *bytes_max })]
    TooManyGroups {
        /// Maximum size of the labels of a response in bytes, from `limits`.
        bytes_max: usize,
    },
    /// A tier dropped a label or attribute of the query, and the range begins before the oldest samples that have it.
    #[error(
        "tier {} does not keep {name:?}, and finer tiers begin at {}: use a range after that time, or remove {name:?} \
         from the query",
        tier.name(), seconds(*horizon_ns)
    )]
    DroppedName {
        /// Tier of the windows that remain at the start of the range.
        tier: Tier,
        /// Name of the dropped label or attribute.
        name: String,
        /// Time up to which windows with this name were dropped, in nanoseconds since 1970.
        horizon_ns: i64,
    },
    /// The range begins before the oldest kept point of a gauge.
    #[error(
        "a gauge does not add up over time, and its kept points begin at {}: use a range after that time",
        seconds(*horizon_ns)
    )]
    GaugeSummed {
        /// Time up to which points of gauges were dropped, in nanoseconds since 1970.
        horizon_ns: i64,
    },
    /// The stacks of the response exceed the memory budget of one query.
    #[error("{}", ResponseTooLarge::Nodes { max: *nodes_max })]
    TooManyNodes {
        /// Maximum number of stack tree nodes of a response, from `limits`.
        nodes_max: usize,
    },
    /// The client has disconnected.
    #[error("cancelled: the client has disconnected")]
    Cancelled,
    /// The state cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SelectError {
    /// Returns whether the error reports damaged data on disk, as [`EngineError::is_damage`] does.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Engine(error) if error.is_damage())
    }
}

impl From<rocksdb::Error> for SelectError {
    fn from(error: rocksdb::Error) -> Self {
        Self::Engine(EngineError::Database(error))
    }
}

impl From<Corruption> for SelectError {
    fn from(error: Corruption) -> Self {
        Self::Engine(EngineError::Corruption(error))
    }
}

/// Converts nanoseconds to seconds since 1970, the unit of times in queries.
fn seconds(time_ns: i64) -> i64 {
    time_ns.div_euclid(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    // Regression: a disk that filled up during a repair stopped the shard for good.
    #[test]
    fn a_file_that_does_not_fit_on_the_disk_is_reported_as_a_full_disk() {
        let full = EngineError::Files(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(full.is_disk_full() && !full.is_damage());
        let missing = EngineError::Files(io::Error::from(io::ErrorKind::NotFound));
        assert!(!missing.is_disk_full());
    }
}
