//! Conversion of the error of a push to the response for its sender, over gRPC and HTTP.
//!
//! A sender drops a push after a final response. So only faults of the request itself have a final response. For faults
//! of the server, and for temporary faults, the response has a code that makes OTLP senders retry.

use axum::http::StatusCode;
use proto::rpc_status::rpc_status;
use tonic::{Code, Status};

use crate::api::error::{ApiError, RETRY_DELAY};
use crate::ingest::error::{BodyError, IngestError, PushError};

/// Kind of fault that made a push fail. The first four kinds are final. Senders retry after the other kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The request is malformed, or none of its profiles can be stored.
    Invalid,
    /// The content type or the compression is not supported.
    Unsupported,
    /// The request exceeds a limit on a single request.
    TooLarge,
    /// A fault of varve that would recur in every retry of the same push.
    Inconsistent,
    /// The body stopped arriving.
    Interrupted,
    /// The server has temporarily reached a limit, such as bytes in flight or disk space.
    Overloaded,
    /// A node, or the router itself, failed.
    Unavailable,
}

impl Rejection {
    /// Returns the kind of an error. The match lists every variant, so that the compiler demands a kind for a new
    /// variant.
    pub(crate) fn of(error: &PushError) -> Self {
        match error {
            PushError::Ingest(error) => Self::of_ingest(error),
            PushError::Body(error) => Self::of_body(error),
            PushError::Parameter(_) | PushError::Key | PushError::TooOld { .. } => Self::Invalid,
            PushError::Overloaded(_) | PushError::Exceeded(_) => Self::Overloaded,
            PushError::Inconsistent => Self::Inconsistent,
            PushError::Nodes(error) => Self::of_node(error.code()),
            // The decoder has a bug, which is not the sender's fault.
            PushError::Stopped(_) => Self::Unavailable,
        }
    }

    fn of_ingest(error: &IngestError) -> Self {
        match error {
            IngestError::Malformed { .. }
            | IngestError::Foreign { .. }
            | IngestError::NothingAccepted { .. }
            | IngestError::Compression { .. }
            | IngestError::Truncated { .. } => Self::Invalid,
            IngestError::TooLarge { .. } | IngestError::TooMany { .. } => Self::TooLarge,
            IngestError::Encoding { .. } | IngestError::ContentType { .. } => Self::Unsupported,
        }
    }

    fn of_body(error: &BodyError) -> Self {
        match error {
            BodyError::Framing(_) => Self::Invalid,
            BodyError::Stalled(_) | BodyError::Slow(_) | BodyError::Unreadable(_) => Self::Interrupted,
            BodyError::TooLarge { .. } => Self::TooLarge,
            BodyError::Overloaded(_) => Self::Overloaded,
        }
    }

    /// Returns the kind of an error that a node returned. The router made the call, so only two codes describe the
    /// batch or the load. All other codes describe a fault between router and node. Examples are a wrong token, another
    /// version, a panic, and a node that is starting or gone.
    fn of_node(code: Code) -> Self {
        match code {
            // The node checked the batch, and can never store it.
            Code::InvalidArgument => Self::Invalid,
            // A full disk, or too many appends in flight.
            Code::ResourceExhausted => Self::Overloaded,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
            | Code::Unauthenticated => Self::Unavailable,
        }
    }

    /// Returns the gRPC status. Senders retry RESOURCE_EXHAUSTED only if the status has a `RetryInfo`.
    pub(crate) fn grpc(self, text: &str) -> Status {
        match self {
            Self::Invalid => Status::invalid_argument(text),
            Self::Unsupported => Status::unimplemented(text),
            Self::TooLarge => Status::resource_exhausted(text),
            Self::Inconsistent => Status::internal(text),
            Self::Overloaded => with_retry_delay(Code::ResourceExhausted, text),
            Self::Interrupted | Self::Unavailable => with_retry_delay(Code::Unavailable, text),
        }
    }

    /// Returns the HTTP error.
    pub(crate) fn http(self, text: String) -> ApiError {
        match self {
            Self::Invalid => ApiError::bad_data(text),
            Self::Unsupported => ApiError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, ..ApiError::bad_data(text) },
            Self::TooLarge => ApiError::too_large(text),
            Self::Inconsistent => ApiError::internal(text),
            Self::Interrupted => ApiError::timeout(text),
            Self::Overloaded => ApiError::overloaded(text),
            Self::Unavailable => ApiError::unavailable(text),
        }
    }
}

/// Returns a status that requests a retry after [`RETRY_DELAY`].
fn with_retry_delay(code: Code, text: &str) -> Status {
    Status::with_details(code, text, rpc_status(code.into(), text, Some(RETRY_DELAY)).into())
}

impl From<PushError> for ApiError {
    fn from(error: PushError) -> Self {
        Rejection::of(&error).http(error.to_string())
    }
}

impl From<&PushError> for Status {
    fn from(error: &PushError) -> Self {
        Rejection::of(error).grpc(&error.to_string())
    }
}

#[cfg(test)]
mod tests;
