//! The storage engine by itself: hours of a fleet through strip and apply, in this process and on one thread.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use proto::{Batch, Command, Entry};
use serde_json::{Value, json};
use storage_engine::{Config, Engine, Outcome, Position};

use crate::generator::{BatchBuilder, Corpus, Days, Fleet, INTERVAL_NS, Mix, Plan, last_full_hour_ns};
use crate::report::{Report, rounded};

const HOUR_NS: u64 = 3600 * 1_000_000_000;
const HOURS_MAX: u64 = 400 * 24;
/// Those of `varve up`.
const HEAD_BYTES_MAX: usize = 64 << 20;
const CACHE_BYTES: usize = 256 << 20;

/// What is stored.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArguments {
    /// H: 40 pods of builds and compilers. L: 24 pods of small services
    #[arg(long, value_enum, default_value_t = Mix::H)]
    mix: Mix,
    /// Hosts of 8 pods [default: those of the mix]
    #[arg(long)]
    hosts: Option<usize>,
    /// The same seed makes the same samples
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the store, on the disk to measure; it is removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,
    /// Also writes bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    pub(crate) save: Option<String>,
}

/// Measures the storage engine: bytes, apply, flush.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Hours of the fleet, ending with the last full hour
    #[arg(long, default_value_t = 24)]
    hours: u64,
}

/// A store and what went into it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) engine: Engine,
    /// All samples are in `(start_ns, end_ns]`.
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) samples: u64,
    /// Name of a service that is in it.
    pub(crate) service: String,
    pub(crate) figures: Value,
    folder: tempfile::TempDir,
}

/// Time that went where.
#[derive(Debug, Default)]
struct Costs {
    generate: Duration,
    strip: Duration,
    apply: Duration,
    flushes: Vec<Duration>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut report = Report::start(None, &arguments.store.folder, arguments.store.save.as_deref())?;
    let store = Store::fill(&arguments.store, arguments.hours)?;
    report.add("storage", store.figures)?;
    report.finish()
}

impl Store {
    /// Stores this many hours of the fleet.
    ///
    /// # Errors
    /// The corpora cannot be read, or the engine refuses or fails.
    pub(crate) fn fill(arguments: &StoreArguments, hours: u64) -> anyhow::Result<Self> {
        ensure!((1..=HOURS_MAX).contains(&hours), "--hours {hours}: it must be from 1 to {HOURS_MAX}");
        let corpus = Corpus::load(arguments.mix)?;
        let pods = arguments.hosts.map_or(arguments.mix.pods(), |hosts| hosts * crate::generator::HOST_PODS);
        ensure!((1..=100_000).contains(&pods), "--hosts: it must be from 1 to 12,500");
        let end_ns = last_full_hour_ns();
        let start_ns = end_ns - hours * HOUR_NS;
        let intervals = hours * HOUR_NS / INTERVAL_NS;
        let plan = Plan { seed: arguments.seed, first_pod: 0, pods, start_ns, intervals, days: Days::Daily };
        let folder = tempfile::Builder::new()
            .prefix("varve-bench-")
            .tempdir_in(&arguments.folder)
            .with_context(|| format!("--folder {}", arguments.folder.display()))?;
        let engine = open(folder.path())?;
        let (samples, costs) = ingest(&engine, &corpus, plan)?;
        let disk_bytes = directory_bytes(folder.path())?;
        let per_s = |time: Duration| rounded(samples as f64 / time.as_secs_f64());
        let flush: Duration = costs.flushes.iter().sum();
        let figures = json!({
            "corpus": corpus.describe(),
            "seed": arguments.seed,
            "hours": hours,
            "pods": pods,
            "samples": samples,
            "disk_bytes": disk_bytes,
            "bytes_per_sample": rounded(disk_bytes as f64 / samples as f64),
            "generate_samples_per_s": per_s(costs.generate),
            "strip_samples_per_s": per_s(costs.strip),
            "apply_samples_per_s": per_s(costs.apply),
            "flush_samples_per_s": per_s(flush),
            "strip_apply_flush_samples_per_s": per_s(costs.strip + costs.apply + flush),
            "flushes": costs.flushes.len(),
            "flush_ms_mean": rounded(flush.as_secs_f64() * 1e3 / costs.flushes.len() as f64),
            "flush_ms_max": costs.flushes.iter().max().map(|time| rounded(time.as_secs_f64() * 1e3)),
            "dictionary_bytes_in_memory": engine.dictionary_bytes(),
            "peak_rss_bytes": crate::server::peak_rss_bytes("self")?,
        });
        let (start_ns, end_ns) = (start_ns.cast_signed(), end_ns.cast_signed());
        let service = corpus.services[0].name.clone();
        Ok(Self { engine, start_ns, end_ns, samples, service, figures, folder })
    }

    /// Opens it again, so that nothing of it is in the engine's memory.
    pub(crate) fn reopen(self) -> anyhow::Result<Self> {
        let Self { engine, folder, .. } = self;
        // Two engines cannot have one directory.
        drop(engine);
        Ok(Self { engine: open(folder.path())?, folder, ..self })
    }
}

fn open(folder: &Path) -> anyhow::Result<Engine> {
    Ok(Engine::open(Config {
        directory: folder.join("store"),
        head_bytes_max: HEAD_BYTES_MAX,
        dictionary_bytes_max: proto::limits::DICTIONARY_BYTES_MAX,
        cache_bytes: CACHE_BYTES,
    })?)
}

fn ingest(engine: &Engine, corpus: &Corpus, plan: Plan) -> anyhow::Result<(u64, Costs)> {
    let (builder, mut costs, mut samples) = (BatchBuilder::new(corpus), Costs::default(), 0);
    let mut fleet = Fleet::new(corpus, plan);
    for index in 1.. {
        let began = Instant::now();
        let Some(host) = fleet.next() else { break };
        let batch = builder.build(&host);
        costs.generate += began.elapsed();
        samples += apply(engine, index, host.start_ns + INTERVAL_NS, &batch, &mut costs)?;
        if engine.wants_flush() {
            flush(engine, &mut costs)?;
        }
    }
    flush(engine, &mut costs)?;
    Ok((samples, costs))
}

fn apply(engine: &Engine, index: u64, now_ns: u64, batch: &Batch, costs: &mut Costs) -> anyhow::Result<u64> {
    let began = Instant::now();
    let stripped = Arc::new(engine.strip(batch)?);
    costs.strip += began.elapsed();
    let samples: usize = stripped.series.iter().map(|series| series.samples.len()).sum();
    let entry = Entry { proposed_at_ns: now_ns.cast_signed(), command: Command::Append(stripped) };
    let began = Instant::now();
    let outcome = engine.apply(Position { index, log_id: Bytes::new() }, &entry)?;
    costs.apply += began.elapsed();
    ensure!(outcome == Outcome::Applied, "entry {index} is {outcome:?}");
    Ok(samples as u64)
}

fn flush(engine: &Engine, costs: &mut Costs) -> anyhow::Result<()> {
    let began = Instant::now();
    engine.flush()?;
    costs.flushes.push(began.elapsed());
    Ok(())
}

/// Length of all files below a folder: what `du -sb` counts, without the folders themselves.
fn directory_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { directory_bytes(&entry.path())? } else { metadata.size() };
    }
    Ok(bytes)
}
