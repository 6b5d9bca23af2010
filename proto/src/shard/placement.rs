//! Placement of samples on shards: (tenant, service) -> slot -> shard.

use xxhash_rust::xxh3::xxh3_64;

use crate::tenant::TenantId;

/// Number of hash slots. A slot is a group of services, by the hash of tenant and service; a shard has whole slots.
pub const SLOTS: u16 = 4096;

/// Number of the only shard with data, in this version. Shard 0 is reserved for metadata.
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
    /// Assigns all slots to one shard, as on a single node.
    #[must_use]
    pub fn single_shard() -> Self {
        Self { epoch: 1, shard_of_slot: vec![FIRST_DATA_SHARD; usize::from(SLOTS)] }
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
