//! Duties that the state of the meta group gives this node: to hold replicas of shards and, as the leader of the meta
//! group, to complete the creation of the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::TenantId;
use proto::meta::{ClusterId, Command, DirectoryId, Node, Retention, State};
use proto::placement::Epoch;
use tokio::time::timeout;

use crate::config::{Config, Site};
use crate::consensus::{Member, random_identity};
use crate::error::ReplicaError;
use crate::meta::{MetaReplica, divide_slots, propose_shards};
use crate::node::cluster::{propose, replicas};
use crate::node::shared::Shared;

/// Longest time until the duties are looked at again. Changes of the state are looked at at once; changes of leaders
/// and of replicas are not.
const INTERVAL: Duration = Duration::from_millis(50);
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Highest version of the formats that this program knows. A new cluster writes it.
const FORMAT_VERSION: u32 = 1;

/// Does the duties whenever the state of the meta group changes. Returns only an error: the cluster has newer formats.
pub(super) async fn run(shared: &Arc<Shared>, replica: &Arc<MetaReplica>) -> ReplicaError {
    let mut states = shared.cluster.state.subscribe();
    report_unused_options(shared, &states.borrow());
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        if let Err(newer) = check_format(&state) {
            return newer;
        }
        if let Some(cluster) = state.cluster {
            shared.peers.belong_to(cluster);
        }
        let is_complete = replicas::follow(shared, &state).await && !state.epochs.is_empty();
        for command in due(shared, replica, &state) {
            if let Err(error) = propose(shared, &command).await {
                // The next look proposes the command again, if it is still due.
                tracing::debug!(%error, "a command to the meta group was not applied");
            }
        }
        let interval = if is_complete { IDLE_INTERVAL } else { INTERVAL };
        // The sender of the states lives as long as `shared`, so an elapsed time is the only other result.
        let _changed_or_elapsed = timeout(interval, states.changed()).await.is_ok();
    }
}

/// Refuses a state whose formats this program does not know.
fn check_format(state: &State) -> Result<(), ReplicaError> {
    let cluster = state.format_version;
    if cluster > FORMAT_VERSION { Err(ReplicaError::NewerFormat { cluster, known: FORMAT_VERSION }) } else { Ok(()) }
}

/// Logs that the address, the zone or the retention of the options is not used, if the cluster has another one.
fn report_unused_options(shared: &Shared, state: &State) {
    let Config { node_id, site, .. } = &shared.config;
    if let Some(known) = state.nodes.get(node_id).filter(|known| state.nodes.len() > 1 && !is_at(known, site)) {
        tracing::warn!(
            known = %known.address, known_zone = known.zone, given = %site.address, given_zone = site.zone,
            "the cluster knows this node by another address or zone than its options, which are not used: others may \
             not reach it"
        );
    }
    let [used, options] = [state.retention_classes.first().copied(), Some(shared.config.retention.in_seconds())];
    if used.is_none() || used == options {
        return;
    }
    if state.tenants.contains_key(&TenantId::default_tenant()) {
        tracing::info!(
            "the tenant default has a policy, so the retention of the options is not used: change the policy with \
             `varve admin tenant update default`"
        );
    } else if state.nodes.len() > 1 {
        tracing::info!(
            "the cluster has another retention than the options of this node, which are not used: change it with \
             `varve admin tenant create default`"
        );
    }
}

fn is_at(node: &Node, site: &Site) -> bool {
    (&node.address, &node.zone) == (&site.address, &site.zone)
}

/// Returns the command that registers a node of this state at another site; `None` if it is there, or if it has others.
/// Its Raft groups have no other member, so nobody else connects to the old address.
fn due_of_lone_node(state: &State, node: u64, directory: [u8; 16], site: &Site) -> Option<Command> {
    let known = state.nodes.get(&node).filter(|_| state.nodes.len() == 1)?;
    let is_own = known.directory.0.to_be_bytes() == directory;
    let Site { address, zone } = site.clone();
    (is_own && !is_at(known, site)).then(|| Command::RegisterNode(Node { address, zone, ..known.clone() }))
}

/// Returns the commands that this node must propose: to initialize the cluster, to set the default retention, to report
/// the shards that this node has created, and to add the first placement.
fn due(shared: &Shared, replica: &MetaReplica, state: &State) -> Vec<Command> {
    let mut commands = Vec::new();
    if state.cluster.is_none() {
        if replica.is_leader() {
            match random_identity() {
                Ok(cluster) => commands.push(initialize(shared, replica, ClusterId(u128::from_be_bytes(cluster)))),
                Err(error) => tracing::error!(%error, "there are no random bytes for the ID of the cluster"),
            }
        }
        return commands;
    }
    let retention = shared.config.retention.in_seconds();
    // The options of a single node set the default retention at each start. Several nodes may have different options.
    let is_default_set = state.retention_classes.first() == Some(&retention)
        || state.tenants.contains_key(&TenantId::default_tenant())
        || state.nodes.len() > 1;
    if !is_default_set && replica.is_leader() {
        commands.push(Command::SetDefaultRetention(retention));
    }
    commands.extend(due_of_lone_node(state, shared.config.node_id, shared.cluster.directory, &shared.config.site));
    let serves = |shard: u32| shared.shard(shard).is_some_and(|hosted| hosted.serving().is_some());
    commands.extend(due_of_shards(state, shared.config.node_id, replica.is_leader(), serves));
    commands
}

/// Returns the commands that report the shards that a node has created, and add the first placement. `is_leader` is
/// true if the node leads the meta group, and `serves` if it serves a shard.
pub(super) fn due_of_shards(state: &State, node: u64, is_leader: bool, serves: impl Fn(u32) -> bool) -> Vec<Command> {
    let created = state.shards.values().filter(|shard| !shard.is_created && shard.creator == node);
    let created = created.filter(|shard| serves(shard.number)).map(|shard| Command::ShardCreated(shard.number));
    let mut commands: Vec<Command> = created.collect();
    let are_created = !state.shards.is_empty() && state.shards.values().all(|shard| shard.is_created);
    if state.epochs.is_empty() && are_created && is_leader {
        let shards: Vec<u32> = state.shards.keys().copied().collect();
        match Epoch::new(1, i64::MIN, divide_slots(None, &shards), Default::default()) {
            Ok(epoch) => commands.push(Command::AddEpoch(epoch)),
            Err(error) => tracing::error!(%error, "the slots cannot be divided among the shards"),
        }
    }
    commands
}

/// Returns the first command of a cluster: its nodes are the members of the meta group.
fn initialize(shared: &Shared, replica: &MetaReplica, cluster: ClusterId) -> Command {
    initialize_with(
        cluster,
        replica.members(),
        shared.initial_shards.get().into(),
        shared.config.retention.in_seconds(),
        &shared.config.initial_nodes(),
    )
}

/// Returns the first command of a cluster with these members of the meta group, and this number of shards. The zones of
/// the members are those of `initial`.
pub(super) fn initialize_with(
    cluster: ClusterId,
    members: BTreeMap<u64, Member>,
    shards: u32,
    retention: Retention,
    initial: &BTreeMap<u64, Site>,
) -> Command {
    let node = |(id, member): (u64, Member)| Node {
        id,
        address: member.address,
        zone: initial.get(&id).map(|site| site.zone.clone()).unwrap_or_default(),
        directory: DirectoryId(u128::from_be_bytes(member.directory)),
    };
    let nodes: Vec<Node> = members.into_iter().map(node).collect();
    let state = State { nodes: nodes.iter().map(|node| (node.id, node.clone())).collect(), ..State::default() };
    let shards = propose_shards(&state, shards);
    Command::Initialize { cluster, format_version: FORMAT_VERSION, retention, nodes, shards }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_without_others_registers_itself_at_another_site() {
        let node = |id: u64, directory| Node { id, address: "db1:1".into(), zone: "a".into(), directory };
        let mut state = State::default();
        state.nodes.insert(1, node(1, DirectoryId(7)));
        let site = |address: &str, zone: &str| Site { address: address.into(), zone: zone.into() };
        let due =
            |state: &State, directory: u128, site: &Site| due_of_lone_node(state, 1, directory.to_be_bytes(), site);
        assert_eq!(due(&state, 7, &site("db1:1", "a")), None);
        for moved in [site("db2:1", "a"), site("db1:1", "")] {
            let Some(Command::RegisterNode(node)) = due(&state, 7, &moved) else { panic!("{moved:?}") };
            assert!(is_at(&node, &moved) && node.directory == DirectoryId(7));
            assert_eq!(due(&state, 8, &moved), None);
        }
        state.nodes.insert(2, node(2, DirectoryId(8)));
        assert_eq!(due(&state, 7, &site("db2:1", "a")), None);
    }

    #[test]
    fn a_node_stops_if_the_cluster_has_a_newer_format_than_it_knows() {
        let check = |format_version| check_format(&State { format_version, ..State::default() });
        assert!([0, FORMAT_VERSION].map(check).iter().all(Result::is_ok));
        let newer = check(FORMAT_VERSION + 1).unwrap_err();
        assert!(newer.is_final() && newer.to_string().contains("install a newer varve"), "{newer}");
    }
}
