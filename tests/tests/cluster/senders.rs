//! Test of senders through kills of leaders, a new token and a new epoch: the agent, a sender of OTLP without keys, and
//! pushes of pprofs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::{Cluster, members};
use tests::http::request;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::program::{HOT_AND_COLD, Program, Running, bpf_obstacle, signal};
use tests::report::{alone, bpf_test_ran, figure, skipped};
use tests::server::free_addresses;
use tests::shared::varve_binary;

/// Sampling period of the agent in nanoseconds: 1 / 20 Hz, less the thousandth by which the agent shortens it.
const AGENT_PERIOD_NS: f64 = 49_951_029.0;
/// Time within which all routers know a token, as the help of `varve admin token create` says.
const LEARNED: Duration = Duration::from_secs(1);
/// Longest time until each sender is acknowledged again.
const PATIENCE: Duration = Duration::from_secs(40);
/// Value of each pushed pprof.
const PPROF_VALUE: u64 = 5;

/// A sender that repeats each push until it is acknowledged.
struct Sender<'a> {
    cluster: &'a Cluster,
    token: &'a RwLock<String>,
    stop: &'a AtomicBool,
    acknowledged: &'a AtomicU64,
}

/// Ends the senders when it is dropped, also if an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Sender<'_> {
    /// Sends a request until it is acknowledged. Refusals that an OTLP sender does not retry fail the test.
    fn send(&self, url: &str, key: Option<&str>, body: &[u8]) {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "{url} does not acknowledge a push");
            let authorization = format!("Bearer {}", self.token.read().unwrap());
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
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Sends OTLP without keys to one router, as any exporter does. varve recognizes a retry by its content.
    fn otlp(&self) {
        let url = format!("{}/v1development/profiles", self.cluster.routers("otlp_http")[0]);
        while !self.stop.load(Ordering::Relaxed) {
            self.send(&url, None, &Request::new("exporter").seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes());
        }
    }

    /// Pushes pprofs without times to the other router, with keys.
    fn pprof(&self) {
        // A sample type, a sample of 5 ns without a stack, and the strings "", "cpu" and "nanoseconds".
        let body = b"\x0a\x04\x08\x01\x10\x02\x12\x03\x12\x01\x05\x32\x00\x32\x03cpu\x32\x0bnanoseconds";
        let url = format!("{}/api/v1/push?service_name=pusher", self.cluster.routers("http")[1]);
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.send(&url, Some(&format!("push-{n}")), body);
        }
    }
}

/// A running agent with a token file, a spool and a log.
struct Agent {
    process: Running,
    folder: PathBuf,
}

impl Agent {
    fn start(cluster: &Cluster, token: &str) -> Self {
        let folder = cluster.folder().join("agent");
        std::fs::create_dir(&folder).unwrap();
        let [operations] = free_addresses::<1>();
        let mut command = Command::new(varve_binary());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VARVE_") || name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        replace(&folder.join("token"), token);
        command.args(["agent", "--endpoint", &cluster.routers("otlp_grpc")[0], "--http-listen", &operations]);
        command.arg("--token-file").arg(folder.join("token")).arg("--spool-dir").arg(folder.join("spool"));
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let process = Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        Self { process, folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// Ends the agent, which sends what it has. Returns the number of samples that it took.
    fn end(mut self) -> u64 {
        signal(self.process.0.id().cast_signed(), libc::SIGTERM);
        assert!(self.process.0.wait().unwrap().success(), "{}", self.log());
        let log = self.log();
        let line = log.lines().find(|line| line.contains("sampling has ended")).unwrap_or_else(|| panic!("{log}"));
        let line: Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line["fields"][name].as_u64().unwrap_or_else(|| panic!("{line}"));
        assert_eq!(number("dropped"), 0, "{log}");
        let spooled = std::fs::read_dir(self.folder.join("spool")).unwrap().flatten();
        let spooled = spooled.filter(|file| file.path().extension().is_some_and(|extension| extension == "export"));
        assert_eq!(spooled.count(), 0, "requests are left in the spool: {log}");
        number("samples")
    }
}

/// Replaces a file in one step, as configuration management does.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, format!("{text}\n")).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Returns the sum of the CPU time that is stored.
fn sum(cluster: &Cluster, token: &str, matcher: &str) -> f64 {
    let query = format!("sum(sum_over_time(process_cpu{{{matcher}}}[1h]))");
    let found = cluster.try_query_as(token, 0, &query, now_ns() as f64 / 1e9 + 1.0);
    let found = found.unwrap_or_else(|reply| panic!("{}: {}", reply.status, reply.text()));
    found.into_iter().map(|(_, sum)| sum).sum()
}

#[test]
fn senders_lose_nothing_through_kills_a_new_token_and_a_new_epoch() {
    let _alone = alone();
    let test = "senders";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let cluster = &Cluster::up(3, 4);
    let admin = cluster.administration();
    admin.create_tenant("acme", &[]);
    let (first, old) = admin.create_token("acme", "push", &[]);
    let (read, _) = admin.create_token("acme", "read", &[]);
    std::thread::sleep(LEARNED);
    let program = Program::compile(&format!("sent_{}", std::process::id()), HOT_AND_COLD, &[]);
    let running = program.start(&[]);
    let agent = Agent::start(cluster, &first);
    let token = RwLock::new(first);
    let stop = AtomicBool::new(false);
    let [of_otlp, of_pprof] = [AtomicU64::new(0), AtomicU64::new(0)];
    let sum = |matcher: &str| sum(cluster, &read, matcher);
    let of_agent = "service_name!~\"exporter|pusher\"";
    std::thread::scope(|scope| {
        let ended = Stop(&stop);
        let sender = |acknowledged| Sender { cluster, token: &token, stop: &stop, acknowledged };
        let (otlp, pprof) = (sender(&of_otlp), sender(&of_pprof));
        let senders = [scope.spawn(move || otlp.otlp()), scope.spawn(move || pprof.pprof())];
        // Every sender gets acknowledgements after an event. Otherwise, the event proves nothing.
        let goes_on = |event: &str| {
            let counts = || [of_otlp.load(Ordering::Relaxed), of_pprof.load(Ordering::Relaxed)];
            let (before, stored, began) = (counts(), sum(of_agent), Instant::now());
            while counts().iter().zip(before).any(|(now, before)| *now < before + 10) || sum(of_agent) <= stored {
                assert!(began.elapsed() < PATIENCE, "a sender is not acknowledged after {event}: {}", agent.log());
                assert!(!senders.iter().any(|sender| sender.is_finished()), "a sender was refused after {event}");
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        goes_on("the start");
        for choice in 0..2 {
            let node = members::some_leader(cluster, choice);
            cluster.kill(node);
            goes_on("the kill of a leader");
            cluster.start(node);
            cluster.wait_until_ready(node);
        }
        let (new, _) = admin.create_token("acme", "push", &[]);
        // The old token is revoked before the agent has the new one: its requests are refused, and wait in its spool.
        std::thread::sleep(LEARNED);
        token.write().unwrap().clone_from(&new);
        std::thread::sleep(LEARNED);
        let _revoked = admin.text(&["token", "revoke", &old]);
        let began = Instant::now();
        while !agent.log().contains("Unauthenticated") {
            assert!(began.elapsed() < PATIENCE, "the old token is not refused: {}", agent.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        replace(&agent.folder.join("token"), &new);
        goes_on("the replacement of the token");
        let added = cluster.admin(&["epoch", "--shards", "3-4"]);
        assert_eq!(added["epoch"], 2, "{added}");
        // The epoch begins in at most 90 seconds.
        std::thread::sleep(Duration::from_secs(92));
        goes_on("the new epoch");
        drop(ended);
    });
    drop(running);
    let samples = agent.end();
    assert_eq!(sum("service_name=\"exporter\""), (of_otlp.load(Ordering::Relaxed) * PERIOD_NS) as f64);
    assert_eq!(sum("service_name=\"pusher\""), (of_pprof.load(Ordering::Relaxed) * PPROF_VALUE) as f64);
    let stored = sum(of_agent) / AGENT_PERIOD_NS;
    assert!((stored - samples as f64).abs() < 0.5, "the agent took {samples} samples, and {stored} are stored");
    bpf_test_ran(test);
    figure(&json!({"row": test, "size": "ci", "kills": 2, "tokens": 1, "epochs": 1, "of_agent": samples,
        "of_otlp": of_otlp, "of_pprof": of_pprof, "lost": 0, "duplicated": 0}));
}
