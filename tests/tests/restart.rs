//! Ends and starts: how fast a large store is ready again, what a clean stop keeps, who may hold a data directory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use serde_json::json;
use tests::load::{Behaviour, Load, bulk, visible};
use tests::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::{alone, figure};
use tests::server::{Processes, Setup, Varve};

const SAMPLES: usize = 5_000_000;
const STACKS: usize = 100;
const PUSHES: usize = 50;

#[test]
fn five_million_samples_are_ready_within_a_second_after_kill_9_and_the_first_answer_is_exact() {
    let _alone = alone();
    let mut varve = Varve::up();
    let times_per_push = SAMPLES / STACKS / PUSHES;
    let newest = now_ns();
    let began = Instant::now();
    for push in 0..PUSHES {
        // Ten minutes back, so that several windows are sealed and the last one is not.
        let first = newest - 600_000_000_000 + push as u64 * 12_000_000_000;
        let times: Vec<u64> = (0..times_per_push as u64).map(|i| first + i * 11_000_003).collect();
        let reply = varve.push_otlp(&bulk(&format!("bulk-{}", push % 5), STACKS, &times), None);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let pushing_s = began.elapsed().as_secs_f64();
    varve.kill();
    let ready = varve.launch();
    let at_s = newest as f64 / 1e9 + 60.0;
    let asked = Instant::now();
    let total = varve.total("sum(sum_over_time(process_cpu{service_name=~\"bulk-.*\"}[1h]))", at_s);
    let answered = asked.elapsed();
    assert_eq!(total, SAMPLES as f64 * PERIOD_NS as f64, "{} samples are there", total / PERIOD_NS as f64);
    let graph =
        varve.flamegraph("process_cpu{service_name=\"bulk-0\"}", (at_s - 3600.0, at_s), "json", 1000).expect(200);
    assert_eq!(graph.json()["samples"].as_u64(), Some(SAMPLES as u64 / 5));
    figure(&json!({"suite": "restart", "samples": SAMPLES, "pushing_s": pushing_s, "ready_ms": ready.as_millis(),
        "first_answer_ms": answered.as_millis(), "peak_mib": varve.peak_mib()}));
    assert!(ready < Duration::from_secs(1), "ready only {ready:?} after it was started");
}

#[test]
fn sigterm_ends_with_0_under_load_and_keeps_everything() {
    let _alone = alone();
    let mut varve = Varve::up();
    let load = Load::start(&varve, Behaviour { clients: 4, retries: false, pause: Duration::from_millis(5) });
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    let status = varve.terminate();
    let took = began.elapsed();
    let run = load.run.clone();
    let outcomes = load.stop();
    assert_eq!(status.code(), Some(0), "{}", varve.said());
    assert!(took < Duration::from_secs(15), "it took {took:?} to end");
    assert!(outcomes.acknowledged.len() > 50, "{} were acknowledged", outcomes.acknowledged.len());
    varve.launch();
    assert_eq!(outcomes.violations(&visible(&varve, &run)), Vec::<String>::new());
}

#[test]
fn a_second_varve_on_the_same_data_is_refused_and_the_first_goes_on() {
    let mut varve = Varve::up();
    let mut second = Varve::prepare(Setup { data_dir: Some(varve.data_dir()), ..Setup::default() });
    let said = second.try_launch().unwrap_err();
    assert!(
        said.contains("is held by another process") && said.contains(&format!("process {}", varve.pid())),
        "{said}"
    );
    assert!(said.contains("--data-dir"), "{said}");
    assert!(varve.is_running());
    assert_eq!(varve.push_otlp(&Request::new("first").seen(stack(&["f"]), vec![now_ns()]).bytes(), None).status, 200);
}

#[test]
fn a_data_directory_of_another_format_is_refused_by_name_and_left_alone() {
    let mut varve = Varve::up();
    assert!(varve.terminate().success());
    let file = varve.data_dir().join("FORMAT");
    std::fs::write(&file, "999\n").unwrap();
    let said = varve.try_launch().unwrap_err();
    assert!(said.contains("999") && said.contains(varve.data_dir().to_str().unwrap()), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "999\n");
}

#[test]
fn a_write_that_was_acknowledged_is_seen_by_the_next_query() {
    let varve = Varve::up();
    for i in 1..=50_u64 {
        let now = now_ns();
        assert_eq!(varve.push_otlp(&Request::new("next").seen(stack(&["f"]), vec![now]).bytes(), None).status, 200);
        let total = varve.total("sum_over_time(process_cpu{service_name=\"next\"}[1h])", now as f64 / 1e9 + 1.0);
        assert_eq!(total, (i * PERIOD_NS) as f64);
    }
}

#[test]
fn queries_by_name_are_right_after_the_node_behind_a_router_started_again() {
    let _alone = alone();
    let mut varve = Varve::start(Setup { processes: Processes::Three, ..Setup::default() });
    let push = |varve: &Varve, functions: &[&str]| {
        let body = Request::new("named").seen(stack(functions), vec![now_ns()]).bytes();
        let began = Instant::now();
        // The router finds out that its connection is gone.
        while varve.push_otlp(&body, None).status != 200 {
            assert!(began.elapsed() < Duration::from_secs(30), "nothing is taken");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    push(&varve, &["hot", "main"]);
    push(&varve, &["cold", "main"]);
    let sum = |varve: &Varve, condition: &str| {
        let selector = format!("process_cpu{{service_name=\"named\",{condition}}}");
        varve.total(&format!("sum(sum_over_time({selector}[1h]))"), now_ns() as f64 / 1e9 + 1.0) as u64 / PERIOD_NS
    };
    let sums = |varve: &Varve| {
        ["stack_function=\"hot\"", "leaf_function!=\"hot\"", "stack_function=\"main\""].map(|one| sum(varve, one))
    };
    assert_eq!(sums(&varve), [1, 1, 2]);
    varve.kill_first();
    varve.start_first();
    // Other locations come first now, so the numbers that the router knows mean others.
    push(&varve, &["new", "newer", "main"]);
    push(&varve, &["hot", "new"]);
    assert_eq!(sums(&varve), [2, 2, 3]);
    let metrics = varve.get("/metrics", &[]).expect(200).text();
    assert!(metrics.contains("varve_router_names_let_go_total{reason=\"renumbered\"} 1"), "{metrics}");
    assert!(metrics.contains("varve_router_names_bytes "), "{metrics}");
}
