//! Errors of proposals and of reads.

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
    /// This node is not the leader: only the leader proposes entries and serves reads.
    #[error("this node is not the leader of the shard; the leader is {}", known(*leader))]
    NotLeader { leader: Option<u64> },
    /// The outcome is unknown: a new leader may have dropped the entry.
    #[error("the leader of the shard changed: the outcome is unknown; retry with the same batch ID")]
    Unknown,
    /// Fewer members than a majority responded.
    #[error("no majority of the shard's members responded: {0}")]
    NoQuorum(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn known(leader: Option<u64>) -> String {
    leader.map_or_else(|| "not known yet".to_owned(), |node| format!("node {node}"))
}
