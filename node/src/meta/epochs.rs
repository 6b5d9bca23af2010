//! Proposal of the next epoch of the placement.

use std::collections::BTreeMap;

use proto::TenantId;
use proto::meta::State;
use proto::placement::{Epoch, Spread, SpreadServices};

use super::slots::divide_slots;
use crate::meta::Refusal;

/// Changes of the services that are spread over several slots: the number of slots, or `None` for a service that is not
/// spread any more.
pub type SpreadChanges = BTreeMap<(TenantId, String), Option<Spread>>;

/// Proposes the next epoch: the slots are divided evenly among `shards`, and as few slots as possible move. Services
/// stay spread as they are, apart from the changes. Equal states give equal proposals.
///
/// `begins_ns` is a full minute, in nanoseconds since 1970.
///
/// # Errors
/// Returns the [`Refusal`] of an epoch that is invalid in itself, for example because it has no shard. The state may
/// refuse the epoch for further reasons when it is applied.
pub fn propose_epoch(state: &State, shards: &[u32], begins_ns: i64, changes: &SpreadChanges) -> Result<Epoch, Refusal> {
    let newest = state.epochs.last().map(|epoch| &**epoch);
    let mut spread: SpreadServices = newest.map(|epoch| epoch.spread().clone()).unwrap_or_default();
    for ((tenant, service), slots) in changes {
        let services = spread.entry(tenant.clone()).or_default();
        match slots {
            Some(slots) => drop(services.insert(service.clone(), *slots)),
            None => drop(services.remove(service)),
        }
    }
    let number = newest.map_or(0, Epoch::number) + 1;
    Ok(Epoch::new(number, begins_ns, divide_slots(newest, shards), spread).map_err(proto::meta::MetaError::from)?)
}
