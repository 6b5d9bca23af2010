//! Test of a damaged table file of the state, under load. The process keeps running, queries of undamaged times are
//! exact, and new samples are stored. Responses, metrics and `varve admin verify` name the damaged times.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::http::request;
use tests::load::{Behaviour, Load, visible};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::server::{Setup, Varve};
use tests::shared::varve_binary;

const MINUTE_NS: u64 = 60_000_000_000;
const HOUR_NS: u64 = 60 * MINUTE_NS;

/// Number of samples in each push.
const SAMPLES: u64 = 200;

/// Longest time for which a push is retried until it is acknowledged.
const PUSH_PATIENCE: Duration = Duration::from_secs(10);

/// Duration of the load on the damaged state.
const LOAD_TIME: Duration = Duration::from_secs(8);

/// Pushes samples with 40 different stacks. The times of the samples are in the five minutes from `from_ns` on.
fn push(varve: &Varve, service: &str, from_ns: u64) {
    let body = (0..40).fold(Request::new(service), |body, kind| {
        let frames: Vec<String> = (0..30).map(|depth| format!("{service}::function_{kind}_of_depth_{depth}")).collect();
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        let times = (0..SAMPLES).filter(|i| i % 40 == kind).map(|i| from_ns + i * 700_000_003 % (5 * MINUTE_NS));
        body.seen(stack(&frames), times.collect())
    });
    let body = body.bytes();
    // While the replica is closed for a repair, pushes are refused. Senders try again.
    let until = Instant::now() + PUSH_PATIENCE;
    while varve.push_otlp(&body, Some(service)).status != 200 {
        assert!(Instant::now() < until, "{service} is refused");
    }
}

/// Returns the number of a service's samples in the hour before `end_ns`, and the warnings of the response.
fn samples(varve: &Varve, service: &str, end_ns: u64) -> (u64, Vec<String>) {
    let query = format!("sum(sum_over_time(process_cpu{{service_name=\"{service}\"}}[1h]))");
    let time = (end_ns as f64 / 1e9).to_string();
    let response = varve.get("/api/v1/query", &[("query", &query), ("time", &time)]).expect(200).json();
    let value = response["data"]["result"][0]["value"][1].as_str().map_or(0.0, |value| value.parse().unwrap());
    ((value / PERIOD_NS as f64).round() as u64, warnings(&response))
}

fn warnings(response: &Value) -> Vec<String> {
    let warnings = response["warnings"].as_array().map_or(&[][..], Vec::as_slice);
    warnings.iter().map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

fn compact(varve: &Varve) {
    let url = format!("http://{}/api/v1/admin/compact", varve.http);
    assert_eq!(request("POST", &url, &[], Some(b"")).unwrap().status, 200);
}

/// Flips one bit in every 16 KiB of the middle third of the largest table file.
fn damage(varve: &Varve) {
    let files =
        std::fs::read_dir(varve.data_dir().join("shard-0001/state-1")).unwrap().map(|entry| entry.unwrap().path());
    let tables: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|name| name == "sst")).collect();
    let largest = tables.into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let third = bytes.len() / 3;
    assert!(third > 16 << 10, "{} bytes are too few for many blocks", bytes.len());
    (third..2 * third).step_by(16 << 10).for_each(|at| bytes[at] ^= 4);
    std::fs::write(&largest, bytes).unwrap();
}

/// Pushed samples of 18 hours. Each hour has its own service.
struct History {
    starts_ns: Vec<u64>,
}

impl History {
    fn push(varve: &Varve, now_ns: u64) -> Self {
        let starts_ns: Vec<u64> = (2..20).map(|hour| now_ns - hour * HOUR_NS).collect();
        for (i, start_ns) in starts_ns.iter().enumerate() {
            push(varve, &format!("s{i}"), start_ns + MINUTE_NS);
        }
        Self { starts_ns }
    }

    /// Queries each hour. Returns, for each hour, the number of samples and the warnings.
    fn query(&self, varve: &Varve) -> Vec<(u64, Vec<String>)> {
        let of_hour = |(i, start_ns): (usize, &u64)| samples(varve, &format!("s{i}"), start_ns + HOUR_NS);
        self.starts_ns.iter().enumerate().map(of_hour).collect()
    }

    /// Checks that every response without a warning is exact. Returns the number of hours whose response has a warning.
    fn damaged(&self, varve: &Varve) -> usize {
        let answers = self.query(varve);
        for (samples, warnings) in &answers {
            let is_reported = warnings.iter().any(|warning| warning.starts_with("damaged: from "));
            assert!(*samples == SAMPLES || *samples < SAMPLES && is_reported, "{answers:?}");
        }
        answers.iter().filter(|(_, warnings)| !warnings.is_empty()).count()
    }
}

#[test]
fn a_damaged_file_costs_only_the_times_that_it_held() {
    // The files of one shard are large enough for many blocks.
    let mut varve = Varve::start(Setup { shards: 1, ..Setup::default() });
    // The hours have the same places in their partitions of six hours, whatever the time of day.
    let now = now_ns() / (6 * HOUR_NS) * (6 * HOUR_NS);
    let history = History::push(&varve, now);
    compact(&varve);
    let before = history.query(&varve);
    assert!(before.iter().all(|hour| *hour == (SAMPLES, Vec::new())), "{before:?}");
    assert!(varve.terminate().success());
    damage(&varve);
    varve.launch();

    let load = Load::start(&varve, Behaviour { clients: 3, retries: true, pause: Duration::from_millis(5) });
    let until = Instant::now() + LOAD_TIME;
    let (mut damaged, mut pushed) = (0, 0);
    while Instant::now() < until {
        damaged = history.damaged(&varve);
        // The samples are in an hour whose definitions may be damaged.
        let start_ns = history.starts_ns[pushed % history.starts_ns.len()];
        push(&varve, &format!("late{pushed}"), start_ns + 30 * MINUTE_NS);
        pushed += 1;
        assert_eq!(varve.get("/ready", &[]).status, 200);
        assert!(varve.is_running());
    }
    assert!(0 < damaged && damaged < history.starts_ns.len(), "{damaged} hours are damaged");
    let acknowledged = load.acknowledged();
    assert!(acknowledged > 100, "{acknowledged} pushes");
    let run = load.run.clone();
    let outcomes = load.stop();
    assert!(outcomes.unknown.is_empty() && outcomes.refused.is_empty(), "{:?}", outcomes.refusals);
    let check_load = |varve: &Varve| {
        let visible = visible(varve, &run);
        assert_eq!(visible.len(), outcomes.acknowledged.len());
        assert!(visible.values().all(|sum| *sum == PERIOD_NS as f64), "{visible:?}");
    };
    check_load(&varve);
    let check_late = |varve: &Varve| {
        for i in 0..pushed {
            let end_ns = history.starts_ns[i % history.starts_ns.len()] + HOUR_NS;
            assert_eq!(samples(varve, &format!("late{i}"), end_ns).0, SAMPLES, "late{i} of {pushed}");
        }
    };
    check_late(&varve);

    // A flame graph of a damaged hour has a warning.
    let answers = history.query(&varve);
    let (i, start_ns) = (0..).zip(&history.starts_ns).find(|(i, _)| !answers[*i].1.is_empty()).unwrap();
    let window_s = (*start_ns as f64 / 1e9, (start_ns + HOUR_NS) as f64 / 1e9);
    let graph = varve.flamegraph(&format!("process_cpu{{service_name=\"s{i}\"}}"), window_s, "json", 1000);
    assert!(warnings(&graph.expect(200).json()).iter().any(|warning| warning.starts_with("damaged: ")));

    // The metrics count the damage.
    let metric = |name: &str| varve.metric(&varve.http, name).unwrap();
    assert!(metric("varve_node_quarantined_windows") > 0.0);
    assert!(metric("varve_node_damaged_reads_total") > 0.0);

    // `varve admin verify` fails, and names the damage.
    let endpoint = format!("http://{}", varve.http);
    let verify = Command::new(varve_binary()).args(["admin", "verify", "--endpoint", &endpoint]).output().unwrap();
    let printed = String::from_utf8_lossy(&verify.stdout).into_owned();
    assert!(!verify.status.success(), "{printed}");
    assert!(printed.contains("tier raw, tenant \"default\"") && printed.contains(".sst offset"), "{printed}");

    // The repaired state is sealed, compacted, and opened again.
    compact(&varve);
    assert_eq!(history.damaged(&varve), damaged);
    assert!(varve.terminate().success());
    varve.launch();
    check_load(&varve);
    check_late(&varve);
    assert_eq!(history.damaged(&varve), damaged);
}
