//! The member of a shard's Raft group that runs on this node.

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::{BasicNode, ReadPolicy, SnapshotPolicy};
use storage_engine::Outcome;
use tokio::sync::Mutex;

use crate::consensus::error::ConsensusError;
use crate::consensus::log::LogStore;
use crate::consensus::network::Peers;
use crate::consensus::payload::Payload;
use crate::consensus::state_machine::StateMachine;
use crate::consensus::types::Types;
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::shard::Shard;

/// Interval at which a leader sends heartbeats to its followers, in milliseconds.
const HEARTBEAT_MS: u64 = 300;
/// Shortest election timeout of a follower, in milliseconds. A single member does not wait: it starts an election at
/// once.
const ELECTION_MS_MIN: u64 = 1500;
const ELECTION_MS_MAX: u64 = 3000;

type Raft = openraft::Raft<Types, StateMachine>;

/// The running consensus of one shard.
#[derive(Debug)]
pub(crate) struct Group {
    raft: Raft,
    machine: StateMachine,
    failure: Failure,
    /// Lock that is held while a proposal gets its time and its index, so that times never go back in the log.
    proposing: Mutex<()>,
}

impl Group {
    /// Starts this node's member of the group. The first start creates the group, with this node as its only member.
    ///
    /// # Errors
    /// The log or the state cannot be read.
    pub(crate) async fn join(
        node_id: u64,
        advertise_address: &str,
        store: LogStore,
        shard: &Arc<Shard>,
        failure: Failure,
    ) -> Result<Self, ReplicaError> {
        let machine = StateMachine::new(Arc::clone(shard), failure.clone())?;
        let raft = Raft::new(node_id, options()?, Peers, store, machine.clone()).await.map_err(consensus_error)?;
        let group = Self { raft, machine, failure, proposing: Mutex::new(()) };
        if let Err(error) = group.elect(node_id, advertise_address).await {
            // Otherwise, tasks of openraft would still use the log after another attempt to open the replica.
            group.stop().await;
            return Err(error);
        }
        tokio::spawn(report_when_stopped(group.raft.clone(), group.failure.clone()));
        Ok(group)
    }

    /// Starts an election. The first start creates the group before.
    async fn elect(&self, node_id: u64, advertise_address: &str) -> Result<(), ReplicaError> {
        if self.raft.is_initialized().await.map_err(consensus_error)? {
            // With pre-vote, this election cannot depose a leader that is alive.
            return self.raft.trigger().elect(true).await.map_err(consensus_error);
        }
        let members = BTreeMap::from([(node_id, BasicNode::new(advertise_address))]);
        self.raft.initialize(members).await.map_err(consensus_error)
    }

    /// Returns when everything that was acknowledged before the start is applied. Never returns if the replica fails.
    pub(crate) async fn recovered(&self) {
        if self.raft.wait_for_recovery(None).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Proposes the payload that `payload` returns. After a majority has synced the entry, returns the outcome of
    /// applying it.
    pub(crate) async fn propose(&self, payload: impl FnOnce() -> Payload + Send) -> Result<Outcome, ConsensusError> {
        let (responder, outcome) = ProgressResponder::complete_only();
        {
            let _proposing = self.proposing.lock().await;
            self.raft.client_write_ff(payload(), Some(responder)).await.map_err(|fatal| self.stopped(&fatal))?;
        }
        match outcome.await {
            Ok(Ok(response)) => Ok(response.data),
            Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(ConsensusError::NotLeader { leader: to.leader_id }),
            Ok(Err(_discarded)) => Err(ConsensusError::Unknown),
            Err(_dropped) => Err(self.stopped(&Fatal::Stopped)),
        }
    }

    /// Returns when a read would see everything that was acknowledged before this call.
    pub(crate) async fn linearize(&self) -> Result<(), ConsensusError> {
        // A single member is its own quorum: this sends nothing, and waits only for committed entries that are not
        // yet applied.
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_read_log_id) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal)),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                Err(ConsensusError::NotLeader { leader: to.leader_id })
            }
            Err(RaftError::APIError(error)) => Err(ConsensusError::NoQuorum(error.into())),
        }
    }

    /// Returns true if no other node has a vote. The engine then has everything that was acknowledged, even if
    /// consensus does not run.
    pub(crate) fn is_alone(&self) -> bool {
        self.machine.voters().is_ok_and(|voters| voters == 1)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    /// Requests a purge of the log up to the last flushed entry. Openraft purges the log a moment later.
    pub(crate) async fn purge_flushed(&self) -> Result<(), Arc<ReplicaError>> {
        // Openraft purges entries that a "snapshot" covers, and a snapshot here is the position of the last flush. The
        // request fails only when consensus has stopped.
        self.raft.trigger().snapshot().await.map_err(|fatal| match fatal {
            // The replica is being closed, which is no failure.
            Fatal::Stopped => self.failure.get().unwrap_or_else(|| Arc::new(consensus_error(fatal))),
            fatal => self.failure.report(consensus_error(fatal)),
        })
    }

    /// Stops consensus: nothing is proposed, acknowledged or applied any more.
    pub(crate) async fn stop(&self) {
        if let Err(error) = self.raft.shutdown().await {
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

fn options() -> Result<Arc<openraft::Config>, ReplicaError> {
    let options = openraft::Config {
        cluster_name: "varve".to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS_MIN,
        election_timeout_max: ELECTION_MS_MAX,
        enable_pre_vote: Some(true),
        // The single member of a group is elected on request, and has no followers that wait for heartbeats. With
        // several members, ticks are needed. They cost a node with many shards more CPU time than everything else while
        // idle.
        enable_tick: false,
        // Otherwise, a restarted leader would serve reads from the last flush before it knows the committed index. An
        // election writes an entry of its own, and reads wait until that entry is applied.
        enable_leader_restore: Some(false),
        // The log is purged after a flush of the engine, and not by a number of entries.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        ..openraft::Config::default()
    };
    options.validate().map(Arc::new).map_err(consensus_error)
}

/// Reports an unexpected stop of openraft, for example after a panic.
async fn report_when_stopped(raft: Raft, failure: Failure) {
    let mut metrics = raft.metrics();
    drop(raft);
    loop {
        let state = metrics.borrow_watched().running_state.clone();
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
    }
}

/// Converts an error of openraft to text, because openraft's error types contain types that are private to this folder.
fn consensus_error(error: impl std::fmt::Display) -> ReplicaError {
    ReplicaError::Consensus(error.to_string().into())
}
