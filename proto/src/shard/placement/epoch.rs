//! One epoch of a placement: the assignment of slots to shards, and the services that are spread over several slots.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use super::{FIRST_DATA_SHARD, SLOTS, Slot, SpreadServices};
use crate::formats::wire;
use crate::label::Fingerprint;
use crate::limits::{LABEL_VALUE_BYTES_MAX, SERVICE_SLOTS_MAX, SPREAD_SERVICES_MAX};
use crate::shard::error::SelectionError;
use crate::tenant::TenantId;
use crate::tier::Tier;

const TOO_MANY_SERVICES: SelectionError =
    SelectionError::Inconsistent("an epoch must spread at most 1024 services over several slots");

/// Number of slots of a service that is spread over several slots: from 2 to [`SERVICE_SLOTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread(NonZeroU16);

impl Spread {
    /// Makes a number of slots; `None` if it is out of range.
    #[must_use]
    pub fn new(slots: u16) -> Option<Self> {
        (2..=SERVICE_SLOTS_MAX).contains(&slots).then(|| NonZeroU16::new(slots).map(Self)).flatten()
    }

    /// The number of slots.
    #[must_use]
    pub fn slots(self) -> u16 {
        self.0.get()
    }

    /// Part of the service that has a series. A series is in one part only, and so in one shard.
    fn part_of(self, fingerprint: Fingerprint) -> u16 {
        // The remainder is below the divisor, which is a u16.
        u16::try_from(fingerprint.0 % u128::from(self.slots())).unwrap_or_default()
    }
}

/// The assignment of slots to shards for the samples of a time range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    number: u64,
    begins_ns: i64,
    shard_of_slot: Vec<u32>,
    spread: SpreadServices,
    /// Shards that have at least one slot, ascending, each once.
    shards: Vec<u32>,
}

impl Epoch {
    /// Makes an epoch.
    ///
    /// `begins_ns` is the time after which samples belong to the epoch: a full minute, or `i64::MIN` for the first
    /// epoch of a cluster. `shard_of_slot` has the shard of each slot.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] for a wrong number of slots, a slot without a data shard, a begin within a minute,
    /// or too many or too long names of services.
    pub fn new(
        number: u64,
        begins_ns: i64,
        shard_of_slot: Vec<u32>,
        mut spread: SpreadServices,
    ) -> Result<Self, SelectionError> {
        // Equal epochs must have equal encodings, and an encoding has no tenants without services.
        spread.retain(|_, services| !services.is_empty());
        if shard_of_slot.len() != usize::from(SLOTS) || shard_of_slot.iter().any(|&shard| shard < FIRST_DATA_SHARD) {
            return Err(SelectionError::Inconsistent("a placement must name a data shard for each of 4096 slots"));
        }
        if begins_ns != i64::MIN && begins_ns % Tier::Minute.window_ns() != 0 {
            return Err(SelectionError::Inconsistent("an epoch must begin at a full minute"));
        }
        if spread.values().map(BTreeMap::len).sum::<usize>() > SPREAD_SERVICES_MAX {
            return Err(TOO_MANY_SERVICES);
        }
        if spread.values().flat_map(BTreeMap::keys).any(|service| service.len() > LABEL_VALUE_BYTES_MAX) {
            return Err(SelectionError::Inconsistent("a service must have a name of at most 2048 bytes"));
        }
        Ok(Self { number, begins_ns, shards: shards_of(&shard_of_slot), shard_of_slot, spread })
    }

    /// Divides the slots evenly among `shards` data shards. The number of the epoch is the number of shards.
    pub(super) fn uniform(shards: NonZeroU16) -> Self {
        let shard = |slot: u16| FIRST_DATA_SHARD + u32::from(slot % shards);
        let shard_of_slot: Vec<u32> = (0..SLOTS).map(shard).collect();
        Self {
            number: u64::from(shards.get()),
            begins_ns: i64::MIN,
            shards: shards_of(&shard_of_slot),
            shard_of_slot,
            spread: BTreeMap::new(),
        }
    }

    /// Encodes the epoch.
    #[must_use]
    pub fn to_wire(&self) -> wire::PlacementEpoch {
        let of_tenant = |(tenant, services): (&TenantId, &BTreeMap<String, Spread>)| {
            let tenant = tenant.as_str().to_owned();
            let service = move |(service, spread): (&String, &Spread)| wire::SpreadService {
                tenant: tenant.clone(),
                service: service.clone(),
                slots: spread.slots().into(),
            };
            services.iter().map(service).collect::<Vec<_>>()
        };
        wire::PlacementEpoch {
            number: self.number,
            begins_ns: self.begins_ns,
            shard_of_slot: self.shard_of_slot.clone(),
            spread: self.spread.iter().flat_map(of_tenant).collect(),
        }
    }

    /// Decodes an epoch.
    ///
    /// # Errors
    /// Returns the [`SelectionError`] of [`Epoch::new`], and the error of a service that is listed twice or has a wrong
    /// tenant or number of slots.
    pub fn from_wire(from: wire::PlacementEpoch) -> Result<Self, SelectionError> {
        let wire::PlacementEpoch { number, begins_ns, shard_of_slot, spread } = from;
        if spread.len() > SPREAD_SERVICES_MAX {
            return Err(TOO_MANY_SERVICES);
        }
        let mut services = SpreadServices::new();
        for wire::SpreadService { tenant, service, slots } in spread {
            let spread = u16::try_from(slots).ok().and_then(Spread::new);
            let spread = spread.ok_or(SelectionError::Inconsistent("a service must be spread over 2 to 256 slots"))?;
            if services.entry(TenantId::new(&tenant)?).or_default().insert(service, spread).is_some() {
                return Err(SelectionError::Inconsistent("an epoch must list each service once"));
            }
        }
        Self::new(number, begins_ns, shard_of_slot, services)
    }

    /// Number of the epoch.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Time, in nanoseconds since 1970, after which samples belong to this epoch.
    #[must_use]
    pub fn begins_ns(&self) -> i64 {
        self.begins_ns
    }

    /// Shard of each slot.
    #[must_use]
    pub fn shard_of_slot(&self) -> &[u32] {
        &self.shard_of_slot
    }

    /// Services that are spread over several slots.
    #[must_use]
    pub fn spread(&self) -> &SpreadServices {
        &self.spread
    }

    /// Shards that have at least one slot, ascending, each once.
    #[must_use]
    pub fn shards(&self) -> &[u32] {
        &self.shards
    }

    /// Shard of a slot.
    #[must_use]
    pub fn shard(&self, slot: Slot) -> u32 {
        self.shard_of_slot[slot.index()]
    }

    fn spread_of(&self, tenant: &TenantId, service: &str) -> Option<Spread> {
        self.spread.get(tenant)?.get(service).copied()
    }

    /// Shard of a series. `fingerprint` is called only if the service is spread over several slots.
    #[must_use]
    pub fn shard_of(&self, tenant: &TenantId, service: &str, fingerprint: &impl Fn() -> Fingerprint) -> u32 {
        let part = self.spread_of(tenant, service).map_or(0, |spread| spread.part_of(fingerprint()));
        self.shard(Slot::of_part(tenant, service, part))
    }

    /// Shards that can have series of a service, ascending, each once.
    pub(super) fn shards_of_service(&self, tenant: &TenantId, service: &str) -> Vec<u32> {
        let parts = self.spread_of(tenant, service).map_or(1, Spread::slots);
        let shards: Vec<u32> = (0..parts).map(|part| self.shard(Slot::of_part(tenant, service, part))).collect();
        shards_of(&shards)
    }
}

/// Sorts shards, and keeps each once.
fn shards_of(shards: &[u32]) -> Vec<u32> {
    let mut shards = shards.to_vec();
    shards.sort_unstable();
    shards.dedup();
    shards
}
