//! What a test run says beside passed and failed; written past the test harness's capture, so that it is always seen.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Says that a test could not run here, and exactly why.
pub fn skipped(test: &str, reason: impl Display) {
    say(&format!("SKIPPED {test}: {reason}"));
}

/// Says that a test sampled this host with BPF; `make test` counts these lines.
pub fn bpf_test_ran(test: &str) {
    say(&format!("varve-tests: bpf test ran: {test}"));
}

/// A figure that somebody will want to see, as a line of JSON.
pub fn figure(json: &serde_json::Value) {
    say(&json.to_string());
}

/// A line on stderr, whether the test passes or not.
pub fn say(line: &str) {
    // If stderr is closed nobody reads it.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Held by tests that measure time or CPU shares, or that load the machine, so that those of one file run one after another. Files
/// themselves run one after another.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed while it held this has been reported: the others still run.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
