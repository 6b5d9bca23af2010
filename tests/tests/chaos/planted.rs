//! Planted faults, each of which a row must detect. Otherwise a row that holds would prove nothing.

use tests::report::{alone, figure, skipped};

use crate::rows;
use crate::run::{self, Planted};

/// Runs the row of retries with a varve that has a fault. Fails if no push counts twice.
fn is_detected(fault: &'static str) {
    let _alone = alone();
    let Some(binary) = std::env::var_os("VARVE_PLANTED_BINARY") else {
        return skipped(fault, "VARVE_PLANTED_BINARY names no varve built with --features planted-faults");
    };
    let planted = Planted { binary: binary.into(), fault };
    let mut line = run::run(rows::named("R18").unwrap(), "ci", 1, Some(&planted));
    line["planted"] = fault.into();
    figure(&line);
    assert!(line["duplicated"].as_u64() > Some(0), "row R18 does not detect {fault}: {line}");
}

#[test]
fn a_batch_that_is_applied_again_on_a_retry_is_detected() {
    is_detected("double-apply");
}

#[test]
fn a_router_that_gives_retries_new_ids_is_detected() {
    is_detected("new-ids");
}
