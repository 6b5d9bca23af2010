//! Tests of the cost of nodes with the largest number of shards and no load.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::cluster::Cluster;
use tests::program::cpu_seconds;
use tests::report::{alone, figure};
use tests::server::{Setup, Varve};

const SHARDS: u16 = 64;
/// Time after which nothing is left to do from the start.
const SETTLED: Duration = Duration::from_secs(5);
const MEMORY_MIB_MAX: f64 = 300.0;
const CPU_PART_MAX: f64 = 0.05;
const NODES: usize = 3;
/// Number and length of the measurements without load. The ticks of the CPU time are 0.1 % of the length.
const MEASUREMENTS: usize = 4;
const MEASUREMENT: Duration = Duration::from_secs(10);
/// Largest part of a core that the heartbeats of all groups of a node take.
const HEARTBEATS_CPU_PART_MAX: f64 = 0.02;

#[test]
fn idle_shards_cost_little() {
    let _alone = alone();
    let mut varve = Varve::prepare(Setup { shards: SHARDS, ..Setup::default() });
    let ready = varve.launch();
    std::thread::sleep(SETTLED);
    let cpu_parts = &cpu_parts(&[varve.pid()])[0];
    let metric = |name: &str| varve.metric(&varve.http, name).unwrap();
    let memory_mib = metric("process_resident_memory_bytes") / f64::from(1 << 20);
    figure(&json!({"suite": "idle_shards", "shards": SHARDS, "ready_ms": ready.as_millis(), "memory_mib": memory_mib,
        "cpu_parts": cpu_parts, "open_files": metric("process_open_fds")}));
    assert!(memory_mib <= MEMORY_MIB_MAX, "{memory_mib} MiB");
    assert!(cpu_parts[0] <= CPU_PART_MAX, "{cpu_parts:?} of a core");
}

/// Measures processes several times. Returns for each process the parts of a core that it used, ascending. Other work
/// on the machine usually adds CPU time, so the smallest part is nearest to the process's own cost.
fn cpu_parts(pids: &[i32]) -> Vec<Vec<f64>> {
    let used_s = || -> Vec<f64> { pids.iter().map(|&pid| cpu_seconds(pid)).collect() };
    let mut cpu_parts = vec![Vec::new(); pids.len()];
    for _ in 0..MEASUREMENTS {
        let (began, before) = (Instant::now(), used_s());
        std::thread::sleep(MEASUREMENT);
        let (after, elapsed_s) = (used_s(), began.elapsed().as_secs_f64());
        for (process, cpu_parts) in cpu_parts.iter_mut().enumerate() {
            cpu_parts.push((after[process] - before[process]) / elapsed_s);
        }
    }
    cpu_parts.iter_mut().for_each(|cpu_parts| cpu_parts.sort_by(f64::total_cmp));
    cpu_parts
}

/// Starts a cluster without load, and measures its nodes.
fn cpu_parts_of_cluster(nodes: usize) -> Vec<Vec<f64>> {
    let cluster = Cluster::up(nodes, SHARDS.into());
    std::thread::sleep(SETTLED);
    let pids: Vec<i32> = (1..=nodes).map(|node| cluster.pid(node)).collect();
    cpu_parts(&pids)
}

#[test]
fn heartbeats_of_idle_groups_cost_little() {
    let _alone = alone();
    // A single member has the same upkeep, and sends no heartbeats.
    let single = cpu_parts_of_cluster(1);
    let cpu_parts = cpu_parts_of_cluster(NODES);
    // Each measurement has many heartbeats of every group.
    let heartbeats = cpu_parts.iter().fold(0.0, |most: f64, parts| most.max(parts[0])) - single[0][0];
    figure(&json!({"suite": "idle_groups", "nodes": NODES, "shards": SHARDS, "cpu_parts": cpu_parts,
        "cpu_parts_of_single_members": single[0], "cpu_part_of_heartbeats": heartbeats}));
    assert!(heartbeats <= HEARTBEATS_CPU_PART_MAX, "{heartbeats} of a core");
}
