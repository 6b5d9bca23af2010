//! Status of a member, for administrators: leader, term, and how far the logs are.

use openraft::async_runtime::WatchReceiver as _;
use proto::wire;

use crate::consensus::group::Group;

impl Group {
    /// Returns the status of this member. The caller fills in the number of the group and the state of the replica.
    pub(crate) fn status(&self) -> wire::GroupStatus {
        let metrics = self.handle().raft.metrics();
        let metrics = metrics.borrow_watched();
        let followers = metrics.replication.iter().flatten().filter(|(node, _)| **node != metrics.id);
        wire::GroupStatus {
            leader: metrics.current_leader.unwrap_or_default(),
            term: metrics.current_term,
            last_index: metrics.last_log_index.unwrap_or_default(),
            applied_index: metrics.last_applied.as_ref().map_or(0, |position| position.index),
            followers: followers
                .map(|(&node, matching)| wire::FollowerStatus {
                    node,
                    matching_index: matching.as_ref().map_or(0, |position| position.index),
                })
                .collect(),
            ..wire::GroupStatus::default()
        }
    }
}
