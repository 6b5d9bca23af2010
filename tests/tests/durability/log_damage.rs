//! Tests of a damaged record in the middle of the log, whose entries are in no other file. Varve must not start without
//! them, and must not change the damaged file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tests::load::{Behaviour, Load, Outcomes, visible};
use tests::report::{alone, skipped};
use tests::server::{Setup, Varve};

/// Number of acknowledged pushes in the log.
const PUSHES: u64 = 300;

/// A varve whose log was damaged after a kill.
struct Damaged {
    varve: Varve,
    /// Value of the label `run` of the pushed samples.
    run: String,
    outcomes: Outcomes,
    file: PathBuf,
}

impl Damaged {
    /// Starts a varve, kills it under load, and flips a bit in the middle of its log.
    fn new(binary: Option<PathBuf>) -> Self {
        let environment = vec![("VARVE_PLANTED".to_owned(), "skip-bad-records".to_owned())];
        let mut varve = Varve::start(Setup { binary, environment, ..Setup::default() });
        let load = Load::start(&varve, Behaviour { clients: 4, retries: false, pause: Duration::from_millis(2) });
        while load.acknowledged() < PUSHES {
            std::thread::sleep(Duration::from_millis(10));
        }
        varve.kill();
        let run = load.run.clone();
        let outcomes = load.stop();
        let files = fs::read_dir(varve.data_dir().join("raft")).unwrap().map(|entry| entry.unwrap().path());
        let logs = files.filter(|file| file.extension().is_some_and(|extension| extension == "log"));
        let file = logs.max_by_key(|file| file.metadata().unwrap().len()).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(&file, bytes).unwrap();
        Self { varve, run, outcomes, file }
    }
}

#[test]
fn a_log_with_a_damaged_record_is_refused_and_kept() {
    let _alone = alone();
    let mut damaged = Damaged::new(None);
    let before = fs::read(&damaged.file).unwrap();
    for start in 0..2 {
        let said = damaged.varve.try_launch().expect_err("it starts without acknowledged samples");
        let name = damaged.file.file_name().unwrap().to_str().unwrap();
        assert!(said.contains(name) && said.contains("backup"), "start {start} does not say what to do: {said}");
        assert!(fs::read(&damaged.file).unwrap() == before, "start {start} changed the damaged file");
    }
}

#[test]
fn a_build_that_skips_bad_records_is_detected() {
    let _alone = alone();
    let Some(binary) = std::env::var_os("VARVE_PLANTED_BINARY") else {
        let test = "a_build_that_skips_bad_records_is_detected";
        return skipped(test, "VARVE_PLANTED_BINARY names no varve built with --features planted-faults");
    };
    let mut damaged = Damaged::new(Some(binary.into()));
    damaged.varve.launch();
    let violations = damaged.outcomes.violations(&visible(&damaged.varve, &damaged.run));
    assert!(!violations.is_empty(), "no acknowledged sample is missing");
}
