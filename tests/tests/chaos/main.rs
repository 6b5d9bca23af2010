//! Rows of faults against a whole cluster: one kind of fault in each row, under load, with checks of every promise.
//!
//! `make chaos ROWS=R1,R12 SIZE=night SEED=7` runs rows at any size, and prints one line of JSON for each. The tests
//! run every row at its smallest size. [`rows`] lists the rows, [`run`] is the life of a row, and [`checks`] has the
//! checks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod checks;
mod disks;
mod memory_limit;
mod planted;
mod proxy;
mod rows;
mod run;
mod strace;
mod workload;
mod wrapper;

use serde_json::Value;
use tests::cluster::members;
use tests::report::{alone, figure};

use crate::rows::Row;

/// Runs a row, prints its line, and returns true if it holds.
fn holds(row: &Row, size: &str, seed: u64) -> bool {
    let line = run::run(row, size, seed, None);
    figure(&line);
    line["violations"] == Value::Array(Vec::new())
}

/// Runs a row at the size of a CI run.
fn at_ci_size(name: &str) {
    let _alone = alone();
    let row = rows::named(name).unwrap_or_else(|| panic!("there is no row {name}"));
    if let Some(reason) = (row.obstacle)() {
        return tests::report::skipped(name, reason);
    }
    assert!(holds(row, "ci", 1), "{name} does not hold: see the line above");
}

#[test]
fn r1_kills_of_nodes() {
    at_ci_size("R1");
}

#[test]
fn r2_power_cuts() {
    at_ci_size("R2");
}

#[test]
fn r6_little_memory() {
    at_ci_size("R6");
}

#[test]
fn r7_damaged_files() {
    at_ci_size("R7");
}

#[test]
fn r8_errors_of_the_disk() {
    at_ci_size("R8");
}

#[test]
fn r9_slow_and_stalled_disks() {
    at_ci_size("R9");
}

#[test]
fn r10_full_disks() {
    at_ci_size("R10");
}

#[test]
fn r11_unreadable_blocks() {
    at_ci_size("R11");
}

#[test]
fn r12_partitions_of_the_network() {
    at_ci_size("R12");
}

#[test]
fn r14_stopped_processes() {
    at_ci_size("R14");
}

#[test]
fn r15_wrong_clocks() {
    at_ci_size("R15");
}

#[test]
fn r18_kills_of_routers_and_duplicated_requests() {
    at_ci_size("R18");
}

#[test]
fn r21_comparisons_of_members() {
    at_ci_size("R21");
}

#[test]
#[ignore = "make chaos runs the rows that the environment names"]
fn rows_of_the_environment() {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let names = variable("VARVE_CHAOS_ROWS", "all");
    let size = variable("VARVE_CHAOS_SIZE", "ci");
    let seed = variable("VARVE_CHAOS_SEED", "1").parse().expect("VARVE_CHAOS_SEED is a number");
    let wanted: Vec<&Row> = match names.as_str() {
        "all" => rows::ROWS.iter().collect(),
        names => names.split(',').map(|name| rows::named(name).unwrap_or_else(|| panic!("no row {name}"))).collect(),
    };
    let mut broken = Vec::new();
    for row in &wanted {
        match (row.obstacle)() {
            Some(reason) if names == "all" => tests::report::skipped(row.name, reason),
            Some(reason) => panic!("{} cannot run here: {reason}", row.name),
            None if holds(row, &size, seed) => {}
            None => broken.push(row.name),
        }
    }
    assert!(broken.is_empty(), "rows that do not hold: {broken:?}");
}
