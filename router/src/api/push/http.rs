//! Pushes over HTTP: OTLP and pprof.

use axum::extract::{Extension, RawQuery, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use prost::Message;
use proto::label::SERVICE_NAME_LABEL;
use proto::{Label, TenantId};
use serde_json::json;

use crate::api::error::ApiError;
use crate::api::push::otlp_response::response;
use crate::ingest::error::{IngestError, PushError};
use crate::ingest::push::{Accepted, Pusher};
use crate::ingest::receive::{Arriving, Framing};
use crate::ingest::request::{Encoding, Format, Head, client_key};

/// Returns the route `POST /v1development/profiles` for the OTLP port.
pub(crate) fn otlp_routes(pusher: Pusher) -> Router {
    Router::new().route("/v1development/profiles", post(push_otlp)).with_state(pusher)
}

/// Returns the route `POST /api/v1/push`.
pub(crate) fn routes(pusher: Pusher) -> Router {
    Router::new().route("/api/v1/push", post(push_pprof)).with_state(pusher)
}

async fn push_otlp(
    State(pusher): State<Pusher>,
    Extension(tenant): Extension<TenantId>,
    request: Request,
) -> Result<Response, ApiError> {
    let format = otlp_format(request.headers());
    let is_json = matches!(format, Ok(Format::OtlpJson));
    let accepted = pusher.push(&tenant, arriving(request, format)).await?;
    let answer = response(&accepted);
    if !is_json {
        return Ok(([(header::CONTENT_TYPE, "application/x-protobuf")], answer.encode_to_vec()).into_response());
    }
    let partial = answer.partial_success.map(|partial| {
        // 64-bit integers are strings in protobuf's JSON.
        json!({"rejectedProfiles": partial.rejected_profiles.to_string(), "errorMessage": partial.error_message})
    });
    Ok(Json(partial.map_or_else(|| json!({}), |partial| json!({"partialSuccess": partial}))).into_response())
}

async fn push_pprof(
    State(pusher): State<Pusher>,
    Extension(tenant): Extension<TenantId>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let format = pprof_format(query.as_deref().unwrap_or_default());
    let accepted = pusher.push(&tenant, arriving(request, format)).await?;
    let Accepted { samples, rejected_profiles, warnings } = accepted;
    let data = json!({"samples": samples, "rejected_profiles": rejected_profiles, "warnings": warnings});
    Ok(Json(json!({"status": "success", "data": data})).into_response())
}

fn otlp_format(headers: &HeaderMap) -> Result<Format, PushError> {
    let content_type = header_text(headers, header::CONTENT_TYPE.as_str());
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "application/x-protobuf" | "application/protobuf" => Ok(Format::OtlpProtobuf),
        "application/json" => Ok(Format::OtlpJson),
        name => {
            let name = name.chars().take(100).collect();
            Err(IngestError::ContentType { name, supported: "application/x-protobuf or application/json" }.into())
        }
    }
}

/// Parses the parameters of a pprof push: `service_name=S[&name=PROFILE_NAME][&label=K=V]...`.
fn pprof_format(query: &str) -> Result<Format, PushError> {
    let mut name = None;
    let mut labels = Vec::new();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match key.as_ref() {
            "service_name" => labels.insert(0, Label::new(SERVICE_NAME_LABEL, value)),
            "name" => name = Some(value.into_owned()),
            "label" => {
                let (key, value) = value
                    .split_once('=')
                    .filter(|(key, _)| !key.is_empty())
                    .ok_or_else(|| PushError::Parameter(format!("label={value:?} must be label=NAME=VALUE")))?;
                labels.push(Label::new(key, value));
            }
            _ => {
                let text = format!("parameter {key:?} is not known: send service_name, name and label=NAME=VALUE");
                return Err(PushError::Parameter(text));
            }
        }
    }
    if !labels.first().is_some_and(|label| label.name == SERVICE_NAME_LABEL && !label.value.is_empty()) {
        return Err(PushError::Parameter("the service of the profile is missing: add ?service_name=NAME".to_owned()));
    }
    Ok(Format::Pprof { name, labels })
}

fn arriving(request: Request, format: Result<Format, PushError>) -> Arriving {
    let (parts, body) = request.into_parts();
    let announced_bytes = header_text(&parts.headers, header::CONTENT_LENGTH.as_str()).parse().unwrap_or(0);
    let head = format.and_then(|format| {
        let encoding = Encoding::parse(header_text(&parts.headers, header::CONTENT_ENCODING.as_str()))?;
        Ok(Head { format, encoding, key: client_key(&parts.headers)? })
    });
    Arriving { head, body, announced_bytes, framing: Framing::None }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
