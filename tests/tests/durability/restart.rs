//! Tests of stops and starts: a clean stop keeps everything, and only one process can use a data directory.

use std::time::{Duration, Instant};

use tests::load::{Behaviour, Load, visible};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::alone;
use tests::server::{Processes, Setup, Varve};

#[test]
fn sigterm_under_load_exits_with_0_and_keeps_everything() {
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
fn a_data_directory_of_another_format_is_refused_unchanged() {
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
fn queries_by_name_are_right_after_a_restart_of_the_node() {
    let _alone = alone();
    let mut varve = Varve::start(Setup { processes: Processes::Three, ..Setup::default() });
    let push = |varve: &Varve, functions: &[&str]| {
        let body = Request::new("named").seen(stack(functions), vec![now_ns()]).bytes();
        let began = Instant::now();
        // After the restart, pushes fail until the router notices that its connection is gone.
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
    // The restarted node numbers other locations first. Location numbers that the router remembers now mean other
    // locations.
    push(&varve, &["new", "newer", "main"]);
    push(&varve, &["hot", "new"]);
    assert_eq!(sums(&varve), [2, 2, 3]);
    let metrics = varve.get("/metrics", &[]).expect(200).text();
    assert!(metrics.contains("varve_router_names_evicted_total{reason=\"renumbered\"} 1"), "{metrics}");
    assert!(metrics.contains("varve_router_names_bytes "), "{metrics}");
}
