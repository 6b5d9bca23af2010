//! Slots: groups of services, by the hash of tenant and service.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::tenant::TenantId;

/// Number of hash slots. A shard has whole slots.
pub const SLOTS: u16 = 4096;

/// One of [`SLOTS`] hash slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    /// Returns the slot of a tenant's service. All series of a service are in one shard, so that they share one
    /// dictionary. Dictionaries are most of the stored bytes.
    #[must_use]
    pub fn of(tenant: &TenantId, service_name: &str) -> Self {
        Self::of_part(tenant, service_name, 0)
    }

    /// Returns the slot of one part of a service that is spread over several slots. Part 0 has the slot that the
    /// service has without being spread.
    #[must_use]
    pub fn of_part(tenant: &TenantId, service_name: &str, part: u16) -> Self {
        let mut key = Vec::with_capacity(tenant.as_str().len() + service_name.len() + 1);
        key.extend_from_slice(tenant.as_str().as_bytes());
        // No tenant name contains a slash, so different services have different keys.
        key.push(b'/');
        key.extend_from_slice(service_name.as_bytes());
        // The remainder is below SLOTS, which is a u16.
        Self(u16::try_from(xxh3_64_with_seed(&key, part.into()) % u64::from(SLOTS)).unwrap_or_default())
    }

    /// Index of the slot, below [`SLOTS`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }
}
