//! The cost of replication: the same samples go to `varve up`, to a cluster of one node, and to a cluster of three.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use testkit::ports::free_addresses;

use super::client::Client;
use super::ingest::ingest;
use super::sending::Sending;
use super::server::Measured;
use super::totals::check_total;
use crate::generator::{self, Mix, Workload};
use crate::process::{cpu_s, varve_binary};
use crate::report::{Report, quantile, rounded};

/// Measures a cluster of three nodes, a cluster of one node, and `varve up`, with the same samples
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// varve binary to measure [default: the one beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Number of shards of each of the three
    #[arg(long, default_value_t = 8)]
    shards: u16,
    /// Number of samples of each ingest, at most 5,000,000
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..=5_000_000))]
    samples: u64,
    /// Number of clients, each of which sends its next request after the acknowledgement of its previous one
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Sends requests at fixed times in place of the clients, so that a latency does not include work that earlier
    /// requests left
    #[arg(long, conflicts_with = "clients", value_parser = clap::value_parser!(u32).range(1..=1000))]
    requests_per_s: Option<u32>,
    /// Number of rounds; each round measures all three
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder on the measured disk in which the data directories are made; they are removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Also writes the figures to bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

/// Runs all rounds. Prints the figures of each ingest when it ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binary = varve_binary(arguments.binary.as_deref())?;
    let folder = tempfile::Builder::new().prefix("varve-bench-").tempdir_in(&arguments.folder);
    let folder = folder.with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let mut report = Report::start(Some(&binary), folder.path(), arguments.save.as_deref())?;
    let workload = Workload::new(Mix::H, 1, arguments.samples, generator::last_full_hour_ns())?;
    report.add("workload", workload.describe())?;
    let sending = match arguments.requests_per_s {
        Some(requests_per_s) => Sending::Open { requests_per_s },
        None => Sending::Closed { clients: arguments.clients },
    };
    for round in 0..arguments.rounds {
        let up = Measured { binary: &binary, shards: arguments.shards };
        let (up, server) =
            ingest(up, &folder.path().join(format!("{round}-up")), &workload, sending)?.stop_and_finish(&workload)?;
        drop(server);
        report.add("up", up)?;
        for nodes in [1, 3] {
            let cluster = Cluster::start(&binary, folder.path().join(format!("{round}-{nodes}")), nodes, arguments)?;
            report.add("cluster", cluster.ingest(sending, &workload)?)?;
        }
    }
    report.finish()
}

/// A cluster with one router and without an agent, which is stopped when this value is dropped.
struct Cluster {
    binary: PathBuf,
    folder: PathBuf,
    /// Content of its `cluster.json`.
    description: Value,
}

impl Cluster {
    fn start(binary: &Path, folder: PathBuf, nodes: usize, arguments: &Arguments) -> anyhow::Result<Self> {
        let mut cluster = Self { binary: binary.to_owned(), folder, description: Value::Null };
        let [first] = free_addresses();
        let base = first.rsplit(':').next().unwrap_or_default();
        let numbers = [nodes.to_string(), arguments.shards.to_string()];
        let [nodes, shards] = &numbers;
        let options = ["--nodes", nodes, "--shards", shards, "--routers", "1", "--base-port", base, "--no-agent"];
        let output = cluster.script("up", &options)?;
        if !output.status.success() {
            bail!("deploy/local/cluster up: {}", String::from_utf8_lossy(&output.stderr));
        }
        let description = fs::read(cluster.folder.join("cluster.json"))?;
        cluster.description = serde_json::from_slice(&description)?;
        Ok(cluster)
    }

    fn script(&self, command: &str, options: &[&str]) -> anyhow::Result<Output> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/local/cluster");
        let mut run = Command::new(&script);
        // The environment of this shell must not configure the measured processes.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VARVE_")) {
            run.env_remove(name);
        }
        run.args([command, "--dir"]).arg(&self.folder).args(options).env("VARVE_BINARY", &self.binary);
        run.output().with_context(|| script.display().to_string())
    }

    fn nodes(&self) -> &[Value] {
        self.description["nodes"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the CPU time that the nodes and the router have used, in seconds.
    fn cpu_s(&self) -> anyhow::Result<f64> {
        let processes = self.nodes().iter().chain(self.description["routers"].as_array().into_iter().flatten());
        processes.map(|process| cpu_s(&process["pid"].to_string())).sum()
    }

    /// Returns a metric, added up over the nodes.
    fn metric(&self, name_end: &str) -> anyhow::Result<f64> {
        self.nodes().iter().map(|node| Client::new().metric(address(&node["http"])?, name_end)).sum()
    }

    /// Sends the whole workload, and checks that it is stored.
    fn ingest(self, sending: Sending, workload: &Workload) -> anyhow::Result<Value> {
        let router = &self.description["routers"][0];
        let token = |role: &str| self.description["tokens"][role].as_str().unwrap_or_default();
        let idle_cpu_s = self.cpu_s()?;
        let sent = sending.send(address(&router["otlp_http"])?, token("push"), &workload.requests)?;
        let cpu_s = self.cpu_s()? - idle_cpu_s;
        let log_bytes = self.metric("log_entry_bytes_total")? / self.nodes().len() as f64;
        let syncs = self.metric("log_syncs_total")?;
        check_total(&Client::with_token(token("read")), address(&router["http"])?, workload)?;
        Ok(json!({
            "nodes": self.nodes().len(),
            "samples_per_s": rounded(workload.samples as f64 / sent.took_s),
            "ack_p50_ms": quantile(&sent.latencies_ms, 0.5),
            "ack_p99_ms": quantile(&sent.latencies_ms, 0.99),
            "refused": sent.refused,
            "cpu_s_per_million_samples_at_last_ack": rounded(cpu_s * 1e6 / workload.samples as f64),
            "log_entry_bytes_per_sample_and_node": rounded(log_bytes / workload.samples as f64),
            "log_syncs": syncs,
        }))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // An error is ignored: nothing can be done about it here.
        drop(self.script("down", &[]));
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Returns the address in a URL of `cluster.json`.
fn address(url: &Value) -> anyhow::Result<&str> {
    url.as_str().and_then(|url| url.strip_prefix("http://")).context("cluster.json lacks an address")
}
