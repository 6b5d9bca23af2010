//! Status of the agent in this process, for the web UI.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

/// Status of the agent.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStatus {
    /// `running`, `off` or `failed`.
    pub state: &'static str,
    /// Reason why it is not running, or "".
    pub reason: String,
    /// Features that this machine is missing.
    pub missing: Vec<String>,
    /// Samples taken since the start.
    pub samples: u64,
    /// Samples lost since the start.
    pub dropped: u64,
    /// Samples per second and CPU.
    pub frequency_hz: u32,
}

/// Source of the status: the router does not depend on the agent.
#[derive(Clone)]
pub struct AgentStatusSource(pub Arc<dyn Fn() -> AgentStatus + Send + Sync>);

impl fmt::Debug for AgentStatusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentStatusSource")
    }
}

/// `GET /api/v1/agent`.
pub(crate) fn routes(source: AgentStatusSource) -> Router {
    Router::new().route("/api/v1/agent", get(status)).with_state(source)
}

async fn status(State(source): State<AgentStatusSource>) -> Json<Value> {
    Json(json!({"status": "success", "data": (source.0)()}))
}
