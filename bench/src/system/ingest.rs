//! Measurement of ingest into an empty data directory.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::client::Client;
use super::sending::Sending;
use super::server::{Measured, Server};
use super::totals::check_total;
use crate::generator::Workload;
use crate::report::{quantile, rounded};

/// Figures of an ingest up to the last acknowledgement, and the running server.
#[derive(Debug)]
pub(crate) struct Ingested {
    pub(crate) figures: Value,
    pub(crate) server: Server,
    /// CPU time that the server had used before the ingest began, in seconds.
    idle_cpu_s: f64,
}

/// Starts a server, and sends it the whole workload.
pub(crate) fn ingest(
    varve: Measured<'_>,
    data_dir: &Path,
    workload: &Workload,
    sending: Sending,
) -> anyhow::Result<Ingested> {
    let mut server = Server::prepare(varve, data_dir)?;
    let empty_ready_s = server.launch()?.as_secs_f64();
    let idle_cpu_s = server.cpu_s()?;
    let sent = sending.send(&server.otlp, "", &workload.requests)?;
    let cpu_s = server.cpu_s()? - idle_cpu_s;
    let metric = |name_end: &str| Client::new().metric(&server.http, name_end);
    let (loop_kind, clients, rate) = match sending {
        Sending::Closed { clients } => ("closed", Some(clients), None),
        Sending::Open { requests_per_s } => ("open", None, Some(requests_per_s)),
    };
    let figures = json!({
        "loop": loop_kind,
        "clients": clients,
        "requests_per_s_wanted": rate,
        "requests_per_s": rounded(workload.requests.len() as f64 / sent.took_s),
        "samples_per_s": rounded(workload.samples as f64 / sent.took_s),
        "ack_p50_ms": quantile(&sent.latencies_ms, 0.5),
        "ack_p99_ms": quantile(&sent.latencies_ms, 0.99),
        "ack_max_ms": quantile(&sent.latencies_ms, 1.0),
        "refused": sent.refused,
        "cpu_s_per_million_samples_at_last_ack": per_million(cpu_s, workload),
        "peak_rss_bytes": server.peak_rss_bytes()?,
        "disk": disk(&server, workload)?,
        "log_entry_bytes_per_sample": rounded(metric("log_entry_bytes_total")? / workload.samples as f64),
        "log_syncs": metric("log_syncs_total")?,
        "empty_ready_ms": rounded(empty_ready_s * 1e3),
    });
    Ok(Ingested { figures, server, idle_cpu_s })
}

impl Ingested {
    /// Checks the stored samples, and stops the server, which flushes all samples before it exits. Returns the figures
    /// of the ingest and of the stop, and the stopped server.
    pub(crate) fn stop_and_finish(mut self, workload: &Workload) -> anyhow::Result<(Value, Server)> {
        let before_check_s = self.server.cpu_s()?;
        check_total(&Client::new(), &self.server.http, workload)?;
        let check_s = self.server.cpu_s()? - before_check_s;
        let peak_rss_bytes = self.server.peak_rss_bytes()?;
        let (stop_s, cpu_s) = self.server.stop()?;
        let cpu_s = cpu_s - self.idle_cpu_s - check_s;
        self.figures["cpu_s_per_million_samples_stored"] = json!(per_million(cpu_s, workload));
        self.figures["peak_rss_bytes"] = json!(peak_rss_bytes);
        self.figures["stop_ms"] = json!(rounded(stop_s * 1e3));
        self.figures["disk_stored"] = disk(&self.server, workload)?;
        Ok((self.figures, self.server))
    }
}

fn per_million(cpu_s: f64, workload: &Workload) -> f64 {
    rounded(cpu_s * 1e6 / workload.samples as f64)
}

fn disk(server: &Server, workload: &Workload) -> anyhow::Result<Value> {
    let (bytes, parts) = server.disk_bytes()?;
    let per_sample = |bytes: u64| json!(rounded(bytes as f64 / workload.samples as f64));
    let parts: Map<String, Value> = parts.into_iter().map(|(name, bytes)| (name, per_sample(bytes))).collect();
    Ok(json!({"bytes": bytes, "bytes_per_sample": per_sample(bytes), "parts_bytes_per_sample": parts}))
}
