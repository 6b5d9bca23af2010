//! `GET /api/v1/flamegraph`.

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use proto::{TenantId, limits};

use super::error::ApiError;
use super::parameters::{Parameters, invalid};
use super::query_headers::query_headers;
use crate::query::Reader;
use crate::query::flamegraph::request::{FlamegraphRequest, Format, Interpreter};

/// Returns the routes of flame graphs, which accept GET, and POST with a form.
pub(crate) fn routes(reader: Reader) -> Router {
    Router::new().route("/api/v1/flamegraph", get(flamegraph).post(flamegraph)).with_state(reader)
}

async fn flamegraph(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let request = read(&parameters)?;
    let format = request.format;
    let (body, timings) = reader.flamegraph(&tenant, request).await?;
    let headers = query_headers(&timings);
    let kind = |kind: &'static str| (header::CONTENT_TYPE, kind);
    Ok(match format {
        Format::Json => (headers, [kind("application/json")], body).into_response(),
        Format::Folded => (headers, [kind("text/plain; charset=utf-8")], body).into_response(),
        Format::Pprof => {
            let name = (header::CONTENT_DISPOSITION, "attachment; filename=\"profile.pb.gz\"");
            (headers, [kind("application/octet-stream"), name], body).into_response()
        }
    })
}

fn read(parameters: &Parameters) -> Result<FlamegraphRequest, ApiError> {
    let query = parameters.required("query")?.to_owned();
    let window = parameters.window_or_last_hour()?;
    let format = match parameters.get("format") {
        None | Some("json") => Format::Json,
        Some("folded") => Format::Folded,
        Some("pprof") => Format::Pprof,
        Some(other) => return Err(invalid("format", other, &"it must be json, folded or pprof")),
    };
    let nodes_max = match parameters.get("max_nodes") {
        None if format == Format::Json => limits::FLAMEGRAPH_NODES_DEFAULT,
        // Tools that read the other formats cannot ask for more nodes, so they get as many as possible.
        None => limits::FLAMEGRAPH_NODES_MAX,
        Some(text) => {
            let allowed = |nodes: &usize| (1..=limits::FLAMEGRAPH_NODES_MAX).contains(nodes);
            let wanted = format!("it must be a whole number from 1 to {}", limits::FLAMEGRAPH_NODES_MAX);
            text.parse().ok().filter(allowed).ok_or_else(|| invalid("max_nodes", text, &wanted))?
        }
    };
    let interpreter = match parameters.get("interpreter") {
        None | Some("show") => Interpreter::Show,
        Some("fold") => Interpreter::Fold,
        Some(other) => return Err(invalid("interpreter", other, &"it must be show or fold")),
    };
    let options = parameters.read_options()?;
    Ok(FlamegraphRequest { query, window, format, nodes_max, interpreter, options })
}
