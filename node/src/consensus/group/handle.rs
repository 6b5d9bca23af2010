//! The part of a member that other members and the timer of the node need: elections, heartbeats and freshness.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::consensus::freshness::Freshness;
use crate::consensus::group::Raft;
use crate::consensus::types::LogId;
use crate::host::simulated::random_part;

/// Interval at which a leader sends heartbeats to its followers.
pub(in crate::consensus) const HEARTBEAT: Duration = Duration::from_millis(200);
/// Time within which a follower that hears its leader grants no vote to others.
pub(super) const LEASE: Duration = Duration::from_millis(600);
/// Random time, on top of [`LEASE`], after which a follower that does not hear its leader starts an election. A new
/// leader then usually acknowledges within a second. At least two heartbeats must be missing for that.
const ELECTION_SPREAD: Duration = Duration::from_millis(300);
/// Further time after which a member that stands back starts an election: others have had two attempts by then.
const STAND_BACK: Duration = Duration::from_secs(3);

/// The part of a member that other members and the timer of the node need.
#[derive(Debug)]
pub(in crate::consensus) struct Handle {
    pub(in crate::consensus) raft: Raft,
    /// True if the group has several members. A single one needs neither heartbeats nor election timeouts.
    has_others: AtomicBool,
    /// Time at which this member starts an election, unless it hears its leader before.
    election_at: Mutex<Instant>,
    /// Time at which this member last heard its leader.
    leader_heard_at: Mutex<Instant>,
    /// True if this member leaves elections to others for [`STAND_BACK`].
    stands_back: AtomicBool,
    pub(in crate::consensus) freshness: Freshness,
}

impl Handle {
    pub(super) fn new(raft: Raft) -> Self {
        let now = || Mutex::new(Instant::now());
        let handle = Self {
            raft,
            has_others: AtomicBool::new(false),
            election_at: now(),
            leader_heard_at: now(),
            stands_back: AtomicBool::new(false),
            freshness: Freshness::default(),
        };
        handle.heard();
        handle
    }

    /// Records that the leader was heard.
    pub(in crate::consensus) fn heard_leader(&self) {
        *self.leader_heard_at.lock() = Instant::now();
        self.heard();
    }

    /// Records that the leader was heard, or that this member has voted.
    pub(in crate::consensus) fn heard(&self) {
        *self.election_at.lock() = Instant::now() + LEASE + random_part(ELECTION_SPREAD);
    }

    /// Sends heartbeats if this member is the leader and `beats` is true. Starts an election if this member has not
    /// heard its leader for too long. The timer of the node calls this for all groups.
    pub(in crate::consensus) async fn tick(&self, beats: bool) {
        if !self.has_others() {
            return;
        }
        let requested = if self.raft.is_leader() {
            self.heard();
            self.note_quorum();
            if beats { self.raft.trigger().heartbeat().await } else { Ok(()) }
        } else if *self.election_at.lock() + self.stand_back() <= Instant::now() {
            // After a refusal, the next attempt needs no lease to expire.
            *self.election_at.lock() = Instant::now() + ELECTION_SPREAD + random_part(ELECTION_SPREAD);
            // With pre-vote, this election cannot depose a leader that is alive.
            self.raft.trigger().elect(true).await
        } else {
            Ok(())
        };
        // It fails only if openraft has stopped, which [`watch`] reports.
        drop(requested);
    }

    /// Records whether the group has several members.
    pub(super) fn set_has_others(&self, has_others: bool) {
        self.has_others.store(has_others, Ordering::Relaxed);
    }

    pub(super) fn has_others(&self) -> bool {
        self.has_others.load(Ordering::Relaxed)
    }

    /// Makes this member leave elections to others for [`STAND_BACK`], or not any more.
    pub(super) fn set_stands_back(&self, stands_back: bool) {
        self.stands_back.store(stands_back, Ordering::Relaxed);
    }

    /// Returns the time since this member last heard its leader.
    pub(super) fn leader_heard(&self) -> Duration {
        self.leader_heard_at.lock().elapsed()
    }

    /// Returns the time for which this member leaves an election to others.
    fn stand_back(&self) -> Duration {
        if self.stands_back.load(Ordering::Relaxed) { STAND_BACK } else { Duration::ZERO }
    }

    /// Notes, on the leader, the last message to which a majority has responded.
    fn note_quorum(&self) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = (metrics.current_term, metrics.id);
        let own = |committed: &&LogId| (committed.leader_id.term, committed.leader_id.node_id) == leader;
        let committed = metrics.cluster_committed.as_ref().filter(own);
        if let (Some(acknowledged), Some(committed)) = (&metrics.last_quorum_acked, committed) {
            // The elapsed time is measured after `now`, so the result is not later than the message.
            if let Some(time) = Instant::now().checked_sub(acknowledged.elapsed()) {
                self.freshness.note(time, committed.index);
            }
        }
    }
}
