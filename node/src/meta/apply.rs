//! The effect of each command on the state.
//!
//! A command that is sent again, because its sender did not learn the result, finds its own effect and changes nothing.

mod retention_class;
mod shard_members;

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::TenantId;
use proto::limits::{
    CLUSTER_NODES_MAX, CLUSTER_SHARDS_MAX, DELETED_TENANTS_MAX, EPOCH_LEAD_MIN_NS, NODE_SHARDS_MAX,
    PLACEMENT_EPOCHS_MAX, TENANTS_MAX, TOKENS_MAX,
};
use proto::meta::{Command, DirectoryId, Node, Policy, Shard, State, Tenant, Token, TokenHash};
use proto::placement::{Epoch, FIRST_DATA_SHARD};

use self::retention_class::{retention_class, set_default_retention};
use self::shard_members::{accept_directory, members_changed, move_member};
use super::Applied;
use super::refusal::Refusal;

/// Result of applying one command.
type Result = std::result::Result<Applied, Refusal>;

/// Applies a command to `state`. After an error, `state` may be changed in part, and must be dropped.
pub(super) fn apply(state: &mut State, proposed_at_ns: i64, command: &Command) -> Result {
    if let Command::Initialize { cluster, format_version, retention, nodes, shards } = command {
        retention.check()?;
        return match state.cluster {
            Some(known) if known == *cluster => Ok(Applied::Unchanged),
            Some(known) => Err(Refusal::Initialized { known }),
            None => {
                state.cluster = Some(*cluster);
                state.retention_classes = vec![*retention];
                initialize(state, *format_version, nodes, shards)
            }
        };
    }
    if state.cluster.is_none() {
        return Err(Refusal::NotInitialized);
    }
    match command {
        // Handled above.
        Command::Initialize { .. } => Ok(Applied::Unchanged),
        Command::RegisterNode(node) => register_node(state, node),
        Command::AcceptDirectory { node, directory } => accept_directory(state, *node, *directory),
        Command::AddShards(shards) => add_shards(state, shards),
        Command::ShardCreated(shard) => shard_created(state, *shard),
        Command::AddEpoch(epoch) => add_epoch(state, proposed_at_ns, epoch),
        Command::CreateTenant(name, policy) => create_tenant(state, name, policy),
        Command::UpdateTenant(name, policy) => update_tenant(state, name, policy),
        Command::SetDefaultRetention(retention) => set_default_retention(state, *retention),
        Command::DeleteTenant(name) => delete_tenant(state, name),
        Command::CreateToken(name, hash, token) => create_token(state, name, *hash, *token),
        Command::RevokeToken(name, hash) => match tenant(state, name)?.tokens.remove(hash) {
            Some(_) => Ok(Applied::Changed),
            None => Err(Refusal::UnknownToken { tenant: name.clone(), hash: *hash }),
        },
        Command::SetFormatVersion(version) => set_format_version(state, *version),
        Command::MoveMember { shard, from, to } => move_member(state, *shard, *from, *to),
        Command::MembersChanged { shard, members } => members_changed(state, *shard, members),
    }
}

fn initialize(state: &mut State, format_version: u32, nodes: &[Node], shards: &[Shard]) -> Result {
    set_format_version(state, format_version)?;
    if nodes.is_empty() || nodes.len() > CLUSTER_NODES_MAX {
        return Err(Refusal::NodesOfCluster);
    }
    for node in nodes {
        if state.nodes.contains_key(&node.id) {
            return Err(Refusal::NodesOfCluster);
        }
        register_node(state, node)?;
    }
    if !shards.is_empty() {
        add_shards(state, shards)?;
    }
    Ok(Applied::Changed)
}

fn register_node(state: &mut State, node: &Node) -> Result {
    node.check()?;
    match state.nodes.get(&node.id) {
        Some(known) if known == node => return Ok(Applied::Unchanged),
        Some(known) if known.directory != node.directory => {
            return Err(Refusal::OtherDirectory { node: node.id, known: known.directory, given: node.directory });
        }
        Some(_) => {}
        None if state.nodes.len() >= CLUSTER_NODES_MAX => return Err(Refusal::TooManyNodes),
        None => check_free(state, node.directory)?,
    }
    state.nodes.insert(node.id, node.clone());
    Ok(Applied::Changed)
}

/// Checks that no node has the data directory. Otherwise a copy of a directory could vote twice.
fn check_free(state: &State, directory: DirectoryId) -> std::result::Result<(), Refusal> {
    match state.nodes.values().find(|node| node.directory == directory) {
        Some(owner) => Err(Refusal::DirectoryTaken { directory, owner: owner.id }),
        None => Ok(()),
    }
}

fn add_shards(state: &mut State, shards: &[Shard]) -> Result {
    let is_known = |shard: &Shard| {
        let known = state.shards.get(&shard.number);
        known.is_some_and(|known| (&known.members, known.creator) == (&shard.members, shard.creator))
    };
    if shards.iter().all(is_known) {
        return Ok(Applied::Unchanged);
    }
    if state.shards.len() + shards.len() > CLUSTER_SHARDS_MAX as usize {
        return Err(Refusal::TooManyShards);
    }
    for shard in shards {
        shard.check()?;
        let expected = state.shards.keys().next_back().map_or(FIRST_DATA_SHARD, |last| last + 1);
        let number = shard.number;
        if number != expected {
            return Err(Refusal::ShardNumber { expected, found: number });
        }
        if shard.is_created || !shard.target.is_empty() {
            return Err(Refusal::CreatedTooEarly { shard: number });
        }
        for member in &shard.members {
            let node = state.nodes.get(&member.node).ok_or(Refusal::UnknownNode { node: member.node })?;
            if node.directory != member.directory {
                return Err(Refusal::MemberDirectory { shard: number, node: member.node });
            }
        }
        state.shards.insert(number, shard.clone());
    }
    for &node in state.nodes.keys() {
        let replicas = state.shards.values().filter(|shard| shard.replica_on(node).is_some());
        if replicas.count() > usize::from(NODE_SHARDS_MAX) {
            return Err(Refusal::TooManyReplicas { node });
        }
    }
    Ok(Applied::Changed)
}

fn shard_created(state: &mut State, shard: u32) -> Result {
    let known = state.shards.get_mut(&shard).ok_or(Refusal::UnknownShard { shard })?;
    if known.is_created {
        return Ok(Applied::Unchanged);
    }
    known.is_created = true;
    Ok(Applied::Changed)
}

fn add_epoch(state: &mut State, proposed_at_ns: i64, epoch: &Epoch) -> Result {
    let newest = state.epochs.last();
    if newest.is_some_and(|newest| **newest == *epoch) {
        return Ok(Applied::Unchanged);
    }
    let expected = newest.map_or(0, |newest| newest.number()) + 1;
    if epoch.number() != expected {
        return Err(Refusal::EpochNumber { expected, found: epoch.number() });
    }
    match newest {
        None if epoch.begins_ns() != i64::MIN => return Err(Refusal::FirstEpochBegins),
        None => {}
        Some(newest) if epoch.begins_ns() <= newest.begins_ns() => {
            return Err(Refusal::EpochOrder { newest_ns: newest.begins_ns() });
        }
        Some(_) if epoch.begins_ns() < proposed_at_ns.saturating_add(EPOCH_LEAD_MIN_NS) => {
            return Err(Refusal::EpochTooEarly { proposed_at_ns });
        }
        Some(_) => {}
    }
    if state.epochs.len() >= PLACEMENT_EPOCHS_MAX {
        return Err(Refusal::TooManyEpochs);
    }
    for &shard in epoch.shards() {
        if !state.shards.get(&shard).ok_or(Refusal::UnknownShard { shard })?.is_created {
            return Err(Refusal::ShardNotCreated { shard });
        }
    }
    state.epochs.push(Arc::new(epoch.clone()));
    Ok(Applied::Changed)
}

fn tenant<'a>(state: &'a mut State, name: &TenantId) -> std::result::Result<&'a mut Tenant, Refusal> {
    state.tenants.get_mut(name).ok_or_else(|| Refusal::UnknownTenant { tenant: name.clone() })
}

fn create_tenant(state: &mut State, name: &TenantId, policy: &Policy) -> Result {
    policy.check()?;
    match state.tenants.get(name) {
        Some(known) if known.policy == *policy => return Ok(Applied::Unchanged),
        Some(_) => return Err(Refusal::TenantExists { tenant: name.clone() }),
        None if state.deleted_tenants.contains(name) => return Err(Refusal::DeletedTenant { tenant: name.clone() }),
        None if state.tenants.len() >= TENANTS_MAX => return Err(Refusal::TooManyTenants),
        None => {}
    }
    let (retention_class, owns_class) = retention_class(state, name, policy.retention)?;
    let policy = policy.clone();
    let tenant = Tenant { name: name.clone(), policy, retention_class, owns_class, tokens: BTreeMap::new() };
    state.tenants.insert(name.clone(), tenant);
    Ok(Applied::Changed)
}

fn update_tenant(state: &mut State, name: &TenantId, policy: &Policy) -> Result {
    policy.check()?;
    if tenant(state, name)?.policy == *policy {
        return Ok(Applied::Unchanged);
    }
    let (retention_class, owns_class) = retention_class(state, name, policy.retention)?;
    let tenant = tenant(state, name)?;
    (tenant.policy, tenant.retention_class, tenant.owns_class) = (policy.clone(), retention_class, owns_class);
    Ok(Applied::Changed)
}

/// Deletes a tenant. Its profiles stay where they are, so its name is never used again, except for `default`: that is
/// always the tenant of the operator.
fn delete_tenant(state: &mut State, name: &TenantId) -> Result {
    if state.tenants.remove(name).is_none() {
        let is_repeated = state.deleted_tenants.contains(name);
        return if is_repeated { Ok(Applied::Unchanged) } else { Err(Refusal::UnknownTenant { tenant: name.clone() }) };
    }
    if *name != TenantId::default_tenant() {
        if state.deleted_tenants.len() >= DELETED_TENANTS_MAX {
            return Err(Refusal::TooManyDeleted { tenant: name.clone() });
        }
        state.deleted_tenants.insert(name.clone());
    }
    Ok(Applied::Changed)
}

fn create_token(state: &mut State, name: &TenantId, hash: TokenHash, token: Token) -> Result {
    if tenant(state, name)?.tokens.get(&hash) == Some(&token) {
        return Ok(Applied::Unchanged);
    }
    if state.tenants.values().any(|tenant| tenant.tokens.contains_key(&hash)) {
        return Err(Refusal::TokenExists { hash });
    }
    if state.tenants.values().map(|tenant| tenant.tokens.len()).sum::<usize>() >= TOKENS_MAX {
        return Err(Refusal::TooManyTokens);
    }
    tenant(state, name)?.tokens.insert(hash, token);
    Ok(Applied::Changed)
}

fn set_format_version(state: &mut State, given: u32) -> Result {
    let current = state.format_version;
    if given < current || given == 0 {
        return Err(Refusal::FormatVersion { current, given });
    }
    if given == current {
        return Ok(Applied::Unchanged);
    }
    state.format_version = given;
    Ok(Applied::Changed)
}
