//! A limit for work that a process can make arbitrarily slow, such as reading its mappings or its perf map.

use std::time::{Duration, Instant};

/// Longest time by which work may be ahead of its share. It is needed when many processes appear at once: when the
/// agent starts, and when a build runs.
const SAVED_MAX: Duration = Duration::from_secs(10);

/// Limits work to a share of the time.
#[derive(Debug)]
pub(crate) struct RateLimit {
    parts: u32,
    /// Longest time by which work may be ahead of its share.
    saved: Duration,
    /// Time at which the work done so far will have used exactly its share.
    paid_at: Instant,
}

impl RateLimit {
    /// Creates a limit that allows work to take one part in `parts` of the time.
    pub(crate) fn new(parts: u32) -> Self {
        Self { parts, saved: SAVED_MAX, paid_at: Instant::now() }
    }

    /// Creates a limit that also allows `work` at once, whatever share of the time that is.
    pub(crate) fn with_burst(parts: u32, work: Duration) -> Self {
        Self { saved: work * parts, ..Self::new(parts) }
    }

    /// Runs `work`, or returns `None` if the limit is reached.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
        if self.is_reached() {
            return None;
        }
        let started = Instant::now();
        let result = work();
        self.count(started.elapsed());
        Some(result)
    }

    pub(crate) fn is_reached(&self) -> bool {
        Instant::now() + self.saved < self.paid_at
    }

    /// Counts work that has just ended.
    pub(crate) fn count(&mut self, work: Duration) {
        let started = Instant::now().checked_sub(work).unwrap_or(self.paid_at);
        self.paid_at = self.paid_at.max(started) + work * self.parts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_work_runs_at_once_and_slow_work_reaches_the_limit() {
        let mut limit = RateLimit::new(500);
        for index in 0..100 {
            assert_eq!(limit.run(|| index), Some(index));
        }
        // 50 ms of work are the share of 25 seconds, and work may be 10 seconds ahead.
        assert_eq!(limit.run(|| std::thread::sleep(Duration::from_millis(50))), Some(()));
        assert_eq!(limit.run(|| 2), None);
        limit.paid_at -= Duration::from_secs(60);
        assert_eq!(limit.run(|| 3), Some(3));
    }

    #[test]
    fn a_burst_is_allowed_at_once_and_more_is_not() {
        let mut limit = RateLimit::with_burst(100, Duration::from_secs(1));
        limit.count(Duration::from_millis(900));
        assert!(!limit.is_reached());
        limit.count(Duration::from_millis(200));
        assert!(limit.is_reached());
        limit.paid_at -= Duration::from_secs(20);
        assert!(!limit.is_reached());
    }
}
