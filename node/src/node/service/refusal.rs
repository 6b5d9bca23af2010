//! Statuses of refused proposals and reads, with the details that routers understand.

use proto::refusal::Refusal;
use tonic::{Code, Status};

use crate::consensus::ConsensusError;

/// Returns the status of an error of consensus. Another attempt may succeed, here or at another member.
pub(in crate::node) fn unavailable(error: &ConsensusError) -> Status {
    let refusal = match error {
        ConsensusError::NotLeader { leader } => {
            Some(Refusal::NotLeader { leader: leader.as_ref().map(|leader| leader.node) })
        }
        ConsensusError::Unknown => Some(Refusal::Unknown),
        ConsensusError::Failed(_)
        | ConsensusError::Stopped
        | ConsensusError::NoQuorum(_)
        | ConsensusError::Behind { .. } => None,
    };
    let details = refusal.map(Refusal::encode).unwrap_or_default();
    Status::with_details(Code::Unavailable, error.to_string(), details.into())
}
