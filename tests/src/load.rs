//! Pushes with serial numbers, and the outcome of each: acknowledged, refused, or unknown.
//!
//! After a load, acknowledged ⊆ visible ⊆ acknowledged ∪ unknown must hold, and each visible serial number must be
//! stored once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use proto::placement::{FIRST_DATA_SHARD, Placement};
use proto::{Fingerprint, TenantId};

use crate::client::Labels;
use crate::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use crate::server::Varve;

/// Outcomes of pushes, by serial number.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Serial numbers of pushes that got the status 200.
    pub acknowledged: BTreeSet<String>,
    /// Serial numbers of refused pushes: every attempt got a status below 500 that means that nothing was stored.
    pub refused: BTreeSet<String>,
    /// Serial numbers of pushes that may be stored: they were not acknowledged, and at least one attempt got no
    /// response or a status from 500 on.
    pub unknown: BTreeSet<String>,
    /// Status and text of the first responses other than 200, at most 20.
    pub refusals: Vec<(u16, String)>,
    /// For each acknowledged push: the start of its last attempt, and the time of the response.
    pub acknowledged_between: Vec<(SystemTime, SystemTime)>,
}

impl Outcomes {
    /// Describes the samples that are lost, unexpected, or not stored exactly once. `visible` maps each visible serial
    /// number to the sum of its values.
    #[must_use]
    pub fn violations(&self, visible: &BTreeMap<String, f64>) -> Vec<String> {
        let mut out = Vec::new();
        let lost: Vec<_> = self.acknowledged.iter().filter(|serial| !visible.contains_key(*serial)).collect();
        if !lost.is_empty() {
            out.push(format!(
                "{} of {} acknowledged are lost: {:?}",
                lost.len(),
                self.acknowledged.len(),
                &lost[..lost.len().min(5)]
            ));
        }
        let is_known = |serial: &String| self.acknowledged.contains(serial) || self.unknown.contains(serial);
        let unwanted: Vec<_> = visible.keys().filter(|serial| !is_known(serial)).collect();
        if !unwanted.is_empty() {
            out.push(format!(
                "{} are visible that were refused or never sent: {:?}",
                unwanted.len(),
                &unwanted[..unwanted.len().min(5)]
            ));
        }
        let wrong: Vec<_> = visible.iter().filter(|(_, sum)| **sum != PERIOD_NS as f64).collect();
        if !wrong.is_empty() {
            out.push(format!("{} are not there once: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]));
        }
        out
    }
}

/// Receivers to which a load pushes, in turn. They stay the same over restarts of servers.
#[derive(Clone, Debug)]
struct Target {
    urls: Vec<String>,
    /// Value of the header `authorization`, if requests need one.
    authorization: Option<String>,
}

/// Clients that push one sample after another until they are stopped.
#[derive(Debug)]
pub struct Load {
    /// Value of the label `run`, which all samples of this load have.
    pub run: String,
    stop: Arc<AtomicBool>,
    /// Number of acknowledged pushes of each client.
    acknowledged: Arc<[AtomicU64]>,
    outcomes: Arc<Mutex<Outcomes>>,
    clients: Vec<JoinHandle<()>>,
}

/// Behaviour of a load.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Number of concurrent clients.
    pub clients: usize,
    /// True if each push has an `Idempotency-Key` and is retried until it is acknowledged.
    pub retries: bool,
    /// Pause between two pushes of one client.
    pub pause: Duration,
}

impl Load {
    /// Starts the clients.
    #[must_use]
    pub fn start(varve: &Varve, behaviour: Behaviour) -> Self {
        Self::start_at(vec![format!("http://{}/v1development/profiles", varve.otlp)], None, behaviour)
    }

    /// Starts clients that push to these URLs in turn, with a bearer token if requests need one.
    #[must_use]
    pub fn start_at(urls: Vec<String>, token: Option<String>, behaviour: Behaviour) -> Self {
        let run = format!("run-{}", now_ns());
        let target = Target { urls, authorization: token.map(|token| format!("Bearer {token}")) };
        let stop = Arc::new(AtomicBool::new(false));
        let outcomes = Arc::new(Mutex::new(Outcomes::default()));
        let acknowledged: Arc<[AtomicU64]> = (0..behaviour.clients).map(|_| AtomicU64::new(0)).collect();
        let client = |client: usize| {
            let run = run.clone();
            let target = target.clone();
            let stop = Arc::clone(&stop);
            let outcomes = Arc::clone(&outcomes);
            let count = Arc::clone(&acknowledged);
            std::thread::spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let serial = format!("{client}-{n}");
                    push(&target, &run, &serial, behaviour, &stop, &outcomes, &count[client]);
                    std::thread::sleep(behaviour.pause);
                }
            })
        };
        let clients = (0..behaviour.clients).map(client).collect();
        Self { run, stop, acknowledged, outcomes, clients }
    }

    /// Returns the number of pushes acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged_by_client().iter().sum()
    }

    /// Returns the number of pushes of each client that were acknowledged so far. Each client has a service of its own.
    #[must_use]
    pub fn acknowledged_by_client(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Stops the load, and returns the outcome of all pushes.
    #[must_use]
    pub fn stop(self) -> Outcomes {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        let mut outcomes = self.outcomes.lock().unwrap();
        std::mem::take(&mut *outcomes)
    }
}

fn service_of(client: impl Display) -> String {
    format!("load-{client}")
}

/// Returns the selector of the samples of one client of a run.
#[must_use]
pub fn of_client(run: &str, client: usize) -> String {
    format!("{{run=\"{run}\", service_name=\"{}\"}}", service_of(client))
}

/// Returns the request that pushes a serial number. Equal arguments give equal bytes, so a retry sends the same bytes.
fn request(run: &str, serial: &str, time_ns: u64) -> Vec<u8> {
    let leaf = format!("leaf{}", serial.len() * 7 + serial.bytes().map(usize::from).sum::<usize>() % 31);
    let request = Request::new(&service_of(serial.split('-').next().unwrap_or_default()));
    let request = request.with("run", run).with("serial", serial);
    request.seen(stack(&[&leaf, "work", "main"]), vec![time_ns]).bytes()
}

fn push(
    target: &Target,
    run: &str,
    serial: &str,
    behaviour: Behaviour,
    stop: &AtomicBool,
    outcomes: &Mutex<Outcomes>,
    count: &AtomicU64,
) {
    let body = request(run, serial, now_ns());
    let mut headers = vec![("content-type", "application/x-protobuf")];
    if behaviour.retries {
        headers.push(("idempotency-key", serial));
    }
    headers.extend(target.authorization.as_deref().map(|value| ("authorization", value)));
    let mut is_unknown = false;
    // Clients begin with different receivers, and a retry goes to another one.
    for url in target.urls.iter().cycle().skip(serial.len() % target.urls.len()) {
        let began = SystemTime::now();
        let answer = crate::http::request("POST", url, &headers, Some(&body));
        let ended = SystemTime::now();
        let mut outcomes = outcomes.lock().unwrap();
        match answer {
            Ok(reply) if reply.status == 200 => {
                outcomes.acknowledged.insert(serial.to_owned());
                outcomes.acknowledged_between.push((began, ended));
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Ok(reply) => {
                // The push may have been proposed before the error, so it may be stored.
                is_unknown |= reply.status >= 500;
                if outcomes.refusals.len() < 20 {
                    outcomes.refusals.push((reply.status, reply.text()));
                }
            }
            Err(_no_answer) => is_unknown = true,
        }
        if !behaviour.retries || stop.load(Ordering::Relaxed) {
            let set = if is_unknown { &mut outcomes.unknown } else { &mut outcomes.refused };
            set.insert(serial.to_owned());
            return;
        }
        drop(outcomes);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Queries the samples of a load. Maps each serial number in the response to the sum of its samples.
#[must_use]
pub fn visible(varve: &Varve, run: &str) -> BTreeMap<String, f64> {
    let promql = format!("sum by (serial) (sum_over_time(process_cpu{{run=\"{run}\"}}[1h]))");
    let at_s = now_ns() as f64 / 1e9 + 1.0;
    let serial = |(mut labels, sum): (Labels, f64)| (labels.remove("serial").unwrap(), sum);
    varve.query(&promql, at_s).into_iter().map(serial).collect()
}

/// Returns an export request with `stacks` stacks. Each stack has one sample at each of these times.
#[must_use]
pub fn bulk(service: &str, stacks: usize, times: &[u64]) -> Vec<u8> {
    let mut request = Request::new(service);
    for i in 0..stacks {
        let names = [format!("leaf{i}"), format!("work{}", i / 8), "main".to_owned()];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        request = request.seen(stack(&names), times.to_vec());
    }
    request.bytes()
}

/// Returns the shard of a service of the default tenant, in the first placement of a varve with `shards` shards.
#[must_use]
pub fn shard_of_service(service: &str, shards: u16) -> u32 {
    let placement = Placement::uniform(NonZeroU16::new(shards).unwrap());
    // Only services that are spread over several slots need the fingerprint of the series.
    placement.shard_of(&TenantId::default_tenant(), service, Fingerprint(0), 0)
}

/// Returns a service for each of `shards` shards, in their order.
#[must_use]
pub fn service_of_each_shard(shards: u16) -> Vec<String> {
    let numbers = (FIRST_DATA_SHARD..).take(shards.into());
    let is_in = |name: &String, shard| shard_of_service(name, shards) == shard;
    numbers.map(|shard| (0..).map(|i| format!("bulk-{i}")).find(|name| is_in(name, shard)).unwrap()).collect()
}
