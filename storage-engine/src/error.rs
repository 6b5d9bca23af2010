//! What can go wrong in the engine, and what the replica must do.

use proto::Tier;
use proto::build_id::to_hex;

/// Whether RocksDB read something other than it wrote.
pub(crate) fn is_corruption(error: &rocksdb::Error) -> bool {
    error.kind() == rocksdb::ErrorKind::Corruption
}

/// A failed disk, or a damaged state: the replica must stop serving, except where [`EngineError::is_disk_full`] or
/// [`EngineError::is_damage`].
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The state database failed; what it was asked to write may or may not be there.
    #[error("state database: {0}")]
    Database(#[from] rocksdb::Error),
    /// The list of the state's files cannot be read, or not all of it is there.
    #[error("state database: {0}")]
    Files(#[source] std::io::Error),
    /// What was read is not what was written.
    #[error(transparent)]
    Corruption(#[from] Corruption),
    /// A partition whose definitions are damaged: nothing that refers to them can be read.
    #[error("the definitions of a partition of tier {} that ends at {} are damaged", tier.name(), seconds(*end_ns))]
    Quarantined {
        /// Of the partition.
        tier: Tier,
        /// The end of the partition, nanoseconds since 1970.
        end_ns: i64,
    },
    /// Written by another version of the engine.
    #[error("the state has format {found}, this version reads {expected}: run the version that wrote it")]
    Format {
        /// In the state.
        found: u32,
        /// Of this version.
        expected: u32,
    },
    /// Memory could not be compressed: zstd has none left.
    #[error("compressing: {0}")]
    Compress(#[source] std::io::Error),
    /// Samples could not be packed into columns.
    #[error("packing columns: {0}")]
    Columns(#[source] pco::errors::PcoError),
    /// Entries are applied in log order, each once.
    #[error("entry {index} was to be applied behind entry {applied}")]
    OutOfOrder {
        /// What came.
        index: u64,
        /// What was there.
        applied: u64,
    },
}

impl EngineError {
    /// Whether the disk is full: nothing is lost, and writing may go on when there is space again.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            // RocksDB gives the subcode only in the text.
            Self::Database(error) => error.as_ref().contains("No space left on device"),
            _ => false,
        }
    }

    /// Whether a value passes its checksum and contradicts itself.
    pub(crate) fn is_content(&self) -> bool {
        matches!(self, Self::Corruption(Corruption { check: CorruptionCheck::Content, .. }))
    }

    /// Whether stored values are damaged. Only those values are lost, so the replica goes on.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corruption(_) | Self::Quarantined { .. } => true,
            Self::Database(error) => is_corruption(error),
            _ => false,
        }
    }
}

/// Why a batch is not prepared for the log.
#[derive(Debug, thiserror::Error)]
pub enum StripError {
    /// Something was left out of the batch before, and is not here.
    #[error("the batch refers to definitions that it does not hold: send it with all of them")]
    Dangling,
    /// Each would open a partition of its own.
    #[error(
        "the times of one batch lie in {partitions} spans of six hours, at most {partitions_max} are taken: send it in parts"
    )]
    TooManyPartitions {
        /// In the batch.
        partitions: usize,
        /// See `limits`.
        partitions_max: usize,
    },
    /// Each series costs memory and time in every query.
    #[error(
        "six hours would have {series} series, at most {series_max} are taken: label {label:?} has {values} values; make it a \
         sample attribute, or leave it out"
    )]
    TooManySeries {
        /// With those of the batch.
        series: usize,
        /// See `limits`.
        series_max: usize,
        /// The label with the most values.
        label: String,
        /// How many it has.
        values: usize,
    },
    /// There is no memory for what the batch defines.
    #[error(
        "stacks, attributes and series take {bytes} bytes of memory, at most {bytes_max} are allowed: nothing new is taken \
         until older partitions are let go; look for a label or attribute whose values never repeat"
    )]
    DictionaryFull {
        /// Now.
        bytes: usize,
        /// See `limits`.
        bytes_max: usize,
    },
    /// See there.
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
    /// Of the value.
    pub key: Vec<u8>,
    /// Which check.
    pub check: CorruptionCheck,
}

/// The check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorruptionCheck {
    /// A length that does not fit.
    Length,
    /// An unknown version.
    Version,
    /// CRC-32C.
    Checksum,
    /// What is inside contradicts itself.
    Content,
    /// A value that others refer to is not there.
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

/// Why a selection has no answer.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// A regular expression that does not parse or is too large.
    #[error("{pattern:?} is no usable regular expression: {source}")]
    BadRegex {
        /// As it was asked.
        pattern: String,
        /// What is wrong.
        source: Box<regex::Error>,
    },
    /// See [`proto::limits`].
    #[error("more than {count_max} regular expressions: join some of one label by |")]
    TooManyRegexes {
        /// As many are allowed.
        count_max: usize,
    },
    /// A deletion without matchers.
    #[error("a deletion needs at least one matcher: a selector of everything deletes nothing")]
    SelectsEverything,
    /// Over the memory budget of one query.
    #[error(
        "the answer has more than {cells_max} cells (groups x steps x stacks): ask for a shorter range, a larger step or fewer groups"
    )]
    TooLarge {
        /// See `limits`.
        cells_max: usize,
    },
    /// Over the memory budget of one query.
    #[error(
        "the labels of the answer's groups take more than {bytes_max} bytes: ask for a shorter range or group by less"
    )]
    TooManyGroups {
        /// See `limits`.
        bytes_max: usize,
    },
    /// The range reaches behind what is kept of samples with this label or attribute.
    #[error(
        "tier {} has no {name:?}, and what is finer is kept only of times after {}: ask for a range behind that time, or \
         leave {name:?} out",
        tier.name(), seconds(*horizon_ns)
    )]
    DroppedName {
        /// Of the windows that there are.
        tier: Tier,
        /// The label or attribute.
        name: String,
        /// Up to when finer ones were dropped.
        horizon_ns: i64,
    },
    /// The range reaches behind what is kept of a gauge's points.
    #[error(
        "a gauge does not add up over time, and its points are kept only of times after {}: ask for a range behind that time",
        seconds(*horizon_ns)
    )]
    GaugeSummed {
        /// Up to when points were dropped.
        horizon_ns: i64,
    },
    /// Over the memory budget of one query.
    #[error("the stacks of the answer have more than {nodes_max} frames: ask for a shorter range or fewer services")]
    TooManyNodes {
        /// See `limits`.
        nodes_max: usize,
    },
    /// Nobody waits for the answer any more.
    #[error("cancelled: nobody waits for the answer any more")]
    Cancelled,
    /// See there.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SelectError {
    /// Whether stored values are damaged, see [`EngineError::is_damage`].
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

/// Seconds since 1970, as queries write them.
fn seconds(time_ns: i64) -> i64 {
    time_ns.div_euclid(1_000_000_000)
}
