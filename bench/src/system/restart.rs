//! Measurement of a restart after SIGKILL. The server is killed right after the last acknowledgement. When it starts
//! again, it applies all log entries that were not flushed.

use std::time::Instant;

use serde_json::{Value, json};

use super::client::Client;
use super::server::Server;
use super::totals::check_total;
use crate::generator::Workload;
use crate::report::rounded;

/// Kills the server, starts it again, and checks that it has all samples. Returns the figures of the restart.
pub(crate) fn restart_after_kill(mut server: Server, workload: &Workload) -> anyhow::Result<Value> {
    server.kill()?;
    let ready_s = server.launch()?.as_secs_f64();
    let cpu_s = server.cpu_s()?;
    let began = Instant::now();
    check_total(&Client::new(), &server.http, workload)?;
    Ok(json!({
        "after": "SIGKILL",
        "samples": workload.samples,
        "ready_ms": rounded(ready_s * 1e3),
        "cpu_ms": rounded(cpu_s * 1e3),
        "first_answer_ms": rounded(began.elapsed().as_secs_f64() * 1e3),
        "complete": true,
    }))
}
