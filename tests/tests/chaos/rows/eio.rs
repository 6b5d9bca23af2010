//! R8: a sync, write or read of a node fails once with EIO. The node must stop serving what the error affects, and must
//! never try a failed sync again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::program::is_running;

use crate::members::some_leader;
use crate::run::Run;
use crate::strace::Injection;

/// A kind of system calls that fail. Each thread counts its own calls.
struct Kind {
    name: &'static str,
    calls: &'static str,
    /// Largest number of the call that fails, at the size `ci` and at others.
    ci: usize,
    night: usize,
}

/// Many threads share the reads, so that a late one may take long to come.
const KINDS: [Kind; 3] = [
    Kind { name: "fsync", calls: "fsync,fdatasync", ci: 10, night: 60 },
    Kind { name: "write", calls: "write,pwrite64", ci: 10, night: 60 },
    Kind { name: "read", calls: "pread64", ci: 4, night: 60 },
];
/// Longest time until a node stops after a failed sync or write of its log.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Number of reads by which the next fault of a read may be later than the last one, if that came too early because no
/// thread read often enough.
const READS_MORE: usize = 10;
/// Longest time for which a row waits for the n-th call.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn inject(run: &mut Run, faults: usize) {
    let mut stopped_s: f64 = 0.0;
    // Numbers of the calls that failed, by kind.
    let mut failed = BTreeMap::<&str, BTreeSet<usize>>::new();
    let mut reads_max = usize::MAX;
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        let choice = run.random.below(1 << 20);
        let node = some_leader(&run.cluster, choice);
        let pid = run.cluster.pid(node);
        let kind = &KINDS[fault % KINDS.len()];
        let is_read = kind.name == "read";
        // Every call of a kind fails once at the size `night`, if threads live long enough for so many reads.
        let n = 1 + if run.is_ci { run.random.below(kind.ci) } else { fault / KINDS.len() % kind.night };
        let wanted = if is_read { n.min(reads_max) } else { n };
        if is_read {
            // Only what was flushed is read from files.
            administer(run, "compact");
        }
        let (injection, n) = fail(run, node, kind, wanted);
        if n < wanted {
            reads_max = (n + READS_MORE).min(wanted - 1);
        }
        let injected = Instant::now();
        if injection.injected() > 0 {
            run.faults += 1;
            run.add(kind.name, 1);
            failed.entry(kind.name).or_default().insert(n);
        }
        while is_running(pid) && injected.elapsed() < STOP_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let has_stopped = !is_running(pid);
        if !is_read && injection.injected() > 0 {
            stopped_s = stopped_s.max(injected.elapsed().as_secs_f64());
            if !has_stopped {
                run.violations.push(format!("node {node} goes on after EIO of {} {n}", kind.name));
            }
        }
        drop(injection);
        run.await_failover(&format!("EIO of a {}", kind.name));
        // An operator, or systemd, starts the node again.
        run.cluster.kill(node);
        run.start_node(node);
        run.await_service("the restart of the node");
    }
    run.figures.insert("fail_stop_max_s".to_owned(), json!((stopped_s * 1e3).round() / 1e3));
    let numbers: BTreeMap<&str, usize> = failed.iter().map(|(kind, numbers)| (*kind, numbers.len())).collect();
    run.figures.insert("different_calls".to_owned(), json!(numbers));
}

/// Makes the `n`-th call of a kind fail once. If no thread reads so often, `n` is halved. Returns the injection, and
/// `n`.
fn fail(run: &Run, node: usize, kind: &Kind, mut n: usize) -> (Injection, usize) {
    let pid = run.cluster.pid(node);
    loop {
        let paths = if kind.name == "write" { log_files(run, node) } else { Vec::new() };
        let injection = Injection::attach(pid, kind.calls, &format!("error=EIO:when={n}"), &paths);
        let began = Instant::now();
        while injection.injected() == 0 && is_running(pid) && began.elapsed() < PATIENCE {
            if kind.name == "read" {
                // Verifying reads all files.
                administer(run, "verify");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if kind.name != "read" || n == 1 || injection.injected() > 0 || !is_running(pid) {
            return (injection, n);
        }
        n /= 2;
    }
}

/// Returns the files to which the Raft log of a node is written now.
fn log_files(run: &Run, node: usize) -> Vec<PathBuf> {
    let files = std::fs::read_dir(run.cluster.data_dir(node).join("raft")).unwrap().flatten();
    let files = files.map(|file| file.path().canonicalize().unwrap());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

/// Runs a task of administrators at all leaders.
fn administer(run: &Run, task: &str) {
    let url = format!("{}/api/v1/admin/{task}", run.cluster.routers("http")[0]);
    let token = format!("Bearer {}", run.cluster.token("admin"));
    let asked =
        tests::http::request_within(Duration::from_secs(20), "POST", &url, &[("authorization", &token)], Some(b""));
    // The response may be the injected error.
    drop(asked);
}
