//! Drops expired partitions, after the coarser tiers were summed up from them.
//!
//! Keys are deleted by range. The next compaction of that range (`space`) frees the disk space. Files are not deleted
//! at once, because a running query may still need them.

use std::collections::BTreeSet;

use proto::Tier;
use rocksdb::WriteBatch;

use crate::database;
use crate::database::key::{PartitionKey, StaleKey, numbered};
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::write_all;
use crate::engine::upkeep::roll_up::roll_up;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;
use crate::integrity::quarantine::replace::delete_quarantined;
use crate::{Outcome, Position};

/// Drops the partitions of one tier and class that end at or before a time. The same write also holds everything that
/// was only in memory, so that no dropped data can return.
pub(crate) fn expire(
    writing: &Writing<'_>,
    position: Position,
    now_ns: i64,
    tier: Tier,
    class: u8,
    before_ns: i64,
) -> Result<Outcome, EngineError> {
    // Raw samples use the dictionary of their minutes, so they are dropped with them.
    let is_expired = |key: &PartitionKey| {
        let same = key.tier == tier || (tier == Tier::Minute && key.tier == Tier::Raw);
        same && key.class == class && key.end_ns() <= before_ns
    };
    let expired: Vec<PartitionKey> = writing.state().partitions.existing().iter().copied().filter(is_expired).collect();
    if let Some(end_ns) = expired.iter().map(|key| key.end_ns()).max() {
        write_all(writing, WriteBatch::default(), Sealing::Before(end_ns))?;
        roll_up(writing, end_ns)?;
    }
    let mut batch = WriteBatch::default();
    {
        let mut state = writing.state_mut();
        for key in &expired {
            state.partitions.drop_partition(key);
            batch.delete_range(key.prefix(), key.end());
        }
        // A partition that no longer exists may still have damaged areas and moved values.
        let damaged: BTreeSet<PartitionKey> = state.damage.partitions().filter(is_expired).collect();
        damaged.iter().for_each(|key| state.damage.forget(*key, &mut batch));
        let replaced: Vec<PartitionKey> = state.damage.replaced().map(|(key, _)| key).collect();
        for key in replaced {
            if is_expired(&key) {
                delete_quarantined(key, &mut batch);
                state.damage.forget_replaced(key);
            } else if is_expired(&key.in_tier(Tier::Raw)) {
                delete_quarantined(key.in_tier(Tier::Raw), &mut batch);
            }
        }
        let gone: Vec<StaleKey> = state.stale.iter().filter(|key| is_without_source(key, &expired)).copied().collect();
        gone.iter().for_each(|key| batch.delete(key.bytes()));
        state.stale.remove(&gone);
        let tiers: &[Tier] = if tier == Tier::Minute { &[Tier::Raw, Tier::Minute] } else { &[tier] };
        for &tier in tiers {
            let before_ns = state.horizons.expire(tier, class, before_ns);
            database::put_expired(&mut batch, tier, class, before_ns);
        }
        state.partitions.count_drop();
        state.apply(position, now_ns);
    }
    write_all(writing, batch, Sealing::Due)?;
    Ok(Outcome::Applied)
}

/// Returns whether a stale window can no longer be summed up, because its finer windows were dropped.
fn is_without_source(key: &StaleKey, expired: &[PartitionKey]) -> bool {
    let Some(finer) = Tier::from_number(key.tier.number().saturating_sub(1)) else { return false };
    expired.contains(&PartitionKey::of(finer, key.class, key.tenant, numbered(key.tier).window_end_ns(key.window)))
}
