//! Tests of acknowledgements and syncs, under strace. Between the start of a push and its response, a sync must begin
//! and succeed.
//!
//! With group commit, one sync serves many pushes, so syncs are matched to pushes by time. An entry is written after
//! its push began. A sync makes everything durable that was written before the sync began.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tests::load::{Behaviour, Load, Outcomes, visible};
use tests::report::{alone, figure, skipped};
use tests::server::{Setup, Varve, shards};
use tests::shared::tool;

/// One call of fsync or fdatasync, with times in seconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Sync {
    began: f64,
    ended: f64,
    has_succeeded: bool,
}

/// Parses the syncs of a trace of `strace -f -ttt -T`. If a line of another thread interrupts a call, the call is split
/// into two lines.
fn syncs(trace: &str) -> Vec<Sync> {
    let mut begun: std::collections::HashMap<&str, f64> = std::collections::HashMap::new();
    let mut out = Vec::new();
    for line in trace.lines() {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(time), Some(call)) = (words.next(), words.next(), words.next()) else { continue };
        let Ok(time) = time.parse::<f64>() else { continue };
        let is_resumed = call == "<..." && line.contains("sync resumed>");
        if !is_resumed && !call.starts_with("fdatasync(") && !call.starts_with("fsync(") {
            continue;
        }
        if line.contains("<unfinished ...>") {
            begun.insert(thread, time);
            continue;
        }
        let has_succeeded = line.contains(" = 0");
        // A line with `resumed` begins with the time at which the call ended. A whole line begins with the time at
        // which the call began, and ends with its duration.
        let duration =
            line.rsplit('<').next().and_then(|text| text.strip_suffix('>')?.parse::<f64>().ok()).unwrap_or(0.0);
        let (began, ended) = match begun.remove(thread).filter(|_| is_resumed) {
            Some(began) => (began, time),
            None => (time, time + duration),
        };
        out.push(Sync { began, ended, has_succeeded });
    }
    out
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Describes the acknowledged pushes without a successful sync between their start and their response.
fn unsynced(trace: &str, outcomes: &Outcomes) -> Vec<String> {
    let syncs = syncs(trace);
    let is_covered = |began: f64, ended: f64| {
        syncs.iter().any(|sync| sync.has_succeeded && sync.began >= began && sync.ended <= ended)
    };
    let pushes = outcomes.acknowledged_between.iter().map(|&(began, ended)| (seconds(began), seconds(ended)));
    pushes
        .filter(|&(began, ended)| !is_covered(began, ended))
        .map(|(began, ended)| format!("push of {began:.6} to {ended:.6}: no sync succeeded in between"))
        .collect()
}

/// A varve under strace.
struct Traced {
    varve: Varve,
    folder: tempfile::TempDir,
}

impl Traced {
    /// Starts varve under strace. In each thread, the sync with the number `fail_from` and all later ones fail with
    /// EIO.
    fn start(binary: Option<PathBuf>, fail_from: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace").to_str().unwrap().to_owned();
        let mut wrapper: Vec<String> =
            ["strace", "-f", "-q", "-ttt", "-T", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o", &trace]
                .map(str::to_owned)
                .into();
        if let Some(n) = fail_from {
            wrapper.extend(["-e".to_owned(), format!("inject=fsync,fdatasync:error=EIO:when={n}+")]);
        }
        // A binary with planted faults needs to know which of them is chosen.
        let environment = vec![("VARVE_PLANTED".to_owned(), "skip-sync".to_owned())];
        Self { varve: Varve::start(Setup { wrapper, binary, environment, ..Setup::default() }), folder }
    }

    fn trace(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("trace")).unwrap()
    }

    /// Pushes for `patience`, or until varve has ended. Returns the value of the samples' label `run`, and the
    /// outcomes.
    fn load(&mut self, patience: Duration) -> (String, Outcomes) {
        let load = Load::start(&self.varve, Behaviour { clients: 4, retries: false, pause: Duration::from_millis(3) });
        let began = Instant::now();
        while began.elapsed() < patience && self.varve.is_running() {
            std::thread::sleep(Duration::from_millis(50));
        }
        (load.run.clone(), load.stop())
    }
}

fn without_strace(test: &str) -> bool {
    let is_missing = tool("strace").is_none();
    if is_missing {
        skipped(test, "strace is not installed");
    }
    is_missing
}

#[test]
fn every_acknowledgement_follows_a_successful_sync() {
    let _alone = alone();
    if without_strace("every_acknowledgement_follows_a_successful_sync") {
        return;
    }
    let mut traced = Traced::start(None, None);
    let (_, outcomes) = traced.load(Duration::from_secs(5));
    assert!(traced.varve.terminate().success(), "{}", traced.varve.said());
    assert!(outcomes.acknowledged.len() > 100, "{} were acknowledged", outcomes.acknowledged.len());
    let unsynced = unsynced(&traced.trace(), &outcomes);
    assert!(unsynced.is_empty(), "{} of {}: {:?}", unsynced.len(), outcomes.acknowledged.len(), unsynced.first());
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_and_the_process_fails() {
    let _alone = alone();
    if without_strace("after_a_failed_sync_nothing_is_acknowledged_and_the_process_fails") {
        return;
    }
    // Each shard syncs the log a few times when it starts.
    let of_start = 20 * (u32::from(shards()) - 1);
    for fail_from in [30, 75, 160].map(|of_load| of_start + of_load) {
        let mut traced = Traced::start(None, Some(fail_from));
        let (run, outcomes) = traced.load(Duration::from_secs(30));
        let trace = traced.trace();
        let failed: Vec<Sync> = syncs(&trace).into_iter().filter(|sync| !sync.has_succeeded).collect();
        let first = failed.first().expect("a sync was made to fail");
        assert!(!traced.varve.is_running(), "it runs on after {} failed syncs", failed.len());
        let status = traced.varve.ended();
        assert_ne!(status.code(), Some(0));
        let said = traced.varve.said();
        assert!(said.contains("could not be synced") && said.contains("Input/output error"), "{said}");
        assert_eq!(unsynced(&trace, &outcomes), Vec::<String>::new(), "fail_from {fail_from}");
        let late = outcomes.acknowledged_between.iter().filter(|(began, _)| seconds(*began) > first.began).count();
        assert_eq!(late, 0, "{late} pushes that began after the first failed sync were acknowledged");
        assert!(outcomes.acknowledged.len() > 5, "only {} were acknowledged", outcomes.acknowledged.len());
        // Without strace, syncs succeed again. Everything that was acknowledged must be there.
        traced.varve.setup.wrapper.clear();
        traced.varve.launch();
        assert_eq!(outcomes.violations(&visible(&traced.varve, &run)), Vec::<String>::new(), "fail_from {fail_from}");
        figure(&json!({"suite": "sync", "fail_from": fail_from, "failed_syncs": failed.len(),
            "acknowledged": outcomes.acknowledged.len(), "unknown": outcomes.unknown.len(), "lost": 0}));
    }
}

#[test]
fn a_build_that_skips_syncs_is_detected() {
    let test = "a_build_that_skips_syncs_is_detected";
    let _alone = alone();
    if without_strace(test) {
        return;
    }
    let Some(binary) = std::env::var_os("VARVE_PLANTED_BINARY") else {
        return skipped(test, "VARVE_PLANTED_BINARY names no varve built with --features planted-faults");
    };
    let mut traced = Traced::start(Some(binary.into()), None);
    let (_, outcomes) = traced.load(Duration::from_secs(5));
    assert!(traced.varve.terminate().success(), "{}", traced.varve.said());
    let unsynced = unsynced(&traced.trace(), &outcomes);
    let found = unsynced.len();
    let of = outcomes.acknowledged.len();
    figure(&json!({"suite": "sync", "planted": true, "acknowledged": of, "found_unsynced": found}));
    assert!(
        of > 100 && found > of / 2,
        "the check finds {found} of {of} acknowledgements without a sync: it must find them"
    );
}

#[test]
fn interrupted_calls_in_a_trace_are_parsed() {
    let trace = "12 100.5 fdatasync(7) = 0 <0.25>\n13 101.0 fsync(8 <unfinished ...>\n\
        12 101.1 fdatasync(7) = -1 EIO (Input/output error) (INJECTED) <0.001>\n\
        13 101.5 <... fsync resumed>) = 0 <0.5>\n14 102.0 +++ exited with 0 +++\n";
    let syncs = syncs(trace);
    let read: Vec<_> = syncs.iter().map(|sync| (sync.began, sync.ended, sync.has_succeeded)).collect();
    assert_eq!(read, [(100.5, 100.75, true), (101.1, 101.101, false), (101.0, 101.5, true)]);
    let at = |seconds| UNIX_EPOCH + Duration::from_secs_f64(seconds);
    let outcomes =
        |began, ended| Outcomes { acknowledged_between: vec![(at(began), at(ended))], ..Outcomes::default() };
    assert!(unsynced(trace, &outcomes(100.9, 101.6)).is_empty());
    assert_eq!(unsynced(trace, &outcomes(101.05, 101.6)).len(), 1, "the sync began before the push");
    assert_eq!(unsynced(trace, &outcomes(100.9, 101.4)).len(), 1, "the sync ended after the answer");
}
