//! Shards for which a query lately waited in vain. Queries do not wait for such a shard again, except for one query at
//! a time, which finds out whether the shard answers again.
//!
//! Invariant: a shard that never answers costs one query [`PATIENCE`], and then at most one query at a time
//! [`PROBE_PATIENCE`].

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

/// Longest time that a query waits for the read point of a shard. The other members elect a new leader in a second or
/// two after the old one has stopped.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that a query waits for a shard that did not answer before. An election has ended by then, so a shard
/// that works answers in one round trip.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// Time after which a query waits again for a shard that did not answer.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Shards that did not answer lately.
#[derive(Debug, Default)]
pub(super) struct SilentShards(Mutex<HashMap<u32, Silence>>);

#[derive(Debug)]
struct Silence {
    status: Status,
    probe_at: Instant,
}

impl SilentShards {
    /// Returns how long a query may wait for a shard.
    ///
    /// # Errors
    /// Returns the status of the earlier call if the query must not wait at all.
    pub(super) fn patience(&self, shard: u32, now: Instant) -> Result<Duration, Status> {
        match self.0.lock().get_mut(&shard) {
            None => Ok(PATIENCE),
            Some(silence) if now < silence.probe_at => Err(silence.status.clone()),
            Some(silence) => {
                // Other queries do not wait meanwhile.
                silence.probe_at = now + PROBE_PATIENCE;
                Ok(PROBE_PATIENCE)
            }
        }
    }

    /// Records that a shard has answered.
    pub(super) fn answered(&self, shard: u32) {
        self.0.lock().remove(&shard);
    }

    /// Records that a shard did not answer.
    pub(super) fn did_not_answer(&self, shard: u32, status: Status, now: Instant) {
        self.0.lock().insert(shard, Silence { status, probe_at: now + REMEMBERED });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_at_a_time_waits_for_a_silent_shard() {
        let shards = SilentShards::default();
        let start = Instant::now();
        assert_eq!(shards.patience(7, start).unwrap(), PATIENCE);
        shards.did_not_answer(7, Status::unavailable("no leader"), start);
        assert_eq!(shards.patience(7, start).unwrap_err().message(), "no leader");
        assert_eq!(shards.patience(8, start).unwrap(), PATIENCE, "another shard");
        let later = start + REMEMBERED;
        assert_eq!(shards.patience(7, later).unwrap(), PROBE_PATIENCE);
        assert!(shards.patience(7, later).is_err(), "the first query is waiting");
        // The first query was cancelled.
        let cancelled = later + PROBE_PATIENCE;
        assert_eq!(shards.patience(7, cancelled).unwrap(), PROBE_PATIENCE);
        shards.answered(7);
        assert_eq!(shards.patience(7, cancelled).unwrap(), PATIENCE);
    }
}
