//! Test of the time from a kill of a shard's leader to the first acknowledgement of the next leader.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::random::Random;
use tests::cluster::{Cluster, members};
use tests::http::request_within;
use tests::load::shard_of_service;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::{alone, figure};

const SHARDS: u16 = 8;
const SERVICE: &str = "failover";
/// Kills of one set, which has a cluster of its own.
const KILLS: usize = 20;
/// Pause of the client between two pushes, and between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest time until the cluster serves, or is whole, again. The test fails after it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Random time before each kill, in milliseconds. It is longer than the interval of heartbeats.
const PHASE_MS: usize = 500;
/// Longest time that the client waits for a response. Like a usual sender, it leaves it to the router to find the next
/// leader.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Longest median of a set, and longest time after any kill.
const P50_MAX_S: f64 = 1.0;
const MAX_S: f64 = 3.0;

/// A client that pushes one sample after another, and repeats each push until it is acknowledged.
struct Client<'a> {
    cluster: &'a Cluster,
    stop: AtomicBool,
    acknowledged: AtomicU64,
}

impl Client<'_> {
    /// Pushes until it is stopped. Returns the begin and the end of each acknowledged attempt.
    fn run(&self) -> Vec<(Instant, Instant)> {
        let urls = self.cluster.routers("otlp_http");
        let authorization = format!("Bearer {}", self.cluster.token("push"));
        let mut acknowledged = Vec::new();
        let mut attempts = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let body = Request::new(SERVICE).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
            let key = acknowledged.len().to_string();
            let headers = [
                ("content-type", "application/x-protobuf"),
                ("idempotency-key", &key),
                ("authorization", &authorization),
            ];
            loop {
                let url = format!("{}/v1development/profiles", urls[attempts % urls.len()]);
                attempts += 1;
                let began = Instant::now();
                let reply = request_within(ATTEMPT, "POST", &url, &headers, Some(&body));
                let ended = Instant::now();
                std::thread::sleep(PAUSE);
                if reply.is_ok_and(|reply| reply.status == 200) {
                    acknowledged.push((began, ended));
                    break;
                }
                if self.stop.load(Ordering::Relaxed) {
                    return acknowledged;
                }
            }
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        acknowledged
    }

    /// Waits for two more acknowledgements. One may be of a push that was in flight before.
    fn wait_for_acknowledgements(&self) {
        let began = Instant::now();
        let before = self.acknowledged.load(Ordering::Relaxed);
        while self.acknowledged.load(Ordering::Relaxed) < before + 2 {
            assert!(began.elapsed() < PATIENCE, "no acknowledgement");
            std::thread::sleep(PAUSE);
        }
    }
}

/// Stops a client when it is dropped, so that the client does not outlive a test that fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until every shard has a leader and two followers that lack nothing.
fn wait_until_whole(cluster: &Cluster) {
    let began = Instant::now();
    let is_whole = |shard: &Value| {
        let lag = shard["lag"].as_array().map_or(&[][..], Vec::as_slice);
        lag.len() == 2 && lag.iter().all(|follower| follower["entries"] == 0)
    };
    while !cluster.admin(&[])["shards"].as_array().unwrap().iter().all(is_whole) {
        assert!(began.elapsed() < PATIENCE, "a member does not catch up: {}", cluster.admin(&[]));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Kills the leader of the client's shard again and again. Returns the time before each kill, and that after it. `seed`
/// chooses the random times before the kills.
fn kill_leaders(client: &Client<'_>, seed: u64) -> Vec<(Instant, Instant)> {
    let cluster = client.cluster;
    let shard = shard_of_service(SERVICE, SHARDS);
    let mut random = Random::new(seed);
    let mut kill = || {
        client.wait_for_acknowledgements();
        std::thread::sleep(Duration::from_millis(random.below(PHASE_MS) as u64));
        let leader = members::leader(cluster, shard).unwrap();
        let killed = Instant::now();
        cluster.kill(leader);
        let dead = Instant::now();
        client.wait_for_acknowledgements();
        cluster.start(leader);
        cluster.wait_until_ready(leader);
        wait_until_whole(cluster);
        (killed, dead)
    };
    (0..KILLS).map(|_| kill()).collect()
}

/// Measures one set. Returns the times from a kill to the first acknowledgement of an attempt that began after it,
/// ascending.
fn failovers_s(seed: u64) -> Vec<f64> {
    let cluster = Cluster::up(3, SHARDS.into());
    let client = Client { cluster: &cluster, stop: AtomicBool::new(false), acknowledged: AtomicU64::new(0) };
    let (kills, acknowledged) = std::thread::scope(|scope| {
        let pushing = scope.spawn(|| client.run());
        let stop = Stop(&client.stop);
        let kills = kill_leaders(&client, seed);
        drop(stop);
        (kills, pushing.join().unwrap())
    });
    let promql = format!("sum(sum_over_time(process_cpu{{service_name=\"{SERVICE}\"}}[1h]))");
    let stored = cluster.try_query(0, &promql, now_ns() as f64 / 1e9 + 1.0).unwrap();
    assert_eq!(stored[0].1, (acknowledged.len() as u64 * PERIOD_NS) as f64, "each push counts once");
    let first_after = |(killed, dead): (Instant, Instant)| {
        let (_, ended) = acknowledged.iter().find(|(began, _)| *began >= dead).unwrap();
        ended.duration_since(killed).as_secs_f64()
    };
    let mut failovers_s: Vec<f64> = kills.into_iter().map(first_after).collect();
    failovers_s.sort_by(f64::total_cmp);
    failovers_s
}

#[test]
fn half_of_killed_leaders_are_replaced_in_1_s_and_all_in_3_s() {
    let _alone = alone();
    let mut sets = vec![failovers_s(1)];
    // Other load on the machine lasts for minutes and only adds time, while a slower product is slow in both sets. The
    // better median counts therefore, but no kill of either set may take too long.
    if sets[0][KILLS / 2] > P50_MAX_S {
        sets.push(failovers_s(2));
    }
    let p50_s = sets.iter().map(|set| set[KILLS / 2]).fold(f64::INFINITY, f64::min);
    let max_s = sets.iter().map(|set| set[KILLS - 1]).fold(0.0, f64::max);
    figure(&json!({"suite": "failover", "kills": KILLS, "p50_s": p50_s, "max_s": max_s, "failovers_s": sets}));
    assert!(p50_s <= P50_MAX_S && max_s <= MAX_S, "{p50_s} and {max_s} s");
}
