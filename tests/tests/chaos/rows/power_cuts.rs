//! R2: power cuts of single nodes, and every fifth time of all nodes. A node goes on with what was on its disk.

use std::time::Duration;

use tests::program::{is_running, signal};

use crate::members::some_leader;
use crate::run::Run;

/// One cut in this number hits all nodes.
const ALL: usize = 5;

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(2));
        let choice = run.random.below(1 << 20);
        // At the smallest size, the last cut hits all nodes.
        let hits_all = fault % ALL == ALL - 1 || run.is_ci && fault + 1 == faults;
        let nodes = 1..=run.cluster.shape().nodes;
        let nodes: Vec<usize> = if hits_all { nodes.collect() } else { vec![some_leader(&run.cluster, choice)] };
        let pids: Vec<i32> = nodes.iter().map(|&node| run.cluster.pid(node)).collect();
        if pids.iter().all(|&pid| is_running(pid)) {
            run.faults += 1;
        }
        pids.iter().for_each(|&pid| signal(pid, libc::SIGSTOP));
        for &node in &nodes {
            run.disks.of_image(node).copy();
        }
        pids.iter().for_each(|&pid| signal(pid, libc::SIGKILL));
        while pids.iter().any(|&pid| is_running(pid)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for &node in &nodes {
            run.disks.of_image(node).restore_copy();
        }
        if hits_all {
            run.add("cuts_of_all", 1);
        } else {
            run.await_failover("a power cut");
        }
        nodes.iter().for_each(|&node| run.cluster.start(node));
        run.await_service("the restart after a power cut");
        nodes.iter().for_each(|&node| run.await_ready(node));
    }
}
