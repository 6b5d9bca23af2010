//! HTTP API of Prometheus: `/api/v1/{query,query_range,series,labels,label/<name>/values,metadata,status/buildinfo}`.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use proto::{ProfileType, TenantId, Window, limits};
use serde_json::{Map, Value as Json, json};

use super::error::ApiError;
use super::parameters::{Parameters, invalid};
use super::prometheus_json::{cut, instant, range, success};
use super::query_headers::query_headers;
use super::time::now_ns;
use crate::json::JsonText;
use crate::query::catalog::{CatalogRequest, Listed, with_name};
use crate::query::promql::value::Steps;
use crate::query::run::Timings;
use crate::query::{ErrorKind, QueryError, Reader};

/// Number of texts of a list that are loaded into the CPU's cache before they are written. They take about 64 KiB.
const TEXTS_PER_LOAD: usize = 1024;

/// Returns the routes of the Prometheus API, which accept GET, and POST with a form.
pub(crate) fn routes(reader: Reader) -> Router {
    Router::new()
        .route("/api/v1/query", get(query).post(query))
        .route("/api/v1/query_range", get(query_range).post(query_range))
        .route("/api/v1/series", get(series).post(series))
        .route("/api/v1/labels", get(labels).post(labels))
        .route("/api/v1/label/{name}/values", get(label_values))
        .route("/api/v1/metadata", get(metadata))
        .route("/api/v1/status/buildinfo", get(buildinfo))
        .with_state(reader)
}

async fn query(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let text = parameters.required("query")?;
    let time = parameters.time_or_now("time")?;
    let limit = parameters.limit()?;
    let options = parameters.read_options()?;
    let write = move |evaluated| instant(evaluated, limit);
    let (body, timings) = reader.query(&tenant, text, Steps(vec![time]), options, write).await?;
    Ok(answer(body, &timings))
}

async fn query_range(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let text = parameters.required("query")?;
    let start = parameters.required_time("start")?;
    let end = parameters.required_time("end")?;
    let step = parameters.required_duration("step")?;
    let limit = parameters.limit()?;
    let options = parameters.read_options()?;
    let write = move |evaluated| range(evaluated, limit);
    let (body, timings) = reader.query(&tenant, text, steps(start, end, step)?, options, write).await?;
    Ok(answer(body, &timings))
}

/// Returns the times at which a range query is evaluated: one every `step`, from `start` to at most `end`. The times
/// and `step` are in nanoseconds.
fn steps(start: i64, end: i64, step: i64) -> Result<Steps, ApiError> {
    if end < start {
        return Err(ApiError::bad_data("\"end\" is before \"start\""));
    }
    // Times are not negative, so their difference does not overflow.
    let last = (end - start) / step;
    if last >= limits::QUERY_STEPS_MAX {
        let steps = last + 1;
        let max = limits::QUERY_STEPS_MAX;
        let text = format!(
            "the range has {steps} steps, and at most {max} are supported: use a longer \"step\" or a shorter range"
        );
        return Err(ApiError::bad_data(text));
    }
    Ok(Steps((0..=last).map(|i| start + i * step).collect()))
}

async fn series(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    parameters.required("match[]")?;
    let limit = parameters.limit()?;
    let (Listed { list, warnings }, timings) = reader.series(catalog(tenant, &parameters)?).await?;
    let (found, truncated) = cut(list, limit);
    let list = |data: &mut JsonText| {
        data.list(&found, |data, labels| {
            data.object(with_name(labels));
        });
    };
    Ok(answer(success(list, truncated, warnings, &timings.coverage), &timings))
}

async fn labels(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let limit = parameters.limit()?;
    let (Listed { list, warnings }, timings) = reader.label_names(catalog(tenant, &parameters)?).await?;
    let (found, truncated) = cut(list, limit);
    Ok(answer(success(|data| texts(data, &found), truncated, warnings, &timings.coverage), &timings))
}

async fn label_values(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    name: Result<Path<String>, PathRejection>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::bad_data(rejection.body_text()))?;
    if name.len() > limits::LABEL_NAME_BYTES_MAX || proto::label::sanitize_label_name(&name) != name {
        return Err(invalid("name", &name, &"it must be a label's name: letters, digits and _, no digit first"));
    }
    let limit = parameters.limit()?;
    let (Listed { list, warnings }, timings) = reader.label_values(&name, catalog(tenant, &parameters)?).await?;
    let (found, truncated) = cut(list, limit);
    Ok(answer(success(|data| texts(data, &found), truncated, warnings, &timings.coverage), &timings))
}

/// Returns the request for a list of series or labels that the parameters describe. Without `start` and `end`, the list
/// covers all times.
fn catalog(tenant: TenantId, parameters: &Parameters) -> Result<CatalogRequest, ApiError> {
    let start_ns = parameters.time("start")?.unwrap_or(0);
    let end_ns = parameters.time("end")?.unwrap_or_else(|| now_ns().saturating_add(limits::TIME_AHEAD_MAX_NS));
    if end_ns < start_ns {
        return Err(ApiError::bad_data("\"end\" is before \"start\""));
    }
    let window = Window { start_ns, end_ns };
    let options = parameters.read_options()?;
    Ok(CatalogRequest { tenant, selectors: parameters.all("match[]"), window, options })
}

async fn metadata(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let limit = parameters.limit()?;
    let request = catalog(tenant, &parameters)?;
    let (types, timings) = reader.profile_types(request, parameters.get("metric")).await?;
    let (types, truncated) = cut(types.into_iter().collect(), limit);
    let data: Map<String, Json> = types.into_iter().map(|(id, kind)| (id, json!([described(&kind)]))).collect();
    let data = Json::Object(data);
    Ok(answer(success(|out| write_value(out, &data), truncated, Vec::new(), &timings.coverage), &timings))
}

/// Returns the metadata of a profile type, in the form in which Prometheus returns the metadata of a metric.
fn described(profile_type: &ProfileType) -> Json {
    let sample = profile_type.sample();
    let period = profile_type.period();
    let kind = if profile_type.is_gauge() { "gauge" } else { "counter" };
    let sampled_by = match period.kind.as_str() {
        "" => String::new(),
        period_kind => format!(", sampled by {period_kind} in {}", period.unit),
    };
    let help = format!("{} of {} profiles{sampled_by}", sample.kind, profile_type.name());
    json!({"type": kind, "unit": sample.unit, "help": help})
}

async fn buildinfo() -> Response {
    let data = json!({
        "application": "varve", "version": env!("CARGO_PKG_VERSION"),
        "revision": "", "branch": "", "buildUser": "", "buildDate": "", "goVersion": "",
    });
    let timings = Timings::default();
    answer(success(|out| write_value(out, &data), false, Vec::new(), &timings.coverage), &timings)
}

fn texts(to: &mut JsonText, texts: &[impl AsRef<str>]) {
    // Texts may be far from each other in memory. Loads that do not depend on each other overlap, so the CPU waits much
    // less for all texts of a piece here than for each of them below.
    let loaded = texts.chunks(TEXTS_PER_LOAD).flat_map(|piece| {
        std::hint::black_box(piece.iter().map(|text| text.as_ref().len()).sum::<usize>());
        piece
    });
    to.list(loaded, |to, text| {
        to.text(text.as_ref());
    });
}

/// Writes a JSON value. The value should be short, because its whole text is made first.
fn write_value(to: &mut JsonText, value: &Json) {
    to.raw(&value.to_string());
}

/// Returns a JSON response with a header that lists the duration of each processing step.
fn answer(body: Vec<u8>, timings: &Timings) -> Response {
    (query_headers(timings), [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::BadData => Self::bad_data(text),
            ErrorKind::Execution => Self::execution(text),
            ErrorKind::Unavailable => Self::unavailable(text),
            ErrorKind::Overloaded => Self::overloaded(text),
            ErrorKind::Internal => {
                tracing::error!(error = %text, "a query failed");
                Self { status: StatusCode::INTERNAL_SERVER_ERROR, error_type: "internal", text }
            }
        }
    }
}
