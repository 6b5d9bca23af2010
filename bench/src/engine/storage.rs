//! Measurements of the storage engine. The batches come from some hours of a fleet. One thread removes known
//! definitions from each batch, and applies the batch.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use proto::{Batch, Command, Entry, Tier, limits};
use serde_json::{Value, json};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Outcome, Position, SectionBytes, Statistics};
use tempfile::TempDir;

use crate::generator::{BatchBuilder, Corpus, Days, Fleet, INTERVAL_NS, Mix, Plan, last_full_hour_ns};
use crate::process::CoreTime;
use crate::report::{Report, rounded};

const HOUR_NS: u64 = 3600 * 1_000_000_000;
const HOURS_MAX: u64 = 400 * 24;
/// Name of the file in the folder of a store that describes the content of the store.
const ABOUT: &str = "bench.json";
/// Memory budget of the engine's head (its unsealed samples) in bytes, as in `varve up`.
const HEAD_BYTES_MAX: usize = 64 << 20;
const CACHE_BYTES: usize = 128 << 20;

/// Options that determine the content of a store.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArguments {
    /// Mix of recorded programs. H has 40 pods of builds and compilers, L has 24 pods of small services
    #[arg(long, value_enum, default_value_t = Mix::H)]
    pub(crate) mix: Mix,
    /// Number of hosts, each with 8 pods [default: the hosts of the mix]
    #[arg(long)]
    pub(crate) hosts: Option<usize>,
    /// Plays only one of every N intervals of 5 s, so that months have as many samples as a day
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) every: u64,
    /// Adds no new stacks after the first 15 minutes of the fleet
    #[arg(long)]
    pub(crate) recurring: bool,
    /// Seed of the random numbers. The same seed makes the same samples
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Folder on the measured disk in which a temporary store is made
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,
    /// Also writes the figures to bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    pub(crate) save: Option<String>,
}

/// Measures the storage engine: bytes per sample, CPU time to apply batches, time of flushes.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Number of hours of samples; the last full hour is the newest
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// Makes the store in this new folder and keeps it, for bench select --store
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// A store, and a description of its content.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) engine: Engine,
    /// Start of the time that the samples cover: the times of all samples are in `(start_ns, end_ns]`.
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) samples: u64,
    /// Name of one of the services in the store.
    pub(crate) service: String,
    pub(crate) figures: Value,
    folder: PathBuf,
    /// Folder of a temporary store, which is removed when this value is dropped; `None` if the store is kept.
    _temporary: Option<TempDir>,
}

/// Time that each step took. This is CPU time of this thread. For flushes it is elapsed time, because RocksDB flushes
/// in its own threads.
#[derive(Debug, Default)]
struct Costs {
    generate: Duration,
    strip: Duration,
    apply: Duration,
    flushes: Vec<Duration>,
    /// Number of batches that the engine refused because definitions were missing.
    dangling: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut report = Report::start(None, &arguments.store.folder, arguments.store.save.as_deref())?;
    let store = Store::fill(&arguments.store, arguments.hours, arguments.keep.as_deref())?;
    report.add("storage", store.figures)?;
    report.finish()
}

impl Store {
    /// Stores this many hours of the fleet: in the folder `keep`, which must not exist yet, or else in a temporary
    /// folder.
    ///
    /// # Errors
    /// The corpora cannot be read, or the engine refuses a batch or fails.
    pub(crate) fn fill(arguments: &StoreArguments, hours: u64, keep: Option<&Path>) -> anyhow::Result<Self> {
        ensure!((1..=HOURS_MAX).contains(&hours), "--hours {hours}: it must be from 1 to {HOURS_MAX}");
        let mut corpus = Corpus::load(arguments.mix)?;
        if arguments.recurring {
            corpus.stop_growth();
        }
        let pods = arguments.hosts.map_or(arguments.mix.pods(), |hosts| hosts * crate::generator::HOST_PODS);
        ensure!((1..=100_000).contains(&pods), "--hosts: it must be from 1 to 12,500");
        let every = arguments.every;
        ensure!((1..=17_280).contains(&every), "--every {every}: it must be from 1 to 17,280, which is once a day");
        let end_ns = last_full_hour_ns();
        let start_ns = end_ns - hours * HOUR_NS;
        let intervals = hours * HOUR_NS / INTERVAL_NS;
        let plan = Plan { seed: arguments.seed, first_pod: 0, pods, start_ns, intervals, every, days: Days::Daily };
        let temporary = match keep {
            Some(folder) => {
                fs::create_dir(folder).with_context(|| format!("--keep {}", folder.display()))?;
                None
            }
            None => Some(temporary(&arguments.folder)?),
        };
        let folder = keep.or(temporary.as_ref().map(TempDir::path)).context("no folder")?.to_owned();
        let generator_rss_bytes = crate::process::peak_rss_bytes("self")?;
        let cpu_before_s = crate::process::cpu_s("self")?;
        let engine = open(&folder)?;
        let (samples, costs) = ingest(&engine, &corpus, plan)?;
        let uncompacted_bytes = directory_bytes(&folder)?;
        let began = Instant::now();
        engine.compact()?;
        let compact = began.elapsed();
        let disk_bytes = directory_bytes(&folder)?;
        let statistics = engine.statistics()?;
        let per_s = |time: Duration| rounded(samples as f64 / time.as_secs_f64());
        let flush: Duration = costs.flushes.iter().sum();
        let engine_cpu_s = crate::process::cpu_s("self")? - cpu_before_s - costs.generate.as_secs_f64();
        let figures = json!({
            "corpus": corpus.describe(),
            "seed": arguments.seed,
            "hours": hours,
            "every": every,
            "pods": pods,
            "samples": samples,
            "uncompacted_disk_bytes": uncompacted_bytes,
            "disk_bytes": disk_bytes,
            "bytes_per_sample": rounded(disk_bytes as f64 / samples as f64),
            "sections_bytes_per_sample": sections(&statistics, samples),
            "compact_ms": rounded(compact.as_secs_f64() * 1e3),
            "generate_samples_per_s_core": per_s(costs.generate),
            "strip_samples_per_s_core": per_s(costs.strip),
            "apply_samples_per_s_core": per_s(costs.apply),
            "flush_samples_per_s": per_s(flush),
            "cpu_s_per_million_samples_without_generator": rounded(engine_cpu_s * 1e6 / samples as f64),
            "dangling_batches": costs.dangling,
            "flushes": costs.flushes.len(),
            "flush_ms_mean": rounded(flush.as_secs_f64() * 1e3 / costs.flushes.len() as f64),
            "flush_ms_max": costs.flushes.iter().max().map(|time| rounded(time.as_secs_f64() * 1e3)),
            "dictionary_bytes_in_memory": engine.dictionary_bytes(),
            "peak_rss_bytes": crate::process::peak_rss_bytes("self")?,
            "peak_rss_bytes_of_generator": generator_rss_bytes,
        });
        let start_ns = start_ns.cast_signed();
        let end_ns = end_ns.cast_signed();
        let service = corpus.services[0].name.clone();
        let about = json!({"start_ns": start_ns, "end_ns": end_ns, "samples": samples, "service": service});
        fs::write(folder.join(ABOUT), about.to_string())?;
        Ok(Self { engine, start_ns, end_ns, samples, service, figures, folder, _temporary: temporary })
    }

    /// Opens a store that `bench storage --keep` wrote.
    ///
    /// # Errors
    /// The folder has no such store, or the engine cannot open it.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        let about = fs::read(folder.join(ABOUT)).with_context(|| format!("--store {}", folder.display()))?;
        let figures: Value = serde_json::from_slice(&about)?;
        let number = |name: &str| figures[name].as_i64().with_context(|| format!("{ABOUT} has no {name}"));
        Ok(Self {
            engine: open(folder)?,
            start_ns: number("start_ns")?,
            end_ns: number("end_ns")?,
            samples: number("samples")?.cast_unsigned(),
            service: figures["service"].as_str().unwrap_or_default().to_owned(),
            figures,
            folder: folder.to_owned(),
            _temporary: None,
        })
    }

    /// Closes the store and opens it again, so that the engine has none of the data in memory.
    pub(crate) fn reopen(self) -> anyhow::Result<Self> {
        let Self { engine, folder, .. } = self;
        // A directory can be open in only one engine at a time.
        drop(engine);
        Ok(Self { engine: open(&folder)?, folder, ..self })
    }
}

/// Returns the bytes of keys and values per ingested sample, by tier and section.
fn sections(statistics: &Statistics, samples: u64) -> Value {
    let section = |(&(tier, name), bytes): (&(Option<Tier>, &str), &SectionBytes)| {
        let name = format!("{} {name}", tier.map_or("", Tier::name));
        (name.trim().to_owned(), json!(rounded((bytes.key_bytes + bytes.value_bytes) as f64 / samples as f64)))
    };
    statistics.sections.iter().map(section).collect::<serde_json::Map<String, Value>>().into()
}

fn temporary(folder: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("varve-bench-").tempdir_in(folder);
    made.with_context(|| format!("--folder {}", folder.display()))
}

fn open(folder: &Path) -> anyhow::Result<Engine> {
    Ok(Engine::open(Config {
        directory: folder.join("store"),
        budgets: Budgets::new(BudgetSizes {
            engines: 1,
            head_bytes_max: HEAD_BYTES_MAX,
            dictionary_bytes_max: proto::limits::DICTIONARY_BYTES_MAX,
            cache_bytes: CACHE_BYTES,
        }),
        barrier: Default::default(),
    })?)
}

/// Ingests the samples of a plan. Each batch has only the definitions that are new to its partition. If the engine
/// reports missing definitions, the batch is applied again with all definitions. A leader does the same when its cache
/// was wrong.
fn ingest(engine: &Engine, corpus: &Corpus, plan: Plan) -> anyhow::Result<(u64, Costs)> {
    let mut builder = BatchBuilder::new(corpus);
    let mut costs = Costs::default();
    let mut samples = 0;
    let mut index = 0;
    let mut fleet = Fleet::new(corpus, plan);
    loop {
        let began = CoreTime::now()?;
        let Some(host) = fleet.next() else { break };
        let batch = builder.build_new(&host);
        costs.generate += began.elapsed()?;
        let now_ns = host.start_ns + INTERVAL_NS;
        index += 1;
        samples += batch.series.iter().map(|series| series.samples.len() as u64).sum::<u64>();
        let mut outcome = apply(engine, index, now_ns, batch, &mut costs)?;
        if outcome == Outcome::Dangling {
            costs.dangling += 1;
            index += 1;
            outcome = apply(engine, index, now_ns, builder.build(&host), &mut costs)?;
        }
        ensure!(outcome == Outcome::Applied, "entry {index} is {outcome:?}");
        if engine.wants_flush() {
            flush(engine, &mut costs)?;
        }
    }
    flush(engine, &mut costs)?;
    Ok((samples, costs))
}

fn apply(engine: &Engine, index: u64, now_ns: u64, mut batch: Batch, costs: &mut Costs) -> anyhow::Result<Outcome> {
    let began = CoreTime::now()?;
    engine.strip(&mut batch, limits::PARTITION_SERIES_MAX)?;
    costs.strip += began.elapsed()?;
    let entry = Entry { proposed_at_ns: now_ns.cast_signed(), command: Command::Append(Arc::new(batch)) };
    let began = CoreTime::now()?;
    let outcome = engine.apply(Position { index, log_id: Bytes::new() }, &entry)?;
    costs.apply += began.elapsed()?;
    Ok(outcome)
}

fn flush(engine: &Engine, costs: &mut Costs) -> anyhow::Result<()> {
    let began = Instant::now();
    engine.flush()?;
    costs.flushes.push(began.elapsed());
    Ok(())
}

/// Returns the total size of all files below a folder, in bytes. Unlike in `du -sb`, the folders themselves do not
/// count.
fn directory_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { directory_bytes(&entry.path())? } else { metadata.size() };
    }
    Ok(bytes)
}
