//! Log lines about refused pushes, at a limited rate. A client that retries a bad push forever must not fill the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Minimum time between two log lines, which allows 86,400 lines a day.
const INTERVAL: Duration = Duration::from_secs(1);

/// Limits the rate of log lines about refused pushes.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl RefusalLog {
    /// Decides whether a line may be written now. If so, returns the number of lines that were suppressed since the
    /// last written line. Otherwise returns `None`, and counts this line as suppressed.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_is_written_and_others_are_counted() {
        let log = RefusalLog::default();
        let start = Instant::now();
        let at = |milliseconds: u64| log.admit(start + Duration::from_millis(milliseconds));
        assert_eq!([0, 1, 999, 1000, 1500, 9000, 9001].map(at), [Some(0), None, None, Some(2), None, Some(1), None]);
    }
}
