//! The first start of a cluster, and of a node that joins one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::meta::{Command, DirectoryId, Node, Shard, State};
use proto::wire;
use proto::wire::cluster_client::ClusterClient;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::config::{Config, Site};
use crate::consensus::Member;
use crate::error::ReplicaError;
use crate::host::planted::is_planted;
use crate::meta::MetaReplica;
use crate::node::shared::Shared;

/// Interval of attempts to reach all initial nodes.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which the first log line says what the node waits for. Within this time, the creator of the cluster calls
/// the other nodes.
const FIRST_REPORT: Duration = Duration::from_secs(3);
/// Interval of further log lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of attempts to register this node.
const REGISTER_INTERVAL: Duration = Duration::from_secs(3);
/// Longest time that one node may take to respond.
const PATIENCE: Duration = Duration::from_secs(2);

/// Creates the meta group, if this node is the one that creates it and the group does not exist. Returns when this node
/// belongs to a meta group.
///
/// The group is created only after every initial node has responded that it belongs to no cluster. If one of them
/// belongs to a cluster, this node has lost its data directory, and waits until an operator restores it.
pub(super) async fn create_cluster(shared: &Shared, replica: &MetaReplica) -> Result<(), ReplicaError> {
    let initial = shared.config.initial_nodes();
    let is_creator = initial.first_key_value().is_some_and(|(&first, _)| first == shared.config.node_id);
    let mut report_at = Instant::now() + FIRST_REPORT;
    while !replica.is_created().await? {
        match all_empty(shared, &initial).await {
            Ok(members) if is_creator => return replica.create(members).await,
            Ok(_members) => {}
            Err(reason) if report_at <= Instant::now() => {
                tracing::warn!("this node belongs to no cluster yet: {reason}");
                report_at = Instant::now() + REPORT_INTERVAL;
            }
            Err(_reason) => {}
        }
        sleep(ATTEMPT_INTERVAL).await;
    }
    Ok(())
}

/// Registers this node in its cluster, if it belongs to none yet. Returns when the leader of the meta group has made
/// this node a member of the group.
pub(super) async fn join_cluster(shared: &Shared, replica: &MetaReplica) -> Result<(), ReplicaError> {
    let Config { node_id, site: Site { address, zone }, join, .. } = &shared.config;
    let node = Node {
        id: *node_id,
        address: address.clone(),
        zone: zone.clone(),
        directory: DirectoryId(u128::from_be_bytes(shared.cluster.directory)),
    };
    propose_until_member(shared, replica, &Command::RegisterNode(node), join).await
}

/// Makes the cluster accept the new log of this node, whose old log was damaged, in place of the old one. Returns when
/// the leader of the meta group has made this node a member of the group again, and nothing of the old log is left.
///
/// This is safe like the acceptance of an empty directory: the old members, whose votes are lost, leave their groups
/// before the new ones join. Nothing is proposed while a shard has no majority without this node. Nothing is deleted
/// before the state of the cluster names the new log.
pub(super) async fn rejoin_cluster(shared: &Shared, replica: &MetaReplica) -> Result<(), ReplicaError> {
    let Config { node_id: node, join, .. } = &shared.config;
    let directory = DirectoryId(u128::from_be_bytes(shared.cluster.directory));
    let initial = shared.config.initial_nodes().into_iter().filter(|(id, _site)| id != node);
    let others: Vec<String> = initial.map(|(_id, site)| site.address).chain(join.iter().cloned()).collect();
    let accept = Command::AcceptDirectory { node: *node, directory };
    propose_until_member(shared, replica, &accept, &others).await?;
    while !shared.cluster.is_known(&shared.cluster.state()) {
        sleep(ATTEMPT_INTERVAL).await;
    }
    let of_node = Arc::clone(&shared.directory);
    let removed = spawn_blocking(move || of_node.remove_damaged()).await.map_err(std::io::Error::other);
    let failed = |source| ReplicaError::Directory { directory: shared.directory.path().to_owned(), source };
    removed.and_then(|removed| removed).map_err(failed)?;
    tracing::info!("repaired: a new Raft log has replaced the damaged one; the replicas are built again");
    Ok(())
}

/// Asks a node if the cluster can do without the old log of this node.
///
/// # Errors
/// FAILED_PRECONDITION: a shard needs it. Otherwise the status of the call.
async fn may_rejoin(shared: &Shared, address: &str) -> Result<(), Status> {
    let watched =
        call(shared, address, |mut client| async move { client.watch(wire::WatchRequest { revision: 0 }).await })
            .await?;
    let state = watched.state.ok_or_else(|| Status::unavailable("the node does not know the cluster yet"))?;
    let state = State::from_wire(state).map_err(|error| Status::unavailable(error.to_string()))?;
    if shared.cluster.is_known(&state) {
        return Ok(());
    }
    match needs_old_log(&state, shared.config.node_id) {
        None => Ok(()),
        Some(shard) => Err(Status::failed_precondition(format!(
            "shard {shard} has no majority without this node, or its members change: all data and the damaged log \
             are kept; start the other members, or restore this data directory from a backup"
        ))),
    }
}

/// Returns a shard that would lose its majority, or its only copy, with the log of a node. While the members of a shard
/// change, this is not known.
fn needs_old_log(state: &State, node: u64) -> Option<u32> {
    let of_node = state.shards.values().filter(|shard| shard.replica_on(node).is_some());
    let needs = |shard: &&Shard| !shard.is_created || !shard.target.is_empty() || shard.members.len() < 3;
    of_node.into_iter().find(needs).map(|shard| shard.number)
}

/// Proposes a command through other nodes until this node is a member of the meta group.
async fn propose_until_member(
    shared: &Shared,
    replica: &MetaReplica,
    command: &Command,
    others: &[String],
) -> Result<(), ReplicaError> {
    let request =
        wire::ProposeRequest { command: Some(command.to_wire()), is_forwarded: false, cluster: Vec::new().into() };
    let mut addresses = others.iter().cycle();
    let mut next_at = Instant::now();
    while !replica.is_created().await? {
        if next_at <= Instant::now()
            && let Some(address) = addresses.next()
        {
            let proposed = async {
                if matches!(command, Command::AcceptDirectory { .. }) {
                    may_rejoin(shared, address).await?;
                }
                let request = request.clone();
                call(shared, address, |mut client| async move { client.propose(request).await }).await
            };
            match proposed.await {
                Ok(_proposed) => tracing::info!(address, "the node is registered in the cluster"),
                Err(status) => tracing::warn!(address, "this node cannot join the cluster yet: {}", status.message()),
            }
            next_at = Instant::now() + REGISTER_INTERVAL;
        }
        sleep(ATTEMPT_INTERVAL).await;
    }
    Ok(())
}

/// Returns the members of a new meta group.
///
/// # Errors
/// The reason why no group may be created.
async fn all_empty(shared: &Shared, initial: &BTreeMap<u64, Site>) -> Result<BTreeMap<u64, Member>, String> {
    let mut members = BTreeMap::new();
    for (&id, Site { address, .. }) in initial {
        let directory = if id == shared.config.node_id {
            shared.cluster.directory
        } else {
            let identity = identify(shared, address).await;
            let identity =
                identity.map_err(|status| format!("node {id} at {address} does not respond: {}", status.message()))?;
            if identity.has_cluster && is_planted("create-again") {
                continue;
            }
            check(shared, id, address, &identity)?
        };
        members.insert(id, Member { address: address.clone(), directory });
    }
    Ok(members)
}

/// Returns the command that accepts the empty data directory of this node. `address` is that of another node.
fn accept_command(shared: &Shared, address: &str) -> String {
    let endpoint = shared.config.dialer.endpoint(address).map(|endpoint| endpoint.uri().to_string());
    let url = endpoint.unwrap_or_default();
    let url = url.trim_end_matches('/');
    format!("varve admin cluster accept --node {} --node-endpoint {url}", shared.config.node_id)
}

/// Checks the response of an initial node.
fn check(shared: &Shared, id: u64, address: &str, identity: &wire::IdentifyResponse) -> Result<[u8; 16], String> {
    let wire::IdentifyResponse { node, directory, has_cluster } = identity;
    if *node != id {
        return Err(format!("node {node}, and not node {id}, is at {address}: correct --initial-nodes"));
    }
    if *has_cluster {
        return Err(format!(
            "node {id} already belongs to a cluster, and this node has an empty data directory: this node takes no \
             part in the cluster, because it may have voted and acknowledged with its old directory; mount the disk \
             with that directory again, and never a backup of it; if that directory is lost, run `{}`, and the \
             node's replicas are built again from the other members",
            accept_command(shared, address)
        ));
    }
    directory.as_ref().try_into().map_err(|_length| format!("node {id} at {address} has no identity"))
}

async fn identify(shared: &Shared, address: &str) -> Result<wire::IdentifyResponse, Status> {
    call(shared, address, |mut client| async move { client.identify(wire::IdentifyRequest {}).await }).await
}

/// Makes a call to a node, which has [`PATIENCE`] to respond.
pub(in crate::node) async fn call<T, F>(
    shared: &Shared,
    address: &str,
    request: impl FnOnce(ClusterClient<Channel>) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let dialer = &shared.config.dialer;
    let endpoint = dialer.endpoint(address).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let channel = dialer.connect_lazy(&endpoint.connect_timeout(PATIENCE));
    let late = |_elapsed| Status::unavailable(format!("no response within {PATIENCE:?}"));
    Ok(timeout(PATIENCE, request(ClusterClient::new(channel))).await.map_err(late)??.into_inner())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::meta::Member;

    use super::*;

    #[test]
    fn a_log_is_given_up_only_if_every_shard_has_a_majority_without_it() {
        let members = |nodes: &[u64]| -> Vec<Member> {
            nodes.iter().map(|&node| Member { node, directory: DirectoryId(node.into()) }).collect()
        };
        let shard = |number, of: &[u64], target: &[u64]| {
            let (members, target) = (members(of), members(target));
            (number, Shard { number, members, target, leaving: Vec::new(), creator: of[0], is_created: true })
        };
        let state = |shards: &[(u32, Shard)]| {
            let shards: BTreeMap<u32, Shard> = shards.iter().cloned().collect();
            State { shards, ..State::default() }
        };
        let settled = shard(1, &[1, 2, 3], &[]);
        assert_eq!(needs_old_log(&state(&[settled.clone(), shard(2, &[1], &[])]), 3), None);
        for other in [shard(2, &[3], &[]), shard(2, &[2, 3], &[]), shard(2, &[1, 2, 3], &[1, 2, 4])] {
            assert_eq!(needs_old_log(&state(&[settled.clone(), other]), 3), Some(2));
        }
        let mut new = shard(2, &[1, 2, 3], &[]);
        new.1.is_created = false;
        assert_eq!(needs_old_log(&state(&[settled, new]), 3), Some(2));
    }
}
