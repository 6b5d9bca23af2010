//! gRPC calls with messages as bytes, so that tests can send invalid ones.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use proto::bytes_codec::BytesCodec;
use tonic::codec::CompressionEncoding;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

use crate::payload::otlp::EXPORT;
use crate::payload::wire::{Message, decode, inner, number};

/// Waits for a future, on a new runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Compression and metadata of an export request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sending<'a> {
    /// Compression of the message; `None` if it is not compressed.
    pub compression: Option<CompressionEncoding>,
    /// Value of the metadata `idempotency-key`, if any.
    pub key: Option<&'a str>,
    /// Bearer token, if any.
    pub token: Option<&'a str>,
}

/// Exports a request, which may be any bytes.
///
/// # Errors
/// The status that the server returns.
pub fn export(address: &str, request: &[u8], sending: Sending<'_>) -> Result<Message, Status> {
    block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(Duration::from_secs(60));
        let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(64 << 20);
        if let Some(compression) = sending.compression {
            client = client.send_compressed(compression);
        }
        let mut message = Request::new(Bytes::copy_from_slice(request));
        if let Some(key) = sending.key {
            message.metadata_mut().insert("idempotency-key", key.parse().unwrap());
        }
        if let Some(token) = sending.token {
            message.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let answer: tonic::Response<Bytes> = client.unary(message, EXPORT.parse().unwrap(), BytesCodec).await?;
        Ok(decode(&answer.into_inner()))
    })
}

/// Returns the number of rejected profiles and the reason, as an export response reports them.
#[must_use]
pub fn rejected(response: &Message) -> (u64, String) {
    let partial = inner(response, 1);
    let text = crate::payload::wire::all(&partial, 2).last().unwrap_or_default();
    (number(&partial, 1), String::from_utf8_lossy(text).into_owned())
}

/// Sends a message whose frame the caller built (compressed flag, length, bytes); returns `grpc-status` and
/// `grpc-message`.
pub async fn raw_call(address: &str, encoding: &str, frame: Vec<u8>) -> (String, String) {
    use tonic::codegen::Service as _;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut channel = endpoint.connect().await.unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let body = tonic::body::Body::new(http_body_util::Full::new(Bytes::from(frame)));
    let request = tonic::codegen::http::Request::builder()
        .method("POST")
        .uri(format!("http://{address}{EXPORT}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-encoding", encoding)
        .body(body)
        .unwrap();
    let response = channel.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let trailers = http_body_util::BodyExt::collect(body).await.unwrap().trailers().cloned().unwrap_or_default();
    let text = |name: &str| {
        let value = head.headers.get(name).or_else(|| trailers.get(name));
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
    };
    (text("grpc-status"), text("grpc-message"))
}
