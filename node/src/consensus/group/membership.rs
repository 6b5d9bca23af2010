//! Changes of a group's members, one step at a time.
//!
//! Invariant: a step follows only from the membership in the log, the wanted members, and the followers that have
//! caught up. A leader that takes over in any phase therefore continues where the last one stopped. A member with
//! another identity on the same node is another member: the old one is removed before the new one is added.
//!
//! A member that is removed or gets a vote is changed through a joint membership, which needs a majority of the old and
//! of the new voters. A new member gets no vote before it has nearly all entries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use openraft::{ChangeMembers, Precondition};

use crate::consensus::error::ConsensusError;
use crate::consensus::group::{Group, not_leader};
use crate::consensus::member::Member;
use crate::consensus::types::{LogId, Membership};

/// Largest number of entries that a new member may lack when it gets a vote. It has them within a second or so.
const LAG_MAX: u64 = 200;
/// Longest time that one step waits for a majority. A step that takes longer goes on without its caller.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of voters below which [`Voters::Few`] adds one.
const FEW: usize = 3;

/// The members that a group is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Members by node id.
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) voters: Voters,
}

/// The wanted members that have a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voters {
    All,
    /// The present voters. A member gets a vote if there are fewer than [`FEW`] voters, or an even number of them.
    Few,
}

/// Result of one look at a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A majority knows that the group has the wanted members.
    Complete,
    /// A step was made, or the next step waits for a new member to catch up, or for a majority.
    Underway,
}

/// A change of the membership that leads towards the wanted members.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Leaves a joint membership.
    Finish,
    /// Removes members without a vote.
    Remove(BTreeSet<u64>),
    /// Adds members without a vote.
    Add(BTreeMap<u64, Member>),
    /// Changes the voters. Members that lose their vote are removed.
    Vote(BTreeSet<u64>),
}

/// Returns the next step; `None` if the group has the wanted members, or if it waits for members that lag. `own` is the
/// leader, and `ready` are the followers that have caught up.
fn next_step(membership: &Membership, wanted: &Wanted, own: u64, ready: &BTreeSet<u64>) -> Option<Step> {
    let [voters] = membership.get_joint_config().as_slice() else { return Some(Step::Finish) };
    let present: BTreeMap<u64, &Member> = membership.nodes().map(|(&id, member)| (id, member)).collect();
    let is_present = |id: &u64, member: &Member| present.get(id).is_some_and(|at| at.directory == member.directory);
    let is_wanted = |id: u64| wanted.members.get(&id).is_some_and(|member| is_present(&id, member));
    let unwanted = |id: &u64| !voters.contains(id) && !is_wanted(*id);
    let unwanted: BTreeSet<u64> = present.keys().copied().filter(unwanted).collect();
    if !unwanted.is_empty() {
        return Some(Step::Remove(unwanted));
    }
    // The node has another replica now, so this voter never responds again. The leader itself does.
    let is_replaced = |id: u64| id != own && wanted.members.contains_key(&id) && !is_wanted(id);
    let rest: BTreeSet<u64> = voters.iter().copied().filter(|&id| !is_replaced(id)).collect();
    if rest.len() < voters.len() {
        return Some(Step::Vote(rest));
    }
    let mut missing = wanted.members.clone();
    missing.retain(|id, _member| !present.contains_key(id));
    if !missing.is_empty() {
        return Some(Step::Add(missing));
    }
    let next = match wanted.voters {
        Voters::All => all_voters(voters, wanted, ready),
        Voters::Few => few_voters(voters, wanted, ready),
    };
    (next != *voters).then_some(Step::Vote(next))
}

/// Returns the next voters if all wanted members are to vote. Voters that are not wanted lose their vote together with
/// the last new vote.
fn all_voters(voters: &BTreeSet<u64>, wanted: &Wanted, ready: &BTreeSet<u64>) -> BTreeSet<u64> {
    let goal: BTreeSet<u64> = wanted.members.keys().copied().collect();
    let votes = |id: &&u64| voters.contains(id) || ready.contains(id);
    let voting: BTreeSet<u64> = goal.iter().filter(votes).copied().collect();
    if voting == goal { goal } else { voters.union(&voting).copied().collect() }
}

fn few_voters(voters: &BTreeSet<u64>, wanted: &Wanted, ready: &BTreeSet<u64>) -> BTreeSet<u64> {
    let mut next: BTreeSet<u64> = voters.iter().copied().filter(|id| wanted.members.contains_key(id)).collect();
    if next.is_empty() {
        return voters.clone();
    }
    if next.len() < FEW || next.len().is_multiple_of(2) {
        next.extend(ready.iter().find(|&id| !voters.contains(id) && wanted.members.contains_key(id)));
    }
    next
}

impl Group {
    /// Makes the next step towards the wanted members, if this member leads the group. A look at a group with the
    /// wanted members writes nothing.
    ///
    /// # Errors
    /// [`ConsensusError::NotLeader`], or the reason why the step is not known to be made. The next call finds out.
    pub(crate) async fn change_members(&self, wanted: &Wanted) -> Result<Change, ConsensusError> {
        // Asked for before the metrics are borrowed, because it borrows them, too.
        let is_leader = self.is_leader();
        let (step, known, is_committed) = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            let Some(replication) = metrics.replication.as_ref().filter(|_| is_leader) else {
                return Err(ConsensusError::NotLeader { leader: None });
            };
            let least = metrics.last_log_index.unwrap_or_default().saturating_sub(LAG_MAX);
            let has_caught_up = |(&id, matched): (&u64, &Option<_>)| {
                matched.as_ref().is_some_and(|matched: &LogId| matched.index >= least).then_some(id)
            };
            let ready = replication.iter().filter_map(has_caught_up).collect();
            let stored = &metrics.membership_config;
            let step = next_step(stored.membership(), wanted, metrics.id, &ready);
            (step, *stored.log_id(), stored.log_id() == metrics.committed_membership_config.log_id())
        };
        let Some(step) = step else {
            return Ok(if is_committed && self.has(wanted) { Change::Complete } else { Change::Underway });
        };
        tracing::info!(?step, "changing the members of a group");
        let change = match step {
            Step::Finish => ChangeMembers::AddVoterIds(BTreeSet::new()),
            Step::Remove(ids) => ChangeMembers::RemoveNodes(ids),
            Step::Add(members) => ChangeMembers::AddNodes(members),
            Step::Vote(ids) => ChangeMembers::ReplaceAllVoters(ids),
        };
        // The step is not made if another one was made meanwhile.
        let unchanged = Precondition::LastMembershipLogId { last_membership_log_id: known };
        let changed = self.raft().change_membership_if(change, false, [unchanged]);
        match tokio::time::timeout(PATIENCE, changed).await {
            Ok(Ok(_response)) => Ok(Change::Underway),
            Ok(Err(error)) => match error.into_api_error() {
                Some(openraft::errors::ClientWriteError::ForwardToLeader(to)) => Err(not_leader(to)),
                _ => Err(ConsensusError::Unknown),
            },
            Err(_elapsed) => Err(ConsensusError::Unknown),
        }
    }

    /// Returns true if the group has exactly the wanted members, as far as this member knows.
    fn has(&self, wanted: &Wanted) -> bool {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let [voters] = membership.get_joint_config().as_slice() else { return false };
        let is_wanted = |(id, at): (&u64, &Member)| {
            let votes = wanted.voters == Voters::Few || voters.contains(id);
            votes && wanted.members.get(id).is_some_and(|member: &Member| member.directory == at.directory)
        };
        membership.nodes().count() == wanted.members.len() && membership.nodes().all(is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(id: u64, identity: u8) -> Member {
        Member { address: format!("host-{id}:1"), directory: [identity; 16] }
    }

    fn members(of: &[(u64, u8)]) -> BTreeMap<u64, Member> {
        of.iter().map(|&(id, identity)| (id, member(id, identity))).collect()
    }

    fn wanted(of: &[(u64, u8)], voters: Voters) -> Wanted {
        Wanted { members: members(of), voters }
    }

    fn group(voters: &[&[u64]], of: &[(u64, u8)]) -> Membership {
        let sets = voters.iter().map(|set| set.iter().copied().collect()).collect::<Vec<BTreeSet<u64>>>();
        Membership::new(sets, members(of)).unwrap()
    }

    fn ids(of: &[u64]) -> BTreeSet<u64> {
        of.iter().copied().collect()
    }

    #[test]
    fn a_replaced_member_is_removed_then_learns_then_votes() {
        let goal = wanted(&[(1, 1), (2, 2), (3, 30)], Voters::All);
        let ready = ids(&[2]);
        let step = |group: &Membership, ready: &BTreeSet<u64>| next_step(group, &goal, 1, ready);
        let before = group(&[&[1, 2, 3]], &[(1, 1), (2, 2), (3, 3)]);
        assert_eq!(step(&before, &ready), Some(Step::Vote(ids(&[1, 2]))));
        assert_eq!(step(&group(&[&[1, 2, 3], &[1, 2]], &[(1, 1), (2, 2), (3, 3)]), &ready), Some(Step::Finish));
        let removed = group(&[&[1, 2]], &[(1, 1), (2, 2)]);
        assert_eq!(step(&removed, &ready), Some(Step::Add(members(&[(3, 30)]))));
        let learning = group(&[&[1, 2]], &[(1, 1), (2, 2), (3, 30)]);
        assert_eq!(step(&learning, &ready), None, "it lags");
        assert_eq!(step(&learning, &ids(&[2, 3])), Some(Step::Vote(ids(&[1, 2, 3]))));
        assert_eq!(step(&group(&[&[1, 2, 3]], &[(1, 1), (2, 2), (3, 30)]), &ready), None);
        // The node was wiped again while it learned.
        let stale = group(&[&[1, 2]], &[(1, 1), (2, 2), (3, 29)]);
        assert_eq!(step(&stale, &ready), Some(Step::Remove(ids(&[3]))));
    }

    #[test]
    fn a_moved_member_votes_before_the_old_one_is_removed() {
        let goal = wanted(&[(2, 2), (3, 3), (4, 4)], Voters::All);
        let before = group(&[&[1, 2, 3]], &[(1, 1), (2, 2), (3, 3)]);
        let step = |group: &Membership, ready: &[u64]| next_step(group, &goal, 1, &ids(ready));
        assert_eq!(step(&before, &[2, 3]), Some(Step::Add(members(&[(4, 4)]))));
        let learning = group(&[&[1, 2, 3]], &[(1, 1), (2, 2), (3, 3), (4, 4)]);
        assert_eq!(step(&learning, &[2, 3]), None);
        assert_eq!(step(&learning, &[2, 3, 4]), Some(Step::Vote(ids(&[2, 3, 4]))));
    }

    #[test]
    fn a_small_group_of_voters_grows_to_an_odd_number() {
        let nodes: Vec<(u64, u8)> = (1..=6).map(|id| (id, id as u8)).collect();
        let goal = wanted(&nodes, Voters::Few);
        let step = |voters: &[u64], ready: &[u64]| next_step(&group(&[voters], &nodes), &goal, 1, &ids(ready));
        assert_eq!(step(&[1], &[3, 4]), Some(Step::Vote(ids(&[1, 3]))));
        assert_eq!(step(&[1, 2], &[2, 5]), Some(Step::Vote(ids(&[1, 2, 5]))));
        assert_eq!(step(&[1, 2, 3], &[2, 3, 4, 5]), None);
        assert_eq!(step(&[1, 2, 3, 4], &[5]), Some(Step::Vote(ids(&[1, 2, 3, 4, 5]))));
        assert_eq!(step(&[1, 2, 3, 4], &[2, 3, 4]), None);
    }

    /// Applies a step as openraft does. A step that changes voters first makes a joint membership.
    fn apply(at: &Membership, step: Step) -> Membership {
        let sets = at.get_joint_config().clone();
        let mut nodes: BTreeMap<u64, Member> = at.nodes().map(|(&id, member)| (id, member.clone())).collect();
        let last = sets.last().unwrap().clone();
        let sets = match step {
            Step::Finish => {
                let removed: Vec<u64> = sets.iter().flatten().copied().filter(|id| !last.contains(id)).collect();
                removed.iter().for_each(|id| drop(nodes.remove(id)));
                vec![last]
            }
            Step::Remove(ids) => {
                assert!(ids.is_disjoint(&last));
                nodes.retain(|id, _| !ids.contains(id));
                sets
            }
            Step::Add(added) => {
                added.into_iter().for_each(|(id, member)| assert!(nodes.insert(id, member).is_none()));
                sets
            }
            Step::Vote(next) => vec![last, next],
        };
        Membership::new(sets, nodes).unwrap()
    }

    proptest! {
        #[test]
        fn steps_lead_from_any_members_to_the_wanted_ones(
            present in proptest::collection::btree_map(1_u64..7, 1_u8..3, 1..6),
            goal in proptest::collection::btree_map(1_u64..7, 1_u8..3, 1..6),
            learners in proptest::collection::btree_set(1_u64..7, 0..3),
            votes_few in any::<bool>(),
        ) {
            let list = |map: BTreeMap<u64, u8>| map.into_iter().collect::<Vec<_>>();
            let (present, mut goal) = (list(present), list(goal));
            let own = present[0];
            // The leader is not replaced: it gives up its replica first.
            goal.retain(|&(id, _)| id != own.0);
            goal.push(own);
            let voters: Vec<u64> =
                present.iter().map(|&(id, _)| id).filter(|id| *id == own.0 || !learners.contains(id)).collect();
            let goal = wanted(&goal, if votes_few { Voters::Few } else { Voters::All });
            let mut at = group(&[&voters], &present);
            let ready: BTreeSet<u64> = (1..7).collect();
            for _ in 0..30 {
                let Some(step) = next_step(&at, &goal, own.0, &ready) else { break };
                let next = apply(&at, step);
                for set in next.get_joint_config() {
                    prop_assert!(!set.is_empty(), "no voter is left");
                }
                at = next;
            }
            prop_assert_eq!(next_step(&at, &goal, own.0, &ready), None, "the steps do not end: {:?}", at);
            let found: BTreeMap<u64, Member> = at.nodes().map(|(&id, member)| (id, member.clone())).collect();
            prop_assert_eq!(found, goal.members.clone());
            let [voters] = at.get_joint_config().as_slice() else { panic!("joint") };
            match goal.voters {
                Voters::All => prop_assert!(voters.iter().eq(goal.members.keys())),
                Voters::Few => prop_assert!(
                    voters.len() == goal.members.len() || (voters.len() >= 3 && !voters.len().is_multiple_of(2))
                ),
            }
        }
    }
}
