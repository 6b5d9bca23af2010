//! Test of a large shard whose member gets an empty disk under load.
//!
//! The member is built again by one snapshot. Kills of the sender and of the receiver in each phase only delay that. A
//! receiver that was killed goes on with the files that it has; another sender has other files.
//!
//! `VARVE_SNAPSHOT_MIB` is the size of the shard. Acknowledgements are timed with and without the transfer.

mod kills;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use testkit::random::Random;
use tests::client::Labels;
use tests::cluster::{Cluster, Shape, members};
use tests::http;
use tests::load::{Behaviour, Load, Outcomes, of_client};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::{alone, figure};
use tests::shared::varve_binary;

/// The data shard. Shard 0 is the meta group.
const SHARD: u32 = 1;
const FIRST_INDEX: &str = "varve_node_log_first_index{shard=\"1\"}";
/// The node whose disk is replaced.
const RECEIVER: usize = 3;
/// Size of the shard in a run that does not name one, in MiB. The transfer then takes a few seconds.
const MIB: u64 = 128;
/// Size from which on the transfer is long enough to time acknowledgements meanwhile, in MiB.
const TIMED_MIB: u64 = 2048;
/// Samples in a push. Each push has a window of raw samples of its own, of ten minutes.
const SAMPLES: usize = 500_000;
const WINDOW_NS: u64 = 600_000_000_000;
/// Bits of the random distance of two samples in nanoseconds: on average, the samples cover nine minutes.
const DISTANCE_BITS: u32 = 21;
/// Bits of the random count of a sample. Neither counts nor times can be compressed.
const COUNT_BITS: u32 = 36;
/// Largest relative error of a sum as a 64-bit float. One sample of a billion makes a difference of 1e-9.
const ERROR_MAX: f64 = 1e-12;

/// Oldest push, in windows before now. Samples are kept for 30 days.
const AGE_MAX: u64 = 29 * 144;
/// Clients of the load.
const CLIENTS: usize = 8;
/// Longest time of a transfer.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A cluster with one data shard.
struct Large {
    cluster: Cluster,
}

impl Large {
    fn shard_dir(&self, node: usize) -> PathBuf {
        self.cluster.data_dir(node).join(format!("shard-{SHARD:04}"))
    }

    /// Size of the state of a node, in MiB.
    fn state_mib(&self, node: usize) -> u64 {
        bytes_below(&self.shard_dir(node)) >> 20
    }

    /// Pushes samples with random times and counts until the state of every node has `mib` MiB. Returns the sum of the
    /// samples, in nanoseconds.
    fn fill(&self, mib: u64) -> u128 {
        let urls = self.cluster.routers("otlp_http");
        let authorization = format!("Bearer {}", self.cluster.token("push"));
        let headers = [("content-type", "application/x-protobuf"), ("authorization", authorization.as_str())];
        let mut random = Random::new(mib);
        let newest = now_ns() / WINDOW_NS - 1;
        let mut sum = 0;
        for push in 0.. {
            // A compaction at the end may make the state a little smaller.
            if push % 16 == 0 && (1..=3).all(|node| self.state_mib(node) >= mib + mib / 8) {
                break;
            }
            assert!(push < AGE_MAX, "there is no room for {mib} MiB in the time for which samples are kept");
            let (request, counted) = random_samples(&mut random, (newest - push) * WINDOW_NS);
            sum += u128::from(counted) * u128::from(PERIOD_NS);
            let body = request.bytes();
            let url = format!("{}/v1development/profiles", urls[push as usize % urls.len()]);
            let began = Instant::now();
            while let reply = http::request("POST", &url, &headers, Some(&body)).unwrap()
                && reply.status != 200
            {
                let may_retry = [429, 503].contains(&reply.status);
                assert!(may_retry && began.elapsed() < Duration::from_secs(60), "{}", reply.text());
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        sum
    }

    /// Waits until all nodes have flushed what was pushed, and purged the beginning of their logs. A member with an
    /// empty disk then needs a snapshot.
    fn wait_until_flushed(&self, mib: u64) {
        let began = Instant::now();
        let is_purged = |node| self.cluster.metric(node, FIRST_INDEX) > 1.0;
        while (1..=3).any(|node| self.state_mib(node) < mib || !is_purged(node)) {
            let sizes: Vec<u64> = (1..=3).map(|node| self.state_mib(node)).collect();
            assert!(began.elapsed() < Duration::from_secs(300), "not flushed and purged: {sizes:?} MiB");
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Kills the receiver and starts it with an empty disk, which the cluster accepts.
    fn replace_disk(&self) {
        const EMPTY: &str = "run `varve admin cluster accept --node 3";
        let before = self.messages(EMPTY);
        self.cluster.kill(RECEIVER);
        fs::remove_dir_all(self.cluster.data_dir(RECEIVER)).unwrap();
        self.cluster.start(RECEIVER);
        let began = Instant::now();
        while self.messages(EMPTY) == before {
            assert!(began.elapsed() < Duration::from_secs(30), "the node does not say what to do");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.cluster.admin(&["accept", "--node", "3"])["changed"], true);
    }

    /// Counts the messages of the receiver that contain a text.
    fn messages(&self, text: &str) -> usize {
        self.cluster.log(RECEIVER).matches(text).count()
    }

    /// Number of snapshots of the data shard that the receiver has installed.
    fn installed(&self) -> usize {
        let log = self.cluster.log(RECEIVER);
        let of_shard = format!("\"shard\":{SHARD},");
        log.lines().filter(|line| line.contains("a snapshot replaces the state") && line.contains(&of_shard)).count()
    }

    /// Waits until the receiver serves all its shards.
    fn wait_until_ready(&self) {
        let began = Instant::now();
        while !self.is_ready() {
            assert!(began.elapsed() < PATIENCE, "the member is not built again");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_ready(&self) -> bool {
        self.cluster.readiness(RECEIVER).is_ok_and(|reply| reply.status == 200)
    }

    /// Sums of the samples of 30 days at a router, by the value of a label.
    fn sums_by(&self, router: usize, label: &str, selector: &str) -> BTreeMap<String, f64> {
        let promql = format!("sum by ({label}) (sum_over_time(process_cpu{selector}[30d]))");
        let found = self.cluster.try_query(router, &promql, now_ns() as f64 / 1e9 + 1.0);
        let found = found.unwrap_or_else(|reply| panic!("{}: {}", reply.status, reply.text()));
        let of_label = |(mut labels, sum): (Labels, f64)| (labels.remove(label).unwrap(), sum);
        found.into_iter().map(of_label).collect()
    }

    /// Checks at both routers that every acknowledged sample counts once. `filled` is the sum of the samples of the
    /// fill, and `run` the label of the others.
    fn check_sums(&self, filled: u128, run: &str, outcomes: &Outcomes) {
        for router in 0..2 {
            let fill = self.sums_by(router, "service_name", "{service_name=\"fill\"}");
            let error = (fill["fill"] - filled as f64).abs() / filled as f64;
            assert!(error < ERROR_MAX, "router {router}: {fill:?} instead of {filled}");
            // All clients together may push more series than a query may have.
            let sums = |client| self.sums_by(router, "serial", &of_client(run, client));
            let visible: BTreeMap<_, _> = (0..CLIENTS).flat_map(sums).collect();
            assert_eq!(outcomes.violations(&visible), Vec::<String>::new(), "router {router}");
        }
    }
}

/// Returns a push with samples after a time, and the sum of their counts.
fn random_samples(random: &mut Random, start_ns: u64) -> (Request, u64) {
    let mut bits = |count: u32| random.next_u64() >> (64 - count);
    let mut time_ns = start_ns;
    let times = (0..SAMPLES).map(|_| {
        time_ns += 1 + bits(DISTANCE_BITS);
        time_ns
    });
    let times: Vec<u64> = times.collect();
    let values: Vec<u64> = (0..SAMPLES).map(|_| 1 + bits(COUNT_BITS)).collect();
    let sum = values.iter().sum();
    let mut request = Request::new("fill").seen(stack(&["leaf", "work", "main"]), times);
    request.samples[0].values = values;
    (request, sum)
}

/// Total size in bytes of all files below a folder. Files may vanish meanwhile.
fn bytes_below(folder: &PathBuf) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_vanished) => 0,
    });
    sizes.sum()
}

/// Writes a program that runs varve, whose nodes then listen on all addresses of the host, as on a host of a network.
/// Others cannot connect to the address at which such a node listens.
fn listening_everywhere(folder: &Path) -> PathBuf {
    let program = folder.join("varve");
    let varve = varve_binary();
    let everywhere = "s/--node-listen 127.0.0.1:/--node-listen 0.0.0.0:/";
    // No argument of a cluster contains a space.
    let script = format!("#!/bin/sh\nexec {} $(echo \"$*\" | sed '{everywhere}')\n", varve.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// The 99th percentile of the time to an acknowledgement, in milliseconds, of the pushes that began within a time.
fn ack_p99_ms(outcomes: &Outcomes, within: (SystemTime, SystemTime)) -> f64 {
    let began_within =
        outcomes.acknowledged_between.iter().filter(|(began, _)| within.0 <= *began && *began < within.1);
    let mut took: Vec<Duration> = began_within.filter_map(|(began, ended)| ended.duration_since(*began).ok()).collect();
    took.sort_unstable();
    assert!(took.len() > 100, "only {} pushes", took.len());
    took[took.len() * 99 / 100].as_secs_f64() * 1000.0
}

#[test]
fn an_empty_disk_is_filled_by_one_snapshot_through_kills_in_each_phase() {
    let _alone = alone();
    let mib = std::env::var("VARVE_SNAPSHOT_MIB").map_or(MIB, |mib| mib.parse().unwrap());
    // The cap leaves room for the profiles, but the log keeps a sixteenth of it, and cannot serve an empty disk.
    let disk_max = format!("{}MiB", 8 * mib);
    let folder = tempfile::tempdir().unwrap();
    let binary = Some(listening_everywhere(folder.path()));
    let environment = vec![("VARVE_DISK_MAX".to_owned(), disk_max)];
    let cluster = Cluster::new(Shape { nodes: 3, routers: 2, shards: 1, is_proxied: false, binary, environment });
    cluster.launch();
    let large = Large { cluster };
    let began = Instant::now();
    let filled = large.fill(mib);
    large.wait_until_flushed(mib);
    let fill_seconds = began.elapsed().as_secs();

    let urls = large.cluster.routers("otlp_http").iter().map(|url| format!("{url}/v1development/profiles")).collect();
    let behaviour = Behaviour { clients: CLIENTS, retries: true, pause: Duration::from_millis(20) };
    let load = Load::start_at(urls, Some(large.cluster.token("push")), behaviour);
    let quiet = SystemTime::now();
    std::thread::sleep(Duration::from_secs(20));

    // Once without kills: one snapshot, and the load hardly notices.
    let before = large.installed();
    let (quiet_end, killed) = (SystemTime::now(), Instant::now());
    large.replace_disk();
    let joining = SystemTime::now();
    large.wait_until_ready();
    let joined = SystemTime::now();
    assert_eq!(large.installed() - before, 1, "snapshots");
    let exposed_seconds = killed.elapsed().as_secs_f64();
    let transfer_seconds = joined.duration_since(joining).unwrap().as_secs_f64();
    let state_mib = large.state_mib(RECEIVER);
    assert!(state_mib >= mib, "the state has only {state_mib} MiB");

    let before = large.installed();
    let (kills, disks) = large.replace_disks_with_kills(state_mib << 20);
    let resumed = Instant::now();
    large.wait_until_ready();
    let installed = large.installed() - before;
    assert!((1..=3 * disks).contains(&installed), "{installed} snapshots for {disks} disks");

    // The new member and one other are a majority now, and the only copies of what they acknowledge.
    large.cluster.kill(1);
    let before = load.acknowledged();
    let began = Instant::now();
    while load.acknowledged() < before + 50 {
        assert!(began.elapsed() < Duration::from_secs(30), "no acknowledgements without node 1");
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = load.run.clone();
    let kills: Vec<String> = kills.iter().map(|(role, phase)| format!("{role:?}: {phase:?}")).collect();
    let outcomes = load.stop();
    let (quiet_ms, joining_ms) = (ack_p99_ms(&outcomes, (quiet, quiet_end)), ack_p99_ms(&outcomes, (joining, joined)));
    figure(&json!({"suite": "large_snapshot", "state_mib": state_mib, "fill_seconds": fill_seconds,
        "exposed_seconds": exposed_seconds, "mib_per_second": state_mib as f64 / transfer_seconds,
        "ack_p99_ms": quiet_ms, "ack_p99_ms_meanwhile": joining_ms, "kills": kills, "disks_with_kills": disks,
        "seconds_after_last_kill": resumed.elapsed().as_secs_f64(), "snapshots_with_kills": installed,
        "acknowledged": outcomes.acknowledged.len(), "unknown": outcomes.unknown.len()}));
    large.check_sums(filled, &run, &outcomes);
    if mib < TIMED_MIB {
        large.cluster.start(1);
        assert_eq!(members::compare(&large.cluster).1, Vec::<String>::new());
    } else {
        assert!(joining_ms <= 2.0 * quiet_ms, "p99 of acknowledgements: {joining_ms} ms, without it {quiet_ms} ms");
    }
}
