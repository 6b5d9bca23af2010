//! Retries across epochs of the placement, of pushes that carry no times.
//!
//! The samples of such a push get the time of its receipt. After the begin of an epoch, a retry may therefore belong to
//! another shard than the first attempt, and that shard knows nothing of it. So the push has another ID in each epoch,
//! and before it is stored, the shards of the other epochs of the last day are asked for it under its ID of that epoch.
//! The samples of a service that such a shard has stored are left out.
//!
//! Two kinds of first attempts are not found: one that is still on its way when the retry asks, and a part that was too
//! large for one entry of the log.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use proto::label::SERVICE_NAME_LABEL;
use proto::limits::{IDEMPOTENCY_WINDOW_NS, TIME_AHEAD_MAX_NS};
use proto::placement::{Epoch, Placement};
use proto::{BatchId, Profile, TenantId};
use xxhash_rust::xxh3::xxh3_128;

use crate::nodes::{Nodes, NodesError};

/// A shard that may have stored a part of the push in another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// Number of the epoch.
    epoch: u64,
    shard: u32,
}

/// Returns the ID of a push that carries no times and arrives in an epoch.
pub(super) fn id_in_epoch(id: BatchId, epoch: u64) -> BatchId {
    BatchId(xxh3_128(&[&id.0.to_be_bytes()[..], &epoch.to_be_bytes()].concat()))
}

/// Returns the number of the epoch of a time.
pub(super) fn epoch_at(placement: &Placement, time_ns: i64) -> u64 {
    let begun = placement.epochs().rev().find(|epoch| epoch.begins_ns() < time_ns);
    begun.map_or_else(|| placement.epoch(), |epoch| epoch.number())
}

/// Returns the epochs in which an attempt of a push may have arrived, except the one in which it arrives now. Clocks of
/// routers may differ, so a later epoch may be among them.
fn other_epochs(placement: &Placement, arrived_ns: i64) -> impl Iterator<Item = &Epoch> {
    let own = epoch_at(placement, arrived_ns);
    let oldest_ns = arrived_ns.saturating_sub(IDEMPOTENCY_WINDOW_NS);
    let newest_ns = arrived_ns.saturating_add(TIME_AHEAD_MAX_NS);
    let ends = placement.epochs().skip(1).map(|next| next.begins_ns()).chain([i64::MAX]);
    let near = placement
        .epochs()
        .zip(ends)
        .filter(move |(epoch, end_ns)| *end_ns >= oldest_ns && epoch.begins_ns() < newest_ns && epoch.number() != own);
    near.map(|(epoch, _)| &**epoch)
}

/// Returns the parts that a profile would have in other epochs.
fn parts_of<'a>(
    profile: &'a Profile,
    tenant: &'a TenantId,
    placement: &'a Placement,
    arrived_ns: i64,
) -> impl Iterator<Item = Part> + 'a {
    let service = profile.labels.get(SERVICE_NAME_LABEL);
    let part = move |epoch: &Epoch| {
        let shard = epoch.shard_of(tenant, service, &|| profile.labels.fingerprint(tenant));
        Part { epoch: epoch.number(), shard }
    };
    other_epochs(placement, arrived_ns).map(part)
}

/// Returns the parts of a push in other epochs; usually none.
pub(super) fn parts(profiles: &[Profile], tenant: &TenantId, placement: &Placement, arrived_ns: i64) -> BTreeSet<Part> {
    profiles.iter().flat_map(|profile| parts_of(profile, tenant, placement, arrived_ns)).collect()
}

/// Removes the profiles of which one of these parts has the samples.
pub(super) fn remove_stored(
    profiles: &mut Vec<Profile>,
    stored: &BTreeSet<Part>,
    tenant: &TenantId,
    placement: &Placement,
    arrived_ns: i64,
) {
    profiles.retain(|profile| !parts_of(profile, tenant, placement, arrived_ns).any(|part| stored.contains(&part)));
}

/// Asks the shards which of these parts they have stored. `parts` has the ID of the push, and is `None` if no shard
/// must be asked.
pub(super) async fn stored(
    nodes: &Nodes,
    placement: &Placement,
    tenant: &TenantId,
    parts: Option<(BatchId, BTreeSet<Part>)>,
) -> Result<BTreeSet<Part>, NodesError> {
    let Some((id, parts)) = parts else { return Ok(BTreeSet::new()) };
    let asked = parts.into_iter().map(|part| async move {
        let held = nodes.holds_batch(placement, part.shard, tenant, id_in_epoch(id, part.epoch)).await?;
        Ok((part, held))
    });
    let held: BTreeMap<Part, bool> = try_join_all(asked).await?.into_iter().collect();
    Ok(held.into_iter().filter_map(|(part, is_held)| is_held.then_some(part)).collect())
}
