//! Why a proposal has no outcome, or why a read may not be answered.

use std::sync::Arc;

use crate::error::ReplicaError;

/// Refusal of a proposal or of a read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsensusError {
    /// The replica has failed for good.
    #[error("{0}")]
    Failed(Arc<ReplicaError>),
    /// The replica is being closed.
    #[error("the replica is stopping")]
    Stopped,
    /// Only the leader proposes and answers reads.
    #[error("this node is not the leader of the shard; the leader is {}", known(*leader))]
    NotLeader { leader: Option<u64> },
    /// A new leader may have dropped the entry.
    #[error("the leader of the shard changed: it is not known whether the entry counts; send it again with its id")]
    Unknown,
    /// No majority of the members answered.
    #[error("too few members of the shard answer: {0}")]
    NoQuorum(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn known(leader: Option<u64>) -> String {
    leader.map_or_else(|| "not known yet".to_owned(), |node| format!("node {node}"))
}
