//! One try of one export over gRPC, and what its answer means.

use std::fmt;

use prost::Message as _;
use prost::bytes::Bytes;
use proto::bytes_codec::BytesCodec;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceResponse;
use proto::retry_info::retry_delay;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status as GrpcStatus};

use crate::config::{CheckedConfig, Compression};
use crate::export::TRY_TIMEOUT;

const PATH: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// What tells an export from all others, of this agent and of every other one, through all its tries: an `idempotency-key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    /// Tells the run of the agent that made the export from all others.
    pub(crate) run: u128,
    pub(crate) number: u64,
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.run, self.number)
    }
}

/// A connection to the endpoint; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    grpc: tonic::client::Grpc<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Connects on the first request, and again when the connection breaks.
    pub(crate) fn new(config: &CheckedConfig) -> Self {
        let endpoint = config.endpoint.clone().connect_timeout(TRY_TIMEOUT).timeout(TRY_TIMEOUT);
        let encoding = match config.compression {
            Compression::Gzip => CompressionEncoding::Gzip,
            Compression::Zstd => CompressionEncoding::Zstd,
        };
        let grpc = tonic::client::Grpc::new(endpoint.connect_lazy()).send_compressed(encoding);
        Self { grpc, authorization: config.authorization.clone() }
    }

    /// Tries once to send an encoded request.
    pub(crate) async fn send(
        mut self,
        bytes: Bytes,
        key: IdempotencyKey,
    ) -> Result<ExportProfilesServiceResponse, GrpcStatus> {
        // The channel's error says what happened; ready() only fails for good.
        self.grpc.ready().await.map_err(|error| GrpcStatus::from_error(error.into()))?;
        let mut request = Request::new(bytes);
        if let Ok(key) = MetadataValue::try_from(key.to_string()) {
            request.metadata_mut().insert("idempotency-key", key);
        }
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(PATH);
        // Requests are encoded when they are made: one that waits takes as little memory as it can.
        let response = self.grpc.unary(request, path, BytesCodec).await?.into_inner();
        ExportProfilesServiceResponse::decode(response)
            .map_err(|error| GrpcStatus::internal(format!("the endpoint's answer is malformed: {error}")))
    }
}

/// Whether the same request may be accepted later: the OTLP specification's list, and errors of this side of the connection,
/// which have a source. A receiver with too much to do says when to come again; without that, RESOURCE_EXHAUSTED is about the
/// request itself.
pub(crate) fn is_retryable(error: &GrpcStatus) -> bool {
    if error.code() == Code::ResourceExhausted {
        return retry_delay(error).is_some();
    }
    matches!(
        error.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    ) || std::error::Error::source(error).is_some()
}

/// Whether nobody was there to see the request, which is then not why it failed.
pub(crate) fn is_unseen(error: &GrpcStatus) -> bool {
    error.code() == Code::Unavailable && std::error::Error::source(error).is_some()
}

/// What went wrong, with its causes.
pub(crate) fn explain(error: &GrpcStatus) -> String {
    let mut text = format!("{:?}: {}", error.code(), error.message());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
