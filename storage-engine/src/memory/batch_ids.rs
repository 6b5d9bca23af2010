//! IDs of applied batches. Because of them, a batch that a client sends several times counts once, also after a
//! restart.
//!
//! An ID is stored in the partition of raw samples that holds the batch's newest sample, and is dropped with that
//! partition. A retry with the same times is found for as long as any of its samples could be stored. If a push has no
//! times, varve sets them, so a retry has later times. An ID is therefore also looked up in the earlier partitions of
//! the last [`limits::IDEMPOTENCY_WINDOW_NS`]. IDs that are not in the state database yet are kept in memory. A flush
//! writes them together with the samples of their batches.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{Batch, BatchId, Tier, limits};
use rocksdb::{DB, WriteBatch};

use crate::database;
use crate::database::key::PartitionKey;
use crate::error::{EngineError, is_corruption};

/// Number of raw partitions in which the ID of a retried batch may be, including that of the batch's newest sample.
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

/// Returns the raw partitions in which the ID of a batch may be, beginning with the partition of its newest sample. The
/// list is empty for a batch without samples.
pub(crate) fn partitions_of(batch: &Batch, tenant: u32) -> Vec<PartitionKey> {
    let times = batch.series.iter().flat_map(|series| &series.samples.times_ns);
    let Some(&newest) = times.max() else { return Vec::new() };
    let first = PartitionKey::of(Tier::Raw, batch.retention_class, tenant, newest);
    std::iter::successors(Some(first), |key| key.before()).take(PARTITIONS).collect()
}

/// Adds the keys of new IDs to the batch of writes.
pub(crate) fn write(ids: &FrozenIds, batch: &mut WriteBatch) {
    for &(id, partition) in ids.keys() {
        database::put(batch, &partition.batch_id(id), &[]);
    }
}

/// Returns whether the database holds this ID in one of these partitions. The key is the ID, so an ID with a damaged
/// value counts as found. An ID in a block that cannot be read counts as missing, because counting a batch twice is
/// better than acknowledging a batch and losing it.
pub(crate) fn is_written(database: &DB, id: BatchId, partitions: &[PartitionKey]) -> Result<bool, EngineError> {
    for partition in partitions {
        match database.get_pinned(partition.batch_id(id)) {
            Ok(Some(_)) => return Ok(true),
            Ok(None) => {}
            Err(error) if is_corruption(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}
