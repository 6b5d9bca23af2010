//! Why a whole push is refused.

use crate::ingest::decode::{foreign, protobuf};

/// Why a whole push is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IngestError {
    /// Not what the format says.
    #[error("malformed {format}: {detail}")]
    Malformed {
        /// Of the push.
        format: &'static str,
        /// What is wrong, and where.
        detail: String,
    },
    /// A known format that cannot be pushed.
    #[error("the body is {}, where {expected} is expected: {}; docs/api.md, section Push, lists what is supported", found.name, found.advice)]
    Foreign {
        /// The format that the request says it has.
        expected: &'static str,
        /// What was recognized.
        found: foreign::Foreign,
    },
    /// Every profile of the push was refused.
    #[error("all {rejected} profiles are refused: {reasons}")]
    NothingAccepted {
        /// How many.
        rejected: u64,
        /// The first reasons.
        reasons: String,
    },
    /// More than the limit, after decompression.
    #[error("more than {bytes_max} bytes after decompression: send smaller requests")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// More of something than one push may hold.
    #[error("more than {count_max} {what} in one request: send smaller requests")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        count_max: usize,
    },
    /// The compression could not be undone.
    #[error("the body is not the {format} that it says it is: {source}")]
    Compression {
        /// gzip or zstd.
        format: &'static str,
        /// The decoder's words.
        source: std::io::Error,
    },
    /// The compressed body ends too early.
    #[error("the {format} body is truncated: it ends in the middle; send all of it")]
    Truncated {
        /// gzip or zstd.
        format: &'static str,
    },
    /// A content encoding that is not understood.
    #[error("content encoding {name:?} is not supported: use gzip, zstd or none")]
    Encoding {
        /// As it was sent.
        name: String,
    },
    /// A content type that is not understood.
    #[error("content type {name:?} is not supported: use {supported}")]
    ContentType {
        /// As it was sent.
        name: String,
        /// What is.
        supported: &'static str,
    },
}

impl IngestError {
    pub(crate) fn wire(format: &'static str, error: protobuf::WireError) -> Self {
        Self::Malformed { format, detail: format!("the bytes are not one, or they are damaged: {error}") }
    }

    /// This error about a body, or one that names the body's format where it is a known one.
    pub(crate) fn or_foreign(self, expected: &'static str, body: &[u8]) -> Self {
        foreign::recognize(body).map_or(self, |found| Self::Foreign { expected, found })
    }
}
