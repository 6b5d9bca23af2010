//! R12: faults of the network between nodes, and between routers and nodes.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::members::some_leader;
use crate::proxy::{Fault, Link, Network, Party, SILENT, both_ways, from_to};
use crate::run::Run;

/// Time for which a direction is silent, and then open, while the network flaps.
const FLAP: Duration = Duration::from_secs(2);
/// Shortest duration of a fault.
const SHORTEST: Duration = Duration::from_secs(3);

/// A fault of the network around a node.
type Partition = fn(&mut Run, usize);

/// Kinds of faults. The name counts the faults of a kind in the line of the row.
const KINDS: [(&str, Partition); 10] = [
    ("leader_isolated", isolated_leader),
    ("symmetric", isolated_node),
    ("minority", minority_with_router),
    ("one_way_out", one_way_out),
    ("one_way_in", one_way_in),
    ("flapping", flapping),
    ("loss", loss),
    ("delay", delay),
    ("half_open", half_open),
    ("reset", reset),
];

pub(super) fn inject(run: &mut Run, faults: usize) {
    let first = run.random.below(KINDS.len());
    run.figures.insert("acknowledged_by_minority".to_owned(), json!(0));
    for fault in 0..faults {
        let (kind, partition) = KINDS[(first + fault) % KINDS.len()];
        run.sleep_below(Duration::from_secs(1));
        let choice = run.random.below(1 << 20);
        let node = some_leader(&run.cluster, choice);
        let before = network(run).effect_count();
        partition(run, node);
        if network(run).effect_count() > before {
            run.faults += 1;
            run.add(kind, 1);
        } else {
            run.violations.push(format!("a fault of the kind {kind} had no effect"));
        }
        network(run).heal();
        run.await_service(kind);
    }
    let effects = network(run).effects();
    run.figures.insert("held".to_owned(), json!(effects.held));
    run.figures.insert("delayed".to_owned(), json!(effects.delayed));
    run.figures.insert("connections_reset".to_owned(), json!(effects.reset));
    run.figures.insert("connections_half_open".to_owned(), json!(effects.half_open));
}

fn network(run: &Run) -> &Network {
    run.network.as_ref().expect("the row has a proxy")
}

fn all(run: &Run) -> Vec<Party> {
    let shape = run.cluster.shape();
    (1..=shape.nodes).map(Party::Node).chain((0..shape.routers).map(Party::Router)).collect()
}

fn others(run: &Run, group: &[Party]) -> Vec<Party> {
    all(run).into_iter().filter(|party| !group.contains(party)).collect()
}

/// Sets a fault, and waits until the other members serve.
fn partition(run: &mut Run, links: &[Link], fault: Fault, kind: &str) {
    let began = Instant::now();
    network(run).set(links, fault);
    run.await_failover(kind);
    std::thread::sleep(SHORTEST.saturating_sub(began.elapsed()));
}

/// Sets a fault of all connections for a while. With such delays, leaders may lose their majority again and again.
fn endure(run: &mut Run, links: &[Link], fault: Fault) {
    network(run).set(links, fault);
    std::thread::sleep(2 * SHORTEST);
}

/// Routers still reach the node, which may believe that it leads.
fn isolated_leader(run: &mut Run, node: usize) {
    let one = [Party::Node(node)];
    let nodes: Vec<Party> = others(run, &one).into_iter().filter(|party| matches!(party, Party::Node(_))).collect();
    partition(run, &both_ways(&one, &nodes), SILENT, "leader_isolated");
}

fn isolated_node(run: &mut Run, node: usize) {
    let one = [Party::Node(node)];
    let links = both_ways(&one, &others(run, &one));
    partition(run, &links, SILENT, "symmetric");
}

/// One node and one router are on one side. Nothing that clients push to this router may be acknowledged.
fn minority_with_router(run: &mut Run, node: usize) {
    let router = run.random.below(run.cluster.shape().routers);
    let minority = [Party::Node(node), Party::Router(router)];
    let majority = others(run, &minority);
    network(run).set(&both_ways(&minority, &majority), SILENT);
    let began_ns = run.workload.now_ns();
    run.await_failover("minority");
    std::thread::sleep(SHORTEST);
    let ended_ns = run.workload.now_ns();
    let is_wrong =
        |of: &crate::workload::Acknowledgement| of.router == router && of.began_ns > began_ns && of.ended_ns < ended_ns;
    let wrong: usize = run.workload.clients.iter().map(|client| client.acknowledgements(is_wrong).len()).sum();
    run.add("acknowledged_by_minority", wrong as u64);
    if wrong > 0 {
        run.violations.push(format!("{wrong} pushes were acknowledged by a minority"));
    }
}

/// The node hears all others, and nobody hears the node.
fn one_way_out(run: &mut Run, node: usize) {
    let one = [Party::Node(node)];
    let links = from_to(&one, &others(run, &one));
    partition(run, &links, SILENT, "one_way_out");
}

/// Everybody hears the node, and the node hears nobody.
fn one_way_in(run: &mut Run, node: usize) {
    let one = [Party::Node(node)];
    let links = from_to(&others(run, &one), &one);
    partition(run, &links, SILENT, "one_way_in");
}

fn flapping(run: &mut Run, node: usize) {
    let one = [Party::Node(node)];
    let links = both_ways(&one, &others(run, &one));
    for _ in 0..3 {
        network(run).set(&links, SILENT);
        std::thread::sleep(FLAP);
        network(run).heal();
        std::thread::sleep(FLAP);
    }
}

fn loss(run: &mut Run, _node: usize) {
    let all = all(run);
    let fault = Fault { loss_percent: 10, ..Fault::default() };
    endure(run, &from_to(&all, &all), fault);
}

fn delay(run: &mut Run, _node: usize) {
    let all = all(run);
    let delay = Some((Duration::from_millis(100), Duration::from_millis(200)));
    endure(run, &from_to(&all, &all), Fault { delay, ..Fault::default() });
}

/// All connections of a node stay open at both ends and carry nothing any more.
fn half_open(run: &mut Run, node: usize) {
    let one = [Party::Node(node)];
    network(run).make_half_open(&both_ways(&one, &others(run, &one)));
    run.await_failover("half_open");
}

/// All connections are reset, and for a second no new ones are made.
fn reset(run: &mut Run, _node: usize) {
    let all = all(run);
    let links = from_to(&all, &all);
    network(run).set(&links, Fault { refuses: true, ..Fault::default() });
    network(run).reset(&links);
    std::thread::sleep(Duration::from_secs(1));
}
