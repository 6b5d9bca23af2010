//! The types that parametrize openraft.

use openraft::alias::{EntryOf, LeaderIdOf, LogIdOf, StoredMembershipOf, VoteOf};

use crate::consensus::member::Member;
use crate::consensus::payload::Payload;
use crate::consensus::state::Outcome;

#[cfg(not(test))]
openraft::declare_raft_types!(
    /// The types with which openraft is instantiated. A member is identified by its node id; the membership holds its
    /// address and the identity of its data directory.
    pub(crate) Types: D = Payload, R = Outcome, Node = Member
);

#[cfg(test)]
openraft::declare_raft_types!(
    /// The same types. Tasks that wait for one value are woken in the order in which they began to wait, so that a
    /// simulation can be repeated.
    pub(crate) Types: D = Payload, R = Outcome, Node = Member, AsyncRuntime = crate::consensus::group::runtime::Ordered
);

pub(super) type LogEntry = EntryOf<Types>;
pub(super) type LogId = LogIdOf<Types>;
pub(super) type LeaderId = LeaderIdOf<Types>;
pub(super) type Vote = VoteOf<Types>;
pub(super) type StoredMembership = StoredMembershipOf<Types>;
pub(super) type Membership = openraft::Membership<u64, Member>;
