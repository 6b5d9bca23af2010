//! The part of a shard's log that is kept for members that lag, although the state on disk has its entries.
//!
//! Only a flush ends a part of the log, because a member that is sent the rest of the log needs a state to apply it to.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use storage_engine::Flushed;

/// Limits on the entries that are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepLimits {
    /// Longest time after their flush for which entries are kept.
    pub(crate) time: Duration,
    /// Largest size of all kept entries in the log, in bytes.
    pub(crate) bytes: u64,
}

/// The flushed parts of the log that are kept, oldest first, and the end of the part that may be purged.
#[derive(Debug, Default)]
pub(crate) struct KeptLog {
    parts: VecDeque<Part>,
    purgeable: Flushed,
}

/// Entries that one flush wrote to disk.
#[derive(Debug)]
struct Part {
    flushed_at: Instant,
    /// Position of the last entry, with the membership at this position.
    end: Flushed,
    bytes: u64,
}

impl KeptLog {
    /// Adds the entries up to `end`, which was just flushed. `bytes` is their size in the log.
    pub(crate) fn add(&mut self, now: Instant, end: Flushed, bytes: u64) {
        self.parts.push_back(Part { flushed_at: now, end, bytes });
    }

    /// Begins with a log that was purged up to a position. `bytes` is the size of the flushed entries in it, which are
    /// the first part.
    pub(crate) fn begin(&mut self, purged: Flushed, bytes: u64) {
        self.purgeable = purged;
        if let Some(first) = self.parts.front_mut() {
            first.bytes = bytes;
        }
    }

    /// Releases the parts beyond the limits; without limits, all parts. Keeps everything after `kept_index`.
    pub(crate) fn release(&mut self, now: Instant, limits: Option<KeepLimits>, kept_index: Option<u64>) {
        let is_leased = |part: &Part| {
            let end = part.end.position.as_ref().map(|position| position.index);
            kept_index.is_some_and(|kept_index| end > Some(kept_index))
        };
        let mut bytes = self.bytes();
        let is_beyond = |part: &Part, bytes: u64| {
            limits.is_none_or(|limits| bytes > limits.bytes || now.duration_since(part.flushed_at) >= limits.time)
        };
        while let Some(first) = self.parts.pop_front_if(|first| is_beyond(first, bytes) && !is_leased(first)) {
            bytes -= first.bytes;
            self.purgeable = first.end;
        }
    }

    /// Returns the size of the flushed entries that are kept, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Returns the position up to which the log may be purged, with the membership at this position.
    pub(crate) fn purgeable(&self) -> Flushed {
        self.purgeable.clone()
    }
}

#[cfg(test)]
mod tests {
    use storage_engine::Position;

    use super::*;

    fn at(index: u64) -> Flushed {
        Flushed { position: Some(Position { index, log_id: vec![].into() }), membership: None }
    }

    fn purgeable(log: &KeptLog) -> u64 {
        log.purgeable().position.map_or(0, |position| position.index)
    }

    #[test]
    fn parts_are_kept_up_to_a_time_and_a_size() {
        let start = Instant::now();
        let limits = Some(KeepLimits { time: Duration::from_secs(100), bytes: 50 });
        let mut log = KeptLog::default();
        for second in 1..=10 {
            let now = start + Duration::from_secs(second);
            log.add(now, at(10 * second), 10);
            log.release(now, limits, None);
            // Five parts of ten bytes are kept.
            assert_eq!(purgeable(&log), 10 * second.saturating_sub(5));
        }
        log.release(start + Duration::from_secs(105), limits, None);
        assert_eq!(purgeable(&log), 50);
        log.release(start + Duration::from_secs(107), limits, None);
        assert_eq!(purgeable(&log), 70);
    }

    #[test]
    fn the_log_of_an_earlier_process_counts_against_the_size() {
        let mut log = KeptLog::default();
        log.add(Instant::now(), at(6), 0);
        log.begin(at(2), 45);
        let limits = Some(KeepLimits { time: Duration::from_secs(100), bytes: 50 });
        for (index, expected) in [(7, 2), (8, 6), (9, 6)] {
            log.add(Instant::now(), at(index), 5);
            log.release(Instant::now(), limits, None);
            assert_eq!(purgeable(&log), expected);
        }
        assert_eq!(log.bytes(), 15);
        log.release(Instant::now(), None, None);
        assert_eq!(log.bytes(), 0);
    }

    #[test]
    fn without_limits_nothing_is_kept() {
        let mut log = KeptLog::default();
        log.add(Instant::now(), at(7), 1 << 30);
        log.release(Instant::now(), None, None);
        assert_eq!(purgeable(&log), 7);
    }

    #[test]
    fn the_log_after_a_leased_snapshot_is_kept() {
        let mut log = KeptLog::default();
        log.begin(at(5), 0);
        assert_eq!(purgeable(&log), 5);
        for index in [10, 20, 30] {
            log.add(Instant::now(), at(index), 1);
        }
        for (kept_index, expected) in [(Some(9), 5), (Some(20), 20), (Some(29), 20), (None, 30)] {
            log.release(Instant::now(), None, kept_index);
            assert_eq!(purgeable(&log), expected, "{kept_index:?}");
        }
    }
}
