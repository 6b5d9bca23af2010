//! Test of a shard without a majority, and with damaged states: the other shards keep their latency.
//!
//! Clients push to the other shards, and query them and all shards, all the time. Times of bad windows are compared
//! with those of the whole windows around them, so that a change of the machine's speed affects both. Nothing is pushed
//! to the bad shard in whole windows, because this would slow down the others just then.

mod clients;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::client::Labels;
use tests::cluster::Cluster;
use tests::load::{Outcomes, bulk};
use tests::payload::otlp::{PERIOD_NS, now_ns};
use tests::program::{is_running, signal};
use tests::report::{alone, figure};

use crate::one_bad_shard::clients::{Clients, Record, STACKS, Span, Stop, read_services, service, shards, totals};

const NODES: usize = 5;
const ROUTERS: usize = 2;
const SHARDS: u16 = 4;
const WINDOW: Duration = Duration::from_secs(3);
const WINDOWS_WITHOUT_MAJORITY: usize = 2;
const WINDOWS_WITH_DAMAGE: usize = 2;
/// Time from a change of the cluster, and its end for the other shards, to the next window.
const SETTLE: Duration = Duration::from_millis(500);
/// Clients that push to each other shard, and to the bad one.
const PUSHERS: usize = 2;
const PUSHERS_TO_BAD: usize = 8;
/// Longest time until the cluster is in a wanted state. The test fails after it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time of a push to a shard that cannot commit: the router looks for a leader for eight seconds.
const REFUSAL_MAX: Duration = Duration::from_secs(12);
/// Longest time of a query of all shards: it waits for a leader for five seconds.
const QUERY_MAX: Duration = Duration::from_secs(8);
/// Longest request to another shard over the whole run, including the changes of the cluster. Two elections of two
/// seconds may follow each other, with a pause of half a second. A query gives up after five seconds.
const OTHERS_MAX: Duration = Duration::from_secs(6);
/// Number of entries that a follower may lack under load.
const LAG_MAX: u64 = 50;
/// Largest slow-down of other shards, on a machine with two cores that other programs use: of medians, and of p99.
const P50_RATIO_MAX: f64 = 1.5;
const P99_RATIO_MAX: f64 = 3.0;
/// A p99 below it is never too large: other programs cause it. A request that waits for the bad shard takes a second.
const P99_NOISE_MS: f64 = 250.0;

/// The shard that is made bad, and the nodes whose loss does it.
struct Fault {
    shard: u32,
    members: Vec<usize>,
    nodes: [usize; 2],
    /// Other shards that keep all of their members if the nodes are killed.
    untouched: Vec<u32>,
}

impl Fault {
    /// Chooses the two nodes with which one shard loses its majority, and the most others lose no member.
    fn choose(cluster: &Cluster) -> Self {
        let status = cluster.admin(&[]);
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let groups = status["shards"].as_array().unwrap().iter().filter(|group| group["shard"] != 0);
        let members: BTreeMap<u32, Vec<usize>> = groups
            .map(|group| {
                let members = group["members"].as_array().unwrap().iter().map(number).collect();
                (u32::try_from(number(&group["shard"])).unwrap(), members)
            })
            .collect();
        let pairs = (1..=NODES).flat_map(|first| (first + 1..=NODES).map(move |second| [first, second]));
        let faults = pairs.filter_map(|nodes| {
            let with = |killed: usize| {
                let lost = |of: &Vec<usize>| nodes.iter().filter(|node| of.contains(node)).count();
                members.iter().filter(|(_, of)| lost(of) == killed).map(|(shard, _)| *shard).collect::<Vec<_>>()
            };
            let [shard] = with(2)[..] else { return None };
            Some(Self { shard, members: members[&shard].clone(), nodes, untouched: with(0) })
        });
        faults.max_by_key(|fault| fault.untouched.len()).unwrap()
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let bad = self.shard;
        shards().filter(move |&shard| shard != bad)
    }
}

/// Waits until `is_done` returns true.
fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < PATIENCE, "after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `/ready` of a node has the status 503, and this text.
fn wait_until_named(cluster: &Cluster, node: usize, text: &str) {
    let is_named = || cluster.readiness(node).is_ok_and(|reply| reply.status == 503 && reply.text().contains(text));
    wait_for(&format!("/ready of node {node} does not say {text:?}"), is_named);
}

/// Waits for the time in which the clients are measured. Returns its begin and its end.
fn window() -> Span {
    std::thread::sleep(SETTLE);
    let began = Instant::now();
    std::thread::sleep(WINDOW);
    let ended = Instant::now();
    // Requests that began in the window must not see the next change.
    std::thread::sleep(SETTLE / 2);
    (began, ended)
}

struct Scene<'a> {
    clients: &'a Clients<'a>,
    fault: &'a Fault,
}

impl Scene<'_> {
    /// Waits until each shard but `except` has a leader and at most `absent` members that lack many entries, and
    /// acknowledges pushes through each router.
    fn wait_until_served(&self, absent: &[usize], except: Option<u32>) {
        let is_settled = |group: &Value| {
            let is_absent = |node: &Value| absent.iter().any(|&absent| *node == absent);
            let lag = group["lag"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_behind = |one: &&Value| one["entries"].as_u64().is_none_or(|entries| entries > LAG_MAX);
            !group["leader"].is_null()
                && !is_absent(&group["leader"])
                && lag.len() == 2
                && lag.iter().filter(|one| !is_absent(&one["node"])).filter(is_behind).count() == 0
        };
        wait_for("the shards have no settled leaders", || {
            let status = self.clients.cluster.admin(&[]);
            let mut groups = status["shards"].as_array().unwrap().iter();
            let is_skipped = |group: &Value| group["shard"] == 0 || except.is_some_and(|bad| group["shard"] == bad);
            groups.all(|group| is_skipped(group) || is_settled(group))
        });
        for shard in shards().filter(|&shard| Some(shard) != except) {
            for router in 0..ROUTERS {
                wait_for("a shard does not acknowledge", || self.clients.push_to(router, shard).status == 200);
            }
        }
    }

    fn wait_until_whole(&self) {
        (1..=NODES).for_each(|node| self.clients.cluster.wait_until_ready(node));
        self.wait_until_served(&[], None);
        let all: Vec<String> = read_services(shards());
        for router in 0..ROUTERS {
            wait_for("a query is partial", || {
                let reply = self.clients.sums(router, None);
                reply.header("varve-partial").is_empty() && totals(&reply) == all
            });
        }
    }

    /// Checks that responses name the bad shard and hold everything else, and that the others are complete.
    fn check_responses(&self) {
        let Fault { shard, .. } = self.fault;
        let others = read_services(self.fault.others());
        let header = format!("shards={shard}; asked={SHARDS}; answered={}", SHARDS - 1);
        for router in 0..ROUTERS {
            let reply = self.clients.sums(router, None).expect(200);
            let json = reply.json();
            assert_eq!((reply.header("varve-partial"), totals(&reply)), (header.as_str(), others.clone()), "{json}");
            let said = &json["shards"];
            assert_eq!((&said["asked"], &said["answered"]), (&json!(SHARDS), &json!(SHARDS - 1)), "{json}");
            let missing = said["missing"].as_array().unwrap();
            assert!(missing.len() == 1 && missing[0]["shard"] == *shard, "{json}");
            let slots = missing[0]["slots"].as_array().unwrap().iter();
            let slots: u64 = slots.map(|range| range[1].as_u64().unwrap() - range[0].as_u64().unwrap() + 1).sum();
            assert_eq!(slots, 4096 / u64::from(SHARDS), "{json}");
            for other in self.fault.others() {
                let query = format!("process_cpu{{service_name=\"{}\"}}", service("read", other));
                let reply = self.clients.get(router, "/api/v1/flamegraph", &[("query", &query)]).expect(200);
                assert_eq!(reply.header("varve-partial"), "");
                assert_eq!(reply.json()["shards"], json!({"asked": 1, "answered": 1}), "{}", reply.text());
                assert_eq!(reply.json()["total"], STACKS as u64 * PERIOD_NS);
            }
        }
    }

    /// Checks that a push to the bad shard is refused in time.
    fn check_refusal(&self) {
        let began = Instant::now();
        let _refused = self.clients.push_to(0, self.fault.shard).refused_by_otlp_with(&[503, 504]);
        assert!(began.elapsed() < REFUSAL_MAX, "refused after {:?}", began.elapsed());
    }

    /// Measures the clients while nothing is pushed to the bad shard.
    fn whole_window(&self) -> Span {
        self.clients.holds_bad.store(true, Ordering::Relaxed);
        let measured = window();
        self.clients.holds_bad.store(false, Ordering::Relaxed);
        measured
    }

    /// Kills two nodes, and measures. The nodes run again afterwards.
    fn without_majority(&self, round: usize) -> Span {
        let Fault { shard, nodes, members, .. } = self.fault;
        let cluster = self.clients.cluster;
        nodes.iter().for_each(|&node| cluster.kill(node));
        self.wait_until_served(nodes, Some(*shard));
        let measured = std::thread::scope(|scope| {
            // It takes longer than the window.
            if round == 0 {
                scope.spawn(|| self.check_refusal());
            }
            window()
        });
        for node in (1..=NODES).filter(|node| !nodes.contains(node)) {
            if members.contains(&node) {
                wait_until_named(cluster, node, &format!("shard {shard} cannot commit"));
            } else {
                assert_eq!(cluster.readiness(node).unwrap().status, 200, "node {node}");
            }
        }
        self.check_responses();
        nodes.iter().for_each(|&node| cluster.start(node));
        measured
    }

    /// Damages the states of two members, and measures. The state of one is restored afterwards, and the other one is
    /// repaired.
    fn with_damage(&self) -> Span {
        let Fault { shard, nodes, members, .. } = self.fault;
        let cluster = self.clients.cluster;
        let pointer = |node| cluster.data_dir(node).join(format!("shard-{shard:04}/CURRENT"));
        self.stop();
        let kept = nodes.map(|node| fs::read(pointer(node)).unwrap());
        for (node, kept) in nodes.iter().zip(&kept) {
            let damaged: Vec<u8> = kept.iter().map(|byte| byte ^ 1).collect();
            fs::write(pointer(*node), damaged).unwrap();
        }
        nodes.iter().for_each(|&node| cluster.start(node));
        for &node in members {
            let state = if nodes.contains(&node) { "is damaged" } else { "cannot commit" };
            wait_until_named(cluster, node, &format!("shard {shard} {state}"));
        }
        self.wait_until_served(&[], Some(*shard));
        let measured = window();
        nodes.iter().for_each(|&node| wait_until_named(cluster, node, &format!("shard {shard} is damaged")));
        self.check_responses();
        // A state is replaced only if a majority serves without it.
        self.stop();
        fs::write(pointer(nodes[0]), &kept[0]).unwrap();
        nodes.iter().for_each(|&node| cluster.start(node));
        measured
    }

    /// Stops the two nodes in order.
    fn stop(&self) {
        let pids = self.fault.nodes.map(|node| self.clients.cluster.pid(node));
        pids.iter().for_each(|&pid| signal(pid, libc::SIGTERM));
        wait_for("a node does not stop", || !pids.iter().any(|&pid| is_running(pid)));
    }

    /// Returns the whole windows, and the bad windows between them. The first window is `first`, or a new one.
    fn compare(&self, first: Option<Span>, bad: impl Fn(usize) -> Span, count: usize) -> [Vec<Span>; 2] {
        let mut whole = vec![first.unwrap_or_else(|| self.whole_window())];
        let mut measured = Vec::new();
        for round in 0..count {
            measured.push(bad(round));
            self.wait_until_whole();
            whole.push(self.whole_window());
        }
        [whole, measured]
    }
}

/// Latencies of one kind of request, in milliseconds.
struct Latencies {
    /// All of them, ascending.
    all: Vec<f64>,
    /// The 99th percentile of each second, ascending.
    p99_by_second: Vec<f64>,
}

impl Latencies {
    /// Returns the latencies of requests that began within one of these windows.
    fn of(records: &[Record], is_wanted: impl Fn(&Record) -> bool, windows: &[Span]) -> Self {
        let mut by_second: BTreeMap<(usize, u64), Vec<f64>> = BTreeMap::new();
        for (began, ended) in records.iter().filter(|record| is_wanted(record)).flat_map(|record| &record.spans) {
            let window = windows.iter().position(|(first, last)| first <= began && began < last);
            let Some(window) = window else { continue };
            let second = began.duration_since(windows[window].0).as_secs();
            by_second.entry((window, second)).or_default().push(ended.duration_since(*began).as_secs_f64() * 1e3);
        }
        let ascending = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let p99 = |values: &Vec<f64>| p99(&ascending(values.clone()));
        let p99_by_second = ascending(by_second.values().map(p99).collect());
        let all = ascending(by_second.into_values().flatten().collect());
        assert!(all.len() > 50, "only {} requests", all.len());
        Self { all, p99_by_second }
    }

    fn p50(&self) -> f64 {
        self.all[self.all.len() / 2]
    }

    /// Returns the median of all seconds. Another program that uses the machine for a second does not change it.
    fn p99(&self) -> f64 {
        self.p99_by_second[self.p99_by_second.len() / 2]
    }

    fn json(&self) -> Value {
        json!({"count": self.all.len(), "p50_ms": self.p50(), "p99_ms": self.p99(), "pooled_p99_ms": p99(&self.all),
            "max_ms": self.all.last()})
    }
}

fn p99(ascending: &[f64]) -> f64 {
    ascending[ascending.len() * 99 / 100]
}

/// Prints the latencies in whole and in bad windows. Returns the slow-downs of other shards that are too large.
fn slow_downs(records: &[Record], fault: &Fault, kind: &str, [whole, bad]: &[Vec<Span>; 2]) -> Vec<String> {
    let mut out = Vec::new();
    let mut compare = |of: &str, is_push: bool, is_of: &dyn Fn(Option<u32>) -> bool| {
        let is_wanted = |record: &Record| record.is_push == is_push && is_of(record.shard);
        let [before, during] = [whole, bad].map(|windows| Latencies::of(records, is_wanted, windows));
        let (p50, p99) = (during.p50() / before.p50(), during.p99() / before.p99());
        let request = if is_push { "push" } else { "query" };
        figure(&json!({"suite": "one_bad_shard", "fault": kind, "of": of, "request": request,
            "whole": before.json(), "bad": during.json(), "p50_ratio": p50, "p99_ratio": p99}));
        if p50 > P50_RATIO_MAX || (p99 > P99_RATIO_MAX && during.p99() > P99_NOISE_MS) {
            out.push(format!("{kind}, {of}, {request}: p50 x {p50:.2}, p99 x {p99:.2}"));
        }
    };
    let is_untouched = |shard: u32| fault.untouched.contains(&shard);
    for is_push in [true, false] {
        compare("shards on none of the two nodes", is_push, &|shard| shard.is_some_and(is_untouched));
        let shares = |shard| shard != fault.shard && !is_untouched(shard);
        compare("shards on one of the two nodes", is_push, &|shard| shard.is_some_and(shares));
    }
    out
}

/// Checks that no request to another shard took long, whether a window was open or the cluster just changed.
fn check_longest(fault: &Fault, records: &[Record]) {
    for (is_push, request) in [(true, "push"), (false, "query")] {
        let is_other = |record: &&Record| record.shard.is_some_and(|shard| shard != fault.shard);
        let records = records.iter().filter(is_other).filter(|record| record.is_push == is_push);
        let spans: Vec<Span> = records.flat_map(|record| record.spans.iter().copied()).collect();
        let longest = spans.iter().map(|(began, ended)| ended.duration_since(*began)).max().unwrap();
        figure(&json!({"suite": "one_bad_shard", "of": "other shards, whole run", "request": request,
            "count": spans.len(), "max_ms": longest.as_secs_f64() * 1e3}));
        assert!(longest < OTHERS_MAX, "a {request} of another shard took {longest:?}");
    }
}

/// Checks that the requests to all other shards succeeded, that all requests took a bounded time, and that each
/// acknowledged push counts once.
fn check_records(cluster: &Cluster, fault: &Fault, records: Vec<Record>) {
    check_longest(fault, &records);
    let mut stored: BTreeMap<u32, Outcomes> = BTreeMap::new();
    let mut refused_after = Duration::ZERO;
    for record in records {
        if record.shard.is_none() {
            let waits = record.spans.iter().map(|(began, ended)| ended.duration_since(*began));
            let longest = waits.max().unwrap();
            figure(&json!({"suite": "one_bad_shard", "of": "all shards", "request": "query",
                "count": record.spans.len(), "max_ms": longest.as_secs_f64() * 1e3}));
            assert!(longest < QUERY_MAX, "a query took {longest:?}");
        }
        if record.shard != Some(fault.shard) {
            assert_eq!(record.unwanted, Vec::<String>::new(), "shard {:?}", record.shard);
        }
        refused_after = refused_after.max(record.refused_after);
        assert!(record.refused_after < REFUSAL_MAX, "refused after {:?}", record.refused_after);
        assert_eq!(record.outcomes.unknown.len(), 0, "never acknowledged: {:?}", record.outcomes.unknown);
        if let Some(shard) = record.shard.filter(|_| record.is_push) {
            stored.entry(shard).or_default().acknowledged.extend(record.outcomes.acknowledged);
        }
    }
    let acknowledged = |shard: &u32| stored[shard].acknowledged.len();
    let [bad, others] = [true, false]
        .map(|bad| stored.keys().filter(|&&shard| (shard == fault.shard) == bad).map(acknowledged).sum::<usize>());
    figure(&json!({"suite": "one_bad_shard", "acknowledged_others": others, "acknowledged_bad": bad,
        "longest_refusal_ms": refused_after.as_secs_f64() * 1e3}));
    for (shard, outcomes) in stored {
        let service = service("push", shard);
        let promql = format!("sum by (serial) (sum_over_time(process_cpu{{service_name=\"{service}\"}}[1h]))");
        for router in 0..ROUTERS {
            let found = cluster.try_query(router, &promql, now_ns() as f64 / 1e9 + 1.0);
            let found = found.unwrap_or_else(|reply| panic!("{}: {}", reply.status, reply.text()));
            let serial = |(mut labels, sum): (Labels, f64)| (labels.remove("serial").unwrap(), sum);
            assert_eq!(outcomes.violations(&found.into_iter().map(serial).collect()), Vec::<String>::new());
        }
    }
}

#[test]
fn one_bad_shard_leaves_the_others_their_latency() {
    let _alone = alone();
    let cluster = Cluster::up(NODES, SHARDS.into());
    let fault = Fault::choose(&cluster);
    assert!(!fault.untouched.is_empty());
    let clients = Clients::new(&cluster, fault.shard);
    for shard in shards() {
        let body = bulk(&service("read", shard), STACKS, &[now_ns()]);
        assert_eq!(clients.push(0, &format!("read-{shard}"), &body).unwrap().status, 200);
    }
    let (windows, records) = std::thread::scope(|scope| {
        let count = |shard| if shard == fault.shard { PUSHERS_TO_BAD } else { PUSHERS };
        let pushers = shards().flat_map(|shard| (0..count(shard)).map(move |client| (shard, client)));
        let clients = &clients;
        let mut running: Vec<_> =
            pushers.map(|(shard, client)| scope.spawn(move || clients.pusher(shard, client))).collect();
        let asked = fault.others().map(Some).chain([None]);
        let readers = asked.flat_map(|shard| (0..ROUTERS).map(move |router| (router, shard)));
        running.extend(readers.map(|(router, shard)| scope.spawn(move || clients.reader(router, shard))));
        let stop = Stop(&clients.stop);
        let scene = Scene { clients, fault: &fault };
        scene.wait_until_whole();
        let lost = scene.compare(None, |round| scene.without_majority(round), WINDOWS_WITHOUT_MAJORITY);
        let last = lost[0].last().copied();
        let damaged = scene.compare(last, |_| scene.with_damage(), WINDOWS_WITH_DAMAGE);
        drop(stop);
        let records: Vec<Record> = running.into_iter().map(|client| client.join().unwrap()).collect();
        ([("no majority", lost), ("damaged", damaged)], records)
    });
    let slow: Vec<String> =
        windows.iter().flat_map(|(kind, windows)| slow_downs(&records, &fault, kind, windows)).collect();
    check_records(&cluster, &fault, records);
    let repairs = cluster.log(fault.nodes[1]).matches("repaired: ").count();
    assert!(repairs >= WINDOWS_WITH_DAMAGE, "only {repairs} states were repaired");
    assert_eq!(slow, Vec::<String>::new());
}
