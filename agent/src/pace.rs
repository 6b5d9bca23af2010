//! How often slow work may be done that a process can make arbitrarily slow: reading its mappings again, reading its perf map.

use std::time::Instant;

/// Of the sampler thread's time, at most one part in this many goes into such work.
const SHARE: u32 = 50;

/// Lets work run, then makes it wait in proportion to how long it took, all processes together.
#[derive(Debug)]
pub(crate) struct Pace {
    rests_until: Instant,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { rests_until: Instant::now() }
    }

    /// Runs `work` now, or returns `None` if it is not yet time.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
        let started = Instant::now();
        if started < self.rests_until {
            return None;
        }
        let result = work();
        self.rests_until = Instant::now() + started.elapsed() * (SHARE - 1);
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn slow_work_has_to_wait_and_quick_work_hardly() {
        let mut pace = Pace::new();
        assert_eq!(pace.run(|| 1), Some(1));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pace.run(|| std::thread::sleep(Duration::from_millis(50))), Some(()));
        assert_eq!(pace.run(|| 2), None);
    }
}
