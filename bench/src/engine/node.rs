//! Measurements of a node without a router: appends per second, restart after a crash, and disk use under lasting load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use node::{Config, Node, Retention};
use prometheus_client::registry::Registry;
use proto::placement::FIRST_DATA_SHARD;
use proto::{Batch, Shards as _};
use serde_json::json;
use testkit::batches::{batch, batch_of, long_name};

use crate::report::{Report, quantile, rounded};

/// Numbers of concurrent callers. Appends are measured once with each number.
const CALLERS: [i64; 3] = [1, 32, 256];
/// Number of samples in one append, as in one series of an agent's push.
const APPEND_SAMPLES: i64 = 100;
/// Distance between the first serial numbers of two callers. It is so large that no two callers use the same serial
/// number.
const CALLER_SERIALS: i64 = 10_000_000;
/// Interval at which figures are printed while disk use is measured.
const DISK_REPORT: Duration = Duration::from_secs(30);

/// Measures a node without a router: appends per second, restart after a crash, disk use under lasting load.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Duration of the appends with each number of callers, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Duration of the lasting load, in seconds; 0 skips the measurement of disk use
    #[arg(long, default_value_t = 0)]
    disk_seconds: u64,
    /// Folder on the measured disk in which the data directories are made; they are removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Also writes the figures to bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

/// Runs all measurements. Prints the figures of each measurement when it ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("varve-bench-")
        .tempdir_in(&arguments.folder)
        .with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let mut report = Report::start(None, folder.path(), arguments.save.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        appends(&folder.path().join("appends"), Duration::from_secs(arguments.seconds), &mut report).await?;
        restart(&folder.path().join("restart"), &mut report).await?;
        if arguments.disk_seconds > 0 {
            let duration = Duration::from_secs(arguments.disk_seconds);
            disk_use(&folder.path().join("disk"), duration, &mut report).await?;
        }
        anyhow::Ok(())
    })?;
    report.finish()
}

/// A node and its metrics.
struct Opened {
    node: Arc<Node>,
    registry: Registry,
}

impl Opened {
    async fn open(config: Config) -> anyhow::Result<Self> {
        let mut registry = Registry::default();
        let node = Node::open(config, &mut registry).await?;
        Ok(Self { node, registry })
    }

    /// Returns the value of a metric of the node. `name` is without the prefix `varve_node_`.
    fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        let start = format!("varve_node_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        Ok(value.with_context(|| format!("the node has no metric {name}"))?.parse()?)
    }
}

/// Returns a configuration with a retention of 100 years, so that the samples of [`testkit::batches`] do not expire.
fn config(data_dir: &Path) -> Config {
    let century = Duration::from_secs(100 * 365 * 86_400);
    let retention = Retention { raw: century, minutes: century, hours: century, days: century };
    Config::new(data_dir.to_owned(), retention, 100 << 30)
}

async fn append(node: &Node, batch: Batch) -> anyhow::Result<()> {
    node.append(FIRST_DATA_SHARD, 1, batch).await?;
    Ok(())
}

async fn appends(data_dir: &Path, duration: Duration, report: &mut Report) -> anyhow::Result<()> {
    let opened = Opened::open(config(data_dir)).await?;
    opened.node.ready().await;
    let mut serial = 0;
    for callers in CALLERS {
        let syncs = opened.metric("log_syncs_total")?;
        let entries = opened.metric("log_entries_total")?;
        let start = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                serial += CALLER_SERIALS;
                tokio::spawn(append_for(Arc::clone(&opened.node), serial, duration))
            })
            .collect();
        let mut latencies_ms = Vec::new();
        for task in tasks {
            latencies_ms.extend(task.await??);
        }
        let seconds = start.elapsed().as_secs_f64();
        latencies_ms.sort_unstable_by(f64::total_cmp);
        let syncs = opened.metric("log_syncs_total")? - syncs;
        let entries = opened.metric("log_entries_total")? - entries;
        let sync_s = opened.metric("log_sync_seconds_sum")? / opened.metric("log_sync_seconds_count")?;
        let figures = json!({
            "callers": callers,
            "samples_per_append": APPEND_SAMPLES,
            "appends_per_s": rounded(latencies_ms.len() as f64 / seconds),
            "p50_ms": quantile(&latencies_ms, 0.5),
            "p99_ms": quantile(&latencies_ms, 0.99),
            "max_ms": quantile(&latencies_ms, 1.0),
            "entries_per_sync": rounded(entries / syncs),
            "sync_mean_ms": rounded(sync_s * 1e3),
        });
        report.add("node_appends", figures)?;
    }
    opened.node.shutdown().await;
    Ok(())
}

/// Appends one batch after another for `duration`. The first sample has the serial number `first`. Returns the
/// latencies of the appends, in milliseconds.
async fn append_for(node: Arc<Node>, first: i64, duration: Duration) -> anyhow::Result<Vec<f64>> {
    let start = Instant::now();
    let mut latencies_ms = Vec::new();
    let mut serial = first;
    while start.elapsed() < duration {
        let batch = batch(Some(u128::try_from(serial)?), serial..serial + APPEND_SAMPLES);
        let sent = Instant::now();
        append(&node, batch).await?;
        latencies_ms.push(sent.elapsed().as_secs_f64() * 1e3);
        serial += APPEND_SAMPLES;
    }
    Ok(latencies_ms)
}

/// Measures the slowest restart after a crash, with as many unflushed bytes in the log as the configuration allows.
/// Instead of a crash, the data directory is copied while the node runs, and the copy is opened.
async fn restart(folder: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut config = config(&folder.join("data"));
    let flush_bytes = config.flush_bytes as f64;
    // Nothing may be flushed before the copy.
    config.flush_bytes = u64::MAX;
    config.head_bytes_max = usize::MAX;
    let opened = Opened::open(config).await?;
    opened.node.ready().await;
    let mut serial = 0;
    while opened.metric("log_entry_bytes_total")? < flush_bytes {
        append(&opened.node, batch(None, serial..serial + 5000)).await?;
        serial += 5000;
    }
    let copied = Command::new("cp").args(["-a", "data", "copy"]).current_dir(folder).status()?;
    ensure!(copied.success(), "cp: {copied}");
    let start = Instant::now();
    let restarted = Opened::open(self::config(&folder.join("copy"))).await?;
    let opened_s = start.elapsed().as_secs_f64();
    restarted.node.ready().await;
    let ready_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    restarted.node.shutdown().await;
    let figures = json!({
        "log_mib": rounded(flush_bytes / f64::from(1 << 20)),
        "samples": serial,
        "opened_s": rounded(opened_s),
        "ready_s": rounded(ready_s),
        "shutdown_s": rounded(start.elapsed().as_secs_f64()),
    });
    report.add("node_restart", figures)?;
    opened.node.shutdown().await;
    Ok(())
}

/// Measures the disk use of the log and the state under load.
async fn disk_use(data_dir: &Path, duration: Duration, report: &mut Report) -> anyhow::Result<()> {
    let opened = Opened::open(config(data_dir)).await?;
    opened.node.ready().await;
    let start = Instant::now();
    let mut next_report = DISK_REPORT;
    let mut serial = 0;
    while start.elapsed() < duration {
        // The two batches have about 0.5 MB, half of it new definitions.
        append(&opened.node, batch_of(None, serial..serial + 5, long_name)).await?;
        append(&opened.node, batch(None, serial + 5..serial + 35_000)).await?;
        serial += 35_000;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if start.elapsed() >= next_report {
            next_report += DISK_REPORT;
            let flushes = opened.metric("flush_seconds_count")?.max(1.0);
            let figures = json!({
                "seconds": start.elapsed().as_secs(),
                "logged_mib": rounded(opened.metric("log_entry_bytes_total")? / f64::from(1 << 20)),
                "raft_mib": used_mib(&data_dir.join("raft"))?,
                "shards_mib": used_mib(&data_dir.join("shard-0001"))?,
                "first_index": opened.metric("log_first_index")?,
                "flushed_index": opened.metric("flushed_index")?,
                "applied_index": opened.metric("applied_index")?,
                "flush_mean_s": rounded(opened.metric("flush_seconds_sum")? / flushes),
            });
            report.add("node_disk", figures)?;
        }
    }
    opened.node.shutdown().await;
    Ok(())
}

fn used_mib(folder: &Path) -> anyhow::Result<u64> {
    let output = Command::new("du").args(["-s", "--block-size=1M"]).arg(folder).output()?;
    let text = String::from_utf8(output.stdout)?;
    text.split_whitespace().next().context("du printed nothing")?.parse().context("du")
}
