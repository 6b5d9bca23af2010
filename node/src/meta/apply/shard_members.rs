//! Changes of the members of shards.
//!
//! A command only sets the target of a shard. The leader of the shard then changes the Raft group, and reports the
//! members of the group when they are those of the target.

use proto::meta::{DirectoryId, Member, Shard, State};

use super::{Result, check_free};
use crate::meta::{Applied, Refusal};

/// Gives a node another data directory, and makes it the target of the node's shards.
pub(super) fn accept_directory(state: &mut State, node: u64, directory: DirectoryId) -> Result {
    let known = state.nodes.get(&node).ok_or(Refusal::UnknownNode { node })?;
    if known.directory == directory {
        return Ok(Applied::Unchanged);
    }
    check_free(state, directory)?;
    if let Some(known) = state.nodes.get_mut(&node) {
        known.directory = directory;
    }
    for shard in state.shards.values_mut() {
        set_identity(shard, Member { node, directory });
    }
    Ok(Applied::Changed)
}

/// Gives the replica on a node another identity. Returns false if the node is no wanted member, or has the identity.
fn set_identity(shard: &mut Shard, replica: Member) -> bool {
    let mut wanted = shard.wanted().to_vec();
    let member = wanted.iter_mut().find(|member| member.node == replica.node && **member != replica);
    let Some(member) = member else { return false };
    *member = replica;
    aim(shard, wanted);
    true
}

/// Sets the members that a shard is to have.
fn aim(shard: &mut Shard, mut wanted: Vec<Member>) {
    wanted.sort_unstable();
    shard.target = if wanted == shard.members { Vec::new() } else { wanted };
}

/// Replaces the member on one node by a new one on another node. While members of the shard change, only the member
/// that has not joined yet can be replaced, because its node may never come back.
pub(super) fn move_member(state: &mut State, number: u32, from: u64, to: Member) -> Result {
    if !state.nodes.contains_key(&to.node) {
        return Err(Refusal::UnknownNode { node: to.node });
    }
    let shard = state.shards.get_mut(&number).ok_or(Refusal::UnknownShard { shard: number })?;
    let wanted = shard.wanted();
    let is_wanted = |node| wanted.iter().any(|member: &Member| member.node == node);
    if wanted.contains(&to) && !is_wanted(from) {
        return Ok(Applied::Unchanged);
    }
    if !shard.is_created {
        return Err(Refusal::NotCreatedYet { shard: number });
    }
    let is_joining = is_wanted(from) && shard.member(from).is_none();
    if !shard.target.is_empty() && !is_joining {
        return Err(Refusal::MembersChanging { shard: number });
    }
    if !is_wanted(from) {
        return Err(Refusal::NoMember { shard: number, node: from });
    }
    // A member that was to leave may stay, with its replica.
    if is_wanted(to.node) || shard.member(to.node).is_some_and(|member| *member != to) {
        return Err(Refusal::AlreadyMember { shard: number, node: to.node });
    }
    let stay = wanted.iter().filter(|member| member.node != from).copied();
    let wanted = stay.chain([to]).collect();
    aim(shard, wanted);
    Ok(Applied::Changed)
}

/// Gives the replica of a shard on a node another identity, so that it is built again from the other members.
pub(super) fn replace_replica(state: &mut State, number: u32, replica: Member) -> Result {
    let shard = state.shards.get_mut(&number).ok_or(Refusal::UnknownShard { shard: number })?;
    if shard.wanted().contains(&replica) {
        return Ok(Applied::Unchanged);
    }
    if !shard.is_created {
        return Err(Refusal::NotCreatedYet { shard: number });
    }
    let is_only = shard.wanted().len() == 1;
    if is_only || !set_identity(shard, replica) {
        return Err(Refusal::NotReplaceable { shard: number, node: replica.node });
    }
    Ok(Applied::Changed)
}

/// Makes the target the members, after the leader has changed the Raft group.
pub(super) fn members_changed(state: &mut State, number: u32, members: &[Member]) -> Result {
    let shard = state.shards.get_mut(&number).ok_or(Refusal::UnknownShard { shard: number })?;
    if shard.wanted() != members {
        return Err(Refusal::OtherTarget { shard: number });
    }
    if shard.target.is_empty() {
        return Ok(Applied::Unchanged);
    }
    shard.members = std::mem::take(&mut shard.target);
    Ok(Applied::Changed)
}
