//! Clients that push to shards and query them, and record each request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::cluster::Cluster;
use tests::http::{self, Lost, Reply, request_within};
use tests::load::{Outcomes, shard_of_service};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};

use crate::one_bad_shard::{PATIENCE, ROUTERS, SHARDS};

const PUSH_PAUSE: Duration = Duration::from_millis(20);
const QUERY_PAUSE: Duration = Duration::from_millis(50);
/// Stacks of a queried service. Their number stays the same, so that a query costs the same at all times.
pub(super) const STACKS: usize = 64;

/// Returns a service of a shard, for one purpose.
pub(super) fn service(purpose: &str, shard: u32) -> String {
    let mut names = (0..).map(|number| format!("{purpose}-{number}"));
    names.find(|name| shard_of_service(name, SHARDS) == shard).unwrap()
}

pub(super) fn shards() -> impl Iterator<Item = u32> {
    1..=u32::from(SHARDS)
}

pub(super) fn read_services(shards: impl Iterator<Item = u32>) -> Vec<String> {
    let mut services: Vec<String> = shards.map(|shard| service("read", shard)).collect();
    services.sort();
    services
}

/// Begin and end of a request, with all its attempts.
pub(super) type Span = (Instant, Instant);

/// The requests of a client to one shard, or to all shards.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) shard: Option<u32>,
    pub(super) is_push: bool,
    pub(super) spans: Vec<Span>,
    pub(super) outcomes: Outcomes,
    /// Responses that the client must not get if its shard has a majority.
    pub(super) unwanted: Vec<String>,
    /// Longest time until a refusal.
    pub(super) refused_after: Duration,
}

/// Access to the routers, and the clients' state.
pub(super) struct Clients<'a> {
    pub(super) cluster: &'a Cluster,
    push_urls: Vec<String>,
    query_urls: Vec<String>,
    push_token: String,
    read_token: String,
    bad: u32,
    /// True while nothing is to be pushed to the bad shard.
    pub(super) holds_bad: AtomicBool,
    pub(super) stop: AtomicBool,
}

/// Stops the clients when it is dropped, so that they do not outlive a test that fails.
pub(super) struct Stop<'a>(pub(super) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Clients<'a> {
    pub(super) fn new(cluster: &'a Cluster, bad: u32) -> Self {
        let token = |role| format!("Bearer {}", cluster.token(role));
        let push_urls = cluster.routers("otlp_http").into_iter().map(|url| format!("{url}/v1development/profiles"));
        Self {
            cluster,
            push_urls: push_urls.collect(),
            query_urls: cluster.routers("http"),
            push_token: token("push"),
            read_token: token("read"),
            bad,
            holds_bad: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    pub(super) fn push(&self, router: usize, key: &str, body: &[u8]) -> Result<Reply, Lost> {
        let headers = [
            ("content-type", "application/x-protobuf"),
            ("idempotency-key", key),
            ("authorization", self.push_token.as_str()),
        ];
        request_within(PATIENCE, "POST", &self.push_urls[router % ROUTERS], &headers, Some(body))
    }

    /// Pushes a sample that no query counts. Returns the response.
    pub(super) fn push_to(&self, router: usize, shard: u32) -> Reply {
        let body = Request::new(&service("probe", shard)).seen(stack(&["leaf"]), vec![now_ns()]).bytes();
        self.push(router, &now_ns().to_string(), &body).unwrap()
    }

    pub(super) fn get(&self, router: usize, path: &str, parameters: &[(&str, &str)]) -> Reply {
        let base = &self.query_urls[router];
        let url = format!("{base}{path}?{}", http::encode(parameters));
        http::request("GET", &url, &[("authorization", &self.read_token)], None).unwrap()
    }

    /// Queries the sum of a shard's queried service, or of those of all shards, by service.
    pub(super) fn sums(&self, router: usize, shard: Option<u32>) -> Reply {
        let matcher = shard.map_or("=~\"read-.*\"".to_owned(), |shard| format!("=\"{}\"", service("read", shard)));
        let promql = format!("sum by (service_name) (sum_over_time(process_cpu{{service_name{matcher}}}[1h]))");
        let time = format!("{:.3}", now_ns() as f64 / 1e9 + 1.0);
        self.get(router, "/api/v1/query", &[("query", &promql), ("time", &time)])
    }

    /// Pushes one sample after another, each until it is acknowledged.
    pub(super) fn pusher(&self, shard: u32, client: usize) -> Record {
        let service = service("push", shard);
        let mut record = Record { shard: Some(shard), is_push: true, ..Record::default() };
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if shard == self.bad && self.holds_bad.load(Ordering::Relaxed) {
                std::thread::sleep(PUSH_PAUSE);
                continue;
            }
            let serial = format!("{shard}-{client}-{number}");
            let request = Request::new(&service).with("serial", &serial);
            let body = request.seen(stack(&["leaf", "work", "main"]), vec![now_ns()]).bytes();
            let began = Instant::now();
            for attempt in number.. {
                let sent = Instant::now();
                let reply = self.push(attempt, &serial, &body);
                if reply.as_ref().is_ok_and(|reply| reply.status == 200) {
                    record.spans.push((began, Instant::now()));
                    record.outcomes.acknowledged.insert(serial);
                    break;
                }
                record.refused_after = record.refused_after.max(sent.elapsed());
                record.unwanted.push(format!("{:?}: {reply:?}", sent.elapsed()));
                // The clients are stopped while all shards can commit.
                if self.stop.load(Ordering::Relaxed) {
                    record.outcomes.unknown.insert(serial);
                    return record;
                }
                std::thread::sleep(PUSH_PAUSE);
            }
            std::thread::sleep(PUSH_PAUSE);
        }
        record
    }

    /// Queries a shard, or all shards, at a router again and again.
    pub(super) fn reader(&self, router: usize, shard: Option<u32>) -> Record {
        let mut record = Record { shard, ..Record::default() };
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let reply = self.sums(router, shard);
            record.spans.push((began, Instant::now()));
            let is_complete = reply.header("varve-partial").is_empty() && totals(&reply).len() == 1;
            if reply.status != 200 || (shard.is_some() && !is_complete) {
                record.unwanted.push(format!("{}: {}", reply.status, reply.text()));
            }
            std::thread::sleep(QUERY_PAUSE);
        }
        record
    }
}

/// Returns the sums of a response by service. Each queried service has one sample of each stack.
pub(super) fn totals(reply: &Reply) -> Vec<String> {
    let json = reply.json();
    let series = json["data"]["result"].as_array().map(Vec::as_slice).unwrap_or_default();
    let want = (STACKS as u64 * PERIOD_NS).to_string();
    let is_whole = |series: &&Value| series["value"][1] == want.as_str();
    let mut services: Vec<String> = series
        .iter()
        .filter(is_whole)
        .map(|series| series["metric"]["service_name"].as_str().unwrap().to_owned())
        .collect();
    services.sort();
    services
}
