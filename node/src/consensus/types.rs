//! The types that openraft is used with.

use std::fmt;

use bytes::Bytes;
use openraft::alias::{EntryOf, LogIdOf, StoredMembershipOf, VoteOf};
use storage_engine::Outcome;

use crate::consensus::state_machine::StateMachine;

openraft::declare_raft_types!(
    /// Nodes are numbers, their addresses are in the membership; see the types below.
    pub(crate) Types: D = Payload, R = Outcome
);

/// The bytes of a `proto::wire::Entry`, encoded once by the leader and never again.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Payload(pub(crate) Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

pub(crate) type Raft = openraft::Raft<Types, StateMachine>;
pub(crate) type LogEntry = EntryOf<Types>;
pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, openraft::BasicNode>;
