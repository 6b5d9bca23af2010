//! Load generator and first benchmarks of the whole binary: starts `varve up`, sends it what the peers of
//! `peers_measured.md` were sent, and prints figures as JSON lines.
//!
//! # Does not
//! Link the router, the node or the storage engine: everything goes over the network, as a sender and a reader have it.
//! # Read in this order
//! [`generator`] (what is sent) → [`server`], [`client`] (to what, and how) → [`measure`] (what is looked at) → [`report`].

mod client;
mod generator;
mod measure;
mod report;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser;
use serde_json::json;

use self::generator::{Mix, Workload};
use self::report::Report;

/// All requests are made before the first is sent: 10 million samples are 1.4 GB of them.
const SAMPLES_MAX: u64 = 10_000_000;

/// Measures a varve: ingest with 1 client, in an open loop, and with 32 clients; restart after kill -9; queries.
#[derive(Debug, Parser)]
struct Arguments {
    /// The varve to measure [default: beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// H: 40 pods, 42,000 stacks. L: 24 pods, 1,150 stacks
    #[arg(long, value_enum, default_value_t = Mix::H)]
    mix: Mix,
    /// Samples of each ingest, rounded up to whole requests of 1,520 [default: 15 minutes of the mix]
    #[arg(long)]
    samples: Option<u64>,
    /// The same seed makes the same stacks, samples and order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the data directories, on the disk to measure; they are removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Also writes bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binary = binary(arguments)?;
    let samples = arguments.samples.unwrap_or_else(|| arguments.mix.samples());
    if !(1..=SAMPLES_MAX).contains(&samples) {
        bail!("--samples {samples}: it must be from 1 to {SAMPLES_MAX}");
    }
    let folder = tempfile::Builder::new()
        .prefix("varve-bench-")
        .tempdir_in(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let mut report = Report::start(&binary, folder.path(), arguments.save.as_deref())?;
    let workload = Workload::new(arguments.mix, arguments.seed, samples, generator::last_full_hour_ns());
    report.add("workload", workload.describe())?;

    let one =
        measure::ingest(&binary, &folder.path().join("1-client"), &workload, measure::Sending::Closed { clients: 1 })?;
    report.add("ingest", one.figures)?;
    report.add("restart", measure::restart_after_kill(one.server, &workload)?)?;

    let rate = measure::Sending::Open { requests_per_s: 100 };
    let open = measure::ingest(&binary, &folder.path().join("open-loop"), &workload, rate)?;
    report.add("ingest", open.stop_and_finish(&workload)?.0)?;

    let many = measure::Sending::Closed { clients: 32 };
    let many = measure::ingest(&binary, &folder.path().join("32-clients"), &workload, many)?;
    let (figures, mut server) = many.stop_and_finish(&workload)?;
    report.add("ingest", figures)?;
    let ready_ms = server.launch()?.as_secs_f64() * 1e3;
    report.add("restart", json!({"after": "SIGTERM", "ready_ms": report::rounded(ready_ms)}))?;
    for figures in measure::queries(&server, &workload)? {
        report.add("query", figures)?;
    }
    report.finish()
}

fn binary(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let path = match &arguments.binary {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("varve"),
    };
    path.canonicalize().with_context(|| format!("{}: build it (make build), or name one with --binary", path.display()))
}
