//! Progress of a recording, on stderr: a bar on a terminal, otherwise a line at an interval.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use agent::StatusSnapshot;
use indicatif::{ProgressBar, ProgressStyle};

/// Shortest time between two progress lines if stderr is not a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Largest number of progress lines during the sampling if stderr is not a terminal.
const LOG_LINES: u32 = 10;

/// Reporter of progress on stderr.
pub(super) struct Progress {
    /// Progress bar. It is hidden if stderr is not a terminal.
    bar: ProgressBar,
    duration: Duration,
    logged: Option<Instant>,
}

impl Progress {
    pub(super) fn new(duration: Duration) -> Self {
        Self { bar: bar(), duration, logged: None }
    }

    /// Reports the number of samples so far.
    pub(super) fn sampling(&mut self, elapsed: Duration, now: &StatusSnapshot) {
        let seconds = elapsed.as_secs();
        let duration = humantime::format_duration(self.duration);
        let StatusSnapshot { samples, dropped, .. } = now;
        let text = format!("sampling: {seconds} s of {duration}, {samples} samples, {dropped} dropped (Ctrl-C stops)");
        self.say(seconds, self.duration.as_secs(), text);
    }

    /// Reports the number of files whose symbols were read.
    pub(super) fn naming(&mut self, done: usize, files: usize) {
        let text = format!("naming: {done} of {files} files (Ctrl-C skips the rest)");
        self.say(done as u64, files as u64, text);
    }

    fn say(&mut self, done: u64, all: u64, text: String) {
        if !self.bar.is_hidden() {
            self.bar.set_length(all);
            self.bar.set_position(done);
            self.bar.set_message(text);
            return;
        }
        let interval = LOG_INTERVAL.max(self.duration / LOG_LINES);
        if self.logged.is_none_or(|logged| logged.elapsed() >= interval) {
            self.logged = Some(Instant::now());
            // If stderr is closed, nobody reads the line.
            drop(writeln!(io::stderr(), "{text}"));
        }
    }

    /// Removes the bar from the terminal. The next report begins another bar.
    pub(super) fn clear(&mut self) {
        self.bar.finish_and_clear();
        self.bar = bar();
        self.logged = None;
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
