//! Planted faults, each of which a row must detect. Otherwise a row that holds would prove nothing.

use serde_json::Value;
use tests::report::{alone, figure, skipped};

use crate::rows;
use crate::run::{self, Planted};

/// Runs a row with a varve that has a fault. Fails if the row holds, or if the line of the row does not show the effect
/// of the fault.
fn is_detected(fault: &'static str, row: &str, shows: impl Fn(&Value) -> bool) {
    let _alone = alone();
    let Some(binary) = std::env::var_os("VARVE_PLANTED_BINARY") else {
        return skipped(fault, "VARVE_PLANTED_BINARY names no varve built with --features planted-faults");
    };
    let planted = Planted { binary: binary.into(), fault };
    let mut line = run::run(rows::named(row).unwrap(), "ci", 1, Some(&planted));
    line["planted"] = fault.into();
    figure(&line);
    let holds = line["violations"].as_array().unwrap().is_empty();
    assert!(!holds && shows(&line), "row {row} does not detect {fault}: {line}");
}

#[test]
fn a_batch_that_is_applied_again_on_a_retry_is_detected() {
    is_detected("double-apply", "R18", has_duplicates);
}

#[test]
fn a_router_that_gives_retries_new_ids_is_detected() {
    is_detected("new-ids", "R18", has_duplicates);
}

#[test]
fn votes_that_are_forgotten_on_a_restart_are_detected() {
    // Terms with two leaders leave logs that no member can continue, so a killed node never becomes ready again.
    is_detected("forget-votes", "R1", |line| line["violations"].to_string().contains("is not ready"));
}

fn has_duplicates(line: &Value) -> bool {
    line["duplicated"].as_u64() > Some(0)
}
