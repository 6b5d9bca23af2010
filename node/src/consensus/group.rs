//! The member of a Raft group that runs on this node.

mod handle;
mod leadership;
pub(super) mod membership;
#[cfg(test)]
pub(super) mod runtime;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::network::{NetSnapshot, RaftNetworkFactory};
use openraft::storage::RaftLogStorage;
use openraft::{ReadPolicy, SnapshotPolicy};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::consensus::error::{ConsensusError, Leader};
use crate::consensus::group::handle::LEASE;
pub(super) use crate::consensus::group::handle::{HEARTBEAT, Handle};
use crate::consensus::member::Member;
use crate::consensus::payload::Payload;
use crate::consensus::state::{GroupState, Outcome};
use crate::consensus::state_machine::StateMachine;
use crate::consensus::types::Types;
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::host::planted::{begin_lease_by_clock, has_lease_by_clock};

/// Longest time that a proposal or a read waits for a majority.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at the metrics of openraft, which change several times with each entry.
const WATCH_PAUSE: Duration = Duration::from_millis(50);
/// Longest time that a read waits until this member has applied what the leader had applied.
const APPLY_PATIENCE: Duration = Duration::from_secs(2);

type Raft = openraft::Raft<Types, StateMachine>;

/// The running member of one group.
#[derive(Debug)]
pub(crate) struct Group {
    handle: Arc<Handle>,
    machine: StateMachine,
    failure: Failure,
    /// Lock that is held while a proposal gets its time and its index, so that times never go back in the log.
    proposing: Mutex<()>,
    watching: JoinHandle<()>,
}

impl Group {
    /// Starts this node's member of a group. A member with an empty log waits for a leader, or for
    /// [`Group::create`].
    ///
    /// # Errors
    /// The log or the state cannot be read.
    pub(crate) async fn open<L, N>(
        node_id: u64,
        log: L,
        network: N,
        state: Arc<dyn GroupState>,
        failure: Failure,
    ) -> Result<Self, ReplicaError>
    where
        L: RaftLogStorage<Types>,
        N: RaftNetworkFactory<Types>,
        N::Network: NetSnapshot<Types, SnapshotData = ()>,
    {
        let machine = StateMachine::new(state, failure.clone())?;
        let raft = Raft::new(node_id, options()?, network, log, machine.clone()).await.map_err(consensus_error)?;
        let handle = Arc::new(Handle::new(raft));
        let watching = tokio::spawn(watch(Arc::clone(&handle), failure.clone()));
        let group = Self { handle, machine, failure, proposing: Mutex::new(()), watching };
        if let Err(error) = group.elect().await {
            // Otherwise, tasks of openraft would still use the log after another attempt to open the replica.
            group.stop().await;
            return Err(error);
        }
        Ok(group)
    }

    /// Starts an election if the group is created, because a single member need not wait for an election timeout. With
    /// pre-vote, this election cannot depose a leader that is alive.
    async fn elect(&self) -> Result<(), ReplicaError> {
        if self.is_created().await? { self.raft().trigger().elect(true).await.map_err(consensus_error) } else { Ok(()) }
    }

    /// Returns true if the group was created, and this member knows it.
    pub(crate) async fn is_created(&self) -> Result<bool, ReplicaError> {
        self.raft().is_initialized().await.map_err(consensus_error)
    }

    /// Creates the group with these members, by node id. Of all members, only one creates the group, and only once: a
    /// group that was created twice would acknowledge entries that it then loses.
    ///
    /// # Errors
    /// This member already belongs to a group, or it is not one of the members, or the log has failed.
    pub(crate) async fn create(&self, members: BTreeMap<u64, Member>) -> Result<(), ReplicaError> {
        self.raft().initialize(members).await.map_err(consensus_error)
    }

    /// Returns when everything that was acknowledged before the start is applied. Never returns if the replica fails.
    pub(crate) async fn recovered(&self) {
        if self.raft().wait_for_recovery(None).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Proposes the payload that `payload` returns. After a majority has synced the entry, returns the outcome of
    /// applying it. Waits at most [`PATIENCE`], and no longer than until this member is cut off; the outcome is unknown
    /// afterwards.
    pub(crate) async fn propose(&self, payload: impl FnOnce() -> Payload + Send) -> Result<Outcome, ConsensusError> {
        tokio::select! {
            biased;
            proposed = tokio::time::timeout(PATIENCE, self.propose_now(payload)) => {
                proposed.unwrap_or(Err(ConsensusError::Unknown))
            }
            () = self.cut_off() => Err(ConsensusError::Unknown),
        }
    }

    async fn propose_now(&self, payload: impl FnOnce() -> Payload + Send) -> Result<Outcome, ConsensusError> {
        let (responder, outcome) = ProgressResponder::complete_only();
        {
            let _proposing = self.proposing.lock().await;
            self.raft().client_write_ff(payload(), Some(responder)).await.map_err(|fatal| self.stopped(&fatal))?;
        }
        match outcome.await {
            Ok(Ok(response)) => Ok(response.data),
            Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(not_leader(to)),
            Ok(Err(_discarded)) => Err(ConsensusError::Unknown),
            Err(_dropped) => Err(self.stopped(&Fatal::Stopped)),
        }
    }

    /// Returns when a read would see everything that was acknowledged before this call. Waits at most [`PATIENCE`].
    /// Returns the index that any member must have applied for such a read.
    pub(crate) async fn linearize(&self) -> Result<u64, ConsensusError> {
        if has_lease_by_clock() && self.is_leader() {
            return Ok(self.machine.applied_index());
        }
        // A single member is its own quorum: this sends nothing, and waits only for committed entries that are not
        // yet applied.
        let linear = tokio::time::timeout(PATIENCE, self.raft().ensure_linearizable(ReadPolicy::ReadIndex));
        let linear = tokio::select! {
            biased;
            linear = linear => linear,
            () = self.cut_off() => return Err(ConsensusError::NoQuorum("no majority responds to this leader".into())),
        };
        match linear {
            Ok(Ok(read_log_id)) => {
                begin_lease_by_clock(LEASE);
                Ok(read_log_id.index())
            }
            Ok(Err(RaftError::Fatal(fatal))) => Err(self.stopped(&fatal)),
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to)))) => Err(not_leader(to)),
            Ok(Err(RaftError::APIError(error))) => Err(ConsensusError::NoQuorum(error.into())),
            Err(elapsed) => Err(ConsensusError::NoQuorum(elapsed.into())),
        }
    }

    /// Returns when this member has applied an index. Waits at most [`APPLY_PATIENCE`].
    pub(crate) async fn reach(&self, index: u64) -> Result<(), ConsensusError> {
        if self.machine.applied_index() >= index {
            return Ok(());
        }
        let reached = self.raft().wait(Some(APPLY_PATIENCE)).applied_index_at_least(Some(index), "a read").await;
        reached.map(|_metrics| ()).map_err(|_late| ConsensusError::Behind { index })
    }

    /// Returns the members of the group and learners, by node id, as far as this member knows them.
    pub(crate) fn members(&self) -> BTreeMap<u64, Member> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().nodes().map(|(&id, member)| (id, member.clone())).collect()
    }

    /// Returns the voters and the members, as this member knows them.
    #[cfg(test)]
    pub(crate) fn voters(&self) -> String {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let members: Vec<String> =
            membership.nodes().map(|(id, member)| format!("{id}:{:02x?}", &member.directory[8..])).collect();
        format!("{:?} of {members:?} at {:?}", membership.get_joint_config(), metrics.membership_config.log_id())
    }

    pub(super) fn raft(&self) -> &Raft {
        &self.handle.raft
    }

    /// Returns the handle through which messages of other members reach this member.
    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Requests a purge of the log up to [`GroupState::purgeable`]. Openraft purges the log a moment later.
    pub(crate) async fn purge_released(&self) -> Result<(), Arc<ReplicaError>> {
        // Openraft purges entries that a "snapshot" covers, and a snapshot here is the end of the part that need not be
        // kept. The request fails only when consensus has stopped.
        self.raft().trigger().snapshot().await.map_err(|fatal| match fatal {
            // The replica is being closed, which is no failure.
            Fatal::Stopped => self.failure.get().unwrap_or_else(|| Arc::new(consensus_error(fatal))),
            fatal => self.failure.report(consensus_error(fatal)),
        })
    }

    /// Stops consensus: nothing is proposed, acknowledged or applied any more.
    pub(crate) async fn stop(&self) {
        if let Err(error) = self.raft().shutdown().await {
            tracing::error!(%error, "consensus did not stop in order");
        }
    }

    fn stopped(&self, fatal: &Fatal<Types>) -> ConsensusError {
        match (self.failure.get(), fatal) {
            (Some(error), _) => ConsensusError::Failed(error),
            (None, Fatal::Stopped) => ConsensusError::Stopped,
            (None, fatal) => ConsensusError::Failed(self.failure.report(consensus_error(fatal))),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The task holds a handle that would keep openraft running.
        self.watching.abort();
    }
}

pub(super) fn not_leader(to: ForwardToLeader<Types>) -> ConsensusError {
    let leader = to.leader_id.zip(to.leader_node).map(|(node, Member { address, .. })| Leader { node, address });
    ConsensusError::NotLeader { leader }
}

fn options() -> Result<Arc<openraft::Config>, ReplicaError> {
    let options = openraft::Config {
        cluster_name: "varve".to_owned(),
        heartbeat_interval: milliseconds(HEARTBEAT),
        // Openraft takes the largest timeout for the lease.
        election_timeout_min: milliseconds(LEASE) - 1,
        election_timeout_max: milliseconds(LEASE),
        enable_pre_vote: Some(true),
        // Instead of openraft's timer for each group, one timer serves all groups of a node ([`Handle::tick`]). The
        // heartbeats of all groups then travel in one message, and idle groups cost much less CPU time.
        enable_tick: false,
        // Otherwise, a restarted leader would serve reads from the last flush before it knows the committed index. An
        // election writes an entry of its own, and reads wait until that entry is applied.
        enable_leader_restore: Some(false),
        // The log is purged after a flush of the state, and not by a number of entries.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        ..openraft::Config::default()
    };
    options.validate().map(Arc::new).map_err(consensus_error)
}

/// Returns a short duration in milliseconds.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Keeps track of whether the group has several members, and reports an unexpected stop of openraft, such as after a
/// panic.
async fn watch(handle: Arc<Handle>, failure: Failure) {
    let mut metrics = handle.raft.metrics();
    loop {
        let state = {
            let metrics = metrics.borrow_watched();
            let has_others = metrics.membership_config.membership().nodes().nth(1).is_some();
            handle.set_has_others(has_others);
            metrics.running_state.clone()
        };
        match state {
            Err(Fatal::Stopped) => return,
            Err(fatal) => {
                failure.report(consensus_error(fatal));
                return;
            }
            Ok(()) => {}
        }
        if metrics.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}

/// Converts an error of openraft to text, because openraft's error types contain types that are private to this folder.
fn consensus_error(error: impl std::fmt::Display) -> ReplicaError {
    ReplicaError::Consensus(error.to_string().into())
}
