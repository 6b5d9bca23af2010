//! Not tests but measurements: `cargo test --release -p node --test throughput -- --ignored --nocapture --test-threads=1`.
//! Each prints lines of JSON.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's helpers may"
)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{append, batch, batch_of, config, long_name, open_with};

const DURATION: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn appends_per_second() {
    let folder = tempfile::tempdir_in(std::env::var_os("VARVE_BENCH_DIR").unwrap_or_else(|| "/tmp".into())).unwrap();
    let opened = open_with(config(folder.path())).await;
    opened.node.ready().await;
    let mut serial = 0;
    for concurrent in [1, 32, 256] {
        let (syncs, entries) =
            (opened.metric("varve_node_log_syncs_total"), opened.metric("varve_node_log_entries_total"));
        let start = Instant::now();
        let tasks: Vec<_> = (0..concurrent)
            .map(|_| {
                serial += 10_000_000;
                let (node, first) = (Arc::clone(&opened.node), serial);
                tokio::spawn(async move {
                    let mut latencies = Vec::new();
                    for serial in (first..).step_by(100) {
                        // 100 samples: one series of an agent's push.
                        let batch = batch(Some(serial as u128), serial..serial + 100);
                        let sent = Instant::now();
                        append(&node, &batch).await.unwrap();
                        latencies.push(sent.elapsed());
                        if start.elapsed() >= DURATION {
                            break;
                        }
                    }
                    latencies
                })
            })
            .collect();
        let mut latencies = Vec::new();
        for task in tasks {
            latencies.extend(task.await.unwrap());
        }
        let seconds = start.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        let syncs = opened.metric("varve_node_log_syncs_total") - syncs;
        let entries = opened.metric("varve_node_log_entries_total") - entries;
        println!(
            "{{\"suite\":\"node_appends\",\"concurrent\":{concurrent},\"samples_per_append\":100,\"appends_per_s\":{:.0},\
             \"p50_ms\":{:.2},\"p99_ms\":{:.2},\"max_ms\":{:.2},\"entries_per_sync\":{:.1},\"sync_mean_ms\":{:.2}}}",
            latencies.len() as f64 / seconds,
            at(0.5),
            at(0.99),
            at(1.0),
            entries / syncs,
            1e3 * opened.metric("varve_node_log_sync_seconds_sum") / opened.metric("varve_node_log_sync_seconds_count"),
        );
    }
    opened.node.shutdown().await;
}

/// The worst restart: as much as may be unflushed is, and the process was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn ready_after_a_crash() {
    let folder = tempfile::tempdir_in(std::env::var_os("VARVE_BENCH_DIR").unwrap_or_else(|| "/tmp".into())).unwrap();
    let mut config = config(&folder.path().join("data"));
    let flush_bytes = config.flush_bytes as f64;
    // Only the test decides when it is enough.
    config.flush_bytes = u64::MAX;
    config.head_bytes_max = usize::MAX;
    let opened = open_with(config).await;
    opened.node.ready().await;
    let mut serial = 0;
    while opened.metric("varve_node_log_entry_bytes_total") < flush_bytes {
        append(&opened.node, &batch(None, serial..serial + 5000)).await.unwrap();
        serial += 5000;
    }
    let copied = std::process::Command::new("cp").args(["-a", "data", "copy"]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
    let start = Instant::now();
    let again = open_with(common::config(&folder.path().join("copy"))).await;
    let opened_after = start.elapsed().as_secs_f64();
    again.node.ready().await;
    let ready_after = start.elapsed().as_secs_f64();
    assert_eq!(common::count(&again.node).await.unwrap(), serial);
    println!(
        "{{\"suite\":\"node_restart\",\"log_mib\":{},\"samples\":{serial},\"opened_s\":{opened_after:.3},\"ready_s\":{ready_after:.3}}}",
        flush_bytes / f64::from(1 << 20),
    );
    let start = Instant::now();
    again.node.shutdown().await;
    println!("{{\"suite\":\"node_restart\",\"shutdown_s\":{:.3}}}", start.elapsed().as_secs_f64());
    opened.node.shutdown().await;
}

/// What the log and the state take under lasting load: VARVE_BENCH_SECONDS of it, 600 if that is not set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn disk_under_lasting_load() {
    let folder = tempfile::tempdir_in(std::env::var_os("VARVE_BENCH_DIR").unwrap_or_else(|| "/tmp".into())).unwrap();
    let seconds = std::env::var("VARVE_BENCH_SECONDS").map_or(600, |seconds| seconds.parse().unwrap());
    let opened = open_with(config(folder.path())).await;
    opened.node.ready().await;
    let (start, mut reported, mut serial) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        // Some 0.5 MB, half of it new definitions.
        append(&opened.node, &batch_of(None, serial..serial + 5, long_name)).await.unwrap();
        append(&opened.node, &batch(None, serial + 5..serial + 35_000)).await.unwrap();
        serial += 35_000;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if start.elapsed().as_secs() / 30 > reported {
            reported += 1;
            let metric = |name: &str| opened.metric(&format!("varve_node_{name}"));
            println!(
                "{{\"suite\":\"node_disk\",\"s\":{},\"logged_mib\":{:.0},\"raft_mib\":{},\"shards_mib\":{},\"first\":{},\"flushed\":{},\"applied\":{},\"flush_mean_s\":{:.2}}}",
                start.elapsed().as_secs(),
                metric("log_entry_bytes_total") / f64::from(1 << 20),
                common::used_bytes(&folder.path().join("raft")) >> 20,
                common::used_bytes(&folder.path().join("shard-0001")) >> 20,
                metric("log_first_index"),
                metric("flushed_index"),
                metric("applied_index"),
                metric("flush_seconds_sum") / metric("flush_seconds_count").max(1.0),
            );
        }
    }
    assert_eq!(opened.metric("varve_node_log_first_index"), opened.metric("varve_node_flushed_index") + 1.0);
    opened.node.shutdown().await;
}
