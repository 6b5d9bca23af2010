//! What is dropped: partitions past the retention, and the oldest when the data takes nearly all that it may.
//!
//! Dropping begins below the cap, so that appends go on meanwhile; at the cap they are refused.
//!
//! Invariant: what is still being written to is never dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::Tier;
use proto::placement::FIRST_DATA_SHARD;
use storage_engine::Extent;
use tokio::task::spawn_blocking;

use crate::Retention;
use crate::clock::Clock;
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
    if let Err(error) = keep_time(&shared.clock, &replica).await {
        tracing::warn!(error, "the time was not logged; tried again soon");
    }
    let dropped = match kept(&replica, excess_bytes).await {
        Ok(kept) => {
            let now_ns = shared.clock.now_ns();
            let written_before_ns = shared.clock.written_before_ns(kept.newest_unsealed_ns);
            drop_all(replica, kept.to_drop(now_ns, written_before_ns, shared.config.retention, excess_bytes)).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = dropped {
        tracing::warn!(error, "old partitions were not dropped; tried again soon");
    }
}

/// Logs the time now and then where nothing else does: the time of the last entry is what the next start goes on from.
async fn keep_time(clock: &Clock, replica: &Replica) -> Result<(), String> {
    let logged_ns = replica.shard().engine().clock_ns();
    // Without an entry there is no data that the time could matter to.
    if logged_ns == 0 || clock.log_ns().saturating_sub(logged_ns) < clock.entry_interval_ns() {
        return Ok(());
    }
    log_time(replica).await
}

/// Logs the time: an entry that drops nothing.
pub(crate) async fn log_time(replica: &Replica) -> Result<(), String> {
    let proposal = Proposal::expire(Tier::Raw, 0, 0);
    replica.propose(proposal).await.map(drop).map_err(|error| error.to_string())
}

/// What could be dropped.
struct Kept {
    /// The end of the oldest partition of each tier and class.
    oldest: BTreeMap<(Tier, u8), i64>,
    /// What is on disk, by the end of its time. Empty where nothing has to go for its size.
    extents: Vec<Extent>,
    /// The end of the newest window that is still collected. None also where nothing has to go for its size.
    newest_unsealed_ns: Option<i64>,
}

/// Partitions that end at or before a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry {
    tier: Tier,
    retention_class: u8,
    before_ns: i64,
}

/// Not in an async task: the engine's lock may be held for as long as a large write takes.
async fn kept(replica: &Replica, excess_bytes: u64) -> Result<Kept, String> {
    let shard = Arc::clone(replica.shard());
    let ask = move || {
        let oldest = shard.engine().oldest_ends_ns();
        if excess_bytes == 0 {
            return Ok(Kept { oldest, extents: Vec::new(), newest_unsealed_ns: None });
        }
        let newest_unsealed_ns = shard.engine().newest_unsealed_ns();
        Ok(Kept { oldest, extents: shard.engine().extents()?, newest_unsealed_ns })
    };
    let asked = spawn_blocking(ask).await.map_err(|panic| panic.to_string())?;
    asked.map_err(|error: storage_engine::EngineError| error.to_string())
}

impl Kept {
    /// As much as is too old, and as little as makes up the excess: raw samples first, which are most of it, then minutes, hours
    /// and days, of each the oldest first. For the excess nothing goes that ends after `written_before_ns`.
    fn to_drop(&self, now_ns: i64, written_before_ns: i64, retention: Retention, excess_bytes: u64) -> Vec<Expiry> {
        let mut before: BTreeMap<(Tier, u8), i64> = BTreeMap::new();
        for (&(tier, class), &end_ns) in &self.oldest {
            let retained_ns = expired_before_ns(now_ns, retention.of(tier));
            if end_ns <= retained_ns {
                before.insert((tier, class), retained_ns);
            }
        }
        let mut freed_bytes = 0;
        let over = |extent: &&Extent| extent.end_ns <= written_before_ns;
        let mut finest_first: Vec<&Extent> = self.extents.iter().filter(over).collect();
        finest_first.sort_by_key(|extent| (extent.tier, extent.end_ns));
        for extent in finest_first {
            if freed_bytes >= excess_bytes {
                break;
            }
            freed_bytes += extent.disk_bytes;
            let before_ns = before.entry((extent.tier, extent.retention_class)).or_insert(i64::MIN);
            *before_ns = extent.end_ns.max(*before_ns);
        }
        let drop = |((tier, retention_class), before_ns)| Expiry { tier, retention_class, before_ns };
        before.into_iter().map(drop).collect()
    }
}

async fn drop_all(replica: Arc<Replica>, drops: Vec<Expiry>) -> Result<(), String> {
    if drops.is_empty() {
        return Ok(());
    }
    for &Expiry { tier, retention_class, before_ns } in &drops {
        tracing::info!(tier = tier.name(), before_ns, "dropping partitions that ended before");
        let proposal = Proposal::expire(tier, retention_class, before_ns);
        replica.propose(proposal).await.map_err(|error| error.to_string())?;
    }
    replica.flush().await.map_err(|error| error.to_string())?;
    let shard = Arc::clone(replica.shard());
    // Takes long: the replica must be free to be closed.
    drop(replica);
    let reclaim = move || {
        for Expiry { tier, retention_class, before_ns } in drops {
            shard.engine().reclaim(tier, retention_class, before_ns);
        }
    };
    spawn_blocking(reclaim).await.map_err(|panic| panic.to_string())
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

    fn kept(extents: &[(Tier, i64, u64)]) -> Kept {
        let mut oldest = BTreeMap::new();
        for &(tier, end_ns, _) in extents {
            let oldest: &mut i64 = oldest.entry((tier, 0)).or_insert(end_ns);
            *oldest = end_ns.min(*oldest);
        }
        let extent = |&(tier, end_ns, disk_bytes)| Extent { tier, retention_class: 0, end_ns, disk_bytes };
        Kept { oldest, extents: extents.iter().map(extent).collect(), newest_unsealed_ns: None }
    }

    fn retention(raw: u64, minutes: u64) -> Retention {
        let [raw, minutes] = [raw, minutes].map(Duration::from_nanos);
        Retention { raw, minutes, hours: Duration::from_nanos(1), days: Duration::from_nanos(1) }
    }

    fn drops(kept: &Kept, now_ns: i64, retention: Retention, excess_bytes: u64) -> Vec<(Tier, i64)> {
        kept.to_drop(now_ns, now_ns, retention, excess_bytes).iter().map(|drop| (drop.tier, drop.before_ns)).collect()
    }

    #[test]
    fn over_the_cap_as_much_of_the_oldest_goes_as_makes_up_the_excess_and_no_more() {
        let raw = [(Tier::Raw, 10, 100), (Tier::Raw, 20, 5), (Tier::Raw, 30, 100), (Tier::Raw, 40, 100)];
        let kept = kept(&raw);
        let before = |excess_bytes| drops(&kept, 1000, retention(1000, 1000), excess_bytes);
        assert_eq!([before(0), before(1), before(100)], [vec![], vec![(Tier::Raw, 10)], vec![(Tier::Raw, 10)]]);
        assert_eq!([before(101), before(106)], [vec![(Tier::Raw, 20)], vec![(Tier::Raw, 30)]]);
        assert_eq!(before(10_000), [(Tier::Raw, 40)]);
    }

    #[test]
    fn coarser_tiers_go_when_nothing_finer_is_left_to_drop() {
        let kept = kept(&[(Tier::Minute, 10, 50), (Tier::Raw, 10, 100), (Tier::Hour, 10, 5), (Tier::Raw, 2000, 100)]);
        assert_eq!(drops(&kept, 1000, retention(1000, 1000), 120), [(Tier::Raw, 10), (Tier::Minute, 10)]);
    }

    #[test]
    fn what_is_still_being_written_to_stays_whatever_the_excess() {
        let kept = kept(&[(Tier::Raw, 10, 1), (Tier::Raw, 20, 1000)]);
        assert_eq!(drops(&kept, 15, retention(100, 100), 500), [(Tier::Raw, 10)]);
    }

    #[test]
    fn what_is_too_old_goes_by_its_tier_and_no_coarser_one_before_a_finer() {
        let kept = kept(&[(Tier::Raw, 10, 1), (Tier::Minute, 10, 1), (Tier::Hour, 10, 1)]);
        assert_eq!(drops(&kept, 1015, retention(1000, 2000), 0), [(Tier::Raw, 15)]);
        let all = [(Tier::Raw, 1015), (Tier::Minute, 15), (Tier::Hour, 15)];
        assert_eq!(drops(&kept, 2015, retention(1000, 2000), 0), all);
        assert_eq!(drops(&kept, 1005, retention(1000, 2000), 0), []);
    }
}
