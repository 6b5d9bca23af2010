//! Comparison of the samples in a server with the samples that were sent to it.

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::generator::{PERIOD_NS, Workload};
use crate::system::client::Client;

/// Checks the sum of all stored values, which shows that the server at `address` has each sample once.
///
/// # Errors
/// The sum of all stored values differs from the sum of all sent values.
pub(super) fn check_total(client: &Client, address: &str, workload: &Workload) -> anyhow::Result<()> {
    let time = seconds(workload.end_ns);
    let parameters = [("query", "sum(sum_over_time(process_cpu[15m]))"), ("time", time.as_str())];
    let answer: Value = serde_json::from_slice(&client.get(address, "/api/v1/query", &parameters)?)?;
    let total = answer["data"]["result"][0]["value"][1].as_str().context("the total has no value")?;
    // The number is below 2^53, so the conversion is exact.
    let want = (workload.samples * PERIOD_NS) as f64;
    if total.parse::<f64>()? != want {
        bail!("the server has {total} ns of CPU, it was sent {want}");
    }
    Ok(())
}

/// Formats a time as Unix seconds, to the nanosecond.
pub(super) fn seconds(time_ns: u64) -> String {
    format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000)
}
