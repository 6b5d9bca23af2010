//! A record of the log that cannot be read.

/// Why a record is not what was written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record is shorter or longer than its lengths say.
    #[error("{record}: its length is wrong; the disk or the software is broken")]
    Length {
        /// Kind of the record.
        record: &'static str,
    },
    /// Another version wrote the record.
    #[error("{record}: has version {found}, this version reads {expected}: run the version that wrote it")]
    Version {
        /// Kind of the record.
        record: &'static str,
        /// Version of the record.
        found: u8,
        /// Version that this software reads.
        expected: u8,
    },
    /// The record changed after it was written.
    #[error("{record}: its checksum is wrong; the disk or the software is broken")]
    Checksum {
        /// Kind of the record.
        record: &'static str,
    },
    /// The checksum holds and the content is invalid: broken software wrote it.
    #[error("{record}: its content is wrong; it was written by broken software")]
    Content {
        /// Kind of the record.
        record: &'static str,
    },
    /// The log has no entry at an index that it must have.
    #[error("shard {shard}: entry {index} is missing; the disk or the software is broken")]
    Missing {
        /// Shard of the log.
        shard: u32,
        /// Index of the entry.
        index: u64,
    },
}
