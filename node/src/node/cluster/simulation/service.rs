//! Appends to a shard on a node, by the rules of `node/service.rs`.

use proto::leader_search::CallFailure;
use proto::push_retries::PartFailure;

use crate::consensus::{ConsensusError, Outcome};
use crate::node::cluster::simulation::node::Running;
use crate::node::cluster::simulation::planted::Planted;
use crate::node::cluster::simulation::push::Push;

/// The refusal of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    NotLeader(Option<u64>),
    /// The batch may be stored, now or later.
    Unknown,
    /// The node does not respond, or is not ready. The batch may be stored if a connection broke.
    Unavailable,
    /// The node does not have the shard.
    Missing,
    /// The node has another placement. Nothing was stored.
    Misplaced,
}

impl Refused {
    /// Returns the kind of the refusal for the search of a leader.
    pub(super) fn call_failure(self) -> CallFailure {
        match self {
            Self::NotLeader(leader) => CallFailure::NotLeader { leader },
            Self::Unknown => CallFailure::Unknown,
            Self::Unavailable => CallFailure::Unreached,
            Self::Missing => CallFailure::Missing,
            Self::Misplaced => CallFailure::Final,
        }
    }

    /// Returns the kind of the refusal for the decision about retries.
    pub(super) fn part_failure(self) -> PartFailure {
        match self {
            Self::NotLeader(_) | Self::Unknown | Self::Unavailable => PartFailure::Temporary,
            Self::Missing | Self::Misplaced => PartFailure::Misplaced,
        }
    }
}

impl Running {
    /// Appends the part of a push that was placed by the epoch `epoch`.
    pub(super) async fn append(&self, shard: u32, epoch: u64, push: &Push) -> Result<(), Refused> {
        let hosted = self.hosted(shard).ok_or(Refused::Missing)?;
        let serving = hosted.serving();
        if let Some(replica) = &serving
            && (replica.group.is_cut_off() || !(replica.group.is_leader() || replica.group.is_alone()))
        {
            return Err(Refused::NotLeader(replica.group.leader().map(|leader| leader.node)));
        }
        let own = self.cluster.placement().map_err(|_not_known| Refused::Unavailable)?.epoch();
        if own != epoch && !self.sim.is(Planted::NoEpochCheck) {
            return Err(Refused::Misplaced);
        }
        let replica = serving.ok_or(Refused::Unavailable)?;
        let outcome = match replica.group.propose(|| push.encode()).await {
            Ok(Outcome::Shard(outcome)) => outcome,
            Ok(other) => {
                self.sim.oracle.violated(format_args!("a push has the outcome {other:?}"));
                return Err(Refused::Unavailable);
            }
            Err(ConsensusError::NotLeader { leader }) => {
                return Err(Refused::NotLeader(leader.map(|leader| leader.node)));
            }
            Err(ConsensusError::Unknown) => return Err(Refused::Unknown),
            Err(_stopped) => return Err(Refused::Unavailable),
        };
        if self.down.is_cancelled() {
            return Err(Refused::Unavailable);
        }
        self.sim.oracle.acknowledged(shard, push);
        if outcome == storage_engine::Outcome::Duplicate {
            self.sim.oracle.count(|counts| counts.duplicates += 1);
        }
        self.sim.trace.event(format_args!("node {} acknowledges {:x} in shard {shard}", self.id, push.id));
        Ok(())
    }
}
