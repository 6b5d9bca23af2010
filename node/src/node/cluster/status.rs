//! Status of the groups of which the node is a member, for administrators.

use proto::wire;

use crate::node::shared::Shared;

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
        wire::GroupStatus { number, state: hosted.state().name().to_owned(), damage, ..status }
    });
    wire::StatusResponse {
        node: shared.config.node_id,
        revision: shared.cluster.state().revision,
        groups: std::iter::once(meta).chain(shards).collect(),
    }
}
