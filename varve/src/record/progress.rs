//! How far a recording is: on a terminal a line that is written again every second, elsewhere a line now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use agent::StatusSnapshot;

/// Between two lines of a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_secs(1);
/// Between two lines elsewhere: a log has a few of them, however long it takes.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Of a whole recording.
const LOG_LINES: u32 = 10;

/// What was said, on stderr.
pub(super) struct Progress {
    is_terminal: bool,
    duration: Duration,
    said: Option<Instant>,
}

impl Progress {
    pub(super) fn new(duration: Duration) -> Self {
        Self { is_terminal: io::stderr().is_terminal(), duration, said: None }
    }

    /// Says how much was sampled.
    pub(super) fn sampling(&mut self, elapsed: Duration, now: &StatusSnapshot) {
        let (elapsed, duration) = (elapsed.as_secs(), humantime::format_duration(self.duration));
        let (samples, dropped) = (now.samples, now.dropped);
        self.say(&format!(
            "sampling: {elapsed} s of {duration}, {samples} samples, {dropped} dropped (Ctrl-C: enough)"
        ));
    }

    /// Says of how many files names were looked for.
    pub(super) fn naming(&mut self, done: usize, files: usize) {
        self.say(&format!("naming: {done} of {files} files (Ctrl-C: without the rest)"));
    }

    fn say(&mut self, text: &str) {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL.max(self.duration / LOG_LINES) };
        if self.said.is_some_and(|said| said.elapsed() < interval) {
            return;
        }
        self.said = Some(Instant::now());
        // Without anybody who reads it, it is said to nobody.
        drop(if self.is_terminal {
            write!(io::stderr(), "\r\x1b[K{text}").and_then(|()| io::stderr().flush())
        } else {
            writeln!(io::stderr(), "{text}")
        });
    }

    /// Takes the line of a terminal away.
    pub(super) fn clear(&mut self) {
        self.said = None;
        if self.is_terminal {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}
