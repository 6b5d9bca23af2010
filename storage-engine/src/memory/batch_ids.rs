//! IDs of applied batches. Because of them, a batch that a client sends several times counts once, also after a
//! restart.
//!
//! An ID is stored in the partition of raw samples that holds the batch's newest stored sample, and is dropped with
//! that partition. A retry with the same times is found for as long as any of its samples could be stored. If a push
//! has no times, varve sets them, so a retry has later times. An ID is therefore also looked up in the earlier
//! partitions of the last [`limits::IDEMPOTENCY_WINDOW_NS`]. The policy of the tenant may have changed between a batch
//! and its retry, so an ID is looked up in the partitions of all retention classes. Only a retry that arrives in
//! another class after the minutes of the first class have expired is not found.
//!
//! IDs that are not in the state database yet are kept in memory. A flush writes them together with the samples of
//! their batches.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{BatchId, Tier, limits};
use rocksdb::{DB, WriteBatch};

use crate::database;
use crate::database::key::PartitionKey;
use crate::engine::state::partitions::Partitions;
use crate::error::{EngineError, is_corruption};

/// Number of raw partitions of one class in which a retry that has later times is looked up, including that of the
/// retry's newest sample.
const PARTITIONS: usize = (limits::IDEMPOTENCY_WINDOW_NS / Tier::Raw.partition_ns()) as usize + 1;

/// Set of IDs, each with its partition. If a batch is sent again much later, its ID is in several partitions.
type IdsByPartition = HashMap<(BatchId, PartitionKey), (), FixedState>;

/// IDs of applied batches that are not in the state database yet.
#[derive(Debug, Default)]
pub(crate) struct BatchIds {
    new: IdsByPartition,
    /// IDs that a flush is writing, or that a failed flush has not written.
    frozen: Arc<IdsByPartition>,
}

/// IDs that one flush writes.
pub(crate) type FrozenIds = Arc<IdsByPartition>;

impl BatchIds {
    /// Returns whether one of these partitions has this ID only in memory: the batch was applied, but its ID is not in
    /// the state database yet.
    pub(crate) fn is_unwritten(&self, id: BatchId, partitions: &[PartitionKey]) -> bool {
        partitions.iter().any(|&key| self.new.contains_key(&(id, key)) || self.frozen.contains_key(&(id, key)))
    }

    pub(crate) fn insert(&mut self, id: BatchId, partition: PartitionKey) {
        self.new.insert((id, partition), ());
    }

    /// Returns the IDs that a flush must write. If a flush fails, the next one includes its IDs.
    pub(crate) fn freeze(&mut self) -> FrozenIds {
        let mut frozen = std::mem::take(&mut self.new);
        frozen.extend(self.frozen.iter().map(|(&id, ())| (id, ())));
        self.frozen = Arc::new(frozen);
        Arc::clone(&self.frozen)
    }

    /// Records that the frozen IDs are in the state database.
    pub(crate) fn wrote(&mut self) {
        self.frozen = Arc::default();
    }
}

/// Returns the raw partitions in which the ID of a batch may be. `parts` are the partitions of minutes of the batch's
/// samples, ascending. Of other retention classes than that of the batch, only `existing` partitions are listed.
///
/// The ID is in the partition of the newest sample that was stored. Newer samples of the batch may have been too old
/// because of another class, so this may be the partition of any sample.
pub(crate) fn partitions_of(parts: &[PartitionKey], existing: &Partitions) -> Vec<PartitionKey> {
    let Some(newest) = parts.last().map(|key| key.in_tier(Tier::Raw)) else { return Vec::new() };
    let mut raw: BTreeSet<PartitionKey> = parts.iter().map(|key| key.in_tier(Tier::Raw)).collect();
    raw.extend(std::iter::successors(Some(newest), |key| key.before()).take(PARTITIONS));
    let others: Vec<u8> = existing.classes(Tier::Raw).filter(|&class| class != newest.class).collect();
    let of_others = raw.iter().flat_map(|&key| others.iter().map(move |&class| key.in_class(class)));
    let of_others: Vec<PartitionKey> = of_others.filter(|key| existing.exists(key)).collect();
    // The most likely partition is looked up first.
    raw.into_iter().rev().chain(of_others).collect()
}

/// Adds the keys of new IDs to the batch of writes.
pub(crate) fn write(ids: &FrozenIds, batch: &mut WriteBatch) {
    for &(id, partition) in ids.keys() {
        database::put(batch, &partition.batch_id(id), &[]);
    }
}

/// Result of a search for an ID in the database.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) is_written: bool,
    /// Partitions that may have the ID in a block that cannot be read, each with the error.
    pub(crate) unreadable: Vec<(PartitionKey, rocksdb::Error)>,
}

/// Searches the database for an ID in these partitions. The key is the ID, so an ID with a damaged value counts as
/// found. An ID in a block that cannot be read counts as missing, because counting a batch twice is better than
/// acknowledging a batch and losing it.
pub(crate) fn find(database: &DB, id: BatchId, partitions: &[PartitionKey]) -> Result<Found, EngineError> {
    let mut found = Found::default();
    for partition in partitions {
        match database.get_pinned(partition.batch_id(id)) {
            Ok(Some(_)) => {
                found.is_written = true;
                break;
            }
            Ok(None) => {}
            Err(error) if is_corruption(&error) => found.unreadable.push((*partition, error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}
