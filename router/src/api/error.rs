//! Errors in the form of the Prometheus API: `{"status":"error","errorType":...,"error":...}`.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Minimum time before a client should retry. One second, because `Retry-After` is in whole seconds.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// An error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) error_type: &'static str,
    pub(crate) text: String,
}

impl ApiError {
    /// Returns the error of an invalid request (400).
    pub(crate) fn bad_data(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, error_type: "bad_data", text: text.into() }
    }

    /// Returns the error of a valid request that cannot be executed (422).
    pub(crate) fn execution(text: impl Into<String>) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, error_type: "execution", text: text.into() }
    }

    /// Returns the error of a request that cannot be served now (503).
    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, error_type: "unavailable", text: text.into() }
    }

    /// Returns the error of a fault in the server, which the server's log describes (500).
    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, error_type: "internal", text: text.into() }
    }

    /// Returns the error of a path that does not exist (404).
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, error_type: "not_found", text: text.into() }
    }

    /// Returns the error of a method that the path does not support (405).
    pub(crate) fn method_not_allowed(text: impl Into<String>) -> Self {
        Self { status: StatusCode::METHOD_NOT_ALLOWED, error_type: "bad_data", text: text.into() }
    }

    /// Returns the error of a sender that stalled or is too slow (408).
    pub(crate) fn timeout(text: impl Into<String>) -> Self {
        Self { status: StatusCode::REQUEST_TIMEOUT, error_type: "timeout", text: text.into() }
    }

    /// Returns the error of a request that exceeds a limit on its size (413).
    pub(crate) fn too_large(text: impl Into<String>) -> Self {
        Self { status: StatusCode::PAYLOAD_TOO_LARGE, error_type: "bad_data", text: text.into() }
    }

    /// Returns the error of a request that exceeds a limit at this moment (429). `Retry-After` is [`RETRY_DELAY`].
    pub(crate) fn overloaded(text: impl Into<String>) -> Self {
        Self { status: StatusCode::TOO_MANY_REQUESTS, error_type: "too_many_requests", text: text.into() }
    }

    /// Returns the error of a client that is not allowed to send this request (401, 403).
    pub(crate) fn denied(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, error_type: "denied", text: text.into() }
    }
}

/// Text of an error. Each error response carries it in its extensions, so that a middleware can write the error in
/// another form.
#[derive(Clone, Debug)]
pub(crate) struct ErrorText(pub(crate) String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(json!({"status": "error", "errorType": self.error_type, "error": &self.text}));
        let mut response = (self.status, body).into_response();
        response.extensions_mut().insert(ErrorText(self.text));
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_DELAY.as_secs().into());
        }
        response
    }
}
