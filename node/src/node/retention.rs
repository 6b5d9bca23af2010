//! Retention: drops partitions whose retention is over, and the oldest partitions of all shards when disk use comes
//! close to its cap.
//!
//! The retention of each class is in the state of the meta group. A class that this node does not know yet keeps its
//! partitions.
//!
//! Dropping begins below the cap, so that appends are still accepted during a drop. At the cap, appends are refused.
//!
//! Invariant: a partition that is still being written to is never dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proto::Tier;
use storage_engine::Extent;
use tokio::task::spawn_blocking;

use crate::consensus::Proposal;
use crate::directory::shard::ShardDirectory;
use crate::directory::used_bytes;
use crate::metrics::{DiskLabels, gauge};
use crate::node::hosted::{Hosted, State};
use crate::node::replica::Replica;
use crate::node::shared::Shared;

/// The cap on disk use divided by this number is kept free below the cap. Appends during a drop, and temporary files of
/// a compaction, use this space.
const MARGIN_PART: u64 = 8;

/// Largest number of bytes that a reclaim of the log's space may write for each byte that it returns, before data is
/// dropped for the cap. A reclaim after each purge would write the whole log each time.
const WRITTEN_MAX: u64 = 4;

/// Returns the time at which retention begins, in nanoseconds since 1970. Samples before this time are refused, and
/// partitions that end at or before it are dropped.
pub(super) fn expired_before_ns(now_ns: i64, retention: Duration) -> i64 {
    now_ns.saturating_sub(i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX))
}

/// Returns the disk use at which dropping begins, in bytes.
fn limit(cap: u64) -> u64 {
    cap - cap / MARGIN_PART
}

/// Measures the disk use of the data once. Appends are refused until the next measurement if it exceeds the cap.
pub(super) async fn watch_cap(shared: &Arc<Shared>) {
    if let Some(used) = measure(shared).await {
        shared.note_use(used.total());
    }
}

/// Drops the partitions past their retention, and the oldest partitions of all shards if disk use is close to the cap.
/// Only the leader of a shard does this. Returns when the space of the dropped partitions is reclaimed.
pub(super) async fn keep_retention(shared: &Arc<Shared>) {
    let limit = limit(shared.config.disk_bytes_max);
    let mut used = Used::default();
    if shared.disk_bytes() > limit {
        // Measured again, because the last measurement may include space that the last drop has freed since.
        let Some(now) = measure(shared).await else { return };
        used = now;
    }
    // Purged entries of the log take space until it is reclaimed, for which no data must be dropped.
    if used.total() > limit && shared.reclaim_log(WRITTEN_MAX).await {
        let Some(reclaimed) = measure(shared).await else { return };
        used = reclaimed;
    }
    let serving = shared.shards().into_values().filter_map(|hosted| hosted.serving());
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
    let damaged = damaged_shards(shared);
    let led: BTreeSet<u32> = leaders.iter().map(|replica| replica.shard().id()).collect();
    let kept_by_others = used.shards.keys().copied().filter(|shard| !led.contains(shard));
    let fixed = kept_by_others.chain(damaged.iter().copied()).collect();
    let excess_bytes = used.excess(shared.config.disk_bytes_max, &fixed);
    let mut readable = Vec::new();
    let mut all_kept = Vec::new();
    for replica in leaders {
        let shard = replica.shard().id();
        match kept(&replica, if damaged.contains(&shard) { 0 } else { excess_bytes }).await {
            Ok(kept) => {
                readable.push(shard);
                all_kept.push(kept);
            }
            Err(error) => warn_of_retry(shard, &error),
        }
    }
    let newest_unsealed_ns = all_kept.iter().filter_map(|kept| kept.newest_unsealed_ns).max();
    let written_before_ns = shared.clock.written_before_ns(newest_unsealed_ns);
    let state = shared.cluster.state();
    let retained_ns = |tier: Tier, class: u8| {
        let retention = state.retention_classes.get(usize::from(class));
        retention.map_or(i64::MIN, |retention| expired_before_ns(now_ns, retention.of(tier)))
    };
    let drops = to_drop(&all_kept, written_before_ns, retained_ns, excess_bytes);
    // A drop may take minutes. Meanwhile, the replicas of the other shards must not be kept from being closed.
    for (shard, drops) in readable.into_iter().zip(drops) {
        let Some(replica) = shared.shard(shard).and_then(|hosted| hosted.serving()) else { continue };
        if let Err(error) = drop_all(replica, drops).await {
            warn_of_retry(shard, &error);
        }
    }
}

fn warn_of_retry(shard: u32, error: &str) {
    tracing::warn!(shard, error, "old partitions could not be dropped; will retry");
}

/// Returns the shards that have failed, have damaged files, or are being repaired. Dropping partitions of such a shard
/// frees no space.
fn damaged_shards(shared: &Shared) -> BTreeSet<u32> {
    let is_damaged = |hosted: &Hosted| match hosted.state() {
        State::Repairing | State::Damaged(_) | State::Failed(_) => true,
        State::Serving(replica) | State::ReadOnly(replica) => replica.shard().engine().has_damaged_files(),
        State::Starting | State::Stopped => false,
    };
    shared.shards().into_values().filter(|hosted| is_damaged(hosted)).map(|hosted| hosted.number()).collect()
}

/// Disk use of the data of a node, in bytes.
#[derive(Debug, Default)]
struct Used {
    /// The Raft logs of all shards.
    raft: u64,
    /// The state of each shard.
    shards: BTreeMap<u32, u64>,
}

impl Used {
    fn total(&self) -> u64 {
        self.raft + self.shards.values().sum::<u64>()
    }

    /// Returns the number of bytes that must be dropped, so that an eighth of the cap is free again.
    ///
    /// This node cannot drop data of the shards in `fixed`: they are damaged, or other nodes lead them. The other
    /// shards then keep at least their equal part of the cap, however large the fixed shards are.
    fn excess(&self, cap: u64, fixed: &BTreeSet<u32>) -> u64 {
        let limit = limit(cap);
        let others = self.shards.iter().filter(|(shard, _)| !fixed.contains(shard));
        let (others, other_bytes) = others.fold((0, self.raft), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
        let kept = u128::from(limit) * others / (self.shards.len().max(1) as u128);
        let droppable = u128::from(other_bytes).saturating_sub(kept);
        u64::try_from(droppable).unwrap_or(u64::MAX).min(self.total().saturating_sub(limit))
    }
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
/// oldest first. Partitions that end after `written_before_ns` are not dropped for the excess. `retained_ns` returns
/// the time at which the retention of a tier and class begins.
fn to_drop(
    shards: &[Kept],
    written_before_ns: i64,
    retained_ns: impl Fn(Tier, u8) -> i64,
    excess_bytes: u64,
) -> Vec<Vec<Expiry>> {
    let mut before: Vec<BTreeMap<(Tier, u8), i64>> = Vec::new();
    for kept in shards {
        let expired = kept.oldest.iter().filter(|&(&(tier, class), &end_ns)| end_ns <= retained_ns(tier, class));
        before.push(expired.map(|(&(tier, class), _)| ((tier, class), retained_ns(tier, class))).collect());
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
        tracing::info!(shard, tier = tier.name(), retention_class, before_ns, "dropping partitions that ended before");
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

/// Measures the disk use of the Raft logs and the states. Returns `None` after an error, which is logged. Other content
/// of the directory, for example symbol tables, has its own limits.
async fn measure(shared: &Arc<Shared>) -> Option<Used> {
    let raft = shared.directory.raft();
    let shards: Vec<_> = shared.shards().into_keys().map(|shard| (shard, shared.directory.shard(shard))).collect();
    let measure = move || {
        let of_shard = |(shard, folder): (u32, ShardDirectory)| Ok((shard, used_bytes(folder.path())?));
        Ok::<_, std::io::Error>(Used {
            raft: used_bytes(&raft)?,
            shards: shards.into_iter().map(of_shard).collect::<std::io::Result<_>>()?,
        })
    };
    let measured = spawn_blocking(measure).await.map_err(std::io::Error::other).and_then(|measured| measured);
    match measured {
        Ok(used) => {
            for (part, bytes) in [("raft", used.raft), ("shards", used.total() - used.raft)] {
                shared.metrics.disk_bytes.get_or_create_owned(&DiskLabels { part }).set(gauge(bytes));
            }
            Some(used)
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

    /// Retentions of raw samples and of minutes. Coarser tiers have those of minutes.
    #[derive(Clone, Copy)]
    struct Retention([Duration; 2]);

    impl Retention {
        fn of(self, tier: Tier) -> Duration {
            self.0[usize::from(tier != Tier::Raw)]
        }
    }

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
        Retention([raw, minutes].map(Duration::from_nanos))
    }

    fn drops(kept: &Kept, now_ns: i64, retention: Retention, excess_bytes: u64) -> Vec<(Tier, i64)> {
        let retained_ns = |tier, _class| expired_before_ns(now_ns, retention.of(tier));
        let drops = to_drop(std::slice::from_ref(kept), now_ns, retained_ns, excess_bytes);
        drops[0].iter().map(|drop| (drop.tier, drop.before_ns)).collect()
    }

    #[test]
    fn the_oldest_partitions_of_all_shards_make_up_the_excess() {
        let shards = [
            kept(&[(Tier::Raw, 10, 100), (Tier::Raw, 30, 100)]),
            kept(&[(Tier::Raw, 20, 100), (Tier::Minute, 1, 100)]),
        ];
        let before = |excess_bytes| {
            let drops = to_drop(&shards, 1000, |_tier, _class| 0, excess_bytes);
            let times = |drops: Vec<Expiry>| drops.iter().map(|drop| drop.before_ns).collect::<Vec<_>>();
            drops.into_iter().map(times).collect::<Vec<_>>()
        };
        assert_eq!(before(0), [[0; 0], [0; 0]]);
        assert_eq!(before(100), [vec![10], vec![]]);
        assert_eq!(before(101), [vec![10], vec![20]]);
        assert_eq!(before(201), [vec![30], vec![20]]);
    }

    #[test]
    fn an_eighth_of_the_cap_is_kept_free() {
        let of = |bytes: u64| Used { raft: 10, shards: BTreeMap::from([(1, bytes - 10)]) };
        let excess = |bytes| of(bytes).excess(80, &BTreeSet::new());
        assert_eq!([excess(70), excess(75), excess(90)], [0, 5, 20]);
    }

    #[test]
    fn nodes_that_share_the_leadership_drop_the_excess_once() {
        let used = Used { raft: 0, shards: (1..=3).map(|shard| (shard, 60)).collect() };
        let limit = 140;
        let of_leader = |led: u32| used.excess(160, &(1..=3).filter(|shard| *shard != led).collect());
        // Each node leads one shard, and has the excess of 40 bytes. Together, they drop it once.
        assert_eq!(used.total() - limit, 40);
        assert_eq!((1..=3).map(of_leader).collect::<Vec<_>>(), [14, 14, 14]);
    }

    #[test]
    fn damaged_shards_cost_the_others_no_more_than_their_part() {
        let used = Used { raft: 0, shards: BTreeMap::from([(1, 60), (2, 20), (3, 20), (4, 20)]) };
        let excess = |damaged: &[u32]| used.excess(80, &damaged.iter().copied().collect());
        assert_eq!(excess(&[]), 50);
        // 70 bytes are for four shards, so three intact shards keep 52.5 of them.
        assert_eq!(excess(&[1]), 60 - 52);
        assert_eq!(excess(&[2]), 100 - 52);
        assert_eq!(excess(&[1, 2, 3, 4]), 0);
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
    fn each_class_has_its_own_retention_and_an_unknown_one_is_kept() {
        let oldest = [(Tier::Raw, 0, 10), (Tier::Raw, 1, 10), (Tier::Minute, 1, 10), (Tier::Raw, 9, 10)];
        let oldest = oldest.map(|(tier, class, end_ns)| ((tier, class), end_ns));
        let kept = Kept { oldest: BTreeMap::from(oldest), extents: Vec::new(), newest_unsealed_ns: None };
        let retained_ns = |tier, class| match (tier, class) {
            (_, 0) => 5,
            (Tier::Raw, 1) => 20,
            (_, 1) => 9,
            _ => i64::MIN,
        };
        let drops = to_drop(&[kept], 1000, retained_ns, 0);
        assert_eq!(drops, [[Expiry { tier: Tier::Raw, retention_class: 1, before_ns: 20 }]]);
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
