//! Test of a shard whose leader has lost its followers: the other shards of the leader's node keep their latency.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::{Cluster, members};
use tests::http::{encode, request};
use tests::load::shard_of_service;
use tests::payload::otlp::{Request, now_ns, stack};
use tests::report::{alone, figure};

const NODES: usize = 5;
const SHARDS: u16 = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// Time before and after the kill. A query waits five seconds for the shard, and a silent node is avoided for three.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(10);
/// Longest time until the cluster is in a wanted state. The test fails after it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest request to the other shard. Other programs on the machine delayed one by up to 0.6 s.
const LONGEST_MAX_MS: f64 = 1500.0;

/// Two shards that have only one node in common.
struct Scene {
    bad: u32,
    other: u32,
    survivor: usize,
    followers: Vec<usize>,
}

impl Scene {
    fn of(cluster: &Cluster) -> Self {
        let status = cluster.admin(&[]);
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let members: BTreeMap<u32, Vec<usize>> = status["shards"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| {
                let members = group["members"].as_array().unwrap().iter().map(number).collect();
                (u32::try_from(number(&group["shard"])).unwrap(), members)
            })
            .filter(|(shard, _)| *shard != 0)
            .collect();
        let pairs = members.keys().flat_map(|bad| members.keys().map(move |other| (*bad, *other)));
        let mut scenes = pairs.filter_map(|(bad, other)| {
            let common = members[&bad].iter().filter(|node| members[&other].contains(node));
            let common: Vec<usize> = common.copied().collect();
            let [survivor] = common[..] else { return None };
            let followers = members[&bad].iter().copied().filter(|&node| node != survivor).collect();
            (members::leader(cluster, other) == Some(survivor)).then_some(Self { bad, other, survivor, followers })
        });
        scenes.next_back().expect("no two shards have only one node in common, which leads one of them")
    }

    /// Restarts leaders of the bad shard until the survivor leads it.
    fn lead(&self, cluster: &Cluster) {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "node {} does not lead shard {}", self.survivor, self.bad);
            match members::leader(cluster, self.bad) {
                Some(leader) if leader == self.survivor => return,
                Some(leader) => {
                    cluster.kill(leader);
                    std::thread::sleep(Duration::from_secs(2));
                    cluster.start(leader);
                    cluster.wait_until_ready(leader);
                }
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

/// Stops the clients when it is dropped, so that they do not outlive a test that fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn service(shard: u32) -> String {
    (0..).map(|i| format!("service-{i}")).find(|name| shard_of_service(name, SHARDS) == shard).unwrap()
}

/// Pushes a sample. Returns the status.
fn push(cluster: &Cluster, router: usize, service: &str) -> u16 {
    let body = Request::new(service).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
    let token = format!("Bearer {}", cluster.token("push"));
    let headers = [("content-type", "application/x-protobuf"), ("authorization", token.as_str())];
    let url = format!("{}/v1development/profiles", cluster.routers("otlp_http")[router]);
    request("POST", &url, &headers, Some(&body)).unwrap().status
}

/// Counts the series of a service. Returns the status.
fn query(cluster: &Cluster, router: usize, service: &str) -> u16 {
    let parameters = encode(&[("query", &format!("count(process_cpu{{service_name=\"{service}\"}})"))]);
    let url = format!("{}/api/v1/query?{parameters}", cluster.routers("http")[router]);
    let token = format!("Bearer {}", cluster.token("read"));
    request("GET", &url, &[("authorization", &token)], None).unwrap().status
}

/// Makes one request after another until `stop` is set. Returns the begin and the time of each, and its status.
fn requests(stop: &AtomicBool, send: impl Fn() -> u16) -> Vec<(Instant, f64, u16)> {
    let mut out = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let status = send();
        out.push((began, began.elapsed().as_secs_f64() * 1e3, status));
        std::thread::sleep(PAUSE);
    }
    out
}

#[test]
fn a_leader_without_followers_does_not_delay_its_other_shards() {
    let _alone = alone();
    let cluster = &Cluster::up(NODES, SHARDS.into());
    let scene = Scene::of(cluster);
    let [bad, other] = [scene.bad, scene.other].map(service);
    assert_eq!([push(cluster, 0, &bad), push(cluster, 0, &other)], [200, 200]);
    scene.lead(cluster);
    assert_eq!(members::leader(cluster, scene.other), Some(scene.survivor));
    let stop = &AtomicBool::new(false);
    let (bad, other) = (bad.as_str(), other.as_str());
    let (killed, of_other, of_bad) = std::thread::scope(|scope| {
        let mut of_other = Vec::new();
        let mut of_bad = Vec::new();
        for router in 0..cluster.shape().routers {
            of_other.push(scope.spawn(move || requests(stop, || push(cluster, router, other))));
            of_other.push(scope.spawn(move || requests(stop, || query(cluster, router, other))));
            of_bad.push(scope.spawn(move || requests(stop, || query(cluster, router, bad))));
        }
        let stopped = Stop(stop);
        std::thread::sleep(BEFORE);
        let killed = Instant::now();
        scene.followers.iter().for_each(|&node| cluster.kill(node));
        std::thread::sleep(AFTER);
        drop(stopped);
        let [of_other, of_bad] = [of_other, of_bad]
            .map(|clients| clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>());
        (killed, of_other, of_bad)
    });
    assert_eq!(members::leader(cluster, scene.other), Some(scene.survivor), "the other shard has another leader");
    let longest = |is_after: bool| {
        let wanted = of_other.iter().filter(|(began, ..)| (*began >= killed) == is_after);
        wanted.map(|(_, ms, _)| *ms).fold(0.0, f64::max)
    };
    let refused = of_bad.iter().filter(|(began, _, status)| *began >= killed && *status == 503).count();
    figure(&json!({"suite": "surviving_leader", "requests": of_other.len(), "longest_before_ms": longest(false),
        "longest_after_ms": longest(true), "refused_of_bad_shard": refused}));
    assert!(of_other.iter().all(|(_, _, status)| *status == 200));
    assert!(refused > 0, "the bad shard answers");
    assert!(longest(true) <= LONGEST_MAX_MS, "a request to the other shard took {} ms", longest(true));
}
