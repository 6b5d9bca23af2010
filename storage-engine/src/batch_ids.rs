//! The ids of recent batches: a retry inside the window counts once, also after a restart.
//!
//! An id is kept under the period in which it was proposed, so that forgetting is dropping a range of keys. Ids that are not
//! in the state database yet are kept in memory; they get there in the same write as the samples they stand for.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{BatchId, limits};
use rocksdb::{DB, WriteBatch};

use crate::database;
use crate::encoding::frame;
use crate::error::EngineError;
use crate::key;

/// Forgetting is by whole periods: an id is remembered for the window and up to one period more.
const PERIOD_NS: i64 = limits::IDEMPOTENCY_WINDOW_NS / 4;

/// Periods that may hold an id inside the window.
const PERIODS: u32 = 5;

/// Ids of applied batches that are not in the state database yet.
#[derive(Debug, Default)]
pub(crate) struct BatchIds {
    new: HashMap<BatchId, u32, FixedState>,
    /// Being written by a flush.
    frozen: Arc<HashMap<BatchId, u32, FixedState>>,
}

impl BatchIds {
    /// Whether a batch with this id was applied since the last flush, and is not forgotten: by the same periods as one that is written,
    /// so that it does not matter when a replica flushes.
    pub(crate) fn is_unwritten(&self, id: BatchId, now_ns: i64) -> bool {
        let oldest = period_of(now_ns).saturating_sub(PERIODS - 1);
        [&self.new, &*self.frozen].into_iter().any(|ids| ids.get(&id).is_some_and(|&period| period >= oldest))
    }

    pub(crate) fn insert(&mut self, id: BatchId, now_ns: i64) {
        self.new.insert(id, period_of(now_ns));
    }

    /// What a flush writes; one that was given up is part of the next.
    pub(crate) fn freeze(&mut self) -> Arc<HashMap<BatchId, u32, FixedState>> {
        let mut frozen = std::mem::take(&mut self.new);
        frozen.extend(self.frozen.iter());
        self.frozen = Arc::new(frozen);
        Arc::clone(&self.frozen)
    }

    /// What was frozen is written.
    pub(crate) fn wrote(&mut self) {
        self.frozen = Arc::default();
    }
}

/// Writes new ids and forgets those behind the window.
pub(crate) fn write(ids: &HashMap<BatchId, u32, FixedState>, now_ns: i64, batch: &mut WriteBatch) {
    let oldest = period_of(now_ns).saturating_sub(PERIODS - 1);
    batch.delete_range(key::batch_ids(0), key::batch_ids(oldest));
    for (&id, &period) in ids {
        database::put(batch, &key::batch_id(period, id), &[]);
    }
}

/// Whether the database holds this id, from the window before `now_ns`.
pub(crate) fn is_written(database: &DB, id: BatchId, now_ns: i64) -> Result<bool, EngineError> {
    let period = period_of(now_ns);
    for period in period.saturating_sub(PERIODS - 1)..=period {
        let key = key::batch_id(period, id);
        if let Some(value) = database.get_pinned(&key)? {
            frame::open(&key, &value)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn period_of(now_ns: i64) -> u32 {
    u32::try_from(now_ns.div_euclid(PERIOD_NS)).unwrap_or_default()
}
