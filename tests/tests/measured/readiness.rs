//! Test of the time that a varve with a large store takes to become ready again after `kill -9`.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::load::bulk;
use tests::payload::otlp::{PERIOD_NS, now_ns};
use tests::report::{alone, figure};
use tests::server::Varve;

const SAMPLES: usize = 5_000_000;
const STACKS: usize = 100;
const PUSHES: usize = 50;

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
