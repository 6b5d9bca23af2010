//! Limit on the rate at which the node sends snapshots.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A token bucket, in bytes. All streams of the node share it.
#[derive(Debug)]
pub(super) struct RateLimit {
    bytes_per_second: u64,
    /// Time at which all bytes taken so far are paid for.
    paid_at: Mutex<Instant>,
}

/// Time for which unused tokens are kept.
const BURST: Duration = Duration::from_millis(50);

impl RateLimit {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, paid_at: Mutex::new(Instant::now()) }
    }

    /// Takes tokens for `bytes`. Returns the time to wait before these bytes are used.
    pub(super) fn take(&self, bytes: usize, now: Instant) -> Duration {
        let mut paid_at = self.paid_at.lock();
        let start = now.checked_sub(BURST).map_or(*paid_at, |earliest| earliest.max(*paid_at));
        *paid_at = start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        paid_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_add_up_to_the_rate_after_the_burst() {
        let limit = RateLimit::new(1000);
        let mut now = Instant::now() + Duration::from_secs(10);
        let start = now;
        assert_eq!(limit.take(50, now), Duration::ZERO, "the burst");
        for _ in 0..10 {
            now += limit.take(100, now);
        }
        assert_eq!((now - start).as_millis(), 1000);
        // Unused time beyond the burst is lost.
        now += Duration::from_secs(100);
        assert_eq!(limit.take(1050, now).as_millis(), 1000);
    }
}
