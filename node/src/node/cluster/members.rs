//! The members of Raft groups follow the state of the meta group. The leader of each group makes the changes.
//!
//! Every look derives the next step from the state of the meta group and from the membership in the log of the group.
//! A leader that takes over therefore continues where the last one stopped. Each group has its own task, so that one
//! without a majority does not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::iter;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use proto::meta::{Command, Shard, State};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::consensus::{Change, Member, Voters, Wanted};
use crate::meta::{META_GROUP, MetaReplica};
use crate::node::cluster::{identity_of, propose};
use crate::node::hosted;
use crate::node::shared::Shared;

/// Longest time between two looks. A change of the state is looked at at once; a change of leaders is not.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of looks while a group led by this node changes. A new member that catches up is not announced.
const INTERVAL: Duration = Duration::from_millis(50);

/// Changes the members of the groups that this node leads, whenever that is due. Never returns.
pub(super) async fn run(shared: &Arc<Shared>, replica: &Arc<MetaReplica>) -> Infallible {
    let mut states = shared.cluster.state.subscribe();
    let mut looks = JoinSet::new();
    let mut looked_at = BTreeSet::new();
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        if state.cluster.is_some() {
            for group in iter::once(META_GROUP).chain(state.shards.keys().copied()) {
                // A look at a group without a majority goes on beside the next looks at the others.
                if looked_at.insert(group) {
                    looks.spawn(look(Arc::clone(shared), Arc::clone(replica), Arc::clone(&state), group));
                }
            }
        }
        let mut next = Instant::now() + IDLE_INTERVAL;
        loop {
            tokio::select! {
                biased;
                Some(done) = looks.join_next() => {
                    let (group, is_changing) = done.unwrap_or_else(|error| resume_unwind(error.into_panic()));
                    looked_at.remove(&group);
                    if is_changing {
                        next = next.min(Instant::now() + INTERVAL);
                    }
                }
                () = sleep_until(next) => break,
                // The sender of the states lives as long as `shared`.
                _changed = states.changed() => break,
            }
        }
    }
}

/// Makes the next step of one group, if this node leads it. Returns the group, and whether it is changing.
async fn look(shared: Arc<Shared>, replica: Arc<MetaReplica>, state: Arc<State>, group: u32) -> (u32, bool) {
    let is_changing = match state.shards.get(&group) {
        Some(shard) => change_shard(&shared, &state, shard).await,
        None => change_meta_group(&replica, &state).await,
    };
    (group, is_changing)
}

/// Makes the next step towards the members of the meta group, if this node leads it: all nodes of the cluster. Only few
/// of them vote. Returns true if the group is changing.
async fn change_meta_group(replica: &MetaReplica, state: &State) -> bool {
    if !replica.is_leader() {
        return false;
    }
    match replica.change_members(&members_of_meta_group(state)).await {
        Ok(change) => change == Change::Underway,
        Err(error) => {
            tracing::debug!(%error, "the members of the meta group did not change");
            true
        }
    }
}

/// Makes the next step towards the members of a shard, if this node leads it. Reports the members when they are those
/// of the target. Returns true if the shard is changing.
async fn change_shard(shared: &Shared, state: &State, shard: &Shard) -> bool {
    let replica = shared.shard(shard.number).and_then(|hosted: Arc<hosted::Hosted>| hosted.serving());
    let Some(replica) = replica.filter(|replica| shard.is_created && replica.is_leader()) else { return false };
    let Some(wanted) = members_of_shard(state, shard) else { return false };
    match replica.change_members(&wanted).await {
        Ok(Change::Underway) => true,
        Ok(Change::Complete) => {
            let Some(command) = to_report(shard) else { return false };
            if let Err(error) = propose(shared, &command).await {
                // The next look proposes the command again, if it is still due.
                tracing::debug!(shard = shard.number, %error, "the new members of a shard were not reported");
            }
            true
        }
        Err(error) => {
            tracing::debug!(shard = shard.number, %error, "the members of a shard did not change");
            true
        }
    }
}

/// Returns the members that the meta group is to have: all nodes of the cluster.
pub(super) fn members_of_meta_group(state: &State) -> Wanted {
    let member =
        |node: &proto::meta::Node| Member { address: node.address.clone(), directory: node.directory.0.to_be_bytes() };
    Wanted { members: state.nodes.values().map(|node| (node.id, member(node))).collect(), voters: Voters::Few }
}

/// Returns the members that a shard is to have; `None` if the address of one of them is not known.
pub(super) fn members_of_shard(state: &State, shard: &Shard) -> Option<Wanted> {
    let member = |member: &proto::meta::Member| {
        let address = state.nodes.get(&member.node)?.address.clone();
        Some((member.node, Member { address, directory: identity_of(member) }))
    };
    let members = shard.wanted().iter().map(member).collect::<Option<BTreeMap<_, _>>>()?;
    Some(Wanted { members, voters: Voters::All })
}

/// Returns the command that reports that a group has the members of its target; `None` if the members did not change.
pub(super) fn to_report(shard: &Shard) -> Option<Command> {
    let has_changed = !shard.target.is_empty();
    has_changed.then(|| Command::MembersChanged { shard: shard.number, members: shard.target.clone() })
}
