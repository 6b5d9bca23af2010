//! Test of the bytes that a member writes to its Raft log for each byte of its entries, while it keeps a window of
//! entries for members that lag.
//!
//! Strace sees all writes of a node. `VARVE_LOG_WINDOW_MIB` is the size of the window.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proto::placement::FIRST_DATA_SHARD;
use serde_json::json;
use testkit::random::Random;
use tests::cluster::{Cluster, Shape};
use tests::http;
use tests::load::service_of_each_shard;
use tests::payload::otlp::{Request, now_ns, stack};
use tests::program::signal;
use tests::report::{alone, figure, skipped};
use tests::shared::tool;

const SHARDS: u16 = 8;
/// The traced member. A log does not depend on the number of members, if there is more than one.
const NODE: usize = 1;
const NODES: usize = 2;
/// Size of the window in a run that does not name one, in MiB. It is the smallest for which [`AMPLIFICATION_MAX`]
/// holds: the size of the unflushed entries at which a node flushes.
const WINDOW_MIB: u64 = 64;
/// Part of the cap on disk use that the log may keep.
const KEPT_PART: u64 = 16;
/// Windows of entries that are pushed before the measurement, at least and at most, and between two checks if the
/// window of each shard is full.
const FILLED_MIN: f64 = 1.5;
const FILLED_MAX: f64 = 4.0;
const FILLED_STEP: f64 = 0.25;
/// Windows of entries that are pushed during the measurement, and the shortest time in which a whole window is pushed.
// A node that reclaims after each interval of ten seconds does so 13 times in this time. Even if it rewrites only
// half of the window each time, it exceeds AMPLIFICATION_MAX.
const MEASURED: f64 = 1.5;
const WINDOW_TIME: Duration = Duration::from_secs(90);
/// Largest number of bytes written for each byte of entries.
///
/// An entry is written to the write-ahead log, and with the memtable to a table. A reclaim writes the kept entries
/// again: the window and the unflushed entries, at most two windows. It waits until the purged entries take as much
/// space, which is until as many bytes were appended. If two reclaims are in the measured time of one and a half
/// windows, the second one thus writes at most these. Together they write three and a half windows, which is 2.4 times
/// the entries.
const AMPLIFICATION_MAX: f64 = 2.0 + 2.4;
/// Samples in a push, all in one window of raw samples. Their times and counts cannot be compressed.
const SAMPLES: usize = 200_000;
const RAW_WINDOW_NS: u64 = 600_000_000_000;
const DISTANCE_BITS: u32 = 21;
const COUNT_BITS: u32 = 36;

/// Name of the metric of the bytes of all logged entries.
const ENTRY_BYTES: &str = "varve_node_log_entry_bytes_total";

/// Strace of the writes of a process. It ends when this value is dropped.
struct Trace {
    strace: Child,
    folder: tempfile::TempDir,
}

impl Trace {
    fn attach(pid: i32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-q", "-y", "-s", "0", "-e", "trace=write,pwrite64", "-e", "signal=none"]);
        command.args(["-p", &pid.to_string(), "-o"]).arg(folder.path().join("trace"));
        let strace = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { strace, folder }
    }

    /// Returns the bytes that were written to the files of a folder, by the extension of the file.
    fn written(&self, folder: &Path) -> BTreeMap<String, u64> {
        let mut written = BTreeMap::new();
        let start = format!("<{}/", folder.display());
        let trace = fs::read_to_string(self.folder.path().join("trace")).unwrap();
        // A call that another thread interrupts has a second line, which has no path.
        for line in trace.lines() {
            let Some((_, call)) = line.split_once(&start) else { continue };
            let (file, rest) = call.split_once('>').unwrap();
            let bytes = rest.rsplit("..., ").next().unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
            let extension = Path::new(file).extension().map_or(file, |extension| extension.to_str().unwrap());
            *written.entry(extension.to_owned()).or_default() += bytes.parse::<u64>().unwrap();
        }
        written
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        signal(self.strace.id().cast_signed(), libc::SIGINT);
        self.strace.wait().unwrap();
    }
}

/// Returns the value of a metric of the traced node. `name` includes the labels.
fn metric(cluster: &Cluster, name: &str) -> f64 {
    let url = cluster.description()["nodes"][NODE - 1]["http"].as_str().unwrap().to_owned();
    let text = http::request("GET", &format!("{url}/metrics"), &[], None).unwrap().text();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap()
}

/// Pushes that cannot be compressed, to all shards in turn.
struct Filling<'a> {
    cluster: &'a Cluster,
    services: Vec<String>,
    random: Random,
    pushes: usize,
}

impl Filling<'_> {
    /// Pushes until the traced node has logged `end` bytes of entries, and at most `rate` of them in a second.
    fn fill(&mut self, end: f64, rate: f64) {
        let url = format!("{}/v1development/profiles", self.cluster.routers("otlp_http")[0]);
        let authorization = format!("Bearer {}", self.cluster.token("push"));
        let headers = [("content-type", "application/x-protobuf"), ("authorization", authorization.as_str())];
        let cluster = self.cluster;
        let logged = || metric(cluster, ENTRY_BYTES);
        let (filling, begin) = (Instant::now(), logged());
        while let bytes = logged()
            && bytes < end
        {
            let due = Duration::from_secs_f64((bytes - begin) / rate);
            std::thread::sleep(due.saturating_sub(filling.elapsed()));
            let body = self.next().bytes();
            let began = Instant::now();
            while let reply = http::request("POST", &url, &headers, Some(&body)).unwrap()
                && reply.status != 200
            {
                let may_retry = [429, 503].contains(&reply.status);
                assert!(may_retry && began.elapsed() < Duration::from_secs(60), "{}", reply.text());
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    /// Pushes until the window of every shard is full: its first entries were purged.
    fn fill_window(&mut self, window: f64) {
        let cluster = self.cluster;
        let first_index = |shard: u32| metric(cluster, &format!("varve_node_log_first_index{{shard=\"{shard}\"}}"));
        let is_full = || (FIRST_DATA_SHARD..).take(SHARDS.into()).all(|shard| first_index(shard) > 1.0);
        self.fill(FILLED_MIN * window, f64::INFINITY);
        while !is_full() {
            let bytes = metric(cluster, ENTRY_BYTES);
            assert!(bytes < FILLED_MAX * window, "the window is not full after {bytes} bytes");
            self.fill(bytes + FILLED_STEP * window, f64::INFINITY);
        }
    }

    fn next(&mut self) -> Request {
        let mut bits = |count: u32| self.random.next_u64() >> (64 - count);
        let age = self.pushes / self.services.len() + 1;
        let mut time_ns = (now_ns() / RAW_WINDOW_NS - age as u64) * RAW_WINDOW_NS;
        let times = (0..SAMPLES).map(|_| {
            time_ns += 1 + bits(DISTANCE_BITS);
            time_ns
        });
        let times: Vec<u64> = times.collect();
        let values = (0..SAMPLES).map(|_| 1 + bits(COUNT_BITS)).collect();
        let service = &self.services[self.pushes % self.services.len()];
        self.pushes += 1;
        let mut request = Request::new(service).seen(stack(&["leaf", "work", "main"]), times);
        request.samples[0].values = values;
        request
    }
}

#[test]
fn a_log_with_a_full_window_writes_each_byte_five_times_at_most() {
    let _alone = alone();
    if tool("strace").is_none() {
        skipped("a_log_with_a_full_window_writes_each_byte_five_times_at_most", "strace is not installed");
        return;
    }
    let window_mib = std::env::var("VARVE_LOG_WINDOW_MIB").map_or(WINDOW_MIB, |mib| mib.parse().unwrap());
    assert!(window_mib >= WINDOW_MIB, "unflushed entries are larger than a window of {window_mib} MiB");
    let window = (window_mib << 20) as f64;
    let environment = vec![("VARVE_DISK_MAX".to_owned(), format!("{}MiB", window_mib * KEPT_PART))];
    let shards = SHARDS.into();
    let cluster =
        Cluster::new(Shape { nodes: NODES, routers: 1, shards, is_proxied: false, binary: None, environment });
    cluster.launch();
    let raft = cluster.data_dir(NODE).join("raft");
    let services = service_of_each_shard(SHARDS);
    let mut filling = Filling { cluster: &cluster, services, random: Random::new(window_mib), pushes: 0 };
    let entries = || metric(&cluster, ENTRY_BYTES);
    let trace = Trace::attach(cluster.pid(NODE));
    let began = Instant::now();
    filling.fill_window(window);
    let (filled, before) = (entries(), trace.written(&raft));
    filling.fill(filled + MEASURED * window, window / WINDOW_TIME.as_secs_f64());
    let (ended, after) = (entries(), trace.written(&raft));
    let seconds = began.elapsed().as_secs();
    let part = |name: &str| after[name] - before.get(name).copied().unwrap_or_default();
    let total: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
    let entry_bytes = ended - filled;
    let amplification = total as f64 / entry_bytes;
    figure(&json!({"suite": "log_writes", "window_mib": window_mib, "shards": SHARDS, "seconds": seconds,
        "entry_mib": entry_bytes / f64::from(1 << 20), "wal_mib": part("log") >> 20, "table_mib": part("sst") >> 20,
        "written_mib": total >> 20, "amplification": amplification,
        "amplification_before": before.values().sum::<u64>() as f64 / filled, "written_bytes_by_kind": after}));
    // Every entry is written to the write-ahead log, whatever else is written.
    assert!(part("log") as f64 > 0.99 * entry_bytes, "the trace has {} of {entry_bytes} bytes", part("log"));
    assert!(amplification <= AMPLIFICATION_MAX, "each byte was written {amplification} times");
}
