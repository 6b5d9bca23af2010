//! Administration of the shards: `/api/v1/admin/...`.

use axum::extract::{Extension, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use proto::{AdministrationTask, Deleted, TenantId};
use serde_json::{Value, json};

use super::error::ApiError;
use super::parameters::Parameters;
use crate::nodes::Nodes;
use crate::query::{QueryError, Reader};

/// Returns the routes `POST /api/v1/admin/compact`, `GET /api/v1/admin/stats`, `POST /api/v1/admin/verify`, `GET
/// /api/v1/admin/clock`, `POST /api/v1/admin/clock/accept` and `POST /api/v1/delete`.
pub(crate) fn routes(nodes: Nodes, reader: Reader) -> Router {
    let delete = Router::new().route("/api/v1/delete", post(delete)).with_state(reader);
    let task = |task| move |State(nodes): State<Nodes>| administer(nodes, task);
    Router::new()
        .route("/api/v1/admin/compact", post(task(AdministrationTask::Compact)))
        .route("/api/v1/admin/stats", get(task(AdministrationTask::Statistics)))
        .route("/api/v1/admin/verify", post(task(AdministrationTask::Verify)))
        .route("/api/v1/admin/clock", get(task(AdministrationTask::Clock)))
        .route("/api/v1/admin/clock/accept", post(task(AdministrationTask::AcceptClock)))
        .with_state(nodes)
        .merge(delete)
}

async fn delete(
    State(reader): State<Reader>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Json<Value>, ApiError> {
    let window = parameters.window()?;
    let Deleted { samples, windows } = reader.delete(&tenant, parameters.required("query")?, window).await?;
    Ok(Json(json!({"status": "success", "data": {"samples": samples, "windows": windows}})))
}

async fn administer(nodes: Nodes, task: AdministrationTask) -> Result<Json<Value>, ApiError> {
    let reports = nodes.administer(task).await.map_err(QueryError::from)?;
    let shard = |(shard, report): (u32, String)| {
        // A report that is not JSON is returned as a JSON string.
        let report = serde_json::from_str(&report).unwrap_or(Value::String(report));
        json!({"shard": shard, "report": report})
    };
    let shards: Vec<Value> = reports.into_iter().map(shard).collect();
    Ok(Json(json!({"status": "success", "data": shards})))
}
