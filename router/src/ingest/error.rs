//! Errors of a push: of the whole push, of receiving its body, of one profile, and of decoding.

use std::io;
use std::time::Duration;

use proto::limits;

use crate::auth::tenants::Exceeded;
use crate::ingest::admission::Overloaded;
use crate::ingest::decode::{foreign, protobuf};
use crate::nodes::NodesError;

/// Name of the OTLP format in error texts.
pub(crate) const OTLP_FORMAT: &str = "OTLP export request";

/// Name of the pprof format in error texts.
pub(crate) const PPROF_FORMAT: &str = "pprof";

/// The error of a push that is refused as a whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    /// The request cannot be decoded, or none of its profiles can be stored.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// Too many bytes are in flight.
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    /// The tenant has used up a rate of its policy.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// The body could not be received.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// A parameter of the request is missing or unknown.
    #[error("{0}")]
    Parameter(String),
    /// The idempotency key is empty or too long.
    #[error(
        "the Idempotency-Key must have 1 to {} bytes: omit it, or send a key that no other push has",
        limits::IDEMPOTENCY_KEY_BYTES_MAX
    )]
    Key,
    /// Every sample is older than the retention.
    #[error(
        "all {samples} samples are older than the retention, {}: send newer ones, or give the tenant a longer \
         --retention",
        days(*retention)
    )]
    TooOld { samples: u64, retention: Duration },
    /// A shard did not append its batch.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// The decoding thread panicked.
    #[error("decoding stopped: {0}")]
    Stopped(#[from] tokio::task::JoinError),
    /// A shard reports missing definitions, although the router sent all definitions. A retry would fail in the same
    /// way, so this error is final.
    #[error(
        "this push is valid, and a fault of varve keeps it from being stored (a shard is missing definitions \
         although all were sent): sending it again does not help; report it with the server's log of this moment"
    )]
    Inconsistent,
}

/// The error of a body that cannot be received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// No byte of the body arrived within this time.
    #[error("nothing of the body arrived for {0:?}")]
    Stalled(Duration),
    /// The body did not arrive completely within this time.
    #[error("the body did not arrive within {0:?}: send smaller requests")]
    Slow(Duration),
    /// The body exceeds the limit for requests.
    #[error("the body has more than {bytes_max} bytes: send smaller requests")]
    TooLarge { bytes_max: usize },
    /// The connection failed.
    #[error("the body could not be read: {0}")]
    Unreadable(#[source] axum::Error),
    /// The body of a gRPC call is not one message.
    #[error("malformed gRPC call: {0}")]
    Framing(&'static str),
    /// Too many bytes are in flight.
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
}

/// The error of one profile. The other profiles of the same push can still be stored.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error(transparent)]
    Wire(#[from] protobuf::WireError),
    #[error("entry {index} of {table} does not exist: it has {length} entries")]
    OutOfRange { table: &'static str, index: i64, length: usize },
    #[error("time {time_ns} ns is before 2000-01-01: set the sender's clock")]
    TooOld { time_ns: i64 },
    #[error("time {time_ns} ns is more than ten minutes ahead: set the sender's clock")]
    Ahead { time_ns: u64 },
    #[error(
        "a sample has {values} values and {timestamps} timestamps: send as many values as timestamps, or either alone"
    )]
    Shape { values: usize, timestamps: usize },
    #[error("a sample has {values} values, the profile {types} sample types")]
    Columns { values: usize, types: usize },
    #[error("{count} x the period of {period} is more than 64 bits")]
    Overflow { count: i64, period: i64 },
    #[error("more than {count_max} {what}")]
    TooMany { what: &'static str, count_max: usize },
    #[error(
        "sample type {sample_type} is refused: a sample has the value {value}, and values that add up over time \
         are never negative; send the profile itself instead of a difference of two"
    )]
    Negative { sample_type: String, value: i64 },
    #[error("{0}")]
    Invalid(&'static str),
}

/// Formats a duration for people: `30 days`, or seconds if the duration is not a whole number of days.
pub(crate) fn days(time: Duration) -> String {
    let seconds = time.as_secs();
    let days = seconds / 86_400;
    if days > 0 && seconds.is_multiple_of(86_400) { format!("{days} days") } else { format!("{seconds} seconds") }
}

/// The error of a request that cannot be decoded, or cannot be normalized.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IngestError {
    /// The bytes do not have the format that the request declares.
    #[error("malformed {format}: {detail}")]
    Malformed {
        /// Name of the format.
        format: &'static str,
        /// Description of the fault.
        detail: String,
    },
    /// The body has a known format that cannot be pushed, or cannot be pushed to this endpoint.
    #[error(
        "the body is {}, where {expected} is expected: {}; docs/api.md, section Push, lists what is supported",
        found.name, found.advice
    )]
    Foreign {
        /// Name of the format that the request declares.
        expected: &'static str,
        /// Format of the body.
        found: foreign::Foreign,
    },
    /// Every profile of the push was refused.
    #[error("all {rejected} profiles are refused: {reasons}")]
    NothingAccepted {
        /// Number of refused profiles.
        rejected: u64,
        /// Reasons why the first of these profiles were refused.
        reasons: String,
    },
    /// The body exceeds the size limit after decompression.
    #[error("more than {bytes_max} bytes after decompression: send smaller requests")]
    TooLarge {
        /// Limit on the size, in bytes.
        bytes_max: usize,
    },
    /// The push exceeds a limit on a number of items.
    #[error("more than {count_max} {what} in one request: send smaller requests")]
    TooMany {
        /// Name of the items, in the plural.
        what: &'static str,
        /// Limit on the number of items.
        count_max: usize,
    },
    /// The body could not be decompressed.
    #[error("the body is not {format}, as the request declares: {source}")]
    Compression {
        /// Name of the compression: gzip or zstd.
        format: &'static str,
        /// Error of the decompressor.
        source: io::Error,
    },
    /// The compressed body ends too early.
    #[error("the {format} body is truncated: it ends in the middle; send all of it")]
    Truncated {
        /// Name of the compression: gzip or zstd.
        format: &'static str,
    },
    /// The content encoding is not supported.
    #[error("content encoding {name:?} is not supported: use gzip, zstd or none")]
    Encoding {
        /// Content encoding that the request declares.
        name: String,
    },
    /// The content type is not supported.
    #[error("content type {name:?} is not supported: use {supported}")]
    ContentType {
        /// Content type that the request declares.
        name: String,
        /// Content types that are supported.
        supported: &'static str,
    },
}

impl IngestError {
    pub(crate) fn wire(format: &'static str, error: protobuf::WireError) -> Self {
        Self::Malformed { format, detail: format!("it has another format, or it is damaged: {error}") }
    }
}
