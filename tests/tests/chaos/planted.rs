//! Planted faults, each of which a row must detect. Otherwise a row that holds would prove nothing.

use tests::report::{alone, figure, skipped};

use crate::rows;
use crate::run::{self, Planted};

/// Runs a row with a varve that has a fault. Fails if the row holds.
fn is_detected(fault: &'static str, row: &str) {
    let _alone = alone();
    let Some(binary) = std::env::var_os("VARVE_PLANTED_BINARY") else {
        return skipped(fault, "VARVE_PLANTED_BINARY names no varve built with --features planted-faults");
    };
    let planted = Planted { binary: binary.into(), fault };
    let mut line = run::run(rows::named(row).unwrap(), "ci", 1, Some(&planted));
    line["planted"] = fault.into();
    figure(&line);
    assert_ne!(line["violations"], serde_json::json!([]), "row {row} does not detect {fault}");
}

#[test]
fn a_batch_that_is_applied_again_on_a_retry_is_detected() {
    is_detected("double-apply", "R18");
}

#[test]
fn a_router_that_gives_retries_new_ids_is_detected() {
    is_detected("new-ids", "R18");
}

#[test]
#[ignore = "not yet known to be found at the size ci"]
fn votes_that_are_forgotten_on_a_restart_are_detected() {
    is_detected("forget-votes", "R1");
}

#[test]
#[ignore = "10 partitions do not find it: R12 needs reads at a leader that is cut off and not yet deposed"]
fn a_leader_that_reads_without_asking_a_majority_is_detected() {
    is_detected("stale-reads", "R12");
}
