//! R1: `kill -9` of leaders, of random nodes, and sometimes of all nodes.

use std::time::Duration;

use tests::program::is_running;

use crate::members::chosen_leader;
use crate::run::Run;

/// Percentage of kills that hit all nodes, and of the others those that hit the leader of a random shard.
const ALL_PERCENT: usize = 10;
const LEADER_PERCENT: usize = 50;
/// Smallest percentage of the kills that are meant for leaders and hit one. The chosen shard may have no leader yet.
const HIT_PERCENT_MIN: u64 = 40;

pub(super) fn inject(run: &mut Run, faults: usize) {
    let longest = Duration::from_secs(if run.is_ci { 2 } else { 10 });
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        // At the smallest size, one kill hits all nodes, whatever the seed.
        let hits_all = run.random.chance(ALL_PERCENT) || run.is_ci && fault + 1 == faults;
        let nodes: Vec<usize> = if hits_all { (1..=run.cluster.shape().nodes).collect() } else { vec![victim(run)] };
        let pids: Vec<i32> = nodes.iter().map(|&node| run.cluster.pid(node)).collect();
        if pids.iter().all(|&pid| is_running(pid)) {
            run.faults += 1;
        }
        nodes.iter().for_each(|&node| run.cluster.kill(node));
        if hits_all {
            run.add("kills_of_all", 1);
        } else {
            run.await_failover("a kill");
        }
        run.sleep_below(longest);
        nodes.iter().for_each(|&node| run.cluster.start(node));
        run.await_service("the restart of killed nodes");
        nodes.iter().for_each(|&node| run.await_ready(node));
    }
    let (meant, hit) = (run.figure("kills_meant_for_leaders"), run.figure("kills_of_leaders"));
    if hit * 100 < meant * HIT_PERCENT_MIN {
        run.violations.push(format!("only {hit} of {meant} kills that were meant for leaders hit one"));
    }
}

/// Returns a random node, or the leader of a random shard if it has one.
fn victim(run: &mut Run) -> usize {
    let choice = run.random.below(1 << 20);
    if run.random.chance(LEADER_PERCENT) {
        run.add("kills_meant_for_leaders", 1);
        if let Some(leader) = chosen_leader(&run.cluster, choice) {
            run.add("kills_of_leaders", 1);
            return leader;
        }
    }
    choice % run.cluster.shape().nodes + 1
}
