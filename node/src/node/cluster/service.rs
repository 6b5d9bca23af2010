//! The gRPC server for `varve.v1.Cluster`.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use proto::limits::META_COMMAND_BYTES_MAX;
use proto::meta::Command;
use proto::wire;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use transport::Role;

use crate::node::Node;
use crate::node::cluster::forward::{propose, propose_here};
use crate::node::cluster::status;

/// Longest time that a watcher waits for a change. A response without a change shows that the node is alive.
const WATCH_PATIENCE: Duration = Duration::from_secs(5);

#[tonic::async_trait]
impl wire::cluster_server::Cluster for Node {
    async fn identify(
        &self,
        _request: Request<wire::IdentifyRequest>,
    ) -> Result<Response<wire::IdentifyResponse>, Status> {
        let replica = self.shared.cluster.replica.borrow().clone();
        let replica = replica.ok_or_else(|| Status::unavailable("the node is starting: try again"))?;
        let is_created = replica.is_created().await.map_err(|error| Status::unavailable(error.to_string()))?;
        // A node whose log was damaged belongs to its old cluster. Nobody may make a new one of it.
        let has_cluster = is_created || self.shared.directory.has_damaged_raft();
        Ok(Response::new(wire::IdentifyResponse {
            node: self.shared.config.node_id,
            directory: self.shared.cluster.directory.to_vec().into(),
            has_cluster,
        }))
    }

    async fn propose(&self, request: Request<wire::ProposeRequest>) -> Result<Response<wire::ProposeResponse>, Status> {
        let role = transport::peer_role(&request)?;
        let wire::ProposeRequest { command, is_forwarded, cluster } = request.into_inner();
        self.shared.check_cluster(&cluster)?;
        let command = command.ok_or_else(|| Status::invalid_argument("the request has no command"))?;
        if command.encoded_len() > META_COMMAND_BYTES_MAX {
            return Err(Status::invalid_argument(format!("a command has at most {META_COMMAND_BYTES_MAX} bytes")));
        }
        let command = Command::from_wire(command).map_err(|error| Status::invalid_argument(error.to_string()))?;
        may_propose(role.as_ref(), &command)?;
        let is_changed = if is_forwarded {
            propose_here(&self.shared, &command).await.map_err(|(status, _leader)| status)?
        } else {
            propose(&self.shared, &command).await?
        };
        Ok(Response::new(wire::ProposeResponse { is_changed }))
    }

    async fn status(&self, _request: Request<wire::StatusRequest>) -> Result<Response<wire::StatusResponse>, Status> {
        let shared = Arc::clone(&self.shared);
        // The rates of services are read from the heads, which may have very many series.
        let status = spawn_blocking(move || status::of(&shared)).await;
        status.map(Response::new).map_err(|panic| Status::internal(panic.to_string()))
    }

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<wire::WatchResponse>, Status> {
        let wire::WatchRequest { revision } = request.into_inner();
        let mut states = self.shared.cluster.state.subscribe();
        let newer = async {
            // A revision that is larger than the node's own is of another cluster, or of a member that is ahead.
            let newer = states.wait_for(|state| state.revision > revision).await;
            newer.map(|state| state.to_wire()).ok()
        };
        // A server that stops waits for its requests, so this one ends with the streams of other nodes.
        let closed = self.shared.peers.closed();
        let newer = closed.run_until_cancelled(timeout(WATCH_PATIENCE, newer));
        let newer = self.shared.stopping.run_until_cancelled(newer).await.flatten();
        let state = newer.and_then(Result::ok).flatten();
        Ok(Response::new(wire::WatchResponse { state }))
    }
}

/// Checks that a peer may propose a command. Without TLS, the role is `None`, and the operator protects the port.
///
/// # Errors
/// PERMISSION_DENIED: routers only read the state of the meta group, and only nodes know what nodes have done.
fn may_propose(role: Option<&Role>, command: &Command) -> Result<(), Status> {
    let refuse = |text: String| Err(Status::permission_denied(text));
    match role {
        None | Some(Role::Node(_)) => Ok(()),
        Some(router @ Role::Router(_)) => refuse(format!(
            "only nodes and administrators may change the cluster, and the certificate is that of {router}: use one of \
             `varve admin certs --admin NAME`"
        )),
        Some(admin @ Role::Admin(_)) => match command {
            Command::Initialize { .. }
            | Command::RegisterNode(_)
            | Command::ShardCreated(_)
            | Command::SetDefaultRetention(_)
            | Command::SetFormatVersion(_)
            | Command::MembersChanged { .. } => {
                refuse(format!("only nodes propose this, and the certificate is that of {admin}"))
            }
            Command::AcceptDirectory { .. }
            | Command::MoveMember { .. }
            | Command::AddShards(_)
            | Command::AddEpoch(_)
            | Command::CreateTenant(..)
            | Command::UpdateTenant(..)
            | Command::DeleteTenant(_)
            | Command::CreateToken(..)
            | Command::RevokeToken(..) => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proto::TenantId;

    use super::*;

    #[test]
    fn routers_propose_nothing_and_administrators_not_what_nodes_do() {
        let tenants = Command::DeleteTenant(TenantId::default_tenant());
        let created = Command::ShardCreated(1);
        let router = Role::router("a").unwrap();
        let admin = Role::admin("a").unwrap();
        for command in [&tenants, &created] {
            let refused = may_propose(Some(&router), command).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied);
            assert!(refused.message().contains("router a") && refused.message().contains("--admin"), "{refused}");
            may_propose(Some(&Role::Node(1)), command).unwrap();
            may_propose(None, command).unwrap();
        }
        may_propose(Some(&admin), &tenants).unwrap();
        let refused = may_propose(Some(&admin), &created).unwrap_err();
        assert!(refused.message().contains("only nodes"), "{refused}");
    }
}
