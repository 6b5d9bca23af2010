//! One try to send one export over gRPC, and the meaning of the response.

use std::fmt;
use std::time::Duration;

use prost::Message as _;
use prost::bytes::Bytes;
use proto::bytes_codec::BytesCodec;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceResponse;
use proto::rpc_status::retry_delay;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status as GrpcStatus};

use crate::config::{CheckedConfig, Compression, Token};
use crate::export::request::EncodedRequest;

const PATH: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Time without a response after which a try counts as failed.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// A request that is being sent, with its idempotency key, which is the same in all tries.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) key: IdempotencyKey,
    pub(crate) request: EncodedRequest,
}

/// The `idempotency-key` of an export: unique among the exports of all agents, and the same in all tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    /// Random number that identifies the run of the agent in which the export was made.
    pub(crate) run: u128,
    /// Number of the export within its run of the agent.
    pub(crate) number: u64,
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.run, self.number)
    }
}

/// A connection to the endpoint. Clones share one connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    grpc: tonic::client::Grpc<Channel>,
    token: Option<Token>,
}

impl Client {
    /// Creates a client. The client connects on the first request, and again when the connection breaks.
    pub(crate) fn new(config: &CheckedConfig) -> Self {
        let endpoint = config.endpoint.clone().connect_timeout(TRY_TIMEOUT).timeout(TRY_TIMEOUT);
        let encoding = match config.compression {
            Compression::Gzip => CompressionEncoding::Gzip,
            Compression::Zstd => CompressionEncoding::Zstd,
        };
        let grpc = tonic::client::Grpc::new(endpoint.connect_lazy()).send_compressed(encoding);
        Self { grpc, token: config.token.clone() }
    }

    /// Tries once to send an encoded request.
    pub(crate) async fn send(
        mut self,
        bytes: Bytes,
        key: IdempotencyKey,
    ) -> Result<ExportProfilesServiceResponse, GrpcStatus> {
        // ready() fails only for a permanent reason, and its error has the cause.
        self.grpc.ready().await.map_err(|error| GrpcStatus::from_error(error.into()))?;
        let mut request = Request::new(bytes);
        if let Ok(key) = MetadataValue::try_from(key.to_string()) {
            request.metadata_mut().insert("idempotency-key", key);
        }
        if let Some(token) = &self.token {
            let authorization =
                token.authorization().map_err(|error| GrpcStatus::unauthenticated(error.to_string()))?;
            request.metadata_mut().insert("authorization", authorization);
        }
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(PATH);
        // The request was encoded when it was built, because an encoded request takes less memory while it waits.
        let response = self.grpc.unary(request, path, BytesCodec).await?.into_inner();
        ExportProfilesServiceResponse::decode(response)
            .map_err(|error| GrpcStatus::internal(format!("the response of the endpoint is malformed: {error}")))
    }
}

/// True if the same request may be accepted later. This holds for the codes that the OTLP specification calls
/// retryable, and for errors on this side of the connection. Only errors on this side have a source. RESOURCE_EXHAUSTED
/// is retryable only with a retry delay. Without a delay, the code refers to the request itself. A refused token is no
/// reason to lose profiles, although it is not on OTLP's list: an operator replaces the token, or its rights.
pub(crate) fn is_retryable(error: &GrpcStatus) -> bool {
    if error.code() == Code::ResourceExhausted {
        return retry_delay(error.details()).is_some();
    }
    matches!(
        error.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::Unauthenticated
            | Code::PermissionDenied
    ) || std::error::Error::source(error).is_some()
}

/// True if no receiver was reached, so that the request itself cannot be the cause of the error.
pub(crate) fn is_unseen(error: &GrpcStatus) -> bool {
    error.code() == Code::Unavailable && std::error::Error::source(error).is_some()
}

/// Returns the code and the message of an error, with its causes.
pub(crate) fn explain(error: &GrpcStatus) -> String {
    let mut text = format!("{:?}: {}", error.code(), error.message());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::sink::with_retry_delay;

    use super::*;

    #[test]
    fn the_codes_of_otlps_list_and_of_tokens_are_retried_and_no_others() {
        let retried: Vec<i32> = (1..17).filter(|&code| is_retryable(&GrpcStatus::new(code.into(), ""))).collect();
        let list = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::PermissionDenied,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
        ];
        assert_eq!(retried, list.map(i32::from));
        assert!(is_retryable(&with_retry_delay(Code::ResourceExhausted, "", Duration::from_secs(1))));
    }
}
