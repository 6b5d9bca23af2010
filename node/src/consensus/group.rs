//! The member of a Raft group that runs on this node.

pub(super) mod membership;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::network::{NetSnapshot, RaftNetworkFactory};
use openraft::storage::RaftLogStorage;
use openraft::{Instant as _, ReadPolicy, SnapshotPolicy};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::consensus::error::{ConsensusError, Leader};
use crate::consensus::freshness::Freshness;
use crate::consensus::member::Member;
use crate::consensus::payload::Payload;
use crate::consensus::state::{GroupState, Outcome};
use crate::consensus::state_machine::StateMachine;
use crate::consensus::types::Types;
use crate::error::ReplicaError;
use crate::failure::Failure;

/// Interval at which a leader sends heartbeats to its followers.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(200);
/// Time within which a follower that hears its leader grants no vote to others.
const LEASE: Duration = Duration::from_millis(600);
/// Random time, on top of [`LEASE`], after which a follower that does not hear its leader starts an election. A new
/// leader then usually acknowledges within a second. At least two heartbeats must be missing for that.
const ELECTION_SPREAD: Duration = Duration::from_millis(300);
/// Further time after which a member that stands back starts an election: others have had two attempts by then.
const STAND_BACK: Duration = Duration::from_secs(3);
/// Time without contact to the leader, or to a majority, after which the member reports that nothing can be committed.
/// It is longer than an election usually takes.
const CONTACT_MAX: Duration = Duration::from_secs(3);
/// Interval at which a waiting proposal or read looks whether its member is cut off.
const CUT_OFF_INTERVAL: Duration = Duration::from_millis(250);
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

/// The part of a member that other members and the timer of the node need.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) raft: Raft,
    /// True if the group has several members. A single one needs neither heartbeats nor election timeouts.
    has_others: AtomicBool,
    /// Time at which this member starts an election, unless it hears its leader before.
    election_at: parking_lot::Mutex<Instant>,
    /// Time at which this member last heard its leader.
    leader_heard_at: parking_lot::Mutex<Instant>,
    /// True if this member leaves elections to others for [`STAND_BACK`].
    stands_back: AtomicBool,
    pub(super) freshness: Freshness,
}

impl Handle {
    /// Records that the leader was heard.
    pub(super) fn heard_leader(&self) {
        *self.leader_heard_at.lock() = Instant::now();
        self.heard();
    }

    /// Records that the leader was heard, or that this member has voted.
    pub(super) fn heard(&self) {
        *self.election_at.lock() = Instant::now() + LEASE + random(ELECTION_SPREAD);
    }

    /// Sends heartbeats if this member is the leader and `beats` is true. Starts an election if this member has not
    /// heard its leader for too long. The timer of the node calls this for all groups.
    pub(super) async fn tick(&self, beats: bool) {
        if !self.has_others.load(Ordering::Relaxed) {
            return;
        }
        let requested = if self.raft.is_leader() {
            self.heard();
            self.note_quorum();
            if beats { self.raft.trigger().heartbeat().await } else { Ok(()) }
        } else if *self.election_at.lock() + self.stand_back() <= Instant::now() {
            // After a refusal, the next attempt needs no lease to expire.
            *self.election_at.lock() = Instant::now() + ELECTION_SPREAD + random(ELECTION_SPREAD);
            // With pre-vote, this election cannot depose a leader that is alive.
            self.raft.trigger().elect(true).await
        } else {
            Ok(())
        };
        // It fails only if openraft has stopped, which [`watch`] reports.
        drop(requested);
    }
}

impl Handle {
    /// Returns the time for which this member leaves an election to others.
    fn stand_back(&self) -> Duration {
        if self.stands_back.load(Ordering::Relaxed) { STAND_BACK } else { Duration::ZERO }
    }

    /// Notes, on the leader, the last message to which a majority has responded.
    fn note_quorum(&self) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if let (Some(acknowledged), Some(committed)) = (&metrics.last_quorum_acked, &metrics.cluster_committed) {
            // The elapsed time is measured after `now`, so the result is not later than the message.
            if let Some(time) = Instant::now().checked_sub(acknowledged.elapsed()) {
                self.freshness.note(time, committed.index);
            }
        }
    }
}

/// Returns true if nobody can be elected without the vote of the leader or of a follower: they are a majority of all
/// voters, in each set of a joint membership.
fn rules_out_others(voters: &[BTreeSet<u64>], leader: u64, follower: u64) -> bool {
    voters.iter().all(|voters| voters.len() <= 3 && voters.contains(&leader) && voters.contains(&follower))
}

/// Returns a random part of a duration.
fn random(of: Duration) -> Duration {
    // The keys of each hasher are random.
    let random = RandomState::new().hash_one(()) % 1024;
    of * u32::try_from(random).unwrap_or_default() / 1024
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
        let now = || parking_lot::Mutex::new(Instant::now());
        let has_others = AtomicBool::new(false);
        let freshness = Freshness::default();
        let handle = Arc::new(Handle {
            raft,
            has_others,
            election_at: now(),
            leader_heard_at: now(),
            stands_back: AtomicBool::new(false),
            freshness,
        });
        handle.heard();
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
        // A single member is its own quorum: this sends nothing, and waits only for committed entries that are not
        // yet applied.
        let linear = tokio::time::timeout(PATIENCE, self.raft().ensure_linearizable(ReadPolicy::ReadIndex));
        let linear = tokio::select! {
            linear = linear => linear,
            () = self.cut_off() => return Err(ConsensusError::NoQuorum("no majority responds to this leader".into())),
        };
        match linear {
            Ok(Ok(read_log_id)) => Ok(read_log_id.index()),
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

    /// Returns how long ago the state of this member had everything that was acknowledged; `None` if this is not known.
    pub(crate) fn staleness(&self) -> Option<Duration> {
        if self.is_alone() {
            return Some(Duration::ZERO);
        }
        {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            let voters = metrics.membership_config.membership().get_joint_config();
            let is_leader = metrics.current_leader == Some(metrics.id);
            if !is_leader && !metrics.current_leader.is_some_and(|leader| rules_out_others(voters, leader, metrics.id))
            {
                return None;
            }
        }
        let complete = self.handle.freshness.complete_since(self.machine.applied_index());
        complete.map(|since| since.elapsed())
    }

    /// Returns true if only this node has a vote. The engine then has everything that was acknowledged, even if
    /// consensus does not run.
    pub(crate) fn is_alone(&self) -> bool {
        self.machine.voters().is_ok_and(|voters| voters.into_iter().eq([*self.raft().node_id()]))
    }

    /// Returns the other member that leads the group, as far as this member knows.
    pub(crate) fn leader(&self) -> Option<Leader> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.current_leader.filter(|&leader| leader != metrics.id)?;
        let Member { address, .. } = metrics.membership_config.membership().get_node(&node)?;
        Some(Leader { node, address: address.clone() })
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft().is_leader()
    }

    /// Makes this member leave elections to others, or not any more. If no other member is elected for a while, it
    /// stands nevertheless.
    pub(crate) fn stand_back(&self, stands_back: bool) {
        self.handle.stands_back.store(stands_back, Ordering::Relaxed);
    }

    /// Asks a member to take over, if this member leads the group. Nothing is proposed or led here from then on. If the
    /// member does not take over, the others elect a leader as if this one had died.
    pub(crate) async fn hand_over(&self, to: u64) {
        // It fails only if openraft has stopped, which [`watch`] reports.
        let _requested = self.raft().trigger().transfer_leader(to).await.is_ok();
    }

    /// Returns false if a proposal would wait for a majority, as far as this member knows: it leads, and no majority
    /// has responded for [`CONTACT_MAX`], or it has not heard a leader for this time.
    pub(crate) fn can_commit(&self) -> bool {
        if !self.handle.has_others.load(Ordering::Relaxed) {
            return true;
        }
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state.is_leader() {
            metrics.last_quorum_acked.is_some_and(|acked| acked.into_inner().elapsed() < CONTACT_MAX)
        } else {
            self.handle.leader_heard_at.lock().elapsed() < CONTACT_MAX
        }
    }

    /// Returns true if this member leads, and no majority has responded for [`CONTACT_MAX`]. The others have another
    /// leader by then, if they are a majority.
    pub(crate) fn is_cut_off(&self) -> bool {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let acked = metrics.last_quorum_acked.filter(|_| metrics.state.is_leader());
        acked.is_some_and(|acked| acked.into_inner().elapsed() >= CONTACT_MAX) && !self.is_alone()
    }

    /// Returns when this member is cut off. A caller then looks for the new leader.
    async fn cut_off(&self) {
        while !self.is_cut_off() {
            tokio::time::sleep(CUT_OFF_INTERVAL).await;
        }
    }

    /// Returns the members of the group and learners, by node id, as far as this member knows them.
    pub(crate) fn members(&self) -> BTreeMap<u64, Member> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().nodes().map(|(&id, member)| (id, member.clone())).collect()
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
            handle.has_others.store(has_others, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_knows_that_nobody_else_leads_only_if_it_votes_in_every_set() {
        let sets = |sets: &[&[u64]]| sets.iter().map(|set| set.iter().copied().collect()).collect::<Vec<_>>();
        let knows = |voters: &[&[u64]]| rules_out_others(&sets(voters), 1, 2);
        assert!(knows(&[&[1, 2]]) && knows(&[&[1, 2, 3]]) && knows(&[&[1, 2, 3], &[1, 2, 4]]));
        assert!(!knows(&[&[1, 3]]), "a member without a vote");
        assert!(!knows(&[&[1, 2, 3], &[1, 3, 4]]), "it has no vote in the new set");
        assert!(!knows(&[&[2, 3, 4]]), "the leader leaves");
        assert!(!knows(&[&[1, 2, 3, 4, 5]]), "three others are a majority");
    }
}
