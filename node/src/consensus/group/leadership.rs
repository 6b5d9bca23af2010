//! The leader of a group, as one member knows it, and what follows from this knowledge.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver as _;

use crate::consensus::error::Leader;
use crate::consensus::group::Group;
use crate::consensus::member::Member;

/// Time without contact to the leader, or to a majority, after which the member reports that nothing can be committed.
/// It is longer than an election usually takes.
const CONTACT_MAX: Duration = Duration::from_secs(3);
/// Interval at which a waiting proposal or read looks whether its member is cut off.
const CUT_OFF_INTERVAL: Duration = Duration::from_millis(250);

impl Group {
    /// Returns how long ago the state of this member had everything that was acknowledged; `None` if this is not known.
    pub(crate) fn staleness(&self) -> Option<Duration> {
        if self.is_alone() {
            return Some(Duration::ZERO);
        }
        {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            let voters = metrics.membership_config.membership().get_joint_config();
            let is_leader = metrics.current_leader == Some(metrics.id);
            if !is_leader && !metrics.current_leader.is_some_and(|leader| rules_out_others(voters, leader, metrics.id))
            {
                return None;
            }
        }
        let complete = self.handle.freshness.complete_since(self.machine.applied_index());
        complete.map(|since| since.elapsed())
    }

    /// Returns true if only this node has a vote. The engine then has everything that was acknowledged, even if
    /// consensus does not run.
    pub(crate) fn is_alone(&self) -> bool {
        self.machine.voters().is_ok_and(|voters| voters.into_iter().eq([*self.raft().node_id()]))
    }

    /// Returns the other member that leads the group, as far as this member knows.
    pub(crate) fn leader(&self) -> Option<Leader> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.current_leader.filter(|&leader| leader != metrics.id)?;
        let Member { address, .. } = metrics.membership_config.membership().get_node(&node)?;
        Some(Leader { node, address: address.clone() })
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft().is_leader()
    }

    /// Makes this member leave elections to others, or not any more. If no other member is elected for a while, it
    /// stands nevertheless.
    pub(crate) fn stand_back(&self, stands_back: bool) {
        self.handle.set_stands_back(stands_back);
    }

    /// Asks a member to take over, if this member leads the group. Nothing is proposed or led here from then on. If the
    /// member does not take over, the others elect a leader as if this one had died.
    pub(crate) async fn hand_over(&self, to: u64) {
        // It fails only if openraft has stopped, which [`watch`] reports.
        let _requested = self.raft().trigger().transfer_leader(to).await.is_ok();
    }

    /// Returns false if a proposal would wait for a majority, as far as this member knows: it leads, and no majority
    /// has responded for [`CONTACT_MAX`], or it has not heard a leader for this time.
    pub(crate) fn can_commit(&self) -> bool {
        if !self.handle.has_others() {
            return true;
        }
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state.is_leader() {
            metrics.last_quorum_acked.is_some_and(|acked| acked.into_inner().elapsed() < CONTACT_MAX)
        } else {
            self.handle.leader_heard() < CONTACT_MAX
        }
    }

    /// Returns true if this member leads, and no majority has responded for [`CONTACT_MAX`]. The others have another
    /// leader by then, if they are a majority.
    pub(crate) fn is_cut_off(&self) -> bool {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let acked = metrics.last_quorum_acked.filter(|_| metrics.state.is_leader());
        acked.is_some_and(|acked| acked.into_inner().elapsed() >= CONTACT_MAX) && !self.is_alone()
    }

    /// Returns when this member is cut off. A caller then looks for the new leader.
    pub(super) async fn cut_off(&self) {
        while !self.is_cut_off() {
            tokio::time::sleep(CUT_OFF_INTERVAL).await;
        }
    }
}

/// Returns true if nobody can be elected without the vote of the leader or of a follower: they are a majority of all
/// voters, in each set of a joint membership.
fn rules_out_others(voters: &[BTreeSet<u64>], leader: u64, follower: u64) -> bool {
    voters.iter().all(|voters| voters.len() <= 3 && voters.contains(&leader) && voters.contains(&follower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_knows_that_nobody_else_leads_only_if_it_votes_in_every_set() {
        let sets = |sets: &[&[u64]]| sets.iter().map(|set| set.iter().copied().collect()).collect::<Vec<_>>();
        let knows = |voters: &[&[u64]]| rules_out_others(&sets(voters), 1, 2);
        assert!(knows(&[&[1, 2]]) && knows(&[&[1, 2, 3]]) && knows(&[&[1, 2, 3], &[1, 2, 4]]));
        assert!(!knows(&[&[1, 3]]), "a member without a vote");
        assert!(!knows(&[&[1, 2, 3], &[1, 3, 4]]), "it has no vote in the new set");
        assert!(!knows(&[&[2, 3, 4]]), "the leader leaves");
        assert!(!knows(&[&[1, 2, 3, 4, 5]]), "three others are a majority");
    }
}
