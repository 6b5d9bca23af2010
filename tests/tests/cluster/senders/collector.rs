//! The OpenTelemetry Collector as a sender: the test hands it profiles, and one of its exporters sends them to varve.
//!
//! The collector consists of upstream's receiver, queue, retries, exporters and token file, without changes.
//! `scripts/install-build-tools --test` builds it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::Cluster;
use tests::http::request;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::program::{Running, signal};
use tests::report::skipped;
use tests::server::free_addresses;

use super::{PATIENCE, Stored, replace};

/// Time after which an exporter gives up on a request, and then sends the request again. An election takes longer.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_millis(500);
/// Beginning of the names of all services of collectors.
pub(super) const SERVICES: &str = "through-";
/// Number of services of a collector. They lie in several shards, so that a merged request has several parts.
const SERVICE_COUNT: u64 = 8;
/// Number of requests that wait in a collector at most: more than the test hands over.
const QUEUE: u64 = 100_000;

/// Log line after a collector has read its configuration and listens.
const IS_READY: &str = "Everything is ready";
/// Log line before a collector reads its token file.
const READS_TOKEN: &str = "refresh token";
/// Log line after a request failed that is sent again.
const RETRIES: &str = "Will retry the request";
/// Parts of log lines about profiles that do not reach varve, or of which varve refuses some.
const LOSSES: [&str; 3] = ["Dropping data", "Rejecting data", "Partial success"];

/// Protocol of the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// OTLP/HTTP. The exporter merges requests, and reads its token file again when the file changes.
    Http,
    /// OTLP/gRPC. The token is a header in the configuration, which is read again at SIGHUP. Upstream's token file is
    /// of no use here, because it needs TLS for gRPC.
    Grpc,
}

/// A running collector.
pub(super) struct Collector {
    process: Running,
    folder: PathBuf,
    protocol: Protocol,
    /// URL at which the collector receives profiles.
    receiver: String,
    /// Number of samples that the collector has acknowledged.
    handed_over: AtomicU64,
    /// Held while a sample is handed over.
    gate: Mutex<()>,
}

impl Collector {
    /// Starts a collector for each protocol. If no collector is installed, reports this part of the test as skipped.
    pub(super) fn start_all(test: &str, cluster: &Cluster, token: &str) -> Vec<Self> {
        let Some(program) = program() else {
            skipped(test, "the collector is missing: install Go 1.26, and run scripts/install-build-tools --test");
            return Vec::new();
        };
        [Protocol::Http, Protocol::Grpc].map(|protocol| Self::start(&program, protocol, cluster, token)).into()
    }

    fn start(program: &Path, protocol: Protocol, cluster: &Cluster, token: &str) -> Self {
        let folder = cluster.folder().join(format!("collector-{protocol:?}"));
        std::fs::create_dir(&folder).unwrap();
        replace(&folder.join("token"), token);
        let [address] = free_addresses::<1>();
        let configuration = configuration(protocol, cluster, &address, &folder.join("token"));
        std::fs::write(folder.join("collector.yaml"), configuration.to_string()).unwrap();
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        command.arg("--config").arg(folder.join("collector.yaml")).arg("--feature-gates=service.profilesSupport");
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let process = Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let receiver = format!("http://{address}/v1development/profiles");
        let (handed_over, gate) = (AtomicU64::new(0), Mutex::new(()));
        let collector = Self { process, folder, protocol, receiver, handed_over, gate };
        collector.wait_for_log(IS_READY, 1);
        collector
    }

    /// Hands over samples until `stop`. Each sample has a time of its own, so no two requests have the same content.
    pub(super) fn hand_over(&self, stop: &AtomicBool) {
        // A connection may not be kept, because the collector closes all of them when it reads its configuration.
        let headers = [("content-type", "application/x-protobuf"), ("connection", "close")];
        while !stop.load(Ordering::Relaxed) {
            let gate = self.gate.lock().unwrap();
            let service = format!("{}{}", self.services(), self.handed_over() % SERVICE_COUNT);
            let body = Request::new(&service).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
            let reply = request("POST", &self.receiver, &headers, Some(&body));
            let reply = reply.unwrap_or_else(|lost| panic!("{}: {lost}: {}", self.receiver, self.log()));
            assert_eq!(reply.status, 200, "{}: {}", reply.text(), self.log());
            self.handed_over.fetch_add(1, Ordering::Relaxed);
            drop(gate);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the number of samples that the collector has acknowledged.
    pub(super) fn handed_over(&self) -> u64 {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// Returns the beginning of the names of this collector's services.
    fn services(&self) -> String {
        format!("{SERVICES}{:?}-", self.protocol).to_lowercase()
    }

    /// Returns the number of this collector's samples in varve.
    pub(super) fn stored(&self, all: &Stored) -> f64 {
        let services = self.services();
        all.of(|service| service.starts_with(&services)) / PERIOD_NS as f64
    }

    /// Waits until varve has as many samples as were handed over.
    pub(super) fn wait_until_stored(&self, all: impl Fn() -> Stored) {
        let began = Instant::now();
        while self.stored(&all()) < self.handed_over() as f64 {
            assert!(began.elapsed() < PATIENCE, "varve has not all of {:?}: {}", self.protocol, self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Gives the collector another token, and waits until it reads the token. The old one must still be accepted: an
    /// exporter drops a request whose token is refused.
    pub(super) fn change_token(&self, token: &str, all: impl Fn() -> Stored) {
        let write = || replace(&self.folder.join("token"), token);
        match self.protocol {
            Protocol::Http => {
                let before = self.logged(READS_TOKEN);
                write();
                self.wait_for_log(READS_TOKEN, before + 1);
            }
            Protocol::Grpc => {
                // At SIGHUP, the exporter sends what it has once, without retries. So nothing may wait in its queue.
                let _gate = self.gate.lock().unwrap();
                self.wait_until_stored(all);
                let before = self.logged(IS_READY);
                write();
                signal(self.process.0.id().cast_signed(), libc::SIGHUP);
                self.wait_for_log(IS_READY, before + 1);
            }
        }
    }

    /// Returns how often the exporter has failed to send a request, and waited to send it again.
    pub(super) fn retries(&self) -> usize {
        self.logged(RETRIES)
    }

    /// Ends the collector. It must have dropped nothing.
    pub(super) fn end(mut self) {
        signal(self.process.0.id().cast_signed(), libc::SIGTERM);
        assert!(self.process.0.wait().unwrap().success(), "{}", self.log());
        assert!(LOSSES.iter().all(|loss| self.logged(loss) == 0), "{:?}: {}", self.protocol, self.losses());
    }

    fn whole_log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// Returns the last lines of the log.
    fn log(&self) -> String {
        let log = self.whole_log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn losses(&self) -> String {
        let log = self.whole_log();
        let lines: Vec<&str> =
            log.lines().filter(|line| LOSSES.iter().any(|loss| line.contains(loss))).take(20).collect();
        lines.join("\n")
    }

    fn logged(&self, text: &str) -> usize {
        self.whole_log().lines().filter(|line| line.contains(text)).count()
    }

    fn wait_for_log(&self, text: &str, count: usize) {
        let began = Instant::now();
        while self.logged(text) < count {
            assert!(began.elapsed() < PATIENCE, "{:?} does not log {text}: {}", self.protocol, self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns the path of the collector; `None` if it is not installed.
fn program() -> Option<PathBuf> {
    let tools = std::env::var("VARVE_TOOLS").unwrap_or(format!("{}/.cache/varve", std::env::var("HOME").ok()?));
    let program = Path::new(&tools).join("collector/collector");
    program.is_file().then_some(program)
}

/// Returns the configuration of a collector that receives at `address`.
fn configuration(protocol: Protocol, cluster: &Cluster, address: &str, token_file: &Path) -> Value {
    let retry = json!({"initial_interval": "100ms", "max_interval": "1s", "max_elapsed_time": "0s"});
    let timeout = format!("{}ms", EXPORT_TIMEOUT.as_millis());
    let (exporter, settings, extensions) = match protocol {
        Protocol::Http => {
            let settings = json!({
                "endpoint": cluster.routers("otlp_http")[0], "timeout": timeout, "retry_on_failure": retry,
                "sending_queue": {"queue_size": QUEUE, "batch": {"flush_timeout": "200ms"}},
                "auth": {"authenticator": "bearertokenauth"},
            });
            ("otlp_http", settings, json!({"bearertokenauth": {"filename": token_file}}))
        }
        Protocol::Grpc => {
            let settings = json!({
                "endpoint": cluster.routers("otlp_grpc")[0], "timeout": timeout, "retry_on_failure": retry,
                "sending_queue": {"queue_size": QUEUE}, "tls": {"insecure": true},
                "headers": {"authorization": format!("Bearer ${{file:{}}}", token_file.display())},
            });
            ("otlp_grpc", settings, json!({}))
        }
    };
    let extension_names: Vec<&String> = extensions.as_object().unwrap().keys().collect();
    json!({
        "extensions": extensions,
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": address}}}},
        "exporters": {exporter: settings},
        "service": {
            "extensions": extension_names,
            "pipelines": {"profiles": {"receivers": ["otlp"], "exporters": [exporter]}},
        },
    })
}
