//! Placement of samples on shards: (tenant, service, series, time) -> slot -> shard.
//!
//! A placement consists of epochs. Each epoch has its own assignment of slots to shards, and has the samples of a time
//! range `(begin, begin of the next epoch]`. A sample is placed by its own time, so resharding moves no data, and late
//! samples reach the shards that queries ask.
//!
//! Invariant: epochs begin at full minutes. Shards round times up within the minute, so no sample changes its epoch.

mod epoch;
mod route;
mod slot;

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

pub use self::epoch::{Epoch, Spread};
pub use self::route::Route;
pub use self::slot::{SLOTS, Slot};
use crate::formats::wire;
use crate::label::Fingerprint;
use crate::limits::{EPOCH_OVERLAP_NS, PLACEMENT_EPOCHS_MAX};
use crate::shard::error::SelectionError;
use crate::shard::selection::Window;
use crate::tenant::TenantId;

/// Number of the first shard with data. Shard 0 is reserved for metadata.
pub const FIRST_DATA_SHARD: u32 = 1;

/// The assignments of slots to shards, one for each epoch. The first epoch has all times before the second one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The first epoch.
    first: Arc<Epoch>,
    /// All other epochs, ascending by number and by begin.
    later: Vec<Arc<Epoch>>,
}

impl Placement {
    /// Makes a placement of epochs, which must ascend by number and by begin.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if there is no epoch, if there are too many, or if they do not ascend.
    pub fn new(epochs: impl IntoIterator<Item = Arc<Epoch>>) -> Result<Self, SelectionError> {
        let mut epochs = epochs.into_iter();
        let first = epochs.next().ok_or(SelectionError::Inconsistent("a placement must have an epoch"))?;
        let later: Vec<_> = epochs.take(PLACEMENT_EPOCHS_MAX).collect();
        if later.len() >= PLACEMENT_EPOCHS_MAX {
            return Err(SelectionError::Inconsistent("a placement must have at most 256 epochs"));
        }
        let placement = Self { first, later };
        let ascends = |a: &Epoch, b: &Epoch| a.number() < b.number() && a.begins_ns() < b.begins_ns();
        if !placement.epochs().zip(placement.later.iter()).all(|(a, b)| ascends(a, b)) {
            return Err(SelectionError::Inconsistent("the epochs of a placement must ascend by number and by time"));
        }
        Ok(placement)
    }

    /// Divides the slots evenly among `shards` data shards, which are numbered from [`FIRST_DATA_SHARD`] on. The number
    /// of the only epoch is the number of shards, so that a node refuses a router that divides the slots among another
    /// number.
    #[must_use]
    pub fn uniform(shards: NonZeroU16) -> Self {
        Self { first: Arc::new(Epoch::uniform(shards)), later: Vec::new() }
    }

    /// Encodes the placement.
    #[must_use]
    pub fn to_wire(&self) -> wire::PlacementResponse {
        wire::PlacementResponse { epochs: self.epochs().map(|epoch| epoch.to_wire()).collect() }
    }

    /// Decodes a placement.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] unless each epoch has a data shard for each slot, and epochs ascend.
    pub fn from_wire(from: wire::PlacementResponse) -> Result<Self, SelectionError> {
        if from.epochs.len() > PLACEMENT_EPOCHS_MAX {
            return Err(SelectionError::Inconsistent("a placement must have at most 256 epochs"));
        }
        let epochs = from.epochs.into_iter().map(|epoch| Epoch::from_wire(epoch).map(Arc::new));
        Self::new(epochs.collect::<Result<Vec<_>, _>>()?)
    }

    /// All epochs, ascending.
    pub fn epochs(&self) -> impl DoubleEndedIterator<Item = &Arc<Epoch>> {
        std::iter::once(&self.first).chain(&self.later)
    }

    /// The newest epoch.
    #[must_use]
    pub fn newest(&self) -> &Epoch {
        self.later.last().unwrap_or(&self.first)
    }

    /// Number of the newest epoch, which grows with every change.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.newest().number()
    }

    /// Shard of a sample of a service. `fingerprint` is that of the sample's series, and is only used if the service is
    /// spread over several slots.
    #[must_use]
    pub fn shard_of(&self, tenant: &TenantId, service: &str, fingerprint: Fingerprint, time_ns: i64) -> u32 {
        self.route(tenant, service, || fingerprint).shard_at(time_ns)
    }

    /// Returns the shards of one series, by time. Calls `fingerprint` only if the service is spread over several slots.
    #[must_use]
    pub fn route(&self, tenant: &TenantId, service: &str, fingerprint: impl Fn() -> Fingerprint) -> Route {
        let shard = |epoch: &Epoch| epoch.shard_of(tenant, service, &fingerprint);
        let later = self.later.iter().map(|epoch| (epoch.begins_ns(), shard(epoch)));
        Route::new(shard(&self.first), later)
    }

    /// Shards of all epochs, ascending, each once.
    #[must_use]
    pub fn shards(&self) -> Vec<u32> {
        merged(self.epochs().map(|epoch| epoch.shards()))
    }

    /// Shards that can have samples of a time range, ascending, each once.
    #[must_use]
    pub fn shards_in(&self, window: Window) -> Vec<u32> {
        merged(self.epochs_in(window).map(Epoch::shards))
    }

    /// Shards that can have samples of a service and a time range, ascending, each once.
    #[must_use]
    pub fn shards_of_service(&self, tenant: &TenantId, service: &str, window: Window) -> Vec<u32> {
        let of_epochs: Vec<Vec<u32>> =
            self.epochs_in(window).map(|epoch| epoch.shards_of_service(tenant, service)).collect();
        merged(of_epochs.iter().map(Vec::as_slice))
    }

    /// Slots whose samples of a time range can be in a shard, as ranges `(first, last)`; ascending and not touching.
    #[must_use]
    pub fn slots_of(&self, shard: u32, window: Window) -> Vec<(u16, u16)> {
        let epochs: Vec<&[u32]> = self.epochs_in(window).map(Epoch::shard_of_slot).collect();
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in 0..SLOTS {
            if !epochs.iter().any(|shards| shards[usize::from(slot)] == shard) {
                continue;
            }
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }

    /// Returns whether samples of a time range can be in several epochs. Samples of one series can then be in several
    /// shards.
    #[must_use]
    pub fn spans_epochs(&self, window: Window) -> bool {
        self.epochs_in(window).nth(1).is_some()
    }

    /// Epochs that can have samples of a time range.
    fn epochs_in<'a>(&'a self, window: Window) -> impl Iterator<Item = &'a Epoch> {
        let next = self.later.iter().map(Some).chain([None]);
        let overlaps = move |(index, (epoch, next)): (usize, (&'a Arc<Epoch>, Option<&Arc<Epoch>>))| {
            let has_begun = index == 0 || epoch.begins_ns() < window.end_ns;
            let is_over = |next: &Arc<Epoch>| next.begins_ns().saturating_add(EPOCH_OVERLAP_NS) <= window.start_ns;
            (has_begun && !next.is_some_and(is_over)).then_some(&**epoch)
        };
        self.epochs().zip(next).enumerate().filter_map(overlaps)
    }
}

/// Merges ascending lists.
fn merged<'a>(lists: impl Iterator<Item = &'a [u32]>) -> Vec<u32> {
    let mut lists = lists;
    let mut all = lists.next().unwrap_or_default().to_vec();
    for list in lists {
        all.extend(list);
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Services with several slots: for each tenant and service, the number of slots.
pub type SpreadServices = BTreeMap<TenantId, BTreeMap<String, Spread>>;

#[cfg(test)]
mod tests;
