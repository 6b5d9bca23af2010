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
    #[error("this node is not the leader of the shard; the leader is {}", known(leader.as_ref()))]
    NotLeader { leader: Option<Leader> },
    /// The outcome is unknown: a new leader may have dropped the entry, or may still commit it.
    #[error(
        "the leader of the shard changed, or no majority of its members responded in time: the outcome is unknown; \
         retry with the same batch ID"
    )]
    Unknown,
    /// This member has not applied the entries that a read must see.
    #[error("this member has not applied entry {index} of the shard yet: query another member")]
    Behind { index: u64 },
    /// Fewer members than a majority responded.
    #[error("no majority of the shard's members responded: {0}")]
    NoQuorum(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The leader of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) node: u64,
    /// Address, `host:port`, of the leader's node.
    pub(crate) address: String,
}

fn known(leader: Option<&Leader>) -> String {
    leader.map_or_else(|| "not known yet".to_owned(), |Leader { node, address }| format!("node {node} at {address}"))
}
