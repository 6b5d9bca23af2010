//! Tests of the time that a varve with a large store takes to become ready again after `kill -9`.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::random::Random;
use tests::load::{bulk, service_of_each_shard};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::{alone, figure};
use tests::server::{Setup, Varve};

/// Starts with an empty data directory.
const NEW_STARTS: usize = 3;
const NEW_READY_MAX: Duration = Duration::from_millis(500);

const SAMPLES: usize = 5_000_000;
const STACKS: usize = 100;
const PUSHES: usize = 50;

const SHARDS: u16 = 16;
/// Samples of each of several shards, and the pushes that bring them.
const SHARD_SAMPLES: usize = 1_000_000;
const SHARD_PUSHES: usize = 10;
/// Largest distance of two samples of a stack. On average, a push covers half a minute.
const DISTANCE_NS: u64 = 60_000_000;
const SHARDS_READY_MAX: Duration = Duration::from_secs(5);
/// Smallest number of entries that a restart applies again: one push per shard on average, a tenth of all samples.
// The limit on samples in memory allows about twice as many.
const UNFLUSHED_MIN: f64 = SHARDS as f64;

#[test]
fn a_new_varve_is_ready_in_half_a_second() {
    let _alone = alone();
    // Other load on the machine only adds time.
    let ready = (0..NEW_STARTS).map(|_| Varve::prepare(Setup::default()).launch()).collect::<Vec<_>>();
    let ready_ms: Vec<u128> = ready.iter().map(Duration::as_millis).collect();
    figure(&json!({"suite": "new_start", "ready_ms": ready_ms}));
    assert!(ready.iter().min().is_some_and(|ready| *ready <= NEW_READY_MAX), "{ready:?}");
}

#[test]
fn five_million_samples_are_ready_within_a_second_after_kill_9() {
    let _alone = alone();
    let mut varve = Varve::up();
    let times_per_push = SAMPLES / STACKS / PUSHES;
    let newest = now_ns();
    let began = Instant::now();
    for push in 0..PUSHES {
        // The samples cover the last ten minutes. They are in two windows, of which the newest is not sealed.
        let first = newest - 600_000_000_000 + push as u64 * 12_000_000_000;
        let times: Vec<u64> = (0..times_per_push as u64).map(|i| first + i * 11_000_003).collect();
        let reply = varve.push_otlp(&bulk(&format!("bulk-{}", push % 5), STACKS, &times), None);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let pushing_s = began.elapsed().as_secs_f64();
    varve.kill();
    let ready = varve.launch();
    let at_s = newest as f64 / 1e9 + 60.0;
    let queried = Instant::now();
    let total = varve.total("sum(sum_over_time(process_cpu{service_name=~\"bulk-.*\"}[1h]))", at_s);
    let answered = queried.elapsed();
    assert_eq!(total, SAMPLES as f64 * PERIOD_NS as f64, "{} samples are there", total / PERIOD_NS as f64);
    let graph =
        varve.flamegraph("process_cpu{service_name=\"bulk-0\"}", (at_s - 3600.0, at_s), "json", 1000).expect(200);
    assert_eq!(graph.json()["samples"].as_u64(), Some(SAMPLES as u64 / 5));
    figure(&json!({"suite": "restart", "samples": SAMPLES, "pushing_s": pushing_s, "ready_ms": ready.as_millis(),
        "first_answer_ms": answered.as_millis(), "peak_mib": varve.peak_mib()}));
    assert!(ready < Duration::from_secs(1), "ready only {ready:?} after it was started");
}

/// Returns a push of one service. Its samples have random times, so that their entries in the log are large.
fn irregular(service: &str, random: &mut Random, start_ns: u64) -> Vec<u8> {
    let mut request = Request::new(service);
    for number in 0..STACKS {
        let mut time_ns = start_ns;
        let times = (0..SHARD_SAMPLES / STACKS / SHARD_PUSHES).map(|_| {
            time_ns += random.next_u64() % DISTANCE_NS;
            time_ns
        });
        let times = times.collect();
        request = request.seen(stack(&[&format!("leaf{number}"), "work", "main"]), times);
    }
    request.bytes()
}

#[test]
fn sixteen_shards_of_a_million_samples_are_ready_in_5_s_after_kill_9() {
    let _alone = alone();
    let mut varve = Varve::start(Setup { shards: SHARDS, ..Setup::default() });
    let services = service_of_each_shard(SHARDS);
    let mut random = Random::new(1);
    let newest = now_ns();
    let began = Instant::now();
    for push in 0..SHARD_PUSHES as u64 {
        // As above, the newest of two windows is not sealed.
        let start_ns = newest - 600_000_000_000 + push * 60_000_000_000;
        for service in &services {
            let body = irregular(service, &mut random, start_ns);
            let reply = varve.push_otlp_as("application/x-protobuf", &[], &body).unwrap();
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }
    let pushing_s = began.elapsed().as_secs_f64();
    let entry_mib = varve.metric(&varve.http, "varve_node_log_entry_bytes_total").unwrap() / f64::from(1 << 20);
    let by_shard = |name: &str| varve.metric_by_shard(&varve.http, name);
    let (applied, flushed) = (by_shard("varve_node_applied_index"), by_shard("varve_node_flushed_index"));
    assert_eq!(applied.values().filter(|&&index| index >= SHARD_PUSHES as f64).count(), services.len(), "{applied:?}");
    let unflushed_entries = applied.values().sum::<f64>() - flushed.values().sum::<f64>();
    // Otherwise, the restart would replay nothing.
    assert!(unflushed_entries >= UNFLUSHED_MIN, "only {unflushed_entries} entries are unflushed: {flushed:?}");
    varve.kill();
    let ready = varve.launch();
    let at_s = newest as f64 / 1e9 + 60.0;
    let queried = Instant::now();
    let sums = varve.query("sum by (service_name) (sum_over_time(process_cpu[1h]))", at_s);
    let answered = queried.elapsed();
    assert_eq!(sums.len(), services.len());
    for (labels, sum) in sums {
        assert_eq!(sum, SHARD_SAMPLES as f64 * PERIOD_NS as f64, "{labels:?}");
    }
    figure(&json!({"suite": "restart", "shards": SHARDS, "samples": SHARD_SAMPLES * usize::from(SHARDS),
        "pushing_s": pushing_s, "entry_mib": entry_mib, "unflushed_entries": unflushed_entries,
        "ready_ms": ready.as_millis(), "first_answer_ms": answered.as_millis(), "peak_mib": varve.peak_mib()}));
    assert!(ready <= SHARDS_READY_MAX, "ready only {ready:?} after it was started");
}
