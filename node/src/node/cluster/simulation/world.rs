//! One simulation: a cluster begins, has faults, recovers from them, and is judged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic;
use std::sync::{Arc, Once};
use std::time::Duration;

use proto::meta::State;
use testkit::random::Random;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use crate::host::simulated::seed;
use crate::node::cluster::members;
use crate::node::cluster::simulation::Sim;
use crate::node::cluster::simulation::client::Client;
use crate::node::cluster::simulation::faults::Faults;
use crate::node::cluster::simulation::network::Carried;
use crate::node::cluster::simulation::oracle::Counts;
use crate::node::cluster::simulation::planted::Planted;
use crate::node::cluster::simulation::push::{Sample, shard_of};
use crate::node::cluster::simulation::state::Contents;

/// Longest time until a new cluster has its first placement.
const CREATION: Duration = Duration::from_secs(20);
/// Time with faults.
const FAULTS: Duration = Duration::from_secs(40);
/// Longest time after the faults until all groups have the wanted members, and everything is acknowledged and applied.
const RECOVERY: Duration = Duration::from_secs(60);
/// Interval of looks at the cluster.
const INTERVAL: Duration = Duration::from_millis(200);

/// The result of a simulation.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) seed: u64,
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
    pub(super) carried: Carried,
    /// Number of events, and the hash over all of them.
    pub(super) digest: (u64, u64),
    pub(super) trace: Vec<String>,
    /// Time from the end of the faults to the recovery.
    pub(super) recovery: Duration,
}

thread_local! {
    /// Panics of the simulation that runs on this thread.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the panics of each thread. Tokio hides the panic of a task from the others.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            PANICS.with_borrow_mut(|panics| panics.push(panicked.to_string()));
            before(panicked);
        }));
    });
}

/// Runs the simulation of a seed on this thread.
pub(super) fn run(number: u64, planted: Option<Planted>) -> Verdict {
    keep_panics();
    PANICS.with_borrow_mut(Vec::clear);
    seed::set(Some(number));
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let mut verdict = runtime.block_on(simulate(number, planted));
    drop(runtime);
    seed::set(None);
    verdict.violations.extend(PANICS.with_borrow_mut(std::mem::take));
    verdict
}

async fn simulate(seed: u64, planted: Option<Planted>) -> Verdict {
    let mut random = Random::new(seed);
    let sim = Sim::new(seed, planted, 3 + random.below(3) as u64, 2 + random.below(2) as u32);
    let mut faults = Faults::start(&sim);
    let created = until(CREATION, || newest(&sim).is_some_and(|state| !state.epochs.is_empty())).await;
    let mut recovery = Duration::ZERO;
    if created.is_none() {
        sim.oracle.violated(format_args!("the cluster is not created within {CREATION:?}"));
    } else {
        let clients: Vec<Arc<Client>> = (1..=2 + random.below(2) as u32).map(|id| Client::new(&sim, id)).collect();
        let mut running: Vec<_> = clients.iter().map(|client| tokio::spawn(Arc::clone(client).run())).collect();
        let observer = tokio::spawn(observe(Arc::clone(&sim), Random::new(random.next_u64())));
        faults.run(Instant::now() + FAULTS).await;
        sim.trace.event(format_args!("all faults end"));
        sim.heal();
        faults.heal();
        let recovered =
            until(RECOVERY, || running.iter().all(tokio::task::JoinHandle::is_finished) && unsettled(&sim).is_none())
                .await;
        match recovered {
            Some(time) => recovery = time,
            None => report_stuck(&sim, &clients),
        }
        observer.abort();
        running.drain(..).for_each(|task| task.abort());
        judge(&sim, &clients, recovered.is_some());
    }
    let verdict = Verdict {
        seed,
        violations: sim.oracle.violations(),
        counts: sim.oracle.counts(),
        carried: sim.network.carried(),
        digest: sim.trace.digest(),
        trace: sim.trace.last(),
        recovery,
    };
    sim.end();
    verdict
}

/// Waits until something is true. Returns the time until then; `None` if it takes longer than `longest`.
async fn until(longest: Duration, is_true: impl Fn() -> bool) -> Option<Duration> {
    let start = Instant::now();
    while start.elapsed() < longest {
        if is_true() {
            return Some(start.elapsed());
        }
        sleep(INTERVAL).await;
    }
    None
}

fn newest(sim: &Sim) -> Option<Arc<State>> {
    let state = sim.newest_state();
    state.cluster.is_some().then_some(state)
}

/// Counts leaders, and watches for states that are not as fresh as they say.
async fn observe(sim: Arc<Sim>, mut random: Random) {
    loop {
        sleep(Duration::from_millis(50)).await;
        let nodes = sim.all_running();
        nodes.iter().for_each(|node| node.note_leaders());
        if nodes.is_empty() {
            continue;
        }
        let node = &nodes[random.below(nodes.len())];
        let shard = 1 + random.below(sim.shards as usize) as u32;
        let serving = node.hosted(shard).and_then(|hosted| hosted.serving());
        let Some(replica) = serving else { continue };
        if let Some(time) = replica.group.staleness().and_then(|staleness| Instant::now().checked_sub(staleness)) {
            sim.oracle.complete_as_of(node.id, shard, time, &replica.model.contents());
        }
    }
}

/// Returns what a cluster is still doing; `None` if all groups have the wanted members, and these have equal states.
fn unsettled(sim: &Sim) -> Option<String> {
    let state = sim.newest_state();
    let nodes = sim.all_running();
    if nodes.len() < sim.initial.len() {
        return Some("a node does not run".to_owned());
    }
    let of_meta_group = members::members_of_meta_group(&state).members;
    for node in &nodes {
        if node.meta_members().as_ref() != Some(&of_meta_group) {
            return Some(format!("the meta group has the members {:?} by node {}", node.meta_members(), node.id));
        }
        if node.cluster.state().revision != state.revision {
            return Some(format!("node {} does not know the newest state", node.id));
        }
    }
    for (&number, shard) in &state.shards {
        if !shard.target.is_empty() || !shard.is_created {
            return Some(format!("shard {number} changes: {shard:?}"));
        }
        let Some(wanted) = members::members_of_shard(&state, shard) else {
            return Some(format!("shard {number} has a member on an unknown node"));
        };
        let wanted = wanted.members;
        let mut indexes = Vec::new();
        let mut has_leader = false;
        for member in &shard.members {
            let replica = sim.running(member.node).and_then(|node| node.hosted(number)?.serving());
            let Some(replica) = replica else {
                return Some(format!("node {} does not serve shard {number}", member.node));
            };
            if replica.group.members() != wanted {
                let members = replica.group.members();
                return Some(format!("shard {number} has the members {members:?} by node {}", member.node));
            }
            indexes.push((member.node, replica.model.applied_index()));
            has_leader |= replica.group.is_leader();
        }
        // A leader that was removed may have acknowledged an entry that only the next leader has the members apply.
        if !has_leader {
            return Some(format!("no member leads shard {number}"));
        }
        if indexes.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            return Some(format!("the members of shard {number} have applied {indexes:?}"));
        }
    }
    None
}

fn report_stuck(sim: &Sim, clients: &[Arc<Client>]) {
    let pending: usize = clients.iter().map(|client| client.pending()).sum();
    let unsettled = unsettled(sim).unwrap_or_default();
    let statuses = sim.statuses();
    sim.oracle.violated(format_args!(
        "not recovered {RECOVERY:?} after the faults: {pending} pushes are not acknowledged; {unsettled}; {statuses}"
    ));
}

fn judge(sim: &Sim, clients: &[Arc<Client>], has_recovered: bool) {
    let state = sim.newest_state();
    let mut contents_of: BTreeMap<u32, Contents> = BTreeMap::new();
    for (&number, shard) in &state.shards {
        let mut states = Vec::new();
        for member in &shard.members {
            let replica = sim.running(member.node).and_then(|node| node.hosted(number)?.serving());
            states.extend(replica.map(|replica| (member.node, replica.model.contents())));
        }
        for (node, contents) in &states {
            for (sample, times) in contents.samples().filter(|(_, times)| *times > 1) {
                sim.oracle.violated(format_args!("node {node} has {sample:?} {times} times in shard {number}"));
            }
            if has_recovered {
                sim.oracle.has_acknowledged(*node, number, contents);
            }
        }
        if has_recovered {
            sim.oracle.are_equal(number, &states);
        }
        contents_of.extend(states.into_iter().next().map(|(_, contents)| (number, contents)));
    }
    if let Some(placement) = state.placement().filter(|_| has_recovered) {
        let mut pushed: Vec<Sample> = clients.iter().flat_map(|client| client.pushed()).collect();
        pushed.sort_unstable();
        sim.oracle.are_placed(&pushed, &contents_of, |sample| shard_of(&placement, sample));
    }
}
