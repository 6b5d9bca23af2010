//! Clients that push samples with serial numbers through all routers in turn, and the outcome of each push.
//!
//! Each client has a service of its own, and numbers its pushes from 0 on. Clients that retry push until they get an
//! acknowledgement, so all of their numbers below the count of acknowledgements are acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use testkit::random::Random;
use tests::cluster::Cluster;
use tests::http;
use tests::payload::otlp::{Request, now_ns, stack};

/// Number of clients.
pub(crate) const CLIENTS: usize = 12;
/// Number of pushes whose samples have the same label `block`. One query returns the samples of one block.
pub(crate) const BLOCK: usize = 500;
/// Pause of a client between two pushes, and between two attempts.
const PAUSE: Duration = Duration::from_millis(30);
/// Longest time for which a client waits for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Age of the samples of every second client. Samples of this age are soon sealed and summed up.
const OLD_NS: u64 = 25 * 60 * 1_000_000_000;
/// Number of earlier requests that a client keeps in order to send them again.
const KEPT: usize = 64;

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acknowledged,
    /// Every attempt got a status that means that nothing was stored.
    Refused,
    /// At least one attempt got no response, or a status that leaves open if the push is stored.
    Unknown,
}

/// An acknowledgement: the router, and the time of the attempt in nanoseconds since the start of the workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement {
    pub(crate) router: usize,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
}

/// Behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Retries with an `Idempotency-Key`.
    Keyed,
    /// Retries without a key. The content is recognized by its times.
    Unkeyed,
    /// Pushes once.
    Once,
}

/// The state of a client, which the test reads while the client runs.
#[derive(Debug)]
pub(crate) struct Client {
    /// Value of the label `service_name`.
    pub(crate) service: String,
    kind: Kind,
    is_old: bool,
    outcomes: Mutex<Vec<Outcome>>,
    acknowledgements: Mutex<Vec<Acknowledgement>>,
    acknowledged: AtomicU64,
}

impl Client {
    /// Returns true if all pushes are retried until they are acknowledged.
    pub(crate) fn retries(&self) -> bool {
        self.kind != Kind::Once
    }

    /// Returns the number of acknowledged pushes.
    pub(crate) fn acknowledged(&self) -> usize {
        usize::try_from(self.acknowledged.load(Ordering::Acquire)).unwrap()
    }

    /// Returns the outcome of each push so far.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.lock().clone()
    }

    /// Returns the acknowledgements that the predicate selects.
    pub(crate) fn acknowledgements(&self, is_wanted: impl Fn(&Acknowledgement) -> bool) -> Vec<Acknowledgement> {
        self.acknowledgements.lock().iter().copied().filter(|acknowledgement| is_wanted(acknowledgement)).collect()
    }

    /// Returns true if an attempt that began after `since_ns` was acknowledged.
    fn has_acknowledged_since(&self, since_ns: u64) -> bool {
        self.acknowledgements.lock().last().is_some_and(|last| last.began_ns >= since_ns)
    }
}

/// Effects that a workload counts.
#[derive(Debug, Default)]
struct Counts {
    duplicates: AtomicU64,
    full_disks: AtomicU64,
}

/// Running clients.
#[derive(Debug)]
pub(crate) struct Workload {
    /// Value of the label `run`, which all samples of this workload have.
    pub(crate) run: String,
    /// The clients.
    pub(crate) clients: Arc<[Client]>,
    began: Instant,
    stop: Arc<AtomicBool>,
    is_paused: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

/// Parts that all clients share.
#[derive(Clone)]
struct Common {
    run: String,
    urls: Vec<String>,
    authorization: String,
    /// Percentage of pushes after which an earlier request is sent again.
    duplicates_percent: usize,
    began: Instant,
    stop: Arc<AtomicBool>,
    /// True while no push begins.
    is_paused: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Workload {
    /// Starts the clients. After `duplicates_percent` % of the pushes, a client also sends one of its last requests
    /// again, through any router.
    pub(crate) fn start(cluster: &Cluster, seed: u64, duplicates_percent: usize) -> Self {
        let run = format!("run-{}", now_ns());
        let client = |number: usize| Client {
            service: format!("chaos-{number}"),
            kind: [Kind::Keyed, Kind::Unkeyed, Kind::Keyed, Kind::Once][number % 4],
            is_old: number % 8 >= 4,
            outcomes: Mutex::default(),
            acknowledgements: Mutex::default(),
            acknowledged: AtomicU64::new(0),
        };
        let clients: Arc<[Client]> = (0..CLIENTS).map(client).collect();
        let urls = cluster.routers("otlp_http").iter().map(|url| format!("{url}/v1development/profiles")).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let is_paused = Arc::new(AtomicBool::new(false));
        let counts = Arc::<Counts>::default();
        let common = Common {
            run: run.clone(),
            urls,
            authorization: format!("Bearer {}", cluster.token("push")),
            duplicates_percent,
            began: Instant::now(),
            stop: Arc::clone(&stop),
            is_paused: Arc::clone(&is_paused),
            counts: Arc::clone(&counts),
        };
        let began = common.began;
        let start = |number: usize| {
            let (clients, common) = (Arc::clone(&clients), common.clone());
            let random = Random::new(seed ^ number as u64);
            std::thread::spawn(move || common.run(number, &clients[number], random))
        };
        let threads = (0..CLIENTS).map(start).collect();
        Self { run, clients, began, stop, is_paused, counts, threads }
    }

    /// Returns the time since the start of the workload, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    /// Returns the number of requests that were sent again after their acknowledgement.
    pub(crate) fn duplicates(&self) -> u64 {
        self.counts.duplicates.load(Ordering::Relaxed)
    }

    /// Returns the number of responses that refused a push because a disk was full.
    pub(crate) fn full_disks(&self) -> u64 {
        self.counts.full_disks.load(Ordering::Relaxed)
    }

    /// Returns the services whose clients got no acknowledgement for an attempt that began after `since_ns`.
    pub(crate) fn waiting(&self, since_ns: u64) -> Vec<&str> {
        let waiting = self.clients.iter().filter(|client| !client.has_acknowledged_since(since_ns));
        waiting.map(|client| client.service.as_str()).collect()
    }

    /// Lets the clients end the pushes that have begun, and begin no others.
    pub(crate) fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
    }

    /// Ends a pause.
    pub(crate) fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Stops the clients, and waits until they have stopped.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Common {
    fn run(&self, number: usize, client: &Client, mut random: Random) {
        let mut kept: VecDeque<(String, Vec<u8>)> = VecDeque::new();
        for serial in 0.. {
            while self.is_paused.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("{}-{number}-{serial}", self.run);
            let body = self.request(client, serial);
            let outcome = self.push(client, &key, &body, number + serial);
            client.outcomes.lock().push(outcome);
            if outcome == Outcome::Acknowledged {
                client.acknowledged.fetch_add(1, Ordering::Release);
            }
            kept.push_back((key, body));
            if kept.len() > KEPT {
                kept.pop_front();
            }
            if random.chance(self.duplicates_percent) {
                let (key, body) = &kept[random.below(kept.len())];
                let router = random.below(self.urls.len());
                // The outcome of the first push counts, whatever this one gets.
                if self.attempt(client, key, body, router).is_ok_and(|reply| reply.status == 200) {
                    self.counts.duplicates.fetch_add(1, Ordering::Relaxed);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the request that pushes a serial number.
    fn request(&self, client: &Client, serial: usize) -> Vec<u8> {
        let leaf = format!("leaf{}", serial % 31);
        let time_ns = now_ns() - if client.is_old { OLD_NS } else { 0 };
        let labels = [("serial", serial.to_string()), ("block", (serial / BLOCK).to_string())];
        let request = Request::new(&client.service).with("run", &self.run);
        let request = labels.iter().fold(request, |request, (name, value)| request.with(name, value));
        request.seen(stack(&[&leaf, "work", "main"]), vec![time_ns]).bytes()
    }

    fn attempt(&self, client: &Client, key: &str, body: &[u8], router: usize) -> Result<http::Reply, http::Lost> {
        let mut headers = vec![("content-type", "application/x-protobuf"), ("authorization", &self.authorization)];
        if client.kind == Kind::Keyed {
            headers.push(("idempotency-key", key));
        }
        http::request_within(PATIENCE, "POST", &self.urls[router], &headers, Some(body))
    }

    fn push(&self, client: &Client, key: &str, body: &[u8], first: usize) -> Outcome {
        let mut outcome = Outcome::Refused;
        // Clients begin with different routers, and a retry goes to another one.
        for attempt in first.. {
            let router = attempt % self.urls.len();
            let began_ns = self.now_ns();
            match self.attempt(client, key, body, router) {
                Ok(reply) if reply.status == 200 => {
                    let ended_ns = self.now_ns();
                    client.acknowledgements.lock().push(Acknowledgement { router, began_ns, ended_ns });
                    return Outcome::Acknowledged;
                }
                Ok(reply) => {
                    if reply.text().contains("disk is full") {
                        self.counts.full_disks.fetch_add(1, Ordering::Relaxed);
                    }
                    // The status of a full disk does not say if the push is stored.
                    if reply.status >= 500 || reply.status == 429 {
                        outcome = Outcome::Unknown;
                    }
                }
                Err(_no_answer) => outcome = Outcome::Unknown,
            }
            if client.kind == Kind::Once || self.stop.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        outcome
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }
}
