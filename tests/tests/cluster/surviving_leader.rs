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
/// Number of attempts. The survivor may lose the lead of a shard while the clients run, before the kill.
const ATTEMPTS: usize = 5;
/// Longest request to the other shard over the whole run, including the kill. Other programs on the machine delayed one
/// by up to 0.6 s.
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
        let scenes = pairs.filter_map(|(bad, other)| {
            let common = members[&bad].iter().filter(|node| members[&other].contains(node));
            let common: Vec<usize> = common.copied().collect();
            let [survivor] = common[..] else { return None };
            let followers = members[&bad].iter().copied().filter(|&node| node != survivor).collect();
            Some(Self { bad, other, survivor, followers })
        });
        let scenes: Vec<Self> = scenes.collect();
        // A survivor that leads the other shard already needs no restarts.
        let led = scenes.iter().rposition(|scene| members::leader(cluster, scene.other) == Some(scene.survivor));
        let chosen = led.unwrap_or_else(|| scenes.len().saturating_sub(1));
        scenes.into_iter().nth(chosen).expect("no two shards have only one node in common")
    }

    /// Makes the survivor the leader of both shards. Restarts of leaders of one shard do not affect the other one.
    fn lead(&self, cluster: &Cluster) {
        self.lead_shard(cluster, self.other);
        self.lead_shard(cluster, self.bad);
    }

    /// Restarts leaders of a shard until the survivor leads it.
    fn lead_shard(&self, cluster: &Cluster, shard: u32) {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "node {} does not lead shard {shard}", self.survivor);
            match members::leader(cluster, shard) {
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

    /// Returns true if the survivor leads both shards.
    fn is_led(&self, cluster: &Cluster) -> bool {
        [self.other, self.bad].iter().all(|&shard| members::leads(cluster, self.survivor, shard))
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

/// Begin of a request, its time in milliseconds, and its status.
type Sent = (Instant, f64, u16);

/// Makes one request after another until `stop` is set.
fn requests(stop: &AtomicBool, send: impl Fn() -> u16) -> Vec<Sent> {
    let mut out = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let status = send();
        out.push((began, began.elapsed().as_secs_f64() * 1e3, status));
        std::thread::sleep(PAUSE);
    }
    out
}

/// Requests of clients before and after the kill of the followers.
struct Measured {
    killed: Instant,
    of_other: Vec<Sent>,
    of_bad: Vec<Sent>,
}

/// Runs clients of both shards, and kills the followers of the bad shard meanwhile. Returns `None`, and kills nothing,
/// if the survivor has lost the lead of a shard by then.
fn measure(cluster: &Cluster, scene: &Scene) -> Option<Measured> {
    let [bad, other] = [scene.bad, scene.other].map(service);
    assert_eq!([push(cluster, 0, &bad), push(cluster, 0, &other)], [200, 200]);
    let stop = &AtomicBool::new(false);
    let (bad, other) = (bad.as_str(), other.as_str());
    std::thread::scope(|scope| {
        let mut of_other = Vec::new();
        let mut of_bad = Vec::new();
        for router in 0..cluster.shape().routers {
            of_other.push(scope.spawn(move || requests(stop, || push(cluster, router, other))));
            of_other.push(scope.spawn(move || requests(stop, || query(cluster, router, other))));
            of_bad.push(scope.spawn(move || requests(stop, || query(cluster, router, bad))));
        }
        let stopped = Stop(stop);
        std::thread::sleep(BEFORE);
        let is_led = scene.is_led(cluster);
        let killed = Instant::now();
        if is_led {
            scene.followers.iter().for_each(|&node| cluster.kill(node));
            std::thread::sleep(AFTER);
        }
        drop(stopped);
        let [of_other, of_bad] = [of_other, of_bad]
            .map(|clients| clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>());
        is_led.then_some(Measured { killed, of_other, of_bad })
    })
}

#[test]
fn a_leader_without_followers_does_not_delay_its_other_shards() {
    let _alone = alone();
    let cluster = &Cluster::up(NODES, SHARDS.into());
    let scene = Scene::of(cluster);
    let measured = (0..ATTEMPTS).find_map(|_| {
        scene.lead(cluster);
        measure(cluster, &scene)
    });
    let Measured { killed, of_other, of_bad } = measured.expect("the survivor leads neither shard for long");
    assert_eq!(members::leader(cluster, scene.other), Some(scene.survivor), "the other shard has another leader");
    // A request that was on its way at the kill may be delayed, too.
    let ended = |began: &Instant, ms: f64| *began + Duration::from_secs_f64(ms / 1e3);
    let longest = |is_after: bool| {
        let wanted = of_other.iter().filter(|(began, ms, _)| (ended(began, *ms) >= killed) == is_after);
        wanted.map(|(_, ms, _)| *ms).fold(0.0, f64::max)
    };
    let refused = of_bad.iter().filter(|(began, _, status)| *began >= killed && *status == 503).count();
    figure(&json!({"suite": "surviving_leader", "requests": of_other.len(), "longest_before_ms": longest(false),
        "longest_after_ms": longest(true), "refused_of_bad_shard": refused}));
    assert!(of_other.iter().all(|(_, _, status)| *status == 200));
    assert!(refused > 0, "the bad shard answers");
    let longest = longest(true).max(longest(false));
    assert!(longest <= LONGEST_MAX_MS, "a request to the other shard took {longest} ms");
}
