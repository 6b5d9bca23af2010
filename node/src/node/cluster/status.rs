//! Status of the groups of which the node is a member, for administrators.

use proto::wire;
use storage_engine::ServiceRate;

use crate::node::shared::Shared;

fn rate_to_wire(rate: ServiceRate) -> wire::ServiceRate {
    let ServiceRate { tenant, service, samples_per_second } = rate;
    wire::ServiceRate { tenant: tenant.as_str().to_owned(), service, samples_per_second }
}

/// Returns the status of the meta group and of all shards of the node.
pub(super) fn of(shared: &Shared) -> wire::StatusResponse {
    let replica = shared.cluster.replica.borrow().clone();
    let meta = match &replica {
        Some(replica) => wire::GroupStatus { state: "serving".to_owned(), ..replica.status() },
        None => wire::GroupStatus { state: "starting".to_owned(), ..wire::GroupStatus::default() },
    };
    let shards = shared.shards().into_iter().map(|(number, hosted)| {
        let status = hosted.replica().map(|replica| replica.status()).unwrap_or_default();
        let damage = hosted.damage().unwrap_or_default();
        let leading = hosted.serving().filter(|replica| replica.is_leader());
        let rates = leading.map(|replica| replica.shard().engine().service_rates()).unwrap_or_default();
        let services = rates.into_iter().map(rate_to_wire).collect();
        wire::GroupStatus { number, state: hosted.state().name().to_owned(), damage, services, ..status }
    });
    wire::StatusResponse {
        node: shared.config.node_id,
        revision: shared.cluster.state().revision,
        groups: std::iter::once(meta).chain(shards).collect(),
    }
}
