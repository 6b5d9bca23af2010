//! R14: SIGSTOP of nodes. A leader that was stopped does not know that it was deposed, and must not serve stale reads.
//! The log keeps what a stopped member misses, so no member needs a snapshot.

use std::time::{Duration, Instant};

use tests::program::{signal, state};

use crate::members::chosen_leader;
use crate::run::Run;

/// First stop at other sizes than `ci`. It is shorter than the 15 minutes for which the log keeps entries.
const LONG: Duration = Duration::from_secs(600);

pub(super) fn inject(run: &mut Run, faults: usize) {
    for number in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        let choice = run.random.below(1 << 20);
        let wants_leader = run.random.chance(75);
        let leader = if wants_leader { chosen_leader(&run.cluster, choice) } else { None };
        let node = leader.unwrap_or(choice % run.cluster.shape().nodes + 1);
        let longest = if run.is_ci { 6 } else { 60 };
        let pause = Duration::from_millis(1000 + run.random.below(longest * 1000 - 1000) as u64);
        let pause = if number == 0 && !run.is_ci { LONG } else { pause };
        let pid = run.cluster.pid(node);
        let before = snapshots(run, node);
        let began = Instant::now();
        signal(pid, libc::SIGSTOP);
        // The other members elect new leaders, also while connections to the stopped process seem to work.
        run.await_failover("a stop of a node");
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
        if state(pid) == Some('T') {
            run.faults += 1;
            run.add("stops_of_leaders", u64::from(leader.is_some()));
        }
        signal(pid, libc::SIGCONT);
        run.await_service("a stopped node goes on");
        run.await_ready(node);
        let snapshots = snapshots(run, node) - before;
        run.add("snapshots", snapshots);
        if snapshots > 0 {
            run.violations.push(format!("node {node} needs {snapshots} snapshots after a stop of {pause:?}"));
        }
    }
}

/// Returns the number of snapshots that a node has installed since its first start.
fn snapshots(run: &Run, node: usize) -> u64 {
    run.cluster.log(node).matches("a snapshot replaces the state").count() as u64
}
