//! The types that openraft is used with.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use openraft::alias::{EntryOf, LogIdOf, StoredMembershipOf, VoteOf};
use prost::Message as _;
use storage_engine::Outcome;

use crate::consensus::record::RecordError;
use crate::consensus::state_machine::StateMachine;

openraft::declare_raft_types!(
    /// Nodes are numbers, their addresses are in the membership; see the types below.
    pub(crate) Types: D = Payload, R = Outcome
);

/// The bytes of a `proto::wire::Entry`, encoded once by the leader and never again; and, where it is still at hand, the entry
/// that they were made of.
#[derive(Clone)]
pub(crate) struct Payload {
    bytes: Bytes,
    entry: Option<Arc<proto::Entry>>,
}

impl Payload {
    /// What this process proposes.
    pub(crate) fn proposed(bytes: Bytes, entry: proto::Entry) -> Self {
        Self { bytes, entry: Some(Arc::new(entry)) }
    }

    /// What was read from the log, or came from a leader.
    pub(crate) fn read(bytes: Bytes) -> Self {
        Self { bytes, entry: None }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What is to be applied. Its checksum held, so what does not decode was proposed by broken software; no replica may guess
    /// what it means.
    pub(crate) fn entry(self) -> Result<Arc<proto::Entry>, RecordError> {
        if let Some(entry) = self.entry {
            return Ok(entry);
        }
        let broken = RecordError::Content { record: "entry's command" };
        let Ok(wire) = proto::wire::Entry::decode(self.bytes) else { return Err(broken) };
        proto::Entry::from_wire(wire).map(Arc::new).map_err(|error| {
            tracing::error!(%error, "an entry of the log contradicts itself");
            broken
        })
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

pub(crate) type Raft = openraft::Raft<Types, StateMachine>;
pub(crate) type LogEntry = EntryOf<Types>;
pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, openraft::BasicNode>;
