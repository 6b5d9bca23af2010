//! Status of the agent in this process, for the web UI.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

/// Status of the agent in this process.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStatus {
    /// State of the agent: `running`, `off` or `failed`.
    pub state: &'static str,
    /// Reason why the agent is not running; "" if it is running.
    pub reason: String,
    /// Features of the agent that this machine does not support.
    pub missing: Vec<String>,
    /// Number of samples taken since the start.
    pub samples: u64,
    /// Number of samples lost since the start.
    pub dropped: u64,
    /// Sampling frequency: the number of samples per second on each CPU.
    pub frequency_hz: u32,
}

/// Function that returns the agent's status. The router calls a function, so that it does not depend on the agent.
#[derive(Clone)]
pub struct AgentStatusSource(pub Arc<dyn Fn() -> AgentStatus + Send + Sync>);

impl fmt::Debug for AgentStatusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentStatusSource")
    }
}

/// Returns the route `GET /api/v1/agent`.
pub(crate) fn routes(source: AgentStatusSource) -> Router {
    Router::new().route("/api/v1/agent", get(status)).with_state(source)
}

async fn status(State(source): State<AgentStatusSource>) -> Json<Value> {
    Json(json!({"status": "success", "data": (source.0)()}))
}
