//! The ids of batches: a retry counts once, also after a restart.
//!
//! An id lies in the partition of raw samples that the newest of its batch's samples is in, and goes with it. A retry that has the
//! same times is found as long as any of its samples would be taken; behind that nothing of it is. Where a push has no times of its
//! own, its retry gets later ones: an id is also looked for in the partitions of the window before.
//! Ids that are not in the state database yet are kept in memory; they get there in the same write as the samples they stand for.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{Batch, BatchId, Tier, limits};
use rocksdb::{DB, WriteBatch};

use crate::database;
use crate::database::key::PartitionKey;
use crate::error::{EngineError, is_corruption};

/// Partitions of raw samples in which a retry's id may be, its own included.
const PARTITIONS: usize = (limits::IDEMPOTENCY_WINDOW_NS / Tier::Raw.partition_ns()) as usize + 1;

/// Where ids are that are in memory alone; one that came again a long time later is in more than one place.
type Places = HashMap<(BatchId, PartitionKey), (), FixedState>;

/// Ids of applied batches that are not in the state database yet.
#[derive(Debug, Default)]
pub(crate) struct BatchIds {
    new: Places,
    /// Being written by a flush.
    frozen: Arc<Places>,
}

/// Ids that a flush writes.
pub(crate) type FrozenIds = Arc<Places>;

impl BatchIds {
    /// Whether a batch with this id was applied since the last flush, in one of these partitions.
    pub(crate) fn is_unwritten(&self, id: BatchId, partitions: &[PartitionKey]) -> bool {
        partitions.iter().any(|&key| self.new.contains_key(&(id, key)) || self.frozen.contains_key(&(id, key)))
    }

    pub(crate) fn insert(&mut self, id: BatchId, partition: PartitionKey) {
        self.new.insert((id, partition), ());
    }

    /// What a flush writes; one that was given up is part of the next.
    pub(crate) fn freeze(&mut self) -> FrozenIds {
        let mut frozen = std::mem::take(&mut self.new);
        frozen.extend(self.frozen.iter().map(|(&place, ())| (place, ())));
        self.frozen = Arc::new(frozen);
        Arc::clone(&self.frozen)
    }

    /// What was frozen is written.
    pub(crate) fn wrote(&mut self) {
        self.frozen = Arc::default();
    }
}

/// The partitions of raw samples in which a batch's id may be, first the one where it belongs; none if it has no samples.
pub(crate) fn partitions_of(batch: &Batch, tenant: u32) -> Vec<PartitionKey> {
    let times = batch.series.iter().flat_map(|series| &series.samples.times_ns);
    let Some(&newest) = times.max() else { return Vec::new() };
    let first = PartitionKey::of(Tier::Raw, batch.retention_class, tenant, newest);
    std::iter::successors(Some(first), |key| key.before()).take(PARTITIONS).collect()
}

/// Writes new ids.
pub(crate) fn write(ids: &FrozenIds, batch: &mut WriteBatch) {
    for &(id, partition) in ids.keys() {
        database::put(batch, &partition.batch_id(id), &[]);
    }
}

/// Whether the database holds this ID in one of these partitions. The key is the ID, so a damaged value counts. An ID in a block that
/// cannot be read counts as missing: a batch that counts twice is better than one that is acknowledged and lost.
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
