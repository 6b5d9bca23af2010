//! R11: one block cannot be read, and no majority is left without its replica. The block is quarantined and named, and
//! everything else goes on; after the other node is back, the replica is repaired.

use std::time::{Duration, Instant};

use serde_json::Value;
use tests::server::signal;

use crate::members::some_leader;
use crate::rows::damaged_files::{damage_a_block, is_damaged, verify};
use crate::run::{RECOVERY_MAX, Run};
use crate::strace::is_running;

/// Time for which the damage must stay, because it cannot be repaired.
const KEPT: Duration = Duration::from_secs(3);

pub(super) fn inject(run: &mut Run, faults: usize) {
    for _ in 0..faults {
        run.sleep_below(Duration::from_secs(2));
        let (node, path) = damage_a_block(run);
        run.await_failover("the stop of a node");
        let nodes = run.cluster.shape().nodes;
        let away = node % nodes + 1;
        // The node with the damage starts when it is needed for a majority.
        let pid = run.cluster.pid(away);
        signal(pid, libc::SIGKILL);
        while is_running(pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
        run.cluster.start(node);
        run.await_service("the restart with an unreadable block");
        verify(run, node, &path);
        let began = Instant::now();
        while began.elapsed() < KEPT {
            if !is_damaged(run, node) {
                run.violations.push(format!("node {node} does not name the unreadable block of {}", path.display()));
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let named = run.cluster.admin(&[]);
        let names = |replica: &Value| replica["damage"].as_str().is_some_and(|damage| !damage.is_empty());
        let replicas = named["nodes"][node - 1]["replicas"].as_array();
        if !replicas.is_some_and(|replicas| replicas.iter().any(names)) {
            run.violations.push(format!("varve admin cluster names no damage: {named}"));
        }
        // Reads are served by the member without damage.
        let choice = run.random.below(1 << 20);
        let leader = some_leader(&run.cluster, choice);
        run.add("leaders_without_damage", u64::from(leader != node));
        run.await_service("an unreadable block");
        run.cluster.start(away);
        let began = Instant::now();
        while is_damaged(run, node) || !run.cluster.readiness(node).is_ok_and(|reply| reply.status == 200) {
            if began.elapsed() > RECOVERY_MAX {
                run.violations.push(format!("node {node} is not repaired after {RECOVERY_MAX:?}"));
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        run.faults += 1;
        run.await_ready(away);
        run.await_service("the repair of a block");
    }
}
