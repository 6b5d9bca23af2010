//! Dropping partitions. What coarser tiers are made of is summed up before it goes.
//!
//! Their keys go by range, and their space with the next compaction of that range (`space`): files are not deleted at once, since
//! whoever reads a partition as of one moment needs all of it.

use std::collections::BTreeSet;

use proto::Tier;
use rocksdb::WriteBatch;

use crate::database::key::{PartitionKey, StaleKey};
use crate::database::{self, Expired};
use crate::engine::Engine;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;
use crate::integrity::quarantine::replace::delete_quarantined;
use crate::{Outcome, Position};

impl Engine {
    /// Drops partitions of one tier and class that end at or before a time, in one write with everything that is in memory, so
    /// that nothing of them can come back.
    pub(crate) fn expire(
        &self,
        position: Position,
        now_ns: i64,
        (tier, class): (Tier, u8),
        before_ns: i64,
    ) -> Result<Outcome, EngineError> {
        let _writing = self.writing.lock();
        // Raw samples have their names from the partition of their minutes.
        let goes = |key: &PartitionKey| {
            let same = key.tier == tier || (tier == Tier::Minute && key.tier == Tier::Raw);
            same && key.class == class && key.end_ns() <= before_ns
        };
        let expired: Vec<PartitionKey> = self.state.read().existing.iter().copied().filter(goes).collect();
        if let Some(end_ns) = expired.iter().map(|key| key.end_ns()).max() {
            self.write_all(WriteBatch::default(), Sealing::Before(end_ns))?;
            self.roll_up(end_ns)?;
        }
        let mut batch = WriteBatch::default();
        {
            let mut state = self.state.write();
            for key in &expired {
                state.existing.remove(key);
                state.forget(key);
                batch.delete_range(key.prefix(), key.end());
            }
            // Areas and moved values may be left of a partition that does not exist any more.
            let damaged: BTreeSet<PartitionKey> = state.damage.iter().map(|(key, ..)| key).filter(goes).collect();
            damaged.iter().for_each(|key| state.damage.forget(*key, &mut batch));
            let replaced: Vec<PartitionKey> = state.replaced.keys().copied().collect();
            for key in replaced {
                if goes(&key) {
                    delete_quarantined(key, &mut batch);
                    state.replaced.remove(&key);
                } else if goes(&key.in_tier(Tier::Raw)) {
                    delete_quarantined(key.in_tier(Tier::Raw), &mut batch);
                }
            }
            let gone: Vec<StaleKey> =
                state.stale.iter().filter(|key| is_without_source(key, &expired)).copied().collect();
            for key in gone {
                state.stale.remove(&key);
                batch.delete(key.bytes());
            }
            let tiers: &[Tier] = if tier == Tier::Minute { &[Tier::Raw, Tier::Minute] } else { &[tier] };
            for &tier in tiers {
                let known = expired_before(&state.expired, tier, class);
                let before_ns = before_ns.max(known);
                state.expired.insert((tier, class), before_ns);
                database::put_expired(&mut batch, tier, class, before_ns);
            }
            state.drops += 1;
            state.applied = Some(position);
            state.clock_ns = state.clock_ns.max(now_ns);
        }
        self.write_all(batch, Sealing::Due)?;
        Ok(Outcome::Applied)
    }
}

fn expired_before(expired: &Expired, tier: Tier, class: u8) -> i64 {
    expired.get(&(tier, class)).copied().unwrap_or(i64::MIN)
}

/// Whether what a stale window is made of was dropped.
fn is_without_source(key: &StaleKey, expired: &[PartitionKey]) -> bool {
    let Some(finer) = Tier::from_number(key.tier.number().saturating_sub(1)) else { return false };
    // Windows of minutes are numbered as those of chunks.
    let numbered = if key.tier == Tier::Minute { Tier::Raw } else { key.tier };
    expired.contains(&PartitionKey::of(finer, key.class, key.tenant, numbered.window_end_ns(key.window)))
}
