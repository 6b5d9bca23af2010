//! R10: the disk of one node is full, then those of a majority. With space again, appends resume by themselves.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::members::some_leader;
use crate::run::Run;

/// Longest time until pushes are refused because the disks of a majority are full.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        let choice = run.random.below(1 << 20);
        let nodes = run.cluster.shape().nodes;
        let node = some_leader(&run.cluster, choice);
        let is_majority = fault % 2 == 1;
        let full: Vec<usize> = if is_majority { vec![node, node % nodes + 1] } else { vec![node] };
        let ballast: Vec<PathBuf> = full.iter().map(|&node| run.disks.small(node).join("ballast")).collect();
        let before = run.workload.full_disks();
        let mut is_filled = ballast.iter().all(|path| fill(path));
        let began = Instant::now();
        if is_majority {
            while run.workload.full_disks() == before && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(50));
            }
            if run.workload.full_disks() == before {
                run.violations.push("no push was refused for lack of space".to_owned());
                is_filled = false;
            }
        } else {
            std::thread::sleep(Duration::from_secs(5));
        }
        if is_filled {
            run.faults += 1;
            run.add(if is_majority { "majority_full" } else { "one_full" }, 1);
        }
        ballast.iter().for_each(|path| fs::remove_file(path).unwrap());
        run.await_service("there is space again");
        full.iter().for_each(|&node| run.await_ready(node));
    }
    let refused = run.workload.full_disks();
    run.add("refused_for_space", refused);
}

/// Fills a file system to the last byte. Returns true if it is full.
fn fill(path: &std::path::Path) -> bool {
    let filled = Command::new("dd").args(["if=/dev/zero", "bs=64K"]).arg(format!("of={}", path.display())).output();
    let said = filled.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    said.contains("No space left")
}
