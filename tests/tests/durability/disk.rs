//! Disk use of a node. With a full disk, pushes are refused and queries are served. Old data is dropped when its
//! retention is over, or when the cap on disk use is reached.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::alone;
use tests::server::{Setup, Varve};
use tests::small_disk::SmallDisk;

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Waits until `holds` returns true. Fails after `patience`.
fn eventually(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_full_disk_refuses_writes_answers_queries_and_recovers() {
    let test = "a_full_disk_refuses_writes_answers_queries_and_recovers";
    let _alone = alone();
    let Some(disk) = SmallDisk::mount(test, 320) else { return };
    let mut varve = Varve::start(Setup { data_dir: Some(disk.path().join("data")), ..Setup::default() });
    let selector = "sum_over_time(process_cpu{service_name=\"full\"}[1h])";
    let push = |varve: &Varve, n: u64| {
        let now = now_ns();
        let request = Request::new("full").seen(stack(&[&format!("f{n}"), "main"]), vec![now]);
        varve.push_otlp(&request.bytes(), Some(&format!("full-{n}")))
    };
    for n in 0..20 {
        assert_eq!(push(&varve, n).status, 200);
    }
    let ballast = disk.path().join("ballast");
    let mut accepted = 20;
    for cycle in 0..3_u64 {
        // Somebody else fills the disk to the last byte.
        let filled =
            Command::new("dd").args(["if=/dev/zero", "bs=1M"]).arg(format!("of={}", ballast.display())).output();
        assert!(!filled.unwrap().status.success(), "the disk took everything");
        eventually("writes are refused", Duration::from_secs(20), || {
            let reply = push(&varve, 1000 + cycle);
            if reply.status == 200 {
                return false;
            }
            assert!([429, 503].contains(&reply.status), "{} {}", reply.status, reply.text());
            assert!(reply.text().contains("disk is full"), "{}", reply.text());
            assert!(!reply.header("retry-after").is_empty());
            true
        });
        assert!(varve.is_running(), "{}", varve.said());
        let before = varve.total(selector, now_ns() as f64 / 1e9 + 1.0);
        assert!(before >= (accepted * PERIOD_NS) as f64, "reads go on: {before}");
        assert_eq!(varve.get("/ready", &[]).status, 200, "it answers reads, so it is ready");
        fs::remove_file(&ballast).unwrap();
        eventually("writes go on", Duration::from_secs(30), || push(&varve, 2000 + cycle).status == 200);
        // The refused push is sent again with its key. It counts once, even if the refused attempt was stored.
        assert_eq!(push(&varve, 1000 + cycle).status, 200);
        accepted += 2;
        let total = varve.total(selector, now_ns() as f64 / 1e9 + 1.0);
        assert_eq!(total, (accepted * PERIOD_NS) as f64, "cycle {cycle}");
    }
    assert!(varve.terminate().success(), "{}", varve.said());
    varve.launch();
    assert_eq!(varve.total(selector, now_ns() as f64 / 1e9 + 1.0), (accepted * PERIOD_NS) as f64);
    varve.kill();
}

/// Returns the sum of all stored values of a service.
fn total_ever(varve: &Varve, service: &str) -> f64 {
    let now_s = now_ns() as f64 / 1e9;
    varve.total(&format!("sum_over_time(process_cpu{{service_name=\"{service}\"}}[400d])"), now_s + 60.0)
}

fn push_at(varve: &Varve, service: &str, time_ns: u64, samples: u64) {
    let times: Vec<u64> = (0..samples).map(|i| time_ns + i * 1_000_000).collect();
    let reply = varve.push_otlp(&Request::new(service).seen(stack(&["f", "main"]), times).bytes(), None);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn data_past_the_retention_of_every_tier_is_dropped() {
    let mut varve = Varve::start(Setup::default().flags(&["--retention", "400d", "--retention-1m", "400d"]));
    let now = now_ns();
    let services = [("oldest", 300), ("old", 12), ("young", 1), ("now", 0)];
    let want = (100 * PERIOD_NS) as f64;
    for (service, days) in services {
        push_at(&varve, service, now - days * DAY_NS, 100);
        assert_eq!(total_ever(&varve, service), want, "{service}");
    }
    assert!(varve.terminate().success());
    let flags = ["--retention", "2d", "--retention-1m", "2d", "--retention-1h", "30d", "--retention-1d", "60d"];
    varve.setup.flags = flags.map(str::to_owned).to_vec();
    varve.launch();
    eventually("the oldest is dropped", Duration::from_secs(30), || total_ever(&varve, "oldest") == 0.0);
    // Of 12 days ago, only sums of hours are stored. A query of one second therefore has no result, and the response
    // reports the reason.
    let second = ((now - 12 * DAY_NS) / 1_000_000_000 + 1).to_string();
    let query = "sum_over_time(process_cpu:cpu:nanoseconds:cpu:nanoseconds{service_name=\"old\"}[1s])";
    eventually("the old samples are dropped", Duration::from_secs(30), || {
        let answer = varve.get("/api/v1/query", &[("query", query), ("time", &second)]).json();
        answer["warnings"].to_string().contains("only sums of hours are kept") && answer["data"]["result"] == json!([])
    });
    assert_eq!(services.map(|(service, _)| total_ever(&varve, service)), [0.0, want, want, want]);
    let body = Request::new("old").seen(stack(&["f"]), vec![now - 10 * DAY_NS]).bytes();
    let refused = varve.push_otlp(&body, None).refused_by_otlp_with(&[400]);
    assert!(refused.text().contains("--retention"), "{}", refused.text());
    varve.kill();
    varve.launch();
    assert_eq!(services.map(|(service, _)| total_ever(&varve, service)), [0.0, want, want, want]);
}

#[test]
fn above_the_cap_on_disk_use_the_oldest_data_is_dropped_first() {
    let _alone = alone();
    let flags = ["--disk-max", "512MiB", "--retention", "400d", "--retention-1m", "400d"];
    let mut varve = Varve::start(Setup::default().flags(&flags));
    let now = now_ns();
    // The oldest samples are in other partitions than the newest, in every tier.
    for (service, days) in [("oldest", 300), ("newest", 0)] {
        push_at(&varve, service, now - days * DAY_NS, 1000);
    }
    let want = (1000 * PERIOD_NS) as f64;
    assert_eq!((total_ever(&varve, "oldest"), total_ever(&varve, "newest")), (want, want));
    // The stop flushes all samples. Before that, they are in memory and take no disk space.
    assert!(varve.terminate().success());
    varve.launch();
    // All files in a shard's folder count, so a dummy file is used: real profiles of this size would take minutes to
    // push.
    let ballast = varve.data_dir().join("shard-0001/ballast");
    let filled = Command::new("fallocate").args(["-l", "600MiB"]).arg(&ballast).status().unwrap();
    assert!(filled.success());
    eventually("the oldest is dropped", Duration::from_secs(40), || total_ever(&varve, "oldest") == 0.0);
    assert_eq!(total_ever(&varve, "newest"), want, "what is being written to is kept");
    // No old data is left to drop: writes are refused, and the response has the reason.
    eventually("writes are refused", Duration::from_secs(40), || {
        let reply = varve.push_otlp(&Request::new("more").seen(stack(&["f"]), vec![now_ns()]).bytes(), None);
        assert!(reply.status == 200 || reply.text().contains("cap on disk use"), "{} {}", reply.status, reply.text());
        reply.status != 200
    });
    assert_eq!(total_ever(&varve, "newest"), want, "reads go on");
    fs::remove_file(&ballast).unwrap();
    eventually("writes go on", Duration::from_secs(40), || {
        varve.push_otlp(&Request::new("again").seen(stack(&["f"]), vec![now_ns()]).bytes(), None).status == 200
    });
    assert!(varve.terminate().success(), "{}", varve.said());
}

#[test]
fn a_cap_that_is_too_small_is_refused_with_the_minimum() {
    let mut varve = Varve::prepare(Setup::default().flags(&["--disk-max", "1MiB"]));
    let said = varve.try_launch().unwrap_err();
    assert!(said.contains("at least"), "{said}");
}
