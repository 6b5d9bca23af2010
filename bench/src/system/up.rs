//! Measurements of a running varve over the network: ingest with 1 client, in an open loop, and with 32 clients;
//! restart after SIGKILL and after SIGTERM; queries.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::history::history;
use super::ingest::ingest;
use super::query::queries;
use super::restart::restart_after_kill;
use super::sending::Sending;
use super::server::Measured;
use super::wide::wide;
use crate::generator::{self, Mix, Workload};
use crate::report::{self, Report};

/// Largest number of samples of an ingest. All requests are in memory before the first is sent, and 10 million samples
/// take 1.4 GB.
const SAMPLES_MAX: u64 = 10_000_000;

/// Measures a running varve: ingest (1 client, open loop, 32 clients), restart, queries.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// varve binary to measure [default: the one beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Samples to send
    #[arg(long, value_enum, default_value_t = Samples::H)]
    mix: Samples,
    /// Number of pods of mix W, at most 200,000
    #[arg(long, default_value_t = 20_000)]
    pods: usize,
    /// Number of shards of the measured varve
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// Number of samples of each ingest, rounded up to whole requests of 1,520 [default: 15 minutes of the mix]
    #[arg(long)]
    samples: Option<u64>,
    /// Seed of the random numbers. The same seed makes the same stacks, samples and order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also measures flame graphs of a month of history, over 1 h, 24 h and 29 d; takes 4 to 8 minutes more
    #[arg(long)]
    history: bool,
    /// Folder on the measured disk in which the data directories are made; they are removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Also writes the figures to bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

/// Mix of the samples to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
enum Samples {
    /// High: 40 pods of builds, benchmarks and compilers; 42,000 distinct stacks in 15 minutes.
    H,
    /// Low: 24 pods of small services; 1,150 distinct stacks in 15 minutes.
    L,
    /// Wide: 20,000 pods with 10 samples each per 10 s, for one minute. Has queries of its own, and no restart.
    W,
}

/// Runs all measurements. Prints the figures of each measurement when it ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binary = crate::process::varve_binary(arguments.binary.as_deref())?;
    let varve = Measured { binary: &binary, shards: arguments.shards };
    let mix = match arguments.mix {
        Samples::W => return run_wide(arguments, varve),
        Samples::H => Mix::H,
        Samples::L => Mix::L,
    };
    let samples = arguments.samples.unwrap_or_else(|| mix.samples());
    if !(1..=SAMPLES_MAX).contains(&samples) {
        bail!("--samples {samples}: it must be from 1 to {SAMPLES_MAX}");
    }
    let folder = arguments.new_folder()?;
    let mut report = Report::start(Some(&binary), folder.path(), arguments.save.as_deref())?;
    let workload = Workload::new(mix, arguments.seed, samples, generator::last_full_hour_ns())?;
    report.add("workload", workload.describe())?;

    let one = ingest(varve, &folder.path().join("1-client"), &workload, Sending::Closed { clients: 1 })?;
    report.add("ingest", one.figures)?;
    report.add("restart", restart_after_kill(one.server, &workload)?)?;

    let rate = Sending::Open { requests_per_s: 100 };
    let open = ingest(varve, &folder.path().join("open-loop"), &workload, rate)?;
    report.add("ingest", open.stop_and_finish(&workload)?.0)?;

    let many = Sending::Closed { clients: 32 };
    let many = ingest(varve, &folder.path().join("32-clients"), &workload, many)?;
    let (figures, mut server) = many.stop_and_finish(&workload)?;
    report.add("ingest", figures)?;
    let ready_ms = server.launch()?.as_secs_f64() * 1e3;
    report.add("restart", json!({"after": "SIGTERM", "ready_ms": report::rounded(ready_ms)}))?;
    for figures in queries(&server, &workload)? {
        report.add("query", figures)?;
    }
    drop(server);
    if arguments.history {
        let data_dir = folder.path().join("history");
        for figures in history(varve, &data_dir, mix, arguments.seed, generator::last_full_hour_ns())? {
            report.add("history", figures)?;
        }
    }
    report.finish()
}

/// Runs the measurements of mix W.
fn run_wide(arguments: &Arguments, varve: Measured<'_>) -> anyhow::Result<()> {
    let pods = arguments.pods;
    if !(1..=generator::WIDE_PODS_MAX).contains(&pods) {
        bail!("--pods {pods}: it must be from 1 to {}", generator::WIDE_PODS_MAX);
    }
    let folder = arguments.new_folder()?;
    let mut report = Report::start(Some(varve.binary), folder.path(), arguments.save.as_deref())?;
    let workload = Workload::wide(pods, arguments.seed, generator::last_full_hour_ns())?;
    report.add("workload", workload.describe())?;
    wide(varve, folder.path(), &workload, &mut report)?;
    report.finish()
}

impl Arguments {
    /// Makes the folder for the data directories.
    fn new_folder(&self) -> anyhow::Result<tempfile::TempDir> {
        let folder = tempfile::Builder::new().prefix("varve-bench-").tempdir_in(&self.folder);
        folder.with_context(|| format!("--folder {}", self.folder.display()))
    }
}
