//! The member of the meta group on this node.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message as _;
use proto::meta::{Command, State};
use proto::wire;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::consensus::{
    Change, ConsensusError, Group, GroupState, LogDatabase, LogStore, Member, Outcome, Peers, Receiving, Wanted,
};
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::meta::Applied;
use crate::meta::group_state::{MetaGroupState, encode};

/// Number of the meta group.
pub(crate) const META_GROUP: u32 = 0;

/// An open member of the meta group.
#[derive(Debug)]
pub(crate) struct MetaReplica {
    group: Group,
    state: Arc<MetaGroupState>,
    /// Guard of the member: it receives messages of other members.
    _receiving: Receiving,
    log: Arc<LogDatabase>,
    /// Reference that can be upgraded until no task of openraft uses the group's log any more.
    log_in_use: Weak<()>,
    failure: Failure,
    clock: Arc<Clock>,
}

/// The refusal of a command to the meta group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProposeError {
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// The command contradicts the state, which did not change.
    #[error("{0}")]
    Refused(String),
}

impl MetaReplica {
    /// Opens the member, whose log is in `log`. An empty member waits for [`MetaReplica::create`] or for a leader.
    pub(crate) async fn open(
        node_id: u64,
        log: Arc<LogDatabase>,
        peers: &Arc<Peers>,
        clock: Arc<Clock>,
        published: watch::Sender<Arc<State>>,
    ) -> Result<Self, NodeError> {
        let failure = log.failure().of_replica(META_GROUP);
        let store = LogStore::new(META_GROUP, Arc::clone(&log));
        let log_in_use = store.while_open();
        let state = Arc::new(MetaGroupState::new(published));
        let applied_to: Arc<dyn GroupState> = Arc::<MetaGroupState>::clone(&state);
        let group = Group::open(node_id, store, peers.network(META_GROUP), applied_to, failure.clone()).await?;
        let receiving = peers.receive(META_GROUP, log.directory_id(), &group);
        Ok(Self { group, state, _receiving: receiving, log, log_in_use, failure, clock })
    }

    /// Returns true if this member belongs to a group.
    pub(crate) async fn is_created(&self) -> Result<bool, ReplicaError> {
        self.group.is_created().await
    }

    /// Creates the group with these members, by node id.
    pub(crate) async fn create(&self, members: BTreeMap<u64, Member>) -> Result<(), ReplicaError> {
        self.group.create(members).await
    }

    /// Returns when everything that was acknowledged before the start is applied. Never returns if the replica fails
    /// earlier, and while the node does not belong to a cluster.
    pub(crate) async fn recovered(&self) {
        self.group.recovered().await;
        // The last command may be months old, and says nothing about the present.
        self.clock.start(0, self.log.accepted_ns());
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.group.is_leader()
    }

    /// Makes the next step from the members of the group to the wanted ones, if this member leads the group.
    pub(crate) async fn change_members(&self, wanted: &Wanted) -> Result<Change, ConsensusError> {
        self.group.change_members(wanted).await
    }

    /// Returns the members of the group, by node id.
    pub(crate) fn members(&self) -> BTreeMap<u64, Member> {
        self.group.members()
    }

    /// Returns the status of this member, without the state of its replica.
    pub(crate) fn status(&self) -> wire::GroupStatus {
        self.group.status()
    }

    /// Proposes a command. Returns true if it changed the state, after a majority has synced it.
    ///
    /// The log is never purged, so a command that the state refuses, or that changes nothing, does not reach it.
    /// Applying checks again, because another command may come between.
    pub(crate) async fn propose(&self, command: &Command) -> Result<bool, ProposeError> {
        propose(&self.group, &self.state, &self.failure, || self.clock.log_ns(), command).await
    }

    /// Stops consensus. Returns when nothing uses the group's log any more.
    pub(crate) async fn close(self: Arc<Self>) {
        self.group.stop().await;
        let log = Weak::clone(&self.log_in_use);
        drop(self);
        while log.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Proposes a command, as [`MetaReplica::propose`] does. `now_ns` returns the time of a new entry.
pub(crate) async fn propose(
    group: &Group,
    state: &MetaGroupState,
    failure: &Failure,
    now_ns: impl Fn() -> i64 + Send + Sync,
    command: &Command,
) -> Result<bool, ProposeError> {
    group.linearize().await?;
    match state.check(now_ns(), command) {
        Ok(Applied::Changed) => {}
        Ok(Applied::Unchanged) => return Ok(false),
        Err(refusal) => return Err(ProposeError::Refused(refusal.to_string())),
    }
    let failed = |error: &dyn std::fmt::Display| {
        ConsensusError::Failed(failure.report(ReplicaError::Consensus(error.to_string().into())))
    };
    let outcome = match group.propose(|| encode(now_ns(), command)).await? {
        Outcome::Meta(outcome) => outcome,
        other => return Err(failed(&format!("a command of the meta group has the outcome {other:?}")).into()),
    };
    let wire::MetaOutcome { is_changed, refusal } =
        wire::MetaOutcome::decode(outcome).map_err(|error| failed(&error))?;
    if refusal.is_empty() { Ok(is_changed) } else { Err(ProposeError::Refused(refusal)) }
}
