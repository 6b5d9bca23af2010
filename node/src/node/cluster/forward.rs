//! Commands to the meta group: proposed on this node if it leads the group, and otherwise forwarded to the leader.

use std::time::Duration;

use proto::meta::Command;
use proto::refusal::Refusal;
use proto::wire;
use proto::wire::cluster_client::ClusterClient;
use tokio::time::timeout;
use tonic::{Request, Status};

use crate::consensus::{ConsensusError, Leader};
use crate::meta::ProposeError;
use crate::node::service::refusal::unavailable;
use crate::node::shared::Shared;

/// Longest time that the leader may take to respond.
const PATIENCE: Duration = Duration::from_secs(12);

/// Proposes a command. Returns true if it changed the state of the meta group.
///
/// # Errors
/// FAILED_PRECONDITION: the command contradicts the state, with the fault and the remedy. UNAVAILABLE: there is no
/// leader at present, or the outcome is unknown; every command may be proposed again.
pub(in crate::node) async fn propose(shared: &Shared, command: &Command) -> Result<bool, Status> {
    match propose_here(shared, command).await {
        Err((_, Some(leader))) => forward(shared, command, &leader).await,
        Err((status, None)) => Err(status),
        Ok(changed) => Ok(changed),
    }
}

/// Proposes a command without forwarding it. An error has the leader, if it is another node.
pub(super) async fn propose_here(shared: &Shared, command: &Command) -> Result<bool, (Status, Option<Leader>)> {
    let replica = shared.cluster.replica.borrow().clone();
    let Some(replica) = replica else {
        return Err((Status::unavailable("the meta group is not open on this node: try again"), None));
    };
    match replica.propose(command).await {
        Ok(changed) => Ok(changed),
        Err(ProposeError::Refused(text)) => Err((Status::failed_precondition(text), None)),
        Err(ProposeError::Consensus(error)) => {
            let status = unavailable(&error);
            let leader = if let ConsensusError::NotLeader { leader } = error { leader } else { None };
            Err((status, leader))
        }
    }
}

async fn forward(shared: &Shared, command: &Command, leader: &Leader) -> Result<bool, Status> {
    let Leader { node, address } = leader;
    let dialer = &shared.config.dialer;
    let endpoint = dialer.endpoint(address).map_err(|error| Status::unavailable(error.to_string()))?;
    let call = async {
        let channel = dialer.connect_lazy(&endpoint.connect_timeout(PATIENCE));
        let cluster = shared.peers.cluster().map(|cluster| cluster.to_wire()).unwrap_or_default();
        let request = wire::ProposeRequest { command: Some(command.to_wire()), is_forwarded: true, cluster };
        ClusterClient::new(channel).propose(Request::new(request)).await
    };
    let late = |_elapsed| {
        let text = format!("node {node} at {address} did not respond within {PATIENCE:?}: the outcome is unknown");
        Status::with_details(tonic::Code::Unavailable, text, Refusal::Unknown.encode().into())
    };
    Ok(timeout(PATIENCE, call).await.map_err(late)??.into_inner().is_changed)
}
