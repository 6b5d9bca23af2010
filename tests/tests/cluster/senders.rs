//! Test of senders through kills of leaders, a router that stands still, a new token and a new epoch: the agent,
//! OpenTelemetry Collectors, a sender of OTLP without keys, and pushes of pprofs.

mod agent;
mod collector;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::cluster::administration::Administration;
use tests::cluster::{Cluster, members};
use tests::http::request;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::program::{bpf_obstacle, signal};
use tests::report::{alone, bpf_test_ran, figure, skipped};

use self::agent::Agent;
use self::collector::Collector;

/// Name of the test in reports.
const TEST: &str = "senders";
/// Time within which all routers know a token, as the help of `varve admin token create` says.
const LEARNED: Duration = Duration::from_secs(1);
/// Longest time until each sender is acknowledged again.
const PATIENCE: Duration = Duration::from_secs(40);
/// Value of each pushed pprof.
const PPROF_VALUE: u64 = 5;
/// Service of the OTLP that the test sends itself.
const EXPORTER: &str = "exporter";
/// Service of the pprofs.
const PUSHER: &str = "pusher";

/// CPU time that varve has, in nanoseconds, by service.
struct Stored(BTreeMap<String, f64>);

impl Stored {
    /// Returns the sum of these services.
    fn of(&self, is_wanted: impl Fn(&str) -> bool) -> f64 {
        self.0.iter().filter(|(service, _)| is_wanted(service)).map(|(_, sum)| sum).sum()
    }

    /// Returns the number of the agent's samples. The agent names services by their programs.
    fn of_agent(&self) -> f64 {
        let is_other =
            |service: &str| [EXPORTER, PUSHER].contains(&service) || service.starts_with(collector::SERVICES);
        self.of(|service| !is_other(service)) / agent::PERIOD_NS
    }
}

/// All senders, and the cluster to which they send.
struct Senders<'a> {
    cluster: &'a Cluster,
    /// Token with which the test reads.
    read: String,
    /// Token of the pushes of the test itself.
    push: RwLock<String>,
    stop: AtomicBool,
    /// Number of acknowledged requests of OTLP.
    of_otlp: AtomicU64,
    /// Number of acknowledged pprofs.
    of_pprof: AtomicU64,
    /// `None` if this machine cannot be sampled.
    agent: Option<Agent>,
    /// Empty if no collector is installed.
    collectors: Vec<Collector>,
}

/// Ends the senders when it is dropped, also if an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Senders<'a> {
    fn start(cluster: &'a Cluster, push: String, read: String) -> Self {
        let agent = match bpf_obstacle() {
            Some(obstacle) => {
                skipped(TEST, format!("the agent, BPF: {obstacle}"));
                None
            }
            None => Some(Agent::start(cluster, &push)),
        };
        let collectors = Collector::start_all(TEST, cluster, &push);
        let [of_otlp, of_pprof] = [AtomicU64::new(0), AtomicU64::new(0)];
        let (push, stop) = (RwLock::new(push), AtomicBool::new(false));
        Self { cluster, read, push, stop, of_otlp, of_pprof, agent, collectors }
    }

    /// Sends a request until it is acknowledged. Refusals that an OTLP sender does not retry fail the test.
    fn send(&self, acknowledged: &AtomicU64, url: &str, key: Option<&str>, body: &[u8]) {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "{url} does not acknowledge a push");
            let authorization = format!("Bearer {}", self.push.read().unwrap());
            let mut headers = vec![("authorization", authorization.as_str())];
            headers.extend(key.map(|key| ("idempotency-key", key)));
            if key.is_none() {
                headers.push(("content-type", "application/x-protobuf"));
            }
            match request("POST", url, &headers, Some(body)) {
                Ok(reply) if reply.status == 200 => break,
                Ok(reply) => {
                    assert!([429, 502, 503, 504].contains(&reply.status), "{}: {}", reply.status, reply.text())
                }
                Err(_lost) => {}
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        acknowledged.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Sends OTLP without keys to one router, as any exporter does. varve recognizes a retry by its content.
    fn otlp(&self) {
        let url = format!("{}/v1development/profiles", self.cluster.routers("otlp_http")[0]);
        while !self.stop.load(Ordering::Relaxed) {
            let body = Request::new(EXPORTER).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
            self.send(&self.of_otlp, &url, None, &body);
        }
    }

    /// Pushes pprofs without times to the other router, with keys.
    fn pprof(&self) {
        // A sample type, a sample of 5 ns without a stack, and the strings "", "cpu" and "nanoseconds".
        let body = b"\x0a\x04\x08\x01\x10\x02\x12\x03\x12\x01\x05\x32\x00\x32\x03cpu\x32\x0bnanoseconds";
        let url = format!("{}/api/v1/push?service_name={PUSHER}", self.cluster.routers("http")[1]);
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.send(&self.of_pprof, &url, Some(&format!("push-{n}")), body);
        }
    }

    fn stored(&self) -> Stored {
        // pprofs without periods have another profile type, and a query returns one type.
        let [sampled, pushed] = ["!=", "="].map(|matches| {
            let matcher = format!("service_name{matches}\"{PUSHER}\"");
            let query = format!("sum by (service_name) (sum_over_time(process_cpu{{{matcher}}}[1h]))");
            let began = Instant::now();
            loop {
                match self.cluster.try_query_as(&self.read, 0, &query, now_ns() as f64 / 1e9 + 1.0) {
                    Ok(found) => break found,
                    // A router that stood still has lost its connections to the nodes.
                    Err(reply) => {
                        let is_late = began.elapsed() > PATIENCE;
                        assert!(reply.status == 503 && !is_late, "{}: {}", reply.status, reply.text());
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let all = sampled.into_iter().chain(pushed);
        Stored(all.map(|(labels, sum)| (labels["service_name"].clone(), sum)).collect())
    }

    /// Returns the number of acknowledged samples of each sender.
    fn counts(&self) -> Vec<f64> {
        let stored = self.stored();
        let own = [&self.of_otlp, &self.of_pprof].map(|count| count.load(Ordering::Relaxed) as f64);
        let of_agent = self.agent.iter().map(|_| stored.of_agent());
        let of_collectors = self.collectors.iter().map(|collector| collector.stored(&stored));
        own.into_iter().chain(of_agent).chain(of_collectors).collect()
    }

    /// Waits until every sender got acknowledgements after an event. Otherwise, the event proves nothing.
    fn go_on_after(&self, event: &str, threads: &[ScopedJoinHandle<'_, ()>]) {
        let (before, began) = (self.counts(), Instant::now());
        loop {
            let now = self.counts();
            if now.iter().zip(&before).all(|(now, before)| *now >= before + 10.0) {
                return;
            }
            let log = || self.agent.as_ref().map(Agent::log).unwrap_or_default();
            let is_late = began.elapsed() > PATIENCE;
            assert!(!is_late, "a sender is not acknowledged after {event}: {before:?} {now:?} {}", log());
            assert!(!threads.iter().any(|sender| sender.is_finished()), "a sender was refused after {event}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Lets a router stand still until the exporters have given up on requests that it has received.
    fn freeze_router(&self) {
        let router = self.cluster.router_pid(0);
        signal(router, libc::SIGSTOP);
        std::thread::sleep(4 * collector::EXPORT_TIMEOUT);
        signal(router, libc::SIGCONT);
    }

    /// Gives all senders another token, and revokes the token with the hash `old`.
    fn change_token(&self, admin: &Administration, old: &str) {
        let (new, _) = admin.create_token("acme", "push", &[]);
        std::thread::sleep(LEARNED);
        self.push.write().unwrap().clone_from(&new);
        self.collectors.iter().for_each(|collector| collector.change_token(&new, || self.stored()));
        // Requests with the old token end in this time.
        std::thread::sleep(LEARNED);
        let _revoked = admin.text(&["token", "revoke", old]);
        std::thread::sleep(LEARNED);
        // The agent still has the old token: its requests are refused, and wait in its spool.
        if let Some(agent) = &self.agent {
            agent.change_refused_token(&new);
        }
    }

    /// Ends the senders, and compares what they sent with what varve has.
    fn end(mut self) {
        self.collectors.iter().for_each(|collector| collector.wait_until_stored(|| self.stored()));
        let of_collectors: Vec<u64> = self.collectors.iter().map(Collector::handed_over).collect();
        let retries: Vec<usize> = self.collectors.iter().map(Collector::retries).collect();
        assert!(!retries.contains(&0), "an exporter did not send any request again");
        let of_agent = self.agent.take().map(Agent::end);
        let stored = self.stored();
        let [of_otlp, of_pprof] = [&self.of_otlp, &self.of_pprof].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(stored.of(|service| service == EXPORTER), (of_otlp * PERIOD_NS) as f64);
        assert_eq!(stored.of(|service| service == PUSHER), (of_pprof * PPROF_VALUE) as f64);
        for (collector, sent) in self.collectors.drain(..).zip(&of_collectors) {
            assert_eq!(collector.stored(&stored), *sent as f64);
            collector.end();
        }
        if let Some(samples) = of_agent {
            let stored = stored.of_agent();
            assert!((stored - samples as f64).abs() < 0.5, "the agent took {samples} samples, and {stored} are stored");
            bpf_test_ran(TEST);
        }
        figure(&json!({"row": TEST, "size": "ci", "kills": 2, "freezes": 1, "tokens": 1, "epochs": 1,
            "of_agent": of_agent, "of_otlp": of_otlp, "of_pprof": of_pprof, "of_collectors": of_collectors,
            "retries_of_collectors": retries, "lost": 0, "duplicated": 0}));
    }
}

/// Replaces a token file in one step, as configuration management does. The file has no line end, because a collector
/// would send it.
fn replace(path: &Path, token: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, token).unwrap();
    std::fs::rename(&new, path).unwrap();
}

#[test]
fn senders_lose_nothing_through_kills_a_new_token_and_a_new_epoch() {
    let _alone = alone();
    let cluster = &Cluster::up(3, 4);
    let admin = cluster.administration();
    admin.create_tenant("acme", &[]);
    let (push, old) = admin.create_token("acme", "push", &[]);
    let (read, _) = admin.create_token("acme", "read", &[]);
    std::thread::sleep(LEARNED);
    let senders = Senders::start(cluster, push, read);
    std::thread::scope(|scope| {
        let ended = Stop(&senders.stop);
        let mut threads = vec![scope.spawn(|| senders.otlp()), scope.spawn(|| senders.pprof())];
        let stop = &senders.stop;
        threads.extend(senders.collectors.iter().map(|collector| scope.spawn(move || collector.hand_over(stop))));
        let goes_on = |event: &str| senders.go_on_after(event, &threads);
        goes_on("the start");
        for choice in 0..2 {
            let node = members::some_leader(cluster, choice);
            cluster.kill(node);
            goes_on("the kill of a leader");
            cluster.start(node);
            cluster.wait_until_ready(node);
        }
        senders.freeze_router();
        goes_on("the pause of a router");
        senders.change_token(&admin, &old);
        goes_on("the replacement of the token");
        let added = cluster.admin(&["epoch", "--shards", "3-4"]);
        assert_eq!(added["epoch"], 2, "{added}");
        // The epoch begins in at most 90 seconds.
        std::thread::sleep(Duration::from_secs(92));
        goes_on("the new epoch");
        drop(ended);
    });
    senders.end();
}
