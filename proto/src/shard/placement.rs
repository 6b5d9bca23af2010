//! Placement of samples on shards: (tenant, service) -> slot -> shard.

use std::num::NonZeroU16;

use xxhash_rust::xxh3::xxh3_64;

use crate::formats::wire;
use crate::shard::error::SelectionError;
use crate::tenant::TenantId;

/// Number of hash slots. A slot is a group of services, by the hash of tenant and service; a shard has whole slots.
pub const SLOTS: u16 = 4096;

/// Number of the first shard with data. Shard 0 is reserved for metadata.
pub const FIRST_DATA_SHARD: u32 = 1;

/// One of [`SLOTS`] hash slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    /// Returns the slot of a tenant's service. All series of a service are in one shard, so that they share one
    /// dictionary. Dictionaries are most of the stored bytes.
    #[must_use]
    pub fn of(tenant: &TenantId, service_name: &str) -> Self {
        let mut key = Vec::with_capacity(tenant.as_str().len() + service_name.len() + 1);
        key.extend_from_slice(tenant.as_str().as_bytes());
        // No tenant name contains a slash, so different services have different keys.
        key.push(b'/');
        key.extend_from_slice(service_name.as_bytes());
        // The remainder is below SLOTS, which is a u16.
        Self(u16::try_from(xxh3_64(&key) % u64::from(SLOTS)).unwrap_or_default())
    }
}

/// The assignment of slots to shards. Each change of the assignment begins a new epoch.
#[derive(Clone, Debug)]
pub struct Placement {
    epoch: u64,
    shard_of_slot: Vec<u32>,
}

impl Placement {
    /// Divides the slots evenly among `shards` data shards, which are numbered from [`FIRST_DATA_SHARD`] on. The epoch
    /// is the number of shards, so that a node refuses a router that divides the slots among another number.
    #[must_use]
    pub fn uniform(shards: NonZeroU16) -> Self {
        let shard = |slot: u16| FIRST_DATA_SHARD + u32::from(slot % shards);
        Self { epoch: u64::from(shards.get()), shard_of_slot: (0..SLOTS).map(shard).collect() }
    }

    /// Encodes the placement.
    #[must_use]
    pub fn to_wire(&self) -> wire::PlacementResponse {
        wire::PlacementResponse { epoch: self.epoch, shard_of_slot: self.shard_of_slot.clone() }
    }

    /// Decodes a placement.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] unless each slot has a data shard.
    pub fn from_wire(from: wire::PlacementResponse) -> Result<Self, SelectionError> {
        let wire::PlacementResponse { epoch, shard_of_slot } = from;
        if shard_of_slot.len() != usize::from(SLOTS) || shard_of_slot.iter().any(|&shard| shard < FIRST_DATA_SHARD) {
            return Err(SelectionError::Inconsistent("a placement must name a data shard for each of 4096 slots"));
        }
        Ok(Self { epoch, shard_of_slot })
    }

    /// Epoch of the placement, which grows with every change.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Shard of a slot.
    #[must_use]
    pub fn shard(&self, slot: Slot) -> u32 {
        self.shard_of_slot[usize::from(slot.0)]
    }

    /// Shards that have at least one slot, ascending, each once.
    #[must_use]
    pub fn shards(&self) -> Vec<u32> {
        let mut shards = self.shard_of_slot.clone();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(shards: u16) -> Placement {
        Placement::uniform(NonZeroU16::new(shards).unwrap())
    }

    #[test]
    fn slots_are_divided_evenly_and_placements_read_back() {
        for shards in [1, 3, 16, 64] {
            let placement = uniform(shards);
            assert_eq!(placement.shards(), (1..=u32::from(shards)).collect::<Vec<_>>());
            for shard in placement.shards() {
                let slots = (0..SLOTS).filter(|&slot| placement.shard(Slot(slot)) == shard).count();
                assert!(slots.abs_diff(usize::from(SLOTS / shards)) <= 1, "shard {shard} has {slots} slots");
            }
            assert_eq!(placement.epoch(), u64::from(shards));
            let read = Placement::from_wire(placement.to_wire()).unwrap();
            assert_eq!((read.epoch, read.shard_of_slot), (placement.epoch, placement.shard_of_slot));
        }
    }

    #[test]
    fn placements_without_a_data_shard_for_each_slot_are_refused() {
        let sent = || uniform(2).to_wire();
        let changes: [fn(&mut wire::PlacementResponse); 3] =
            [|sent| sent.shard_of_slot[7] = 0, |sent| sent.shard_of_slot.push(1), |sent| sent.shard_of_slot.clear()];
        for change in changes {
            let mut sent = sent();
            change(&mut sent);
            assert!(Placement::from_wire(sent).is_err());
        }
    }
}
