//! Measurement of the chart that the web UI shows first: series by pod in 15 s steps. The samples are read from memory
//! by one server, and from disk, where they are sealed, by another.
//!
//! Both servers get the same workload of 15 minutes. They are queried in turn with equal queries, so that other load on
//! the machine slows both alike. All responses must be equal.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::client::Client;
use super::sending::Sending;
use super::server::{Measured, Server};
use super::totals::seconds;
use crate::generator::{self, Mix, Workload};
use crate::report::{Report, quantile, rounded};

/// Kinds of queries, by the position of their step edges: on whole seconds, as in queries of the web UI and Grafana, on
/// tenths of a second, or anywhere. The number of each kind is the time, in nanoseconds, by which the window of a run
/// is earlier than the window of the run before. Windows differ so that no result comes from a cache.
const EDGES: [(&str, u64); 3] =
    [("whole seconds", 1_000_000_000), ("tenths of a second", 1_300_000_000), ("anywhere", 1_300_000_007)];

/// Measures a chart (series by pod in 15 s steps), of samples in memory and of sealed samples.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// varve binary to measure. If several are given, they are queried in turn [default: the one beside this program]
    #[arg(long)]
    binary: Vec<PathBuf>,
    /// Mix of recorded programs. H has 40 pods and 42,000 distinct stacks, L has 24 pods and 1,150 distinct stacks
    #[arg(long, value_enum, default_value_t = Mix::H)]
    mix: Mix,
    /// Number of queries of each kind to each server, not counting one warm-up query
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Seed of the random numbers. The same seed makes the same samples
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder in which the data directories are made; they are removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Also writes the figures to bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

/// A server that is measured, and a client for it.
struct Asked {
    binary: PathBuf,
    /// State of the server's samples: `memory` or `sealed`.
    state: &'static str,
    server: Server,
    client: Client,
}

/// Runs all measurements. Prints the figures of each measurement when it ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let named: Vec<Option<&Path>> = match arguments.binary.as_slice() {
        [] => vec![None],
        some => some.iter().map(|path| Some(path.as_path())).collect(),
    };
    let binaries = named.into_iter().map(crate::process::varve_binary).collect::<anyhow::Result<Vec<_>>>()?;
    let folder = tempfile::Builder::new()
        .prefix("varve-bench-")
        .tempdir_in(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let mut report = Report::start(binaries.first().map(PathBuf::as_path), folder.path(), arguments.save.as_deref())?;
    let workload =
        Workload::new(arguments.mix, arguments.seed, arguments.mix.samples(), generator::last_full_hour_ns())?;
    report.add("workload", workload.describe())?;
    let mut asked = Vec::new();
    for (number, binary) in binaries.iter().enumerate() {
        for state in ["memory", "sealed"] {
            let mut server =
                Server::prepare(Measured { binary, shards: 1 }, &folder.path().join(format!("{number}-{state}")))?;
            server.launch()?;
            Sending::Closed { clients: 4 }.send(&server.otlp, "", &workload.requests)?;
            if state == "sealed" {
                server.compact()?;
            }
            asked.push(Asked { binary: binary.clone(), state, server, client: Client::new() });
        }
    }
    for (edges, shift_ns) in EDGES {
        for figures in measure(&asked, &workload, arguments.runs, (edges, shift_ns))? {
            report.add("series by pod, 15 s steps", figures)?;
        }
    }
    report.finish()
}

/// Measures queries of one kind, which is an entry of [`EDGES`]. Returns the figures of each server.
fn measure(
    asked: &[Asked],
    workload: &Workload,
    runs: u64,
    (edges, shift_ns): (&str, u64),
) -> anyhow::Result<Vec<Value>> {
    let mut took_ms = vec![Vec::new(); asked.len()];
    let mut cpu_s = asked.iter().map(|asked| Ok(-asked.server.cpu_s()?)).collect::<anyhow::Result<Vec<f64>>>()?;
    for run in 0..=runs {
        // The largest shift is 259 s. Every window therefore has at least 10 of the 15 minutes with samples.
        let shift_ns = run % 200 * shift_ns;
        let mut first: Option<Vec<u8>> = None;
        for (asked, took_ms) in asked.iter().zip(&mut took_ms) {
            let (ms, answer) = ask(asked, workload, shift_ns)?;
            // The first query warms the caches, and its time is not counted.
            took_ms.extend((run > 0).then_some(ms));
            let data = serde_json::from_slice::<Value>(&answer)?["data"]["result"].to_string().into_bytes();
            let known = first.get_or_insert_with(|| data.clone());
            ensure!(*known == data, "{} in {} answers otherwise", asked.state, asked.binary.display());
        }
    }
    let mut figures = Vec::new();
    for ((asked, took_ms), cpu_s) in asked.iter().zip(&mut took_ms).zip(&mut cpu_s) {
        *cpu_s += asked.server.cpu_s()?;
        took_ms.sort_by(f64::total_cmp);
        figures.push(json!({
            "binary": asked.binary,
            "state": asked.state,
            "edges": edges,
            // The shortest time on a busy machine is closest to the times on a quiet machine.
            "min_ms": quantile(took_ms, 0.0),
            "p10_ms": quantile(took_ms, 0.1),
            "p50_ms": quantile(took_ms, 0.5),
            "p99_ms": quantile(took_ms, 0.99),
            "cpu_ms_mean": rounded(*cpu_s * 1e3 / (runs + 1) as f64),
            "runs": runs,
        }));
    }
    Ok(figures)
}

fn ask(asked: &Asked, workload: &Workload, shift_ns: u64) -> anyhow::Result<(f64, Vec<u8>)> {
    let [start, end] = [workload.start_ns, workload.end_ns].map(|time_ns| seconds(time_ns - shift_ns));
    let query = "sum by (k8s_pod_name) (rate(process_cpu[1m]))";
    let parameters = [("query", query), ("start", start.as_str()), ("end", end.as_str()), ("step", "15")];
    let began = Instant::now();
    let answer = asked.client.get(&asked.server.http, "/api/v1/query_range", &parameters)?;
    Ok((began.elapsed().as_secs_f64() * 1e3, answer))
}
