//! Progress of a recording on stderr: a bar on a terminal, and elsewhere a line now and then.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use agent::StatusSnapshot;
use indicatif::{ProgressBar, ProgressStyle};

/// Shortest time between two lines where stderr is not a terminal: a log has a few of them, however long it takes.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Of a whole recording.
const LOG_LINES: u32 = 10;

/// What was said, on stderr.
pub(super) struct Progress {
    /// Hidden where stderr is not a terminal.
    bar: ProgressBar,
    duration: Duration,
    logged: Option<Instant>,
}

impl Progress {
    pub(super) fn new(duration: Duration) -> Self {
        Self { bar: bar(), duration, logged: None }
    }

    /// Says how much was sampled.
    pub(super) fn sampling(&mut self, elapsed: Duration, now: &StatusSnapshot) {
        let (seconds, duration) = (elapsed.as_secs(), humantime::format_duration(self.duration));
        let (samples, dropped) = (now.samples, now.dropped);
        let text =
            format!("sampling: {seconds} s of {duration}, {samples} samples, {dropped} dropped (Ctrl-C: enough)");
        self.say(seconds, self.duration.as_secs(), text);
    }

    /// Says of how many files names were looked for.
    pub(super) fn naming(&mut self, done: usize, files: usize) {
        let text = format!("naming: {done} of {files} files (Ctrl-C: without the rest)");
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
            // Without anybody who reads it, it is said to nobody.
            drop(writeln!(io::stderr(), "{text}"));
        }
    }

    /// Removes the bar from the terminal; the next report begins another one.
    pub(super) fn clear(&mut self) {
        self.bar.finish_and_clear();
        (self.bar, self.logged) = (bar(), None);
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
