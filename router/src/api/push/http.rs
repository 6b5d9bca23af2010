//! Pushes over HTTP: OTLP and pprof.

use axum::extract::{Extension, RawQuery, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use prost::Message;
use proto::label::SERVICE_NAME_LABEL;
use proto::{Label, TenantId, limits};
use serde_json::json;

use crate::api::error::ApiError;
use crate::api::push::otlp_grpc::response;
use crate::ingest::admission::InFlight;
use crate::ingest::error::IngestError;
use crate::ingest::push::{Accepted, Format, PushBody, PushError, Pusher, client_key};
use crate::ingest::receive::{self, BodyError};
use crate::ingest::unpack::Encoding;

/// `POST /v1development/profiles`, for the OTLP port.
pub(crate) fn otlp_routes(pusher: Pusher) -> Router {
    Router::new().route("/v1development/profiles", post(push_otlp)).with_state(pusher)
}

/// `POST /api/v1/push`.
pub(crate) fn routes(pusher: Pusher) -> Router {
    Router::new().route("/api/v1/push", post(push_pprof)).with_state(pusher)
}

async fn push_otlp(
    State(pusher): State<Pusher>,
    Extension(tenant): Extension<TenantId>,
    request: Request,
) -> Result<Response, ApiError> {
    let received = receive(&pusher, request).await?;
    let content_type = header_text(&received.headers, header::CONTENT_TYPE.as_str());
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let format = match media_type.as_str() {
        "application/x-protobuf" | "application/protobuf" => Format::OtlpProtobuf,
        "application/json" => Format::OtlpJson,
        _ => return Err(unsupported_content_type(&media_type)),
    };
    let is_json = matches!(format, Format::OtlpJson);
    let accepted = push(&pusher, &tenant, format, received).await?;
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
    let received = receive(&pusher, request).await?;
    let format = pprof_format(query.as_deref().unwrap_or_default())?;
    let accepted = push(&pusher, &tenant, format, received).await?;
    let data = json!({"samples": accepted.samples, "warnings": accepted.warnings});
    Ok(Json(json!({"status": "success", "data": data})).into_response())
}

/// `service_name=S[&name=PROFILE_NAME][&label=K=V]...`
fn pprof_format(query: &str) -> Result<Format, ApiError> {
    let (mut name, mut labels) = (None, Vec::new());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match key.as_ref() {
            "service_name" => labels.insert(0, Label::new(SERVICE_NAME_LABEL, &value)),
            "name" => name = Some(value.into_owned()),
            "label" => {
                let (key, value) = value
                    .split_once('=')
                    .filter(|(key, _)| !key.is_empty())
                    .ok_or_else(|| ApiError::bad_data(format!("label={value:?} must be label=NAME=VALUE")))?;
                labels.push(Label::new(key, value));
            }
            _ => {
                let text = format!("parameter {key:?} is not known: send service_name, name and label=NAME=VALUE");
                return Err(ApiError::bad_data(text));
            }
        }
    }
    if !labels.first().is_some_and(|label| label.name == SERVICE_NAME_LABEL && !label.value.is_empty()) {
        return Err(ApiError::bad_data("say whose profile this is: ?service_name=NAME"));
    }
    Ok(Format::Pprof { name, labels })
}

/// A request, all of it.
struct Received {
    headers: HeaderMap,
    bytes: Bytes,
    in_flight: InFlight,
}

/// Reads the body before anything else is looked at: a client that is answered while it still sends sees a broken connection,
/// and not what is wrong.
async fn receive(pusher: &Pusher, request: Request) -> Result<Received, ApiError> {
    let (parts, body) = request.into_parts();
    let announced: usize = header_text(&parts.headers, header::CONTENT_LENGTH.as_str()).parse().unwrap_or(0);
    let bytes_max = limits::PUSH_BYTES_MAX;
    if announced > bytes_max {
        return Err(PushError::from(BodyError::TooLarge { bytes_max }).into());
    }
    let mut in_flight = pusher.enter(0).map_err(PushError::from)?;
    let bytes = receive::read(body, &mut in_flight, bytes_max).await.map_err(PushError::from)?;
    Ok(Received { headers: parts.headers, bytes, in_flight })
}

async fn push(pusher: &Pusher, tenant: &TenantId, format: Format, received: Received) -> Result<Accepted, ApiError> {
    let Received { headers, bytes, in_flight } = received;
    let encoding =
        Encoding::parse(header_text(&headers, header::CONTENT_ENCODING.as_str())).map_err(PushError::from)?;
    let key = client_key(&headers)?;
    Ok(pusher.push(tenant, PushBody { format, encoding, bytes, key }, in_flight).await?)
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn unsupported_content_type(name: &str) -> ApiError {
    let supported = "application/x-protobuf or application/json";
    PushError::Ingest(IngestError::ContentType { name: name.chars().take(100).collect(), supported }).into()
}
