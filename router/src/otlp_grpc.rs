//! OTLP over gRPC: `ProfilesService/Export`, read by our own decoder.
//!
//! The generated server would decode with prost, answer INTERNAL where that fails, and know one layout only. Here a message is
//! bytes until ingest has it, so what is malformed is INVALID_ARGUMENT.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::http;
use bytes::Bytes;
use futures::future::BoxFuture;
use prost::Message;
use proto::bytes_codec::BytesCodec;
use proto::limits;
use proto::otlp::collector::profiles::v1development::{ExportProfilesPartialSuccess, ExportProfilesServiceResponse};
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tower::Service;

use crate::auth::Auth;
use crate::ingest::IngestError;
use crate::ingest::unpack::Encoding;
use crate::push::{Accepted, Format, PushError, Pusher};

const EXPORT: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// The service.
#[derive(Clone, Debug)]
pub struct OtlpGrpc {
    pusher: Pusher,
    auth: Auth,
}

impl OtlpGrpc {
    /// Pushes to this pusher whatever this authentication lets in.
    #[must_use]
    pub fn new(pusher: Pusher, auth: Auth) -> Self {
        Self { pusher, auth }
    }

    async fn export(self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let text = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let tenant =
            self.auth.bearer(text("authorization")).map_err(|denied| Status::unauthenticated(denied.to_string()))?;
        let key = request.metadata().get("idempotency-key").map(|key| Bytes::copy_from_slice(key.as_bytes()));
        let body = request.into_inner();
        // The body is here already, unpacked by tonic within its limit.
        let in_flight = self.pusher.enter(body.len()).map_err(|overloaded| status(&overloaded.into()))?;
        let pushed = self.pusher.push(&tenant, Format::OtlpProtobuf, Encoding::Identity, body, key, in_flight).await;
        let accepted = pushed.map_err(|error| status(&error))?;
        Ok(Response::new(response(&accepted).encode_to_vec().into()))
    }
}

/// What an export is answered with, over gRPC and HTTP.
pub(crate) fn response(accepted: &Accepted) -> ExportProfilesServiceResponse {
    let says_something = accepted.rejected_profiles > 0 || !accepted.warnings.is_empty();
    let partial_success = says_something.then(|| ExportProfilesPartialSuccess {
        rejected_profiles: i64::try_from(accepted.rejected_profiles).unwrap_or(i64::MAX),
        error_message: accepted.warnings.join("; "),
    });
    ExportProfilesServiceResponse { partial_success }
}

fn status(error: &PushError) -> Status {
    let text = error.to_string();
    match error {
        PushError::Ingest(IngestError::TooLarge { .. } | IngestError::TooMany { .. }) => {
            Status::resource_exhausted(text)
        }
        PushError::Ingest(_) => Status::invalid_argument(text),
        PushError::Overloaded(_) => with_retry_delay(Code::ResourceExhausted, text),
        PushError::Nodes(crate::nodes::NodesError::Refused { status, .. }) => match status.code() {
            code @ (Code::ResourceExhausted | Code::Unavailable) => with_retry_delay(code, text),
            code => Status::new(code, text),
        },
        PushError::Nodes(_) | PushError::Stopped(_) => Status::unavailable(text),
    }
}

/// `google.rpc.Status`, of which gRPC carries the details; an OTLP sender tries again after RESOURCE_EXHAUSTED only where they
/// hold a RetryInfo.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(message, tag = "2")]
    value: Option<RetryInfo>,
}

/// `google.rpc.RetryInfo`; embedded as a message, which on the wire is what `Any`'s bytes would be.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

fn with_retry_delay(code: Code, message: String) -> Status {
    let retry = RetryInfo { retry_delay: Some(Delay { seconds: 1 }) };
    let details = RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(), value: Some(retry) }],
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

impl NamedService for OtlpGrpc {
    const NAME: &'static str = "opentelemetry.proto.collector.profiles.v1development.ProfilesService";
}

impl Service<http::Request<tonic::body::Body>> for OtlpGrpc {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != EXPORT {
                return Ok(Status::unimplemented("only Export is served here").into_http());
            }
            let mut grpc = Grpc::new(BytesCodec)
                .accept_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Zstd)
                .apply_max_message_size_config(Some(limits::PUSH_UNPACKED_BYTES_MAX), None);
            Ok(grpc.unary(Export(service), request).await)
        })
    }
}

struct Export(OtlpGrpc);

impl UnaryService<Bytes> for Export {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(self.0.clone().export(request))
    }
}
