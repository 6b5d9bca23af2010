//! Refusals of a node that a router handles itself, as details of a gRPC status.
//!
//! Statuses of other services, and of nodes of other versions, have no such details. A router then knows only the code.

use prost::Message as _;

use crate::formats::wire;
use crate::formats::wire::refusal::Reason;

/// A refusal that another member of the shard, or a later attempt, may not repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node is not the leader of the shard. Nothing was done.
    NotLeader {
        /// Node id of the leader; `None` if the node knows no leader.
        leader: Option<u64>,
    },
    /// The outcome of a proposal is unknown: it may be stored, now or later. It may be sent again with the same batch
    /// ID.
    Unknown,
    /// The request was placed by another placement than that of the node. Nothing was done.
    Misplaced {
        /// Epoch of the newest placement that the node knows.
        epoch: u64,
    },
}

impl Refusal {
    /// Encodes the refusal as the details of a status.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let reason = match self {
            Self::NotLeader { leader } => Reason::NotLeader(wire::NotLeader { node: leader.unwrap_or_default() }),
            Self::Unknown => Reason::Unknown(wire::Unknown {}),
            Self::Misplaced { epoch } => Reason::Misplaced(wire::Misplaced { epoch }),
        };
        wire::Refusal { reason: Some(reason) }.encode_to_vec()
    }

    /// Decodes the details of a status; `None` if they hold no refusal.
    #[must_use]
    pub fn decode(details: &[u8]) -> Option<Self> {
        match wire::Refusal::decode(details).ok()?.reason? {
            Reason::NotLeader(wire::NotLeader { node }) => {
                Some(Self::NotLeader { leader: (node != 0).then_some(node) })
            }
            Reason::Unknown(wire::Unknown {}) => Some(Self::Unknown),
            Reason::Misplaced(wire::Misplaced { epoch }) => Some(Self::Misplaced { epoch }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_back_and_other_details_are_none() {
        let refusals = [
            Refusal::NotLeader { leader: None },
            Refusal::NotLeader { leader: Some(u64::MAX) },
            Refusal::Unknown,
            Refusal::Misplaced { epoch: 0 },
            Refusal::Misplaced { epoch: 7 },
        ];
        for refusal in refusals {
            assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        }
        for other in [&b""[..], b"\x0a", b"some text", &[0xff; 64]] {
            assert_eq!(Refusal::decode(other), None);
        }
    }
}
