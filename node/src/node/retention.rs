//! Retention: drops partitions whose retention is over, and the oldest partitions of all shards when disk use comes
//! close to its cap.
//!
//! Dropping begins below the cap, so that appends are still accepted during a drop. At the cap, appends are refused.
//!
//! Invariant: a partition that is still being written to is never dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::Tier;
use storage_engine::Extent;
use tokio::task::spawn_blocking;

use crate::config::Retention;
use crate::consensus::Proposal;
use crate::directory::used_bytes;
use crate::metrics::{DiskLabels, gauge};
use crate::node::hosted::State;
use crate::node::shared::Shared;
use crate::replica::Replica;

/// The cap on disk use divided by this number is kept free below the cap. Appends during a drop, and temporary files of
/// a compaction, use this space.
const MARGIN_PART: u64 = 8;

/// Returns the time at which retention begins, in nanoseconds since 1970. Samples before this time are refused, and
/// partitions that end at or before it are dropped.
pub(super) fn expired_before_ns(now_ns: i64, retention: Duration) -> i64 {
    now_ns.saturating_sub(i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX))
}

/// Measures the disk use of the data once. Appends are refused until the next measurement if it exceeds the cap.
pub(super) async fn watch_cap(shared: &Arc<Shared>) {
    if let Some(disk_bytes) = measure(shared).await {
        shared.note_use(disk_bytes);
    }
}

/// Drops the partitions past their retention, and the oldest partitions of all shards if disk use is close to the cap.
/// Only the leader of a shard does this. Returns when the space of the dropped partitions is reclaimed.
pub(super) async fn keep_retention(shared: &Arc<Shared>) {
    // Measured again, because an earlier measurement may include space that the last drop has freed since.
    let Some(disk_bytes) = measure(shared).await else { return };
    let serving = shared.shards.values().filter_map(|hosted| hosted.serving());
    let leaders: Vec<Arc<Replica>> = serving.filter(|replica| replica.is_leader()).collect();
    let Some(first) = leaders.first() else { return };
    let has_data = leaders.iter().any(|replica| replica.shard().engine().clock_ns() != 0);
    let now_ns = match shared.retention_ns(first.log(), has_data).await {
        Ok(now_ns) => now_ns,
        Err(error) => {
            tracing::warn!(%error, "the accepted time was not stored: nothing is dropped");
            return;
        }
    };
    let excess_bytes = excess(disk_bytes, shared.config.disk_bytes_max, has_damaged_files(shared));
    let mut readable = Vec::new();
    let mut all_kept = Vec::new();
    for replica in leaders {
        match kept(&replica, excess_bytes).await {
            Ok(kept) => {
                readable.push(replica);
                all_kept.push(kept);
            }
            Err(error) => warn_of_retry(replica.shard().id(), &error),
        }
    }
    let newest_unsealed_ns = all_kept.iter().filter_map(|kept| kept.newest_unsealed_ns).max();
    let written_before_ns = shared.clock.written_before_ns(newest_unsealed_ns);
    let drops = to_drop(&all_kept, now_ns, written_before_ns, shared.config.retention, excess_bytes);
    for (replica, drops) in readable.into_iter().zip(drops) {
        let shard = replica.shard().id();
        if let Err(error) = drop_all(replica, drops).await {
            warn_of_retry(shard, &error);
        }
    }
}

fn warn_of_retry(shard: u32, error: &str) {
    tracing::warn!(shard, error, "old partitions could not be dropped; will retry");
}

/// Returns true if a shard of the node has damaged files, or is being repaired.
fn has_damaged_files(shared: &Shared) -> bool {
    let is_repairing = shared.shards.values().any(|hosted| matches!(hosted.state(), State::Repairing));
    is_repairing || shared.replicas().any(|replica| replica.shard().engine().has_damaged_files())
}

/// Returns the number of bytes that must be dropped, so that an eighth of the cap is free again.
///
/// Returns 0 while a shard has damaged files. Its dropped data then still takes space, so each call would drop another
/// partition and free nothing.
fn excess(disk_bytes: u64, cap: u64, has_damaged_files: bool) -> u64 {
    if has_damaged_files { 0 } else { disk_bytes.saturating_sub(cap - cap / MARGIN_PART) }
}

/// Facts about the existing partitions of a shard that decide which of them are dropped.
struct Kept {
    /// End of the oldest partition of each tier and retention class, in nanoseconds since 1970.
    oldest: BTreeMap<(Tier, u8), i64>,
    /// Partitions on disk, with their sizes. The list is empty if the cap on disk use requires no drop.
    extents: Vec<Extent>,
    /// End of the newest window with samples in memory, in nanoseconds since 1970. `None` if there is no such window,
    /// or if nothing must be dropped for the cap.
    newest_unsealed_ns: Option<i64>,
}

/// A decision to drop the partitions of one tier and retention class that end at or before a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry {
    tier: Tier,
    retention_class: u8,
    before_ns: i64,
}

/// Reads the partitions that exist. `excess_bytes` is the number of bytes that must be dropped for the cap.
async fn kept(replica: &Replica, excess_bytes: u64) -> Result<Kept, String> {
    let shard = Arc::clone(replica.shard());
    // On a blocking thread, because a large write may hold the engine's lock for long.
    let read = move || {
        let oldest = shard.engine().oldest_ends_ns();
        if excess_bytes == 0 {
            return Ok(Kept { oldest, extents: Vec::new(), newest_unsealed_ns: None });
        }
        let newest_unsealed_ns = shard.engine().newest_unsealed_ns();
        Ok(Kept { oldest, extents: shard.engine().extents()?, newest_unsealed_ns })
    };
    let read = spawn_blocking(read).await.map_err(|panic| panic.to_string())?;
    read.map_err(|error: storage_engine::EngineError| error.to_string())
}

/// Returns the partitions to drop of each shard: all partitions past their retention, and as few others as are needed
/// to drop `excess_bytes` from all shards together.
///
/// For the excess, raw samples are dropped first because they are most of the data, then minutes, hours and days, each
/// oldest first. Partitions that end after `written_before_ns` are not dropped for the excess.
fn to_drop(
    shards: &[Kept],
    now_ns: i64,
    written_before_ns: i64,
    retention: Retention,
    excess_bytes: u64,
) -> Vec<Vec<Expiry>> {
    let mut before: Vec<BTreeMap<(Tier, u8), i64>> = Vec::new();
    for kept in shards {
        let retained_ns = |tier| expired_before_ns(now_ns, retention.of(tier));
        let expired = kept.oldest.iter().filter(|&(&(tier, _), &end_ns)| end_ns <= retained_ns(tier));
        before.push(expired.map(|(&(tier, class), _)| ((tier, class), retained_ns(tier))).collect());
    }
    let mut finest_first: Vec<(usize, &Extent)> = Vec::new();
    for (shard, kept) in shards.iter().enumerate() {
        let over = kept.extents.iter().filter(|extent| extent.end_ns <= written_before_ns);
        finest_first.extend(over.map(|extent| (shard, extent)));
    }
    finest_first.sort_by_key(|(_, extent)| (extent.tier, extent.end_ns));
    let mut freed_bytes = 0;
    for (shard, extent) in finest_first {
        if freed_bytes >= excess_bytes {
            break;
        }
        freed_bytes += extent.disk_bytes;
        let before_ns = before[shard].entry((extent.tier, extent.retention_class)).or_insert(i64::MIN);
        *before_ns = extent.end_ns.max(*before_ns);
    }
    let drop = |((tier, retention_class), before_ns)| Expiry { tier, retention_class, before_ns };
    before.into_iter().map(|before| before.into_iter().map(drop).collect()).collect()
}

async fn drop_all(replica: Arc<Replica>, drops: Vec<Expiry>) -> Result<(), String> {
    if drops.is_empty() {
        return Ok(());
    }
    for &Expiry { tier, retention_class, before_ns } in &drops {
        let shard = replica.shard().id();
        tracing::info!(shard, tier = tier.name(), before_ns, "dropping partitions that ended before");
        let proposal = Proposal::expire(tier, retention_class, before_ns);
        replica.propose(proposal).await.map_err(|error| error.to_string())?;
    }
    replica.flush().await.map_err(|error| error.to_string())?;
    let shard = Arc::clone(replica.shard());
    // Reclaiming takes long, and must not keep the replica from being closed.
    drop(replica);
    let reclaim = move || {
        for Expiry { tier, retention_class, before_ns } in drops {
            shard.engine().reclaim(tier, retention_class, before_ns);
        }
    };
    spawn_blocking(reclaim).await.map_err(|panic| panic.to_string())
}

/// Measures the disk use of the Raft logs and the states, in bytes. Returns `None` after an error, which is logged.
/// Other content of the directory, for example symbol tables, has its own limits.
async fn measure(shared: &Arc<Shared>) -> Option<u64> {
    let raft = shared.directory.raft();
    let shards: Vec<_> = shared.shards.keys().map(|&shard| shared.directory.shard(shard)).collect();
    let of_shards = move || shards.iter().map(|shard| used_bytes(shard.path())).sum::<std::io::Result<u64>>();
    let measured = spawn_blocking(move || Ok::<_, std::io::Error>((used_bytes(&raft)?, of_shards()?))).await;
    let measured = measured.map_err(std::io::Error::other).and_then(|measured| measured);
    match measured {
        Ok((raft, shards)) => {
            for (part, bytes) in [("raft", raft), ("shards", shards)] {
                shared.metrics.disk_bytes.get_or_create_owned(&DiskLabels { part }).set(gauge(bytes));
            }
            Some(raft + shards)
        }
        Err(error) => {
            tracing::error!(%error, "the size of the data cannot be measured");
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
        let drops = to_drop(std::slice::from_ref(kept), now_ns, now_ns, retention, excess_bytes);
        drops[0].iter().map(|drop| (drop.tier, drop.before_ns)).collect()
    }

    #[test]
    fn the_oldest_partitions_of_all_shards_make_up_the_excess() {
        let shards = [
            kept(&[(Tier::Raw, 10, 100), (Tier::Raw, 30, 100)]),
            kept(&[(Tier::Raw, 20, 100), (Tier::Minute, 1, 100)]),
        ];
        let before = |excess_bytes| {
            let drops = to_drop(&shards, 1000, 1000, retention(1000, 1000), excess_bytes);
            let times = |drops: Vec<Expiry>| drops.iter().map(|drop| drop.before_ns).collect::<Vec<_>>();
            drops.into_iter().map(times).collect::<Vec<_>>()
        };
        assert_eq!(before(0), [[0; 0], [0; 0]]);
        assert_eq!(before(100), [vec![10], vec![]]);
        assert_eq!(before(101), [vec![10], vec![20]]);
        assert_eq!(before(201), [vec![30], vec![20]]);
    }

    #[test]
    fn nothing_is_dropped_for_its_size_while_files_are_damaged() {
        assert_eq!([excess(70, 80, false), excess(75, 80, false), excess(90, 80, false)], [0, 5, 20]);
        assert_eq!(excess(90, 80, true), 0);
    }

    #[test]
    fn above_the_cap_the_oldest_partitions_make_up_the_excess_and_no_more() {
        let raw = [(Tier::Raw, 10, 100), (Tier::Raw, 20, 5), (Tier::Raw, 30, 100), (Tier::Raw, 40, 100)];
        let kept = kept(&raw);
        let before = |excess_bytes| drops(&kept, 1000, retention(1000, 1000), excess_bytes);
        assert_eq!([before(0), before(1), before(100)], [vec![], vec![(Tier::Raw, 10)], vec![(Tier::Raw, 10)]]);
        assert_eq!([before(101), before(106)], [vec![(Tier::Raw, 20)], vec![(Tier::Raw, 30)]]);
        assert_eq!(before(10_000), [(Tier::Raw, 40)]);
    }

    #[test]
    fn a_coarser_tier_is_dropped_only_when_no_finer_one_is_left() {
        let kept = kept(&[(Tier::Minute, 10, 50), (Tier::Raw, 10, 100), (Tier::Hour, 10, 5), (Tier::Raw, 2000, 100)]);
        assert_eq!(drops(&kept, 1000, retention(1000, 1000), 120), [(Tier::Raw, 10), (Tier::Minute, 10)]);
    }

    #[test]
    fn a_partition_being_written_stays_whatever_the_excess() {
        let kept = kept(&[(Tier::Raw, 10, 1), (Tier::Raw, 20, 1000)]);
        assert_eq!(drops(&kept, 15, retention(100, 100), 500), [(Tier::Raw, 10)]);
    }

    #[test]
    fn retention_drops_by_tier_and_no_coarser_one_before_a_finer() {
        let kept = kept(&[(Tier::Raw, 10, 1), (Tier::Minute, 10, 1), (Tier::Hour, 10, 1)]);
        assert_eq!(drops(&kept, 1015, retention(1000, 2000), 0), [(Tier::Raw, 15)]);
        let all = [(Tier::Raw, 1015), (Tier::Minute, 15), (Tier::Hour, 15)];
        assert_eq!(drops(&kept, 2015, retention(1000, 2000), 0), all);
        assert_eq!(drops(&kept, 1005, retention(1000, 2000), 0), []);
    }
}
