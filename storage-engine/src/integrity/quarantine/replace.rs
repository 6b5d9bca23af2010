//! Replacement of a partition whose definitions are damaged. Its values are moved to separate keys, and an empty
//! partition begins under the old keys, so that new samples of this time are stored.
//!
//! Nothing reads the moved values. They are deleted when their time expires, or by a deletion of any part of that time.

use proto::Tier;
use rocksdb::WriteBatch;

use crate::database::key::{self, PartitionKey, Section, StaleKey};
use crate::database::{self, Snapshot};
use crate::engine::state::partitions::SharedPartition;
use crate::engine::store::write_lock::Writing;
use crate::error::EngineError;
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::quarantine::repair::file_named;
use crate::memory::partition::Partition;

/// Size, in bytes, at which a piece of moved values is written.
const PIECE_BYTES: usize = 1 << 20;

/// Replaces a partition of minutes, hours or days by an empty one, if its definitions are damaged. If it holds minutes,
/// the raw samples of the same time are moved, too. Returns the partition; `None` if it does not exist.
pub(crate) fn replace_partition(
    writing: &Writing<'_>,
    key: PartitionKey,
) -> Result<Option<SharedPartition>, EngineError> {
    if !writing.state().damage.has_damaged_definitions(key) {
        match writing.partition(key) {
            // The replacement was evicted, and reading it met the damaged block of the old partition.
            Err(EngineError::Quarantined { .. }) => {}
            // Another thread has replaced it.
            partition => return partition,
        }
    }
    let mut batch = WriteBatch::default();
    let snapshot = writing.database().snapshot();
    for range in ranges(key) {
        copy_to_quarantine(writing, &snapshot, range, &mut batch)?;
    }
    begin_replacement(writing, key, batch).map(Some)
}

fn copy_to_quarantine(
    writing: &Writing<'_>,
    snapshot: &Snapshot<'_>,
    (from, end): (Vec<u8>, Vec<u8>),
    batch: &mut WriteBatch,
) -> Result<(), EngineError> {
    let mut walk = Walk::between(snapshot, from, end, false);
    while let Some(item) = walk.next()? {
        let Ok((at, value)) = item else { continue };
        batch.put(key::quarantined(&at), value);
        if batch.size_in_bytes() >= PIECE_BYTES {
            writing.write(std::mem::take(batch))?;
        }
    }
    Ok(())
}

/// Drops the values of a partition whose definitions are damaged, and begins an empty partition under the same keys.
/// The areas of damage and the IDs of batches stay, so a retried batch still counts once.
fn begin_replacement(
    writing: &Writing<'_>,
    key: PartitionKey,
    mut batch: WriteBatch,
) -> Result<SharedPartition, EngineError> {
    // Values of the new partition are written to files with larger numbers.
    let files = writing.database().live_files()?;
    let newest = files.iter().filter_map(|file| file_named(&file.name)).max().unwrap_or_default();
    put_marker(key, newest, &mut batch);
    for (from, end) in ranges(key) {
        batch.delete_range(from, end);
    }
    let is_of_partition = |stale: &StaleKey| stale.is_made_of(key);
    let stored = database::read_stale(&writing.database().snapshot())?;
    stored.iter().filter(|stale| is_of_partition(stale)).for_each(|stale| batch.delete(stale.bytes()));
    let shared = writing.tenant_dictionary(key.tenant);
    let mut state = writing.state_mut();
    state.damage.replace(key, newest);
    let damage = state.damage.unwritten();
    damage.write(&mut batch);
    writing.write(batch)?;
    state.damage.wrote(&damage);
    state.stale.retain(|stale| !is_of_partition(stale));
    state.partitions.forget(&key);
    // Numbers that were read from the old partition are now invalid.
    state.partitions.count_drop();
    // The new partition stays in memory. Until the file is repaired, reading the partition could meet the damaged
    // blocks of the old one.
    let generation = shared.read().generation();
    Ok(state.partitions.keep(Partition::new(key, generation)))
}

/// Drops the values of partitions with damaged definitions, and the moved values of replaced partitions. A deletion
/// calls this for the partitions of its time, because it is unknown which of their series match.
pub(crate) fn drop_damaged_partitions(
    writing: &Writing<'_>,
    is_touched: impl Fn(&PartitionKey) -> bool,
) -> Result<(), EngineError> {
    let (damaged, replaced) = {
        let state = writing.state();
        let damaged: Vec<_> = state.damage.without_definitions().filter(|key| is_touched(key)).collect();
        let replaced: Vec<_> = state.damage.replaced().filter(|(key, _)| is_touched(key)).collect();
        (damaged, replaced)
    };
    for key in damaged {
        begin_replacement(writing, key, WriteBatch::default())?;
    }
    let mut batch = WriteBatch::default();
    for (key, newest) in replaced {
        delete_quarantined(key, &mut batch);
        // The marker stays, because an entry may still rely on definitions that the old partition had.
        put_marker(key, newest, &mut batch);
    }
    writing.write(batch)
}

/// Returns the key ranges of a partition of minutes, hours or days. For minutes, the ranges include the raw samples of
/// the same time, but not the IDs of batches.
fn ranges(key: PartitionKey) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut ranges = vec![(key.prefix(), key.end())];
    if key.tier == Tier::Minute {
        let raw = key.in_tier(Tier::Raw);
        // Batch IDs are the last section of a partition.
        ranges.push((raw.prefix(), raw.section(Section::BatchIds)));
    }
    ranges
}

/// Records that a partition was replaced. `newest` is the number of the newest table file that may hold values of the
/// old partition.
fn put_marker(key: PartitionKey, newest: u64, batch: &mut WriteBatch) {
    database::put(batch, &key::quarantined(&key.prefix()), &newest.to_be_bytes());
}

/// Deletes the moved values of a replaced partition.
pub(crate) fn delete_quarantined(key: PartitionKey, batch: &mut WriteBatch) {
    for (from, end) in ranges(key) {
        batch.delete_range(key::quarantined(&from), key::quarantined(&end));
    }
}
