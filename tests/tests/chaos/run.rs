//! The life of a row: a cluster under load, faults, the end of the faults, and the checks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use testkit::random::Random;
use tests::cluster::{Cluster, Shape};
use tests::shared::{varve_binary, workspace};
use tests::wrong_clock::WrongClock;

use crate::checks::oracle::{self, Verdict};
use crate::checks::readers::Readers;
use crate::checks::replicas::Replicas;
use crate::checks::visible::Router;
use crate::disks::Disks;
use crate::memory_limit::MemoryLimit;
use crate::proxy::Network;
use crate::rows::Row;
use crate::workload::Workload;
use crate::wrapper::Wrapper;

/// Longest time until the cluster serves again after a fault.
pub(crate) const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// Smallest number of acknowledged pushes for each fault. With fewer, the load was too small to find a violation.
const LOAD_MIN: usize = 20;
/// Rows during which the members are compared. A comparison flushes, so it would weaken the faults of disks.
const COMPARED: [&str; 3] = ["R1", "R12", "R21"];
/// Rows that must have complete responses during the faults, because their faults would make stale ones.
const READ: [&str; 2] = ["R12", "R14"];
const NODES: usize = 3;
const SHARDS: usize = 8;

/// Parts of a cluster that a row needs, in addition to three nodes and two routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kit {
    Plain,
    /// A proxy between all processes.
    Network,
    /// A small file system in memory for each node.
    SmallDisks,
    /// A file system in an image for each node, whose image has only what was synced.
    LoopDisks,
    /// A clock for each node.
    Clocks,
    /// A limit of the kernel on the memory of each node.
    MemoryLimits,
}

/// A running row.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) network: Option<Network>,
    pub(crate) disks: Disks,
    /// Clocks of the nodes, in the order of their numbers.
    pub(crate) clocks: Vec<WrongClock>,
    pub(crate) workload: Workload,
    pub(crate) random: Random,
    /// True at the size `ci`, at which faults are short.
    pub(crate) is_ci: bool,
    /// Number of faults that had an effect.
    pub(crate) faults: u64,
    /// Further figures of the row.
    pub(crate) figures: Map<String, Value>,
    pub(crate) violations: Vec<String>,
    recoveries_s: Vec<f64>,
    failovers_s: Vec<f64>,
    /// Longest failover of each kind of fault.
    longest_failovers_s: BTreeMap<String, f64>,
    /// Limits of the memory of the nodes, in the order of their numbers.
    pub(crate) memory: Vec<MemoryLimit>,
    /// Program that is run for varve. Its file must exist as long as the cluster.
    _wrapper: Option<Wrapper>,
}

/// A binary with planted faults, and the fault that is chosen.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) binary: PathBuf,
    pub(crate) fault: &'static str,
}

impl Planted {
    /// Returns the environment variable that chooses the fault.
    pub(crate) fn environment(&self) -> (String, String) {
        ("VARVE_PLANTED".to_owned(), self.fault.to_owned())
    }
}

/// Runs a row, and returns its line: figures and violations.
pub(crate) fn run(row: &Row, size: &str, seed: u64, planted: Option<&Planted>) -> Value {
    let faults = match size {
        "ci" => row.ci,
        "night" => row.night,
        number => number.parse().expect("the size is `ci`, `night` or a number of faults"),
    };
    let began = Instant::now();
    let mut run = Run::start(row, size, seed, planted);
    let readers = Readers::start(Router::all(&run.cluster, &run.workload.run), &run.workload, seed);
    run.await_service("the start");
    run.recoveries_s.clear();
    let replicas = COMPARED.contains(&row.name).then(|| Replicas::start(Arc::clone(&run.cluster)));
    (row.inject)(&mut run, faults);
    run.await_service("the last fault");
    run.recoveries_s.pop();
    run.workload.stop();
    let seen = readers.stop();
    if let Some(compared) = replicas.map(Replicas::stop) {
        run.add("replicas_compared_meanwhile", compared.pairs);
        run.add("whole_shards_compared_meanwhile", compared.whole);
        run.violations.extend(compared.violations);
        if compared.pairs == 0 {
            run.violations.push("no members were compared during the faults".to_owned());
        }
    }
    let mut verdict = oracle::check(&run.cluster, &run.workload, began.elapsed());
    let mut violations = std::mem::take(&mut run.violations);
    violations.append(&mut verdict.violations);
    violations.extend(seen.violations.lock().drain(..));
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    violations.extend(shortfalls(row, (run.faults, faults), count(&seen.reads), &verdict));
    let mut line = json!({"row": row.name, "size": size, "seed": seed, "commit": commit(), "faults": run.faults,
        "acknowledged": verdict.acknowledged, "unknown": verdict.unknown, "refused": verdict.refused,
        "lost": verdict.lost, "duplicated": verdict.duplicated, "sent_again": run.workload.duplicates(),
        "reads": count(&seen.reads), "reads_failed": count(&seen.failed), "reads_wrong": count(&seen.wrong),
        "replicas_compared": verdict.replicas, "whole_shards_compared": verdict.whole,
        "recovery_p50_s": quantile(&mut run.recoveries_s, 0.5), "recovery_p99_s": quantile(&mut run.recoveries_s, 0.99),
        "seconds": began.elapsed().as_secs()});
    let figures = line.as_object_mut().unwrap();
    if !run.failovers_s.is_empty() {
        figures.insert("failover_p50_s".to_owned(), quantile(&mut run.failovers_s, 0.5));
        figures.insert("failover_p99_s".to_owned(), quantile(&mut run.failovers_s, 0.99));
        figures.insert("failover_max_s".to_owned(), json!(run.longest_failovers_s));
    }
    figures.append(&mut run.figures);
    figures.insert("violations".to_owned(), json!(violations));
    if !violations.is_empty() {
        figures.insert("logs".to_owned(), json!(run.keep_logs(row.name, seed)));
    }
    line
}

/// Describes what a row had too little of to find a violation. `had` and `faults` are the numbers of faults that had an
/// effect, and of all faults; `reads` is the number of complete responses during the faults.
fn shortfalls(row: &Row, (had, faults): (u64, usize), reads: u64, verdict: &Verdict) -> Vec<String> {
    let mut out = Vec::new();
    if had < faults as u64 {
        out.push(format!("only {had} of {faults} faults had an effect"));
    }
    if verdict.acknowledged < LOAD_MIN * faults {
        out.push(format!("only {} pushes were acknowledged", verdict.acknowledged));
    }
    if READ.contains(&row.name) && reads == 0 {
        out.push("no query got a complete response during the faults".to_owned());
    }
    if COMPARED.contains(&row.name) && verdict.whole < SHARDS {
        out.push(format!("all members were compared of only {} of {SHARDS} shards", verdict.whole));
    }
    out
}

/// Returns a quantile of values, rounded to milliseconds; null if there are none.
fn quantile(values: &mut [f64], of: f64) -> Value {
    values.sort_by(f64::total_cmp);
    let index = ((values.len() as f64 * of).ceil() as usize).saturating_sub(1);
    values.get(index).map_or(Value::Null, |value| json!((value * 1e3).round() / 1e3))
}

/// Returns the commit of the source tree.
fn commit() -> String {
    let named = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(workspace()).output();
    named.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Run {
    fn start(row: &Row, size: &str, seed: u64, planted: Option<&Planted>) -> Self {
        let varve = planted.map_or_else(varve_binary, |planted| planted.binary.clone());
        let wrapper = matches!(row.kit, Kit::Clocks | Kit::MemoryLimits).then(|| Wrapper::new(&varve));
        let binary = wrapper.as_ref().map(Wrapper::path).or(Some(varve));
        let environment = planted.map(Planted::environment).into_iter().collect();
        let is_proxied = row.kit == Kit::Network;
        let shape = Shape { nodes: NODES, routers: 2, shards: SHARDS, is_proxied, binary, environment };
        let cluster = Arc::new(Cluster::new(shape));
        let network = is_proxied.then(|| Network::new(&cluster, seed));
        let disks = Disks::mount(row.kit, &cluster);
        let nodes_of = |kit: Kit| 0..if row.kit == kit { NODES } else { 0 };
        let clocks: Vec<WrongClock> = nodes_of(Kit::Clocks).map(|_| WrongClock::new()).collect();
        let memory: Vec<MemoryLimit> = nodes_of(Kit::MemoryLimits).map(|_| MemoryLimit::new()).collect();
        let export = |clock: &WrongClock| {
            clock.environment().iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect()
        };
        let preludes: Vec<String> = clocks.iter().map(export).chain(memory.iter().map(MemoryLimit::prelude)).collect();
        for (id, prelude) in (1..).zip(preludes) {
            wrapper.as_ref().unwrap().set_prelude(id, &prelude);
        }
        cluster.launch();
        let duplicates_percent = if row.name == "R18" { 50 } else { 5 };
        let workload = Workload::start(&cluster, seed, duplicates_percent);
        Self {
            cluster,
            network,
            disks,
            clocks,
            memory,
            workload,
            random: Random::new(seed),
            is_ci: size == "ci",
            faults: 0,
            figures: Map::new(),
            violations: Vec::new(),
            recoveries_s: Vec::new(),
            failovers_s: Vec::new(),
            longest_failovers_s: BTreeMap::new(),
            _wrapper: wrapper,
        }
    }

    /// Sleeps for a random time below `longest`.
    pub(crate) fn sleep_below(&mut self, longest: Duration) {
        std::thread::sleep(longest.mul_f64(self.random.below(1000) as f64 / 1000.0));
    }

    /// Waits until every client has an acknowledgement of an attempt that began after this call, and returns the time
    /// that this took. After [`RECOVERY_MAX`], the row does not hold. A row that does not hold waits no more.
    fn acknowledged_again(&mut self, after: &str) -> f64 {
        let began = Instant::now();
        let since_ns = self.workload.now_ns();
        loop {
            let waiting = self.workload.waiting(since_ns);
            if waiting.is_empty() || !self.violations.is_empty() {
                return began.elapsed().as_secs_f64();
            }
            if began.elapsed() > RECOVERY_MAX {
                let text = format!("{waiting:?} get no acknowledgement within {RECOVERY_MAX:?} after {after}");
                self.violations.push(text);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the cluster serves after the end of a fault.
    pub(crate) fn await_service(&mut self, after: &str) {
        let seconds = self.acknowledged_again(after);
        self.recoveries_s.push(seconds);
    }

    /// Waits until the cluster serves during a fault, because a majority of every shard is unaffected.
    pub(crate) fn await_failover(&mut self, during: &str) {
        let seconds = self.acknowledged_again(during);
        self.failovers_s.push(seconds);
        let longest = self.longest_failovers_s.entry(during.to_owned()).or_default();
        *longest = longest.max((seconds * 1e3).round() / 1e3);
    }

    /// Starts a node again, and waits until it is ready.
    pub(crate) fn start_node(&mut self, node: usize) {
        self.cluster.start(node);
        self.await_ready(node);
    }

    /// Waits until a node is ready. After [`RECOVERY_MAX`], the row does not hold. A row that does not hold waits no
    /// more.
    pub(crate) fn await_ready(&mut self, node: usize) {
        let began = Instant::now();
        let is_ready = |reply: tests::http::Reply| reply.status == 200;
        while self.violations.is_empty() && !self.cluster.readiness(node).is_ok_and(is_ready) {
            if began.elapsed() > RECOVERY_MAX {
                let said = self.cluster.readiness(node).map_or_else(|lost| lost.to_string(), |reply| reply.text());
                self.violations.push(format!("node {node} is not ready after {RECOVERY_MAX:?}: {said}"));
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns a figure of the row; 0 if there is none.
    pub(crate) fn figure(&self, figure: &str) -> u64 {
        self.figures.get(figure).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Adds to a figure of the row.
    pub(crate) fn add(&mut self, figure: &str, number: u64) {
        let sum = self.figure(figure) + number;
        self.figures.insert(figure.to_owned(), json!(sum));
    }

    /// Copies the logs of all processes to a folder that outlives the test. Returns the folder.
    fn keep_logs(&self, row: &str, seed: u64) -> String {
        let folder = std::env::temp_dir().join(format!("varve-chaos-{row}-{seed}"));
        std::fs::create_dir_all(&folder).unwrap();
        for file in std::fs::read_dir(self.cluster.folder()).unwrap().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "log") {
                std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
            }
        }
        folder.display().to_string()
    }
}
