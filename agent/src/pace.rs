//! How often slow work may be done that a process can make arbitrarily slow: reading its mappings, reading its perf map.

use std::time::{Duration, Instant};

/// How much time may be saved up for work to come: agents start, and so do builds, with many processes at once.
const SAVED_MAX: Duration = Duration::from_secs(10);

/// Lets work run, all processes together, for one part in so many of the time that passes.
#[derive(Debug)]
pub(crate) struct Pace {
    parts: u32,
    /// When all work done so far will have had its share of the time.
    settled_at: Instant,
}

impl Pace {
    /// Work may take one part in `parts` of the time.
    pub(crate) fn new(parts: u32) -> Self {
        Self { parts, settled_at: Instant::now() }
    }

    /// Runs `work` now, or returns `None` if it is not yet time.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
        let started = Instant::now();
        if started + SAVED_MAX < self.settled_at {
            return None;
        }
        let result = work();
        self.settled_at = self.settled_at.max(started) + started.elapsed() * self.parts;
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_work_runs_at_once_and_slow_work_has_to_wait() {
        let mut pace = Pace::new(500);
        for index in 0..100 {
            assert_eq!(pace.run(|| index), Some(index));
        }
        // 25 seconds' share, of which 10 may be owed.
        assert_eq!(pace.run(|| std::thread::sleep(Duration::from_millis(50))), Some(()));
        assert_eq!(pace.run(|| 2), None);
        pace.settled_at -= Duration::from_secs(60);
        assert_eq!(pace.run(|| 3), Some(3));
    }
}
