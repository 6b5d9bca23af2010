//! What is dropped: partitions past the retention, and the oldest when the data takes nearly all that it may.
//!
//! Dropping begins below the cap, so that appends go on meanwhile; at the cap they are refused.
//!
//! Invariant: what is still being written to is never dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::placement::FIRST_DATA_SHARD;
use tokio::task::spawn_blocking;

use crate::clock::now_ns;
use crate::directory::used_bytes;
use crate::metrics::{DiskLabels, gauge};
use crate::node::{Shared, State};
use crate::proposal::Proposal;
use crate::replica::Replica;

/// Of the cap, one part in so many is what comes while the oldest is being dropped, and what a compaction takes for a while.
const MARGIN_PART: u64 = 8;

/// What is older is not kept: partitions that ended before are dropped, and samples from before are not taken.
pub(crate) fn expired_before_ns(now_ns: i64, retention: Duration) -> i64 {
    now_ns.saturating_sub(i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX))
}

/// Has appends refused while the data takes all that it may.
pub(crate) async fn watch_cap(shared: &Arc<Shared>) {
    let Some(disk_bytes) = measure(shared).await else { return };
    let is_over_cap = disk_bytes > shared.config.disk_bytes_max;
    if shared.is_over_cap.swap(is_over_cap, Ordering::Relaxed) != is_over_cap {
        tracing::warn!(is_over_cap, disk_bytes, cap = shared.config.disk_bytes_max, "cap on disk use");
    }
}

/// Proposes to drop what is too old or too much, and gives its space back; returns when that is done.
pub(crate) async fn keep_retention(shared: &Arc<Shared>) {
    // Measured anew: what the last drop freed must not be dropped again.
    let Some(disk_bytes) = measure(shared).await else { return };
    let State::Serving(replica) = shared.state() else { return };
    if !replica.is_leader() {
        return;
    }
    let cap = shared.config.disk_bytes_max;
    let excess_bytes = disk_bytes.saturating_sub(cap - cap / MARGIN_PART);
    let dropped = match oldest(&replica, excess_bytes).await {
        Ok(oldest) => match oldest.expire_before(now_ns(), shared.config.retention, excess_bytes) {
            Some(before_ns) => {
                tracing::info!(before_ns, disk_bytes, "dropping partitions that ended before");
                drop_before(replica, before_ns).await
            }
            None => Ok(()),
        },
        Err(error) => Err(error),
    };
    if let Err(error) = dropped {
        tracing::warn!(error, "old partitions were not dropped; tried again soon");
    }
}

/// What could be dropped.
struct Oldest {
    end_ns: Option<i64>,
    /// Of what is on disk: ends of partitions, ascending, and the bytes of those that end there. Empty where nothing has to
    /// go for its size.
    bytes_by_end: Vec<(i64, u64)>,
}

/// Not in an async task: the engine's lock may be held for as long as a large write takes.
async fn oldest(replica: &Replica, excess_bytes: u64) -> Result<Oldest, String> {
    let shard = Arc::clone(replica.shard());
    let ask = move || {
        let end_ns = shard.engine().oldest_end_ns();
        let bytes_by_end = if excess_bytes > 0 { shard.engine().disk_bytes_by_end()? } else { Vec::new() };
        Ok(Oldest { end_ns, bytes_by_end })
    };
    let asked = spawn_blocking(ask).await.map_err(|panic| panic.to_string())?;
    asked.map_err(|error: storage_engine::EngineError| error.to_string())
}

impl Oldest {
    /// The time before which all that ended is to be dropped: as much as is too old, and as little as makes up the excess.
    fn expire_before(&self, now_ns: i64, retention: Duration, excess_bytes: u64) -> Option<i64> {
        let retained_ns = expired_before_ns(now_ns, retention);
        let mut before_ns = self.end_ns.filter(|&end_ns| end_ns <= retained_ns).map(|_end_ns| retained_ns);
        let mut freed_bytes = 0;
        for &(end_ns, bytes) in self.bytes_by_end.iter().take_while(|(end_ns, _)| *end_ns <= now_ns) {
            if freed_bytes >= excess_bytes {
                break;
            }
            freed_bytes += bytes;
            before_ns = before_ns.max(Some(end_ns));
        }
        before_ns
    }
}

async fn drop_before(replica: Arc<Replica>, before_ns: i64) -> Result<(), String> {
    replica.propose(Proposal::expire(before_ns)).await.map_err(|error| error.to_string())?;
    replica.flush().await.map_err(|error| error.to_string())?;
    let shard = Arc::clone(replica.shard());
    // Takes long: the replica must be free to be closed.
    drop(replica);
    spawn_blocking(move || shard.engine().reclaim(before_ns)).await.map_err(|panic| panic.to_string())
}

/// Bytes that Raft logs and states take. What else is in the directory, symbol tables for example, has its own bounds.
async fn measure(shared: &Arc<Shared>) -> Option<u64> {
    let (raft, shard) = (shared.directory.raft(), shared.directory.shard(FIRST_DATA_SHARD));
    let measured = spawn_blocking(move || Ok::<_, std::io::Error>((used_bytes(&raft)?, used_bytes(&shard)?))).await;
    let measured = measured.map_err(std::io::Error::other).and_then(|measured| measured);
    match measured {
        Ok((raft, shards)) => {
            for (part, bytes) in [("raft", raft), ("shards", shards)] {
                shared.metrics.disk_bytes.get_or_create_owned(&DiskLabels { part }).set(gauge(bytes));
            }
            Some(raft + shards)
        }
        Err(error) => {
            tracing::error!(%error, "the space that the data takes cannot be measured");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest(bytes_by_end: &[(i64, u64)]) -> Oldest {
        Oldest { end_ns: bytes_by_end.first().map(|&(end_ns, _)| end_ns), bytes_by_end: bytes_by_end.to_vec() }
    }

    #[test]
    fn over_the_cap_as_many_of_the_oldest_go_as_make_up_the_excess_and_no_more() {
        let oldest = oldest(&[(10, 100), (20, 5), (30, 100), (40, 100)]);
        let before = |excess_bytes| oldest.expire_before(1000, Duration::from_nanos(1000), excess_bytes);
        assert_eq!([before(0), before(1), before(100)], [None, Some(10), Some(10)]);
        assert_eq!([before(101), before(106), before(10_000)], [Some(20), Some(30), Some(40)]);
    }

    #[test]
    fn what_is_still_being_written_to_stays_whatever_the_excess() {
        assert_eq!(oldest(&[(10, 1), (20, 1000)]).expire_before(15, Duration::from_nanos(100), 500), Some(10));
        assert_eq!(oldest(&[(20, 1000)]).expire_before(15, Duration::from_nanos(100), 500), None);
    }

    #[test]
    fn what_is_too_old_goes_also_where_there_is_no_excess_or_less() {
        assert_eq!(oldest(&[(10, 1), (20, 1)]).expire_before(1015, Duration::from_nanos(1000), 0), Some(15));
        assert_eq!(oldest(&[(10, 1), (20, 1)]).expire_before(1025, Duration::from_nanos(1000), 1), Some(25));
        assert_eq!(oldest(&[(20, 1)]).expire_before(1015, Duration::from_nanos(1000), 0), None);
    }
}
