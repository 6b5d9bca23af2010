//! The ids of recent batches: a retry inside the window counts once, also after a restart.
//!
//! An id is kept under the period in which it was proposed, so that forgetting is dropping a range of keys. Ids that are not
//! in the state database yet are kept in memory; they get there in the same write as the samples they stand for.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{BatchId, limits};
use rocksdb::{DB, WriteBatch};

use crate::key;

/// Forgetting is by whole periods: an id is remembered for the window and up to one period more.
const PERIOD_NS: i64 = limits::IDEMPOTENCY_WINDOW_NS / 4;

/// Periods that may hold an id inside the window.
const PERIODS: u32 = 5;

/// Ids of applied batches that are not sealed yet.
#[derive(Debug, Default)]
pub(crate) struct BatchIds {
    unsealed: HashMap<BatchId, u32, FixedState>,
}

impl BatchIds {
    /// Whether a batch with this id was applied since the last sealing.
    pub(crate) fn is_unsealed(&self, id: BatchId) -> bool {
        self.unsealed.contains_key(&id)
    }

    pub(crate) fn insert(&mut self, id: BatchId, now_ns: i64) {
        self.unsealed.insert(id, period_of(now_ns));
    }

    /// Writes the new ids and forgets those behind the window.
    pub(crate) fn seal(&self, now_ns: i64, batch: &mut WriteBatch) {
        let oldest = period_of(now_ns).saturating_sub(PERIODS - 1);
        batch.delete_range(key::batch_ids(0), key::batch_ids(oldest));
        for (&id, &period) in &self.unsealed {
            batch.put(key::batch_id(period, id), []);
        }
    }

    pub(crate) fn sealed(&mut self) {
        self.unsealed.clear();
    }
}

/// Whether the database holds this id, from the window before `now_ns`.
pub(crate) fn is_sealed(database: &DB, id: BatchId, now_ns: i64) -> Result<bool, rocksdb::Error> {
    let period = period_of(now_ns);
    for period in period.saturating_sub(PERIODS - 1)..=period {
        if database.get_pinned(key::batch_id(period, id))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn period_of(now_ns: i64) -> u32 {
    u32::try_from(now_ns.div_euclid(PERIOD_NS)).unwrap_or_default()
}
