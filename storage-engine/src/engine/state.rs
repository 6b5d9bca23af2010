//! State of an engine in memory. Each part keeps its own invariants. Invariants between parts are kept here and in
//! `integrity::quarantine::mark`.

pub(crate) mod clock;
pub(crate) mod horizons;
pub(crate) mod label_drops;
pub(crate) mod outlines;
pub(crate) mod partitions;
pub(crate) mod stale;
pub(crate) mod tenants;

use std::sync::Arc;

use bytes::Bytes;

use crate::Position;
use crate::database::key::PartitionKey;
use crate::database::{self, Snapshot};
use crate::engine::state::clock::Clock;
use crate::engine::state::horizons::Horizons;
use crate::engine::state::label_drops::LabelDrops;
use crate::engine::state::partitions::{Partitions, SharedPartition};
use crate::engine::state::stale::StaleWindows;
use crate::engine::state::tenants::Tenants;
use crate::error::EngineError;
use crate::integrity::quarantine::damage::Damage;
use crate::memory::batch_ids::BatchIds;
use crate::memory::budgets::Shares;

/// State of an engine in memory.
#[derive(Debug, Default)]
pub(crate) struct State {
    applied: Option<Position>,
    membership: Option<Bytes>,
    pub(crate) clock: Clock,
    pub(crate) tenants: Tenants,
    pub(crate) label_drops: LabelDrops,
    pub(crate) batch_ids: BatchIds,
    pub(crate) partitions: Partitions,
    pub(crate) stale: StaleWindows,
    pub(crate) horizons: Horizons,
    pub(crate) damage: Damage,
}

/// Result of [`State::find`]: the place that holds the partition.
pub(crate) enum Found {
    /// The partition is in memory.
    Loaded(SharedPartition),
    /// The partition is only in the database.
    Stored,
    /// The partition does not exist.
    Missing,
}

impl State {
    /// Reads the state from the database. No partition is loaded yet. The state's memory counts against `shares`.
    pub(crate) fn read(snapshot: &Snapshot<'_>, shares: &Shares) -> Result<Self, EngineError> {
        Ok(Self {
            applied: database::read_position(snapshot)?,
            membership: database::read_membership(snapshot)?,
            clock: Clock::at(database::read_clock(snapshot)?),
            tenants: Tenants::stored(database::read_tenants(snapshot)?),
            label_drops: LabelDrops::read(snapshot)?,
            batch_ids: BatchIds::default(),
            partitions: Partitions::stored(
                database::read_partition_keys(snapshot)?,
                database::read_oldest(snapshot)?,
                shares,
            ),
            stale: StaleWindows::stored(database::read_stale(snapshot)?),
            horizons: Horizons::stored(database::read_expired(snapshot)?),
            damage: Damage::read(snapshot)?,
        })
    }

    /// Finds a partition of minutes, hours or days.
    ///
    /// # Errors
    /// [`EngineError::Quarantined`]: the definitions of the partition are damaged.
    pub(crate) fn find(&self, key: PartitionKey) -> Result<Found, EngineError> {
        if let Some(partition) = self.partitions.loaded(&key) {
            return Ok(Found::Loaded(Arc::clone(partition)));
        }
        if !self.partitions.exists(&key) {
            return Ok(Found::Missing);
        }
        if self.damage.has_damaged_definitions(key) {
            return Err(EngineError::Quarantined { tier: key.tier, end_ns: key.end_ns() });
        }
        Ok(Found::Stored)
    }

    /// Finds a partition for a caller that needs no dictionary: as [`State::find`] does, but a kept outline of a stored
    /// partition is enough.
    pub(crate) fn find_outline(&self, key: PartitionKey) -> Result<Found, EngineError> {
        Ok(match (self.find(key)?, self.partitions.outline(&key)) {
            (Found::Stored, Some(outline)) => Found::Loaded(Arc::clone(outline)),
            (found, _) => found,
        })
    }

    /// Returns the position of the last entry in the state.
    pub(crate) fn applied(&self) -> Option<&Position> {
        self.applied.as_ref()
    }

    /// Returns the membership of the Raft group, as last stored.
    pub(crate) fn membership(&self) -> Option<&Bytes> {
        self.membership.as_ref()
    }

    /// Records that the entry at a position was applied. `now_ns` is the time at which the entry was proposed.
    pub(crate) fn apply(&mut self, position: Position, now_ns: i64) {
        self.applied = Some(position);
        self.clock.apply(now_ns);
    }

    /// Records that the entry at a position was skipped. Stores the membership that the entry holds, if any.
    pub(crate) fn skip(&mut self, position: Position, membership: Option<Bytes>) {
        self.applied = Some(position);
        if membership.is_some() {
            self.membership = membership;
        }
    }
}
