//! What a test says about itself even when it passes. The test harness keeps back what the print macros write, so this does not use
//! them; `make test` counts these lines.

use std::fmt::Display;
use std::io::Write as _;

/// A test ran with BPF, and passed.
pub(crate) fn bpf_test_ran(test: &str) {
    say(&format!("varve-tests: bpf test ran: {test}"));
}

/// A test could not run here.
pub(crate) fn skipped(test: &str, missing: &dyn Display) {
    say(&format!("SKIPPED {test}: {missing}"));
}

/// A figure that a test found.
#[allow(dead_code, reason = "few tests find one")]
pub(crate) fn said(figure: &str) {
    say(&format!("varve-tests: {figure}"));
}

fn say(line: &str) {
    // One write, so that lines of tests that run at the same time stay whole; nobody to tell if it fails.
    let _unheard = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
