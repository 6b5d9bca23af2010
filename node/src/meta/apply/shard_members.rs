//! Changes of the members of shards.
//!
//! A command only sets the target of a shard. The leader of the shard then changes the Raft group, and reports the
//! members of the group when they are those of the target.
//!
//! Invariant: a node keeps a replica that may be in the group, and never makes one with an identity that was in the
//! group before. Otherwise a voter would forget what it has acknowledged.

use proto::limits::SHARD_MEMBERS_MAX;
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
        forget_leaving(shard, node);
    }
    Ok(Applied::Changed)
}

/// Forgets the replica of a node that is to leave a shard, because its data is lost. The only member stays listed.
fn forget_leaving(shard: &mut Shard, node: u64) {
    shard.leaving.retain(|member| member.node != node);
    if shard.members.len() > 1 && !shard.is_wanted(node) {
        shard.members.retain(|member| member.node != node);
    }
    aim(shard, shard.wanted().to_vec());
}

/// Gives the replica on a node another identity, if the node is a wanted member.
fn set_identity(shard: &mut Shard, replica: Member) {
    let mut wanted = shard.wanted().to_vec();
    if let Some(member) = wanted.iter_mut().find(|member| member.node == replica.node) {
        *member = replica;
        aim(shard, wanted);
    }
}

/// Sets the members that a shard is to have. Members of the earlier target may be in the group, so they leave.
fn aim(shard: &mut Shard, mut wanted: Vec<Member>) {
    wanted.sort_unstable();
    let earlier = std::mem::replace(&mut shard.target, wanted);
    shard.leaving.extend(earlier);
    let (members, target) = (&shard.members, &shard.target);
    let is_on = |list: &[Member], node| list.iter().any(|member: &Member| member.node == node);
    shard.leaving.retain(|left| !is_on(members, left.node) && !is_on(target, left.node));
    shard.leaving.sort_unstable();
    if shard.leaving.is_empty() && shard.target == shard.members {
        shard.target.clear();
    }
}

/// Replaces the member on one node by a new one on another node. While members of the shard change, only the member
/// that has not joined yet can be replaced, because its node may never come back.
pub(super) fn move_member(state: &mut State, number: u32, from: u64, to: Member) -> Result {
    if !state.nodes.contains_key(&to.node) {
        return Err(Refusal::UnknownNode { node: to.node });
    }
    let shard = state.shards.get_mut(&number).ok_or(Refusal::UnknownShard { shard: number })?;
    let wanted = shard.wanted();
    if wanted.contains(&to) && !shard.is_wanted(from) {
        return Ok(Applied::Unchanged);
    }
    if !shard.is_created {
        return Err(Refusal::NotCreatedYet { shard: number });
    }
    let is_joining = shard.is_wanted(from) && shard.member(from).is_none();
    let is_full = shard.leaving.len() >= SHARD_MEMBERS_MAX;
    if !shard.target.is_empty() && (!is_joining || is_full) {
        return Err(Refusal::MembersChanging { shard: number });
    }
    if !shard.is_wanted(from) {
        return Err(Refusal::NoMember { shard: number, node: from });
    }
    // A member that was to leave may stay, with its replica.
    if shard.is_wanted(to.node) || shard.replica_on(to.node).is_some_and(|member| *member != to) {
        return Err(Refusal::AlreadyMember { shard: number, node: to.node });
    }
    let stay = wanted.iter().filter(|member| member.node != from).copied();
    let wanted = stay.chain([to]).collect();
    aim(shard, wanted);
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
    shard.leaving.clear();
    Ok(Applied::Changed)
}
