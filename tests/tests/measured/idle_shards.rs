//! Tests of the cost of nodes with the largest number of shards and no load.

use std::time::Duration;

use serde_json::json;
use tests::cluster::Cluster;
use tests::program::cpu_seconds;
use tests::report::{alone, figure};
use tests::server::{Setup, Varve};

const SHARDS: u16 = 64;
/// Time after which nothing is left to do from the start.
const SETTLED: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);
const MEMORY_MIB_MAX: f64 = 300.0;
const CPU_PART_MAX: f64 = 0.05;
const NODES: usize = 3;
/// Largest part of a core that the heartbeats of all groups of a node take.
// It is the difference of two noisy figures: 0.8 to 1.9 % of a core in five runs.
const HEARTBEATS_CPU_PART_MAX: f64 = 0.03;

#[test]
fn idle_shards_cost_little() {
    let _alone = alone();
    let mut varve = Varve::prepare(Setup { shards: SHARDS, ..Setup::default() });
    let ready = varve.launch();
    std::thread::sleep(SETTLED);
    let metric = |name: &str| varve.metric(&varve.http, name).unwrap();
    let cpu_s = metric("process_cpu_seconds_total");
    std::thread::sleep(MEASURED);
    let cpu_part = (metric("process_cpu_seconds_total") - cpu_s) / MEASURED.as_secs_f64();
    let memory_mib = metric("process_resident_memory_bytes") / f64::from(1 << 20);
    figure(&json!({"suite": "idle_shards", "shards": SHARDS, "ready_ms": ready.as_millis(), "memory_mib": memory_mib,
        "cpu_part": cpu_part, "open_files": metric("process_open_fds")}));
    assert!(memory_mib <= MEMORY_MIB_MAX, "{memory_mib} MiB");
    assert!(cpu_part <= CPU_PART_MAX, "{cpu_part} of a core");
}

/// Starts a cluster without load. Returns the part of a core that each node uses.
fn idle_cpu_parts(nodes: usize) -> Vec<f64> {
    let cluster = Cluster::up(nodes, SHARDS.into());
    std::thread::sleep(SETTLED);
    let pids: Vec<i32> = (1..=nodes).map(|node| cluster.pid(node)).collect();
    let used_s: Vec<f64> = pids.iter().map(|&pid| cpu_seconds(pid)).collect();
    std::thread::sleep(MEASURED);
    pids.iter().zip(used_s).map(|(&pid, used_s)| (cpu_seconds(pid) - used_s) / MEASURED.as_secs_f64()).collect()
}

#[test]
fn heartbeats_of_idle_groups_cost_little() {
    let _alone = alone();
    // A single member has the same upkeep, and sends no heartbeats.
    let single = idle_cpu_parts(1)[0];
    let cpu_parts = idle_cpu_parts(NODES);
    let heartbeats = cpu_parts.iter().fold(0.0, |most: f64, part| most.max(*part)) - single;
    figure(&json!({"suite": "idle_groups", "nodes": NODES, "shards": SHARDS, "cpu_parts": cpu_parts,
        "cpu_part_of_single_members": single, "cpu_part_of_heartbeats": heartbeats}));
    assert!(heartbeats < HEARTBEATS_CPU_PART_MAX, "{heartbeats} of a core");
}
