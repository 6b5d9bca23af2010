//! The agent of this process, for the page: whether it runs, or exactly why not.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

/// How the agent is doing.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStatus {
    /// `running`, `off` or `failed`.
    pub state: &'static str,
    /// Why it is not running; else empty.
    pub reason: String,
    /// What it lacks on this machine.
    pub missing: Vec<String>,
    /// Samples taken since the start.
    pub samples: u64,
    /// Samples lost since the start.
    pub dropped: u64,
    /// Samples a second and CPU.
    pub frequency_hz: u32,
}

/// Where the status comes from: the router does not know the agent.
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
