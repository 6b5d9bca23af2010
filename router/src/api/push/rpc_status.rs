//! Error bodies of the OTLP port. For them, OTLP/HTTP prescribes `google.rpc.Status` instead of the JSON of the other
//! APIs.
//!
//! The body is protobuf if the request is protobuf, and JSON otherwise.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use proto::rpc_status::{RETRY_INFO, rpc_status};
use serde_json::json;
use tonic::Code;

use crate::api::error::{ErrorText, RETRY_DELAY};

/// Middleware that rewrites the body of every error to a `google.rpc.Status`.
pub(crate) async fn rewrite_errors(request: Request, next: Next) -> Response {
    let is_protobuf = is_protobuf(request.headers());
    let response = next.run(request).await;
    match response.extensions().get::<ErrorText>().cloned() {
        Some(ErrorText(text)) => rewrite(response, &text, is_protobuf),
        None => response,
    }
}

/// Returns whether the request's body is protobuf.
pub(crate) fn is_protobuf(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    ["application/x-protobuf", "application/protobuf"].iter().any(|known| media_type.eq_ignore_ascii_case(known))
}

fn rewrite(response: Response, text: &str, is_protobuf: bool) -> Response {
    let (mut head, _) = response.into_parts();
    if head.status == StatusCode::REQUEST_TIMEOUT {
        // Senders retry 429, 502, 503 and 504, and drop the request after any other status.
        head.status = StatusCode::SERVICE_UNAVAILABLE;
        head.headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_DELAY.as_secs()));
    }
    let delay = head.headers.contains_key(header::RETRY_AFTER).then_some(RETRY_DELAY);
    let code = code(head.status);
    let (content_type, body) = if is_protobuf {
        ("application/x-protobuf", rpc_status(code.into(), text, delay))
    } else {
        let retry_info =
            |delay: std::time::Duration| json!({"@type": RETRY_INFO, "retryDelay": format!("{}s", delay.as_secs())});
        let details: Vec<_> = delay.map(retry_info).into_iter().collect();
        let status = json!({"code": i32::from(code), "message": text, "details": details});
        ("application/json", status.to_string().into_bytes())
    };
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, Body::from(body))
}

/// Returns the gRPC code that corresponds to an HTTP status. OTLP senders use only the HTTP status.
fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            Code::Unimplemented
        }
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        status if status.is_client_error() => Code::InvalidArgument,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    }
}
