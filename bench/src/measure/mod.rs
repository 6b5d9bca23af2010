//! What is measured: ingest, restart, queries. Each checks what it gets: a fast wrong answer is no figure.

mod history;
mod ingest;
mod query;
mod restart;
mod sending;

pub(crate) use history::history;
pub(crate) use ingest::ingest;
pub(crate) use query::queries;
pub(crate) use restart::restart_after_kill;
pub(crate) use sending::Sending;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::client::Client;
use crate::generator::{PERIOD_NS, Workload};
use crate::report::rounded;
use crate::server::Server;

/// Checks that the server has each sample once.
///
/// # Errors
/// Where the sum of everything is not that of what was sent.
fn check_total(server: &Server, workload: &Workload) -> anyhow::Result<()> {
    let time = seconds(workload.end_ns);
    let parameters = [("query", "sum(sum_over_time(process_cpu[15m]))"), ("time", time.as_str())];
    let answer: Value = serde_json::from_slice(&Client::new().get(&server.http, "/api/v1/query", &parameters)?)?;
    let total = answer["data"]["result"][0]["value"][1].as_str().context("the total has no value")?;
    // Exact: below 2^53.
    let want = (workload.samples * PERIOD_NS) as f64;
    if total.parse::<f64>()? != want {
        bail!("the server has {total} ns of CPU, it was sent {want}");
    }
    Ok(())
}

/// Unix seconds, to the nanosecond.
pub(crate) fn seconds(time_ns: u64) -> String {
    format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000)
}

/// The q-quantile of these: the smallest that at least a share of q are not above.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().map_or(f64::NAN, rounded)
}
