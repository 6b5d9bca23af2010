//! OTLP over gRPC: `ProfilesService/Export`.
//!
//! The server code that tonic generates is not used. It knows only one layout, and it returns INTERNAL for a message
//! that prost cannot decode. It would also store and decompress a message before the sender is authenticated, and would
//! not count the bytes as in flight. So this module reads a call like a push over HTTP, and returns INVALID_ARGUMENT
//! for a malformed message.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use axum::http::{self, HeaderMap, HeaderValue};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use proto::TenantId;
use tonic::Status;
use tonic::server::NamedService;
use tower::Service;

use crate::api::push::otlp_response::response;
use crate::api::push::rejection::Rejection;
use crate::auth::{Auth, Denied, OTLP_EXPORT as EXPORT};
use crate::ingest::error::PushError;
use crate::ingest::push::{Accepted, Pusher};
use crate::ingest::receive::{Arriving, Framing};
use crate::ingest::request::{Encoding, Format, Head, client_key};

/// Length of the prefix of a response message: a flag for compression, and the message's length as big-endian u32.
const PREFIX_BYTES: usize = 5;

/// The gRPC service `ProfilesService`.
#[derive(Clone, Debug)]
pub struct OtlpGrpc {
    pusher: Pusher,
    auth: Auth,
}

impl OtlpGrpc {
    /// Makes a service that passes authenticated pushes to `pusher`.
    #[must_use]
    pub fn new(pusher: Pusher, auth: Auth) -> Self {
        Self { pusher, auth }
    }

    /// Authenticates the call before reading any part of its message. Then stores the push.
    async fn export(self, request: http::Request<tonic::body::Body>) -> Result<Bytes, Status> {
        let (head, body) = request.into_parts();
        if head.uri.path() != EXPORT {
            return Err(Status::unimplemented("only Export is served here"));
        }
        let authorization = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let tenant = self.auth.grpc(EXPORT, authorization).await.map_err(|denied| refused(&denied))?;
        let accepted = self.push(&tenant, &head.headers, body).await.map_err(|error| Status::from(&error))?;
        Ok(response(&accepted).encode_to_vec().into())
    }

    async fn push(
        &self,
        tenant: &TenantId,
        headers: &HeaderMap,
        body: tonic::body::Body,
    ) -> Result<Accepted, PushError> {
        let name = headers.get("grpc-encoding").and_then(|name| name.to_str().ok()).unwrap_or_default();
        let encoding = Encoding::parse(name)?;
        let head = Head { format: Format::OtlpProtobuf, encoding, key: client_key(headers)? };
        let arriving = Arriving { head: Ok(head), body: Body::new(body), announced_bytes: 0, framing: Framing::Grpc };
        self.pusher.push(tenant, arriving).await
    }
}

/// Returns the status of a call that is refused. Senders retry if the tokens are not known yet.
fn refused(denied: &Denied) -> Status {
    let text = denied.to_string();
    match denied {
        Denied::Unauthenticated => Status::unauthenticated(text),
        Denied::Role(_) | Denied::NotOperator(_) | Denied::ForeignHost | Denied::ForeignOrigin => {
            Status::permission_denied(text)
        }
        Denied::Unknown(_) => Rejection::Unavailable.grpc(&text),
        Denied::NoEntry => Status::internal(text),
    }
}

/// Returns the response with this message and `grpc-status: 0`.
fn answer(message: &Bytes) -> http::Response<tonic::body::Body> {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let body = Full::new(framed.freeze()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = http::Response::new(tonic::body::Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Returns the response with this status. A header lists the supported encodings, for clients that used another
/// encoding.
fn refusal(status: Status) -> http::Response<tonic::body::Body> {
    let mut response = status.into_http();
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity,gzip,zstd"));
    response
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
            Ok(match service.export(request).await {
                Ok(message) => answer(&message),
                Err(status) => refusal(status),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tonic::Code;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::nodes::Nodes;

    /// Sends a call with these headers and this body. Returns the `grpc-status` of the response.
    async fn code(headers: &[(&'static str, &'static str)], body: Body) -> Code {
        let nodes =
            Nodes::remote(&transport::Dialer::plaintext(), vec![Endpoint::from_static("http://127.0.0.1:1")], None);
        let auth = Auth::tokens(proto::Tokens::parse("0123456789abcdef").unwrap());
        let mut service = OtlpGrpc::new(Pusher::new(nodes, &mut Registry::default()), auth);
        let mut request = http::Request::post(EXPORT);
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        let response = service.call(request).await.unwrap();
        Code::from_bytes(response.headers()["grpc-status"].as_bytes())
    }

    const TOKEN: (&str, &str) = ("authorization", "Bearer 0123456789abcdef");

    #[tokio::test]
    async fn nothing_is_read_without_a_token() {
        let unread = futures::stream::poll_fn(|_| -> std::task::Poll<Option<Result<Bytes, std::io::Error>>> {
            panic!("the body was read")
        });
        assert_eq!(code(&[], Body::from_stream(unread)).await, Code::Unauthenticated);
    }

    #[tokio::test]
    async fn calls_that_are_not_one_message_are_malformed() {
        for frame in [&b""[..], b"\0\0\0", b"\0\0\0\0\x02a", b"\0\0\0\0\x01ab", b"\x01\0\0\0\x01a"] {
            let code = code(&[TOKEN, ("grpc-encoding", "gzip")], Body::from(frame)).await;
            assert_eq!(code, Code::InvalidArgument, "{frame:?}");
        }
        let empty_key = [TOKEN, ("idempotency-key", "")];
        assert_eq!(code(&empty_key, Body::from(&b"\0\0\0\0\0"[..])).await, Code::InvalidArgument);
        let unknown = [TOKEN, ("grpc-encoding", "br")];
        assert_eq!(code(&unknown, Body::from(&b"\x01\0\0\0\0"[..])).await, Code::Unimplemented);
    }

    #[tokio::test]
    async fn a_response_is_one_message_and_a_status() {
        let body = answer(&Bytes::from_static(b"abc")).into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes(), &b"\0\0\0\0\x03abc"[..]);
    }
}
