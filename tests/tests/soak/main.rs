//! Test of one minute of load, or ten with `VARVE_SOAK=1`. The Raft log is the only write-ahead log, and it is purged
//! up to the last flush.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::load::{Behaviour, Load, bulk, visible};
use tests::payload::otlp::{PERIOD_NS, now_ns};
use tests::report::figure;
use tests::server::Varve;

/// Returns the total size in bytes of the files in a folder that have the extension `ending`.
fn bytes_of(folder: &Path, ending: &str) -> u64 {
    let entries = fs::read_dir(folder).unwrap().filter_map(Result::ok);
    let of_kind = entries.filter(|entry| entry.path().extension().is_some_and(|found| found == ending));
    of_kind.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum()
}

/// Waits until `holds` returns true. Fails after `patience`.
fn eventually(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Pushes a body until it is stored, as a sender does when the disk stalls. Returns the refusals before.
fn push(varve: &Varve, body: &[u8]) -> Vec<String> {
    let began = Instant::now();
    let mut refusals = Vec::new();
    loop {
        let reply = varve.push_otlp(body, None);
        if reply.status == 200 {
            return refusals;
        }
        refusals.push(format!("{} {}", reply.status, reply.rpc_status().message));
        let may_retry = [429, 503, 504].contains(&reply.status);
        assert!(may_retry && began.elapsed() < Duration::from_secs(60), "a push is not stored: {refusals:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn under_load_the_state_has_no_wal_and_the_log_is_purged() {
    let is_soak = std::env::var("VARVE_SOAK").is_ok_and(|value| value == "1");
    let duration = Duration::from_secs(if is_soak { 600 } else { 60 });
    let varve = Varve::up();
    let load = Load::start(&varve, Behaviour { clients: 2, retries: true, pause: Duration::from_millis(5) });
    let run = load.run.clone();
    let metric = |name: &str| varve.metric(&varve.http, name).unwrap_or_else(|| panic!("there is no metric {name}"));
    let began = Instant::now();
    let mut pushes = 0_u64;
    let mut refusals = Vec::new();
    let mut heads = 0.0_f64;
    let state = varve.data_dir().join("shard-0001/state-1");
    while began.elapsed() < duration {
        // Pushes are so large that the state is also flushed because of its size.
        let times: Vec<u64> = (0..500).map(|i| now_ns() - i * 1_000_003).collect();
        refusals.extend(push(&varve, &bulk("soak", 100, &times)));
        pushes += 1;
        heads = heads.max(metric("varve_node_head_memory_bytes"));
        assert_eq!(bytes_of(&state, "log"), 0, "the state database writes a WAL");
        std::thread::sleep(Duration::from_millis(200));
    }
    let outcomes = load.stop();
    // Waits for the next periodic flush, and for the purge of the log after it.
    eventually("everything is flushed", Duration::from_secs(90), || {
        metric("varve_node_flushed_index") >= metric("varve_node_applied_index")
    });
    eventually("the log is cut behind the flushed index", Duration::from_secs(30), || {
        metric("varve_node_log_first_index") > metric("varve_node_flushed_index") - 1.0
    });
    let first = metric("varve_node_log_first_index");
    let flushed = metric("varve_node_flushed_index");
    let dictionaries = metric("varve_node_dictionary_memory_bytes");
    assert!(dictionaries > 10_000.0 && heads > 1e6, "memory of dictionaries {dictionaries}, of heads at most {heads}");
    assert_eq!(bytes_of(&state, "log"), 0, "the state database has a WAL");
    assert!(first > 10.0 && flushed > 10.0, "first {first}, flushed {flushed}");
    assert_eq!(outcomes.violations(&visible(&varve, &run)), Vec::<String>::new());
    let total = varve.total("sum_over_time(process_cpu{service_name=\"soak\"}[1h])", now_ns() as f64 / 1e9 + 60.0);
    assert_eq!(total, (pushes * 50_000 * PERIOD_NS) as f64);
    let raft_mib = bytes_of(&varve.data_dir().join("raft"), "log") >> 20;
    figure(&json!({"suite": "log_and_disk", "seconds": began.elapsed().as_secs(), "samples": pushes * 50_000,
        "log_first_index": first, "flushed_index": flushed, "raft_log_mib": raft_mib, "peak_mib": varve.peak_mib(),
        "refusals": refusals}));
    assert!(raft_mib < 300, "the Raft log takes {raft_mib} MiB");
}
