//! Limit on the rate of log lines about refused connections. A peer that connects again and again must not fill the
//! log.

use std::time::{Duration, Instant};

/// Minimum time between two log lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Limits the rate of log lines.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    last: Option<Instant>,
    suppressed: u64,
}

impl RefusalLog {
    /// Decides whether a line may be written now. If so, returns the number of lines that were suppressed since the
    /// last written line. Otherwise returns `None`, and counts this line as suppressed.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_is_written_and_others_are_counted() {
        let mut log = RefusalLog::default();
        let start = Instant::now();
        let mut at = |milliseconds: u64| log.admit(start + Duration::from_millis(milliseconds));
        assert_eq!([0, 1, 999, 1000, 1500, 9000].map(&mut at), [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
