//! Sets the labels that the sums of a tenant drop.

use std::sync::Arc;

use proto::{LabelDrops, TenantId};

use crate::engine::state::label_drops::Names;
use crate::engine::store::Store;
use crate::{Outcome, Position};

/// Applies a change. It holds at once for a tenant without samples, and otherwise from the next period on.
pub(crate) fn drop_labels(store: &Store, position: Position, now_ns: i64, drops: &LabelDrops) -> Outcome {
    let mut state = store.state_mut();
    state.tenants.add(&drops.tenant);
    let tenant = state.tenants.number_or_next(&drops.tenant);
    state.label_drops.change(tenant, &drops.names, drops.revision);
    state.apply(position, now_ns);
    Outcome::Applied
}

/// Returns the names that new sums of a tenant drop, and the revision of the state of the meta group from which they
/// are.
pub(crate) fn newest(store: &Store, tenant: &TenantId) -> (Arc<Names>, u64) {
    let state = store.state();
    state.tenants.number(tenant).map(|tenant| state.label_drops.newest(tenant)).unwrap_or_default()
}
