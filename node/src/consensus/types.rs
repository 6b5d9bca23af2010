//! The types that parametrize openraft.

use openraft::alias::{EntryOf, LeaderIdOf, LogIdOf, StoredMembershipOf, VoteOf};
use storage_engine::Outcome;

use crate::consensus::payload::Payload;

openraft::declare_raft_types!(
    /// The types with which openraft is instantiated. A member is identified by a number; the membership holds its
    /// address.
    pub(crate) Types: D = Payload, R = Outcome
);

pub(super) type LogEntry = EntryOf<Types>;
pub(super) type LogId = LogIdOf<Types>;
pub(super) type LeaderId = LeaderIdOf<Types>;
pub(super) type Vote = VoteOf<Types>;
pub(super) type StoredMembership = StoredMembershipOf<Types>;
pub(super) type Membership = openraft::Membership<u64, openraft::BasicNode>;
