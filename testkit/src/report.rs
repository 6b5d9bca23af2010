//! Lines that a test prints even if it passes.
//!
//! The test harness captures what the print macros write, so these functions write to stderr directly.
//! `scripts/test` counts the lines of [`skipped`] and [`bpf_test_ran`].

use std::fmt::Display;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reports that a test could not run on this machine, and the reason.
pub fn skipped(test: &str, reason: impl Display) {
    say(&format!("SKIPPED {test}: {reason}"));
}

/// Reports that a test sampled this host with BPF.
pub fn bpf_test_ran(test: &str) {
    say(&format!("varve-tests: bpf test ran: {test}"));
}

/// Prints a measured figure as one line of JSON.
pub fn figure(json: &serde_json::Value) {
    say(&json.to_string());
}

/// Prints a measured figure as text.
pub fn note(text: &str) {
    say(&format!("varve-tests: {text}"));
}

/// Prints a line to stderr.
pub fn say(line: &str) {
    // One write keeps the line whole, even if other tests print at the same time. If stderr is closed, nobody reads the
    // line.
    drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
}

/// Lets one test run alone: other callers in the same test binary wait until the returned guard is dropped. For tests
/// that measure time or CPU shares, or that load the machine.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that panics while it holds the lock is reported as failed. The other tests must still run.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
