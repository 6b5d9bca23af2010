//! R21: the contents of all members of each shard are compared at one position of the log, again and again. Before each
//! comparison, a member is killed, or a leader changes, or one member of each shard is flushed and compacted.

use std::time::{Duration, Instant};

use tests::program::{is_running, signal};

use crate::members::{compact, comparison, leader, leads, shards};
use crate::run::Run;

/// Longest time until a shard has a leader.
const PATIENCE: Duration = Duration::from_secs(10);

/// A change of some members, which returns true if it had an effect.
type Change = fn(&mut Run) -> bool;

/// Changes after which the members are compared. The name counts the changes of a kind in the line of the row.
const CHANGES: [(&str, Change); 3] =
    [("kills", kill), ("changes_of_leaders", change_leader), ("flushes_of_one_member", flush_one_member)];

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(2));
        let (kind, change) = CHANGES[fault % CHANGES.len()];
        let has_effect = change(run);
        run.add(kind, u64::from(has_effect));
        (1..=run.cluster.shape().nodes).for_each(|node| run.await_ready(node));
        // Under load, three members are rarely at one position.
        run.workload.pause();
        let compared = comparison(&run.cluster);
        run.workload.resume();
        run.add("comparisons_of_all_members", compared.whole as u64);
        run.add("comparisons_of_some_members", compared.partial as u64);
        // Each fault must be followed by a comparison of all members of all shards.
        if has_effect && compared.whole == run.cluster.shape().shards {
            run.faults += 1;
        }
        run.violations.extend(compared.differences);
    }
    for (kind, _) in CHANGES.iter().take(faults) {
        if run.figure(kind) == 0 {
            run.violations.push(format!("there were no {kind}"));
        }
    }
}

fn kill(run: &mut Run) -> bool {
    let node = run.random.below(run.cluster.shape().nodes) + 1;
    let has_effect = is_running(run.cluster.pid(node));
    run.cluster.kill(node);
    run.await_failover("a kill");
    run.start_node(node);
    run.await_service("the restart of a killed node");
    has_effect
}

/// Stops the leader of a shard until another member leads it.
fn change_leader(run: &mut Run) -> bool {
    let all: Vec<u32> = shards(&run.cluster).collect();
    let shard = all[run.random.below(all.len())];
    let Some(old) = eventually(|| leader(&run.cluster, shard)) else { return false };
    let pid = run.cluster.pid(old);
    signal(pid, libc::SIGSTOP);
    run.await_failover("a stop of a leader");
    // A stopped process would not respond.
    let others = (1..=run.cluster.shape().nodes).filter(|&node| node != old);
    let new = eventually(|| others.clone().find(|&node| leads(&run.cluster, node, shard)));
    signal(pid, libc::SIGCONT);
    run.await_service("a stopped leader goes on");
    new.is_some()
}

/// Waits until there is a value; returns `None` if there is none for long.
fn eventually<T>(find: impl Fn() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = find();
        if found.is_some() || began.elapsed() > PATIENCE {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Flushes and compacts one member of each shard, so that members have different files.
fn flush_one_member(run: &mut Run) -> bool {
    let nodes = run.cluster.shape().nodes;
    let mut has_effect = true;
    for shard in shards(&run.cluster) {
        let node = run.random.below(nodes) + 1;
        if let Err(status) = compact(&run.cluster, node, shard) {
            run.violations.push(format!("shard {shard} of node {node} is not compacted: {status}"));
            has_effect = false;
        }
    }
    has_effect
}
