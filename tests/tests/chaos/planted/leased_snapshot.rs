//! A member that receives a snapshot stops for a while. Meanwhile the others write more than their logs keep for it.
//!
//! The log after a snapshot that is being read is kept nevertheless. If it were purged, the member would need another
//! snapshot, and on a slow disk one after another for ever.
//!
//! The other members are the sender, which has the lease, and a follower. The follower has the same limits on its log,
//! so its purge shows that a purge is due.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::random::Random;
use tests::cluster::{Cluster, members};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::program::signal;
use tests::report::{alone, figure};

use super::{push, shape_of, with_fault};
use crate::run::Planted;

const SHARD: u32 = 1;
/// The node whose disk is replaced.
const RECEIVER: usize = 3;
/// Cap on the disk use of a node. The log keeps a sixteenth of it.
const DISK_MAX: (&str, &str) = ("VARVE_DISK_MAX", "256MiB");
/// Pushes that are larger together than the part of the log that is kept. Each has a window of raw samples of its own.
const PUSHES: u64 = 8;
const SAMPLES: usize = 400_000;
const WINDOW_NS: u64 = 600_000_000_000;
/// Longest stop of the receiver. A snapshot is kept for a minute after it was last read.
const STOP_MAX: Duration = Duration::from_secs(50);
/// Time in which a log is purged after a flush.
const PURGE: Duration = Duration::from_secs(3);
/// Longest time until a snapshot ends that nobody reads: a minute and five seconds, on a busy machine.
const LEASE_END_MAX: Duration = Duration::from_secs(100);
/// Number of attempts. A new leader would send another snapshot, whatever the first one kept.
const ATTEMPTS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST_INDEX: &str = "varve_node_log_first_index{shard=\"1\"}";

/// A cluster with one data shard.
struct Written {
    cluster: Cluster,
    random: Random,
    /// Number of pushes so far.
    pushes: u64,
}

impl Written {
    /// Pushes random samples, which cannot be compressed, and flushes them on these nodes, which then purge their logs.
    fn write(&mut self, nodes: &[usize]) {
        for _ in 0..PUSHES {
            self.pushes += 1;
            let request = random_samples(&mut self.random, (now_ns() / WINDOW_NS - self.pushes) * WINDOW_NS);
            wait("a push is refused", || push(&self.cluster, 0, &request) == 200);
        }
        for &node in nodes {
            let _report = members::compact(&self.cluster, node, SHARD).unwrap();
        }
    }

    /// Index of the first entry in the log of a node.
    fn first_index(&self, node: usize) -> f64 {
        self.cluster.metric(node, FIRST_INDEX)
    }

    /// Starts the receiver with an empty disk, which the cluster accepts, and stops it while it receives files.
    fn stop_receiver_of_files(&self) {
        let cluster = &self.cluster;
        cluster.kill(RECEIVER);
        fs::remove_dir_all(cluster.data_dir(RECEIVER)).unwrap();
        cluster.start(RECEIVER);
        wait("the node does not say what to do", || {
            cluster.log(RECEIVER).contains("run `varve admin cluster accept --node 3")
        });
        assert_eq!(cluster.admin(&["accept", "--node", "3"])["changed"], true);
        let files = cluster.data_dir(RECEIVER).join(format!("shard-{SHARD:04}/staging/files"));
        wait("no snapshot is received", || fs::read_dir(&files).is_ok_and(|mut files| files.next().is_some()));
        signal(cluster.pid(RECEIVER), libc::SIGSTOP);
        let log = cluster.log(RECEIVER);
        assert!(!log.contains("a snapshot replaces the state"), "the transfer was over before the stop");
    }

    /// Snapshots that the other nodes have sent: the sender, and the position.
    fn sent(&self) -> BTreeSet<(usize, u64)> {
        let mut sent = BTreeSet::new();
        for node in (1..=3).filter(|&node| node != RECEIVER) {
            let log = self.cluster.log(node);
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let fields = lines.map(|line| line["fields"].clone());
            let leases = fields.filter(|fields| fields["message"] == "lease" && fields["shard"] == SHARD);
            sent.extend(leases.filter_map(|fields| Some((node, fields["index"].as_u64()?))));
        }
        sent
    }

    /// Waits until a purge of the sender's log up to `end` is due, and until it has come. With `is_kept`, it must not
    /// come.
    fn purge(&self, end: f64, sender: usize, is_kept: bool) {
        let follower = (1..=3).find(|&node| node != RECEIVER && node != sender).unwrap();
        wait("no purge is due", || self.first_index(follower) > end);
        if !is_kept {
            return wait("the log is kept", || self.first_index(sender) > end);
        }
        let began = Instant::now();
        while began.elapsed() < PURGE {
            let first = self.first_index(sender);
            assert!(first <= end, "the log begins at {first}, and the snapshot ends before {end}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Flushes until the lease of the sender has ended, and its log is purged.
    fn purge_after_lease(&self, end: f64, sender: usize) {
        let began = Instant::now();
        while self.first_index(sender) <= end {
            assert!(began.elapsed() < LEASE_END_MAX, "the log is still kept after {:?}", began.elapsed());
            let _report = members::compact(&self.cluster, sender, SHARD).unwrap();
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Returns a request with samples in a window of raw samples.
fn random_samples(random: &mut Random, start_ns: u64) -> Request {
    let mut time_ns = start_ns;
    let times = (0..SAMPLES).map(|_| {
        time_ns += 1 + random.next_u64() % (WINDOW_NS / SAMPLES as u64);
        time_ns
    });
    let mut request = Request::new("service").seen(stack(&["leaf", "main"]), times.collect());
    request.samples[0].values = (0..SAMPLES).map(|_| 1 + (random.next_u64() >> 28)).collect();
    request
}

/// Waits until something is so. `otherwise` is the message of a failure.
fn wait(otherwise: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{otherwise}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of snapshots that are sent until the receiver has its replica again. Returns `None` if the leader
/// changed meanwhile, or the snapshot may have ended.
fn attempt(planted: Option<&Planted>) -> Option<usize> {
    let mut shape = shape_of(planted, 1);
    shape.environment.push((DISK_MAX.0.to_owned(), DISK_MAX.1.to_owned()));
    let cluster = Cluster::new(shape);
    cluster.launch();
    let mut written = Written { cluster, random: Random::new(1), pushes: 0 };
    written.write(&[1, 2, 3]);
    wait("the logs keep everything", || (1..=3).all(|node| written.first_index(node) > 1.0));
    written.stop_receiver_of_files();
    let stopped = Instant::now();
    let leads = |written: &Written, sender: usize| members::leads(&written.cluster, sender, SHARD);
    let leased = match written.sent().into_iter().collect::<Vec<_>>()[..] {
        [(sender, index)] if leads(&written, sender) => Some((sender, index)),
        _ => None,
    };
    let Some((sender, index)) = leased else {
        signal(written.cluster.pid(RECEIVER), libc::SIGCONT);
        return None;
    };
    // The first entry after the snapshot.
    let end = (index + 1) as f64;
    assert!(written.first_index(sender) <= end, "the log does not reach back to its own snapshot");
    written.write(&[1, 2]);
    written.purge(end, sender, planted.is_none());
    let stopped = stopped.elapsed();
    signal(written.cluster.pid(RECEIVER), libc::SIGCONT);
    if stopped >= STOP_MAX || !leads(&written, sender) {
        return None;
    }
    wait("the member is not built again", || {
        written.cluster.readiness(RECEIVER).is_ok_and(|reply| reply.status == 200)
    });
    let sent = written.sent();
    if planted.is_none() {
        written.purge_after_lease(end, sender);
    }
    if !leads(&written, sender) {
        return None;
    }
    figure(&json!({"scenario": "leased_snapshot", "planted": planted.map(|planted| planted.fault),
        "snapshots": sent.len(), "stopped_seconds": stopped.as_secs_f64()}));
    Some(sent.len())
}

fn snapshots(planted: Option<&Planted>) -> usize {
    (0..ATTEMPTS).find_map(|_| attempt(planted)).expect("the leader changed in each attempt")
}

#[test]
fn a_member_that_stops_during_a_snapshot_needs_no_other_one() {
    let _alone = alone();
    assert_eq!(snapshots(None), 1);
}

#[test]
fn a_purge_that_ignores_a_leased_snapshot_is_detected() {
    let _alone = alone();
    let Some(planted) = with_fault("purge-leased") else { return };
    let snapshots = snapshots(Some(&planted));
    assert!(snapshots > 1, "{snapshots} snapshots");
}
