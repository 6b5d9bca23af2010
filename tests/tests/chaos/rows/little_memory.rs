//! R6: little memory. A killed node starts again in as much memory as it had used. A node that the kernel kills because
//! it takes too much loses nothing.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::program::{is_running, memory_peak};

use crate::members;
use crate::run::{RECOVERY_MAX, Run};

/// Memory of the kernel for a node, which counts, too: page tables and structures of open files.
const KERNEL_BYTES: u64 = 16 << 20;

pub(super) fn inject(run: &mut Run, faults: usize) {
    let first = run.random.below(3);
    let mut largest_share: f64 = 0.0;
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(2));
        let node = (first + fault / 2) % run.cluster.shape().nodes + 1;
        if fault % 2 == 0 {
            largest_share = largest_share.max(restart(run, node));
        } else {
            exhaust(run, node);
        }
        run.await_service("a fault of memory");
    }
    run.figures.insert("restart_peak_share".to_owned(), json!((largest_share * 1e3).round() / 1e3));
}

/// Kills a node, and starts it in the memory that it had used at most. Returns the memory that it used at most after
/// the start, as a part of that before.
fn restart(run: &mut Run, node: usize) -> f64 {
    let used = memory_peak(run.cluster.pid(node));
    run.cluster.kill(node);
    run.await_failover("a kill");
    run.sleep_below(Duration::from_secs(2));
    let killed = run.memory[node - 1].kills();
    assert!(run.memory[node - 1].set(used + KERNEL_BYTES), "no process is left in the group");
    run.cluster.start(node);
    run.await_ready(node);
    run.await_service("a start in little memory");
    let pid = run.cluster.pid(node);
    if run.memory[node - 1].kills() > killed || !is_running(pid) {
        run.violations.push(format!("node {node} needs more than {used} bytes to start, which it had used before"));
        return f64::INFINITY;
    }
    let share = memory_peak(pid) as f64 / used as f64;
    run.memory[node - 1].lift();
    run.faults += 1;
    run.add("restarts", 1);
    share
}

/// Limits the memory of a node to what it uses, until the kernel kills the node. The node compacts meanwhile.
fn exhaust(run: &mut Run, node: usize) {
    let pid = run.cluster.pid(node);
    let killed = run.memory[node - 1].kills();
    let began = Instant::now();
    while is_running(pid) && began.elapsed() < RECOVERY_MAX {
        // The limit cannot be below what the node uses at that moment, and the kernel uses some for it.
        let mut bytes = run.memory[node - 1].used();
        while is_running(pid) && !run.memory[node - 1].set(bytes) {
            bytes += 256 << 10;
        }
        for shard in 1..=u32::try_from(run.cluster.shape().shards).unwrap() {
            // The node ends meanwhile.
            let _compacted = members::compact(&run.cluster, node, shard).is_ok();
        }
    }
    run.memory[node - 1].lift();
    if run.memory[node - 1].kills() == killed {
        run.violations.push(format!("node {node} is not killed, although it has no more memory"));
        return;
    }
    run.faults += 1;
    run.add("kills_for_lack_of_memory", 1);
    run.await_failover("a kill for lack of memory");
    run.start_node(node);
}
