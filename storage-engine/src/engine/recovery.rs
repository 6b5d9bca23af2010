//! Recovery: completes the state of an engine after it was read from the database.

use proto::Tier;

use crate::database::key::{PartitionKey, Section};
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::quarantine::found_damage::quarantine_partition;
use crate::integrity::quarantine::lost_keys::quarantine_lost;

/// Quarantines values that were lost or became unreadable since they were written, and loads heads into memory.
pub(crate) fn recover(writing: &Writing<'_>) -> Result<(), EngineError> {
    quarantine_lost(writing)?;
    find_orphans(writing)?;
    add_empty_raw(writing);
    load_heads(writing)
}

/// Quarantines raw samples whose partition of minutes has no readable key, because the block with the partition's
/// definitions is damaged.
fn find_orphans(store: &Store) -> Result<(), EngineError> {
    {
        let mut state = store.state_mut();
        let damaged: Vec<PartitionKey> = state.damage.iter().map(|(key, ..)| key).collect();
        damaged.into_iter().for_each(|key| state.partitions.add(key));
    }
    let orphans: Vec<PartitionKey> = {
        let state = store.state();
        let raw = state.partitions.existing().iter().filter(|key| key.tier == Tier::Raw);
        raw.map(|raw| raw.in_tier(Tier::Minute)).filter(|key| !state.partitions.exists(key)).collect()
    };
    for key in orphans {
        store.state_mut().partitions.add(key);
        let raw = key.in_tier(Tier::Raw);
        let snapshot = store.database().snapshot();
        // Only keys before the batch IDs count, because batch IDs need no definitions.
        let samples = Walk::between(&snapshot, raw.prefix(), raw.section(Section::BatchIds), false).next()?;
        if samples.is_some() {
            let lost = Corruption { key: key.section(Section::Series), check: CorruptionCheck::Missing };
            quarantine_partition(store, key, &lost.into());
        }
    }
    Ok(())
}

/// Adds the raw partitions that have no key because all of their samples were deleted. Replicas that were not restarted
/// also have these partitions, and the outcome of a later deletion depends on the partitions' definitions.
fn add_empty_raw(store: &Store) {
    let mut state = store.state_mut();
    let raw: Vec<PartitionKey> = {
        let minutes = state.partitions.existing().iter().filter(|key| key.tier == Tier::Minute);
        let raw = minutes.map(|key| key.in_tier(Tier::Raw));
        raw.filter(|raw| state.horizons.horizon_ns(Tier::Raw, raw.class) < raw.end_ns()).collect()
    };
    raw.into_iter().for_each(|key| state.partitions.add(key));
}

/// Loads the partitions in which some samples are not sealed into a chunk yet. These partitions stay in memory.
fn load_heads(store: &Store) -> Result<(), EngineError> {
    let raw: Vec<PartitionKey> = {
        let state = store.state();
        state.partitions.existing().iter().copied().filter(|key| key.tier == Tier::Raw).collect()
    };
    for key in raw {
        let snapshot = store.database().snapshot();
        if Walk::new(&snapshot, key.section(Section::Head)).next()?.is_none() {
            continue;
        }
        match store.partition(key.in_tier(Tier::Minute)) {
            Ok(_) => {}
            // The partition is quarantined, and everything else is served.
            Err(error) if error.is_damage() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
