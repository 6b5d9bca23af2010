//! Compaction on request: seals, rolls up and compacts everything, so that the size of the data on disk can be
//! measured.

use proto::Tier;
use rocksdb::WriteBatch;

use crate::Flushed;
use crate::database::key::PartitionKey;
use crate::engine::Engine;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::write_all;
use crate::engine::upkeep::roll_up::{due, roll_up_window};
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

/// Seals all samples in memory, sums up every hour and day that is over, merges the blocks of each dictionary, and
/// compacts the database. Returns the position up to which the state is durable. This takes long.
pub(crate) fn compact(engine: &Engine) -> Result<Flushed, EngineError> {
    // Entries wait for this lock if the head is full, so it is released between steps.
    write_all(&engine.writing(), WriteBatch::default(), Sealing::Before(i64::MAX))?;
    let clock_ns = engine.store.state().clock.sealing_ns();
    for tier in [Tier::Hour, Tier::Day] {
        for window in due(&engine.store, tier, clock_ns) {
            roll_up_window(&engine.writing(), &window)?;
        }
    }
    let keys: Vec<PartitionKey> = {
        let state = engine.store.state();
        state.partitions.existing().iter().filter(|key| key.tier != Tier::Raw).copied().collect()
    };
    for key in keys {
        join_dictionary(&engine.writing(), key)?;
    }
    let flushed = engine.writing().make_durable()?;
    engine.store.database().compact_all();
    Ok(flushed)
}

/// Merges the blocks of a partition's dictionary into one block. Separate blocks repeat the names that they share.
fn join_dictionary(writing: &Writing<'_>, key: PartitionKey) -> Result<(), EngineError> {
    let partition = match writing.partition(key) {
        Ok(Some(partition)) => partition,
        Ok(None) => return Ok(()),
        Err(error) if error.is_damage() => return Ok(()),
        Err(error) => return Err(error),
    };
    if partition.read().dictionary_blocks() < 2 {
        return Ok(());
    }
    let shared = writing.tenant_dictionary(key.tenant);
    // Entries may add definitions meanwhile. The next flush writes those.
    let (blocks, whole) = {
        let shared = shared.read();
        let partition = partition.read();
        (partition.dictionary_blocks(), partition.whole_dictionary(&shared))
    };
    let mut batch = WriteBatch::default();
    (0..blocks).for_each(|block| batch.delete(key.dictionary_block(block)));
    whole.write(&mut batch)?;
    writing.write(batch)?;
    partition.write().joined_dictionary();
    Ok(())
}
