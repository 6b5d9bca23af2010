//! R10: the disk of one node is full, then those of a majority. With space again, appends resume by themselves.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tests::load::shard_of_service;

use crate::members::{leader, some_leader};
use crate::run::Run;

/// Longest time until pushes are refused because disks are full.
const PATIENCE: Duration = Duration::from_secs(30);
/// Shortest time for which one disk is full. The other members serve meanwhile.
const ONE_FULL: Duration = Duration::from_secs(5);
const REFUSED: &str = "varve_node_appends_refused_total{reason=\"disk_full\"}";

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        let nodes = run.cluster.shape().nodes;
        let node = leader_with_clients(run);
        let is_majority = fault % 2 == 1;
        let full: Vec<usize> = if is_majority { vec![node, node % nodes + 1] } else { vec![node] };
        let ballast: Vec<PathBuf> = full.iter().map(|&node| run.disks.small(node).join("ballast")).collect();
        let before = Refusals::of(run, &full);
        let is_filled = ballast.iter().all(|path| fill(path));
        let began = Instant::now();
        // If the others serve, the router makes the append again at one of them, and the client hears of no refusal.
        let has_refused = |now: Refusals| now.clients > before.clients || (!is_majority && now.nodes > before.nodes);
        let mut is_refused = has_refused(Refusals::of(run, &full));
        while !is_refused && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
            is_refused = has_refused(Refusals::of(run, &full));
        }
        if !is_refused {
            run.violations.push(format!("no push was refused for lack of space on nodes {full:?}"));
        }
        if !is_majority {
            std::thread::sleep(ONE_FULL.saturating_sub(began.elapsed()));
        }
        if is_filled && is_refused {
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

/// Returns the leader of a shard to which a random client pushes.
fn leader_with_clients(run: &mut Run) -> usize {
    let choice = run.random.below(1 << 20);
    let clients = &run.workload.clients;
    let shards = u16::try_from(run.cluster.shape().shards).unwrap();
    let shard = shard_of_service(&clients[choice % clients.len()].service, shards);
    leader(&run.cluster, shard).unwrap_or_else(|| some_leader(&run.cluster, choice))
}

/// Numbers of appends that were refused for lack of space.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    /// Responses to clients.
    clients: u64,
    /// Appends that some nodes refused, for which routers look for another leader.
    nodes: f64,
}

impl Refusals {
    fn of(run: &Run, nodes: &[usize]) -> Self {
        let nodes = nodes.iter().map(|&node| run.cluster.metric(node, REFUSED)).sum();
        Self { clients: run.workload.full_disks(), nodes }
    }
}

/// Fills a file system to the last byte. Returns true if it is full.
fn fill(path: &std::path::Path) -> bool {
    let filled = Command::new("dd").args(["if=/dev/zero", "bs=64K"]).arg(format!("of={}", path.display())).output();
    let said = filled.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    said.contains("No space left")
}
