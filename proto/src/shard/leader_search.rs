//! Search for the leader of a shard: the member that a call goes to next, and the pause before it.
//!
//! Only the leader of a shard accepts appends and gives linearizable read points. A caller remembers the leaders that
//! it found, and follows the hints of other members. A member that does not respond is left alone for a while, so that
//! not every call waits for it.
//!
//! The search itself makes no call and reads no clock, so routers and the simulation of a cluster run the same code.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Longest time that a call looks for the leader of a shard. An election takes a second or two.
const PATIENCE: Duration = Duration::from_secs(8);
/// Time in which most elections end.
const ELECTION: Duration = Duration::from_secs(2);
/// Pauses between calls to members of which none leads: they double from the shortest to the longest. During an
/// election they stay shorter, because each of them may delay the first call to the new leader. Later they are longer,
/// because each call sends the whole request.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_IN_ELECTION_MAX: Duration = Duration::from_millis(150);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Time of a failed call from which on the member may be silent. A process that was killed fails at once.
pub const SLOW: Duration = Duration::from_millis(500);
/// Time in which a member responds that is not silent. A call may also be slow because of its shard, for example while
/// most of the shard's members are down; the node is then still called for its other shards.
pub const PROBE: Duration = Duration::from_millis(500);
/// Time for which a silent member is not called if another one may respond. Each call to it would wait for long. For as
/// long, a hint is not followed to a member that was not reached: an election ends earlier.
const SILENCE: Duration = Duration::from_secs(3);

/// The leaders and the silent nodes that a caller knows. All its calls share them.
#[derive(Debug, Default)]
pub struct KnownLeaders {
    /// Node ids of the leaders, by shard.
    leaders: HashMap<u32, u64>,
    /// Nodes that did not respond to a call lately, each with the time until which the others are called first.
    silent: HashMap<u64, Instant>,
}

impl KnownLeaders {
    /// Returns the leader of a shard, if it is known.
    #[must_use]
    pub fn leader(&self, shard: u32) -> Option<u64> {
        self.leaders.get(&shard).copied()
    }

    /// Records that a node leads a shard.
    pub fn set_leader(&mut self, shard: u32, node: u64) {
        self.leaders.insert(shard, node);
    }

    /// Forgets the leader of a shard.
    pub fn forget_leader(&mut self, shard: u32) {
        self.leaders.remove(&shard);
    }

    /// Records that a node has responded.
    pub fn set_responding(&mut self, node: u64) {
        self.silent.remove(&node);
    }

    /// Returns true if a node did not respond lately.
    #[must_use]
    pub fn is_silent(&self, node: u64, now: Instant) -> bool {
        self.silent.get(&node).is_some_and(|until| now < *until)
    }

    /// Records that a node does not respond.
    pub fn set_silent(&mut self, node: u64, now: Instant) {
        self.silent.insert(node, now + SILENCE);
    }

    /// Returns the nodes without those that did not respond lately, or all if none responded.
    #[must_use]
    pub fn candidates(&self, nodes: &[u64], now: Instant) -> Vec<u64> {
        let responding: Vec<u64> = nodes.iter().copied().filter(|&node| !self.is_silent(node, now)).collect();
        if responding.is_empty() { nodes.to_vec() } else { responding }
    }
}

/// The failure of a call to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The member is not the leader. Nothing was done.
    NotLeader {
        /// Node id of the leader; `None` if the member knows no leader.
        leader: Option<u64>,
    },
    /// The disk of the member is full, so it does not lead. Nothing was done. The disks of all others may be full, too.
    Full,
    /// The member does not know if the call has its effect.
    Unknown,
    /// No connection to the member could be made. Nothing was done.
    NotSent,
    /// The connection broke, or the member did not respond. The call may have had its effect.
    Unreached,
    /// The member responded that it cannot serve the shard now, for example because it is starting.
    Unready,
    /// The member does not have the shard. It may have lost its data.
    Missing,
    /// Any other failure: the response to the call.
    Final,
}

impl CallFailure {
    /// Returns true if the member gave no sign of life.
    fn is_unreached(self) -> bool {
        matches!(self, Self::NotSent | Self::Unreached)
    }

    /// Returns true if the call may have had its effect.
    #[must_use]
    pub fn is_unknown(self) -> bool {
        matches!(self, Self::Unknown | Self::Unreached | Self::Unready)
    }
}

/// The next step after a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next call is made at once.
    CallNow,
    /// The next call is made after this pause.
    CallAfter(Duration),
    /// The call has failed.
    Fail,
}

/// The search for the leader of a shard, for one call.
#[derive(Debug)]
pub struct LeaderSearch {
    shard: u32,
    /// True if the call may be made again after a call with an unknown outcome.
    is_repeatable: bool,
    /// Number of members of the shard at the last call.
    members: usize,
    /// Members that the last call could have gone to.
    candidates: Vec<u64>,
    /// Number of failed calls.
    turn: usize,
    /// The time begins with the first failure: a leader that has stopped responding is found out only by then.
    deadline: Option<Instant>,
    pause: Duration,
    /// Members that could not be reached, each with the time of the last attempt. Until an election, the others still
    /// name such a member as the leader.
    unreached: HashMap<u64, Instant>,
    /// True if a hint was followed since the last pause. Two members may point at each other.
    has_followed: bool,
    /// Number of calls since the last pause.
    calls_at_once: usize,
    /// True if the last call went to a known leader.
    is_at_known_leader: bool,
}

impl LeaderSearch {
    /// Begins a search. A call that certainly had no effect, because the member is not the leader, is always made again
    /// at another one. `is_repeatable` is true if it may also be made again after a call with an unknown outcome.
    #[must_use]
    pub fn new(shard: u32, is_repeatable: bool) -> Self {
        Self {
            shard,
            is_repeatable,
            members: 0,
            candidates: Vec::new(),
            turn: 0,
            deadline: None,
            pause: PAUSE_MIN,
            unreached: HashMap::new(),
            has_followed: false,
            calls_at_once: 0,
            is_at_known_leader: false,
        }
    }

    /// Returns the member that the next call goes to. While the leader is unknown, this is one member after another.
    /// Returns `None` if the shard has no members.
    pub fn member(&mut self, members: &[u64], known: &KnownLeaders, now: Instant) -> Option<u64> {
        self.members = members.len();
        self.candidates = known.candidates(members, now);
        self.calls_at_once += 1;
        let leader = known.leader(self.shard).filter(|leader| self.candidates.contains(leader));
        self.is_at_known_leader = leader.is_some();
        leader.or_else(|| self.candidates.get(self.turn % self.candidates.len().max(1)).copied())
    }

    /// Records that a member has responded.
    pub fn succeeded(&self, node: u64, known: &mut KnownLeaders) {
        known.set_responding(node);
        known.set_leader(self.shard, node);
    }

    /// Returns true if the member of a failed call may be silent. It must then be asked for a sign of life, with the
    /// time limit [`PROBE`], and recorded with [`KnownLeaders::set_silent`] if it gives none.
    #[must_use]
    pub fn may_be_silent(failure: CallFailure, elapsed: Duration) -> bool {
        failure.is_unreached() && elapsed >= SLOW
    }

    /// Decides what to do after a call to a member has failed.
    pub fn failed(&mut self, node: u64, failure: CallFailure, known: &mut KnownLeaders, now: Instant) -> Step {
        let is_first_round = self.turn < self.members;
        // The only member of a shard is not called again, because nothing else would take its place.
        let has_others = self.members > 1;
        let is_answer = match failure {
            CallFailure::NotLeader { leader: Some(_) } => false,
            CallFailure::NotLeader { leader: None } | CallFailure::NotSent => !has_others,
            // If no member has the shard, the placement has changed.
            CallFailure::Full | CallFailure::Missing => !(is_first_round && has_others),
            CallFailure::Unknown => !self.is_repeatable,
            CallFailure::Unreached | CallFailure::Unready => !(self.is_repeatable && has_others),
            CallFailure::Final => true,
        };
        if is_answer {
            known.forget_leader(self.shard);
            return Step::Fail;
        }
        let deadline = *self.deadline.get_or_insert(now + PATIENCE);
        let is_unreached = failure.is_unreached();
        let unreached_at = if is_unreached { self.unreached.insert(node, now) } else { self.unreached.remove(&node) };
        self.turn += 1;
        let is_trusted = |leader: &u64| self.unreached.get(leader).is_none_or(|&at| now >= at + SILENCE);
        let hint = match failure {
            CallFailure::NotLeader { leader } => leader.filter(is_trusted),
            _ => None,
        };
        match hint {
            Some(hint) => known.set_leader(self.shard, hint),
            None => known.forget_leader(self.shard),
        }
        // A hint is followed at once, but only one after each pause.
        let is_followed = hint.is_some_and(|hint| hint != node) && !self.has_followed;
        self.has_followed |= is_followed;
        // A pause after a member that is still dead would only delay the call to the next one.
        let is_still_dead = unreached_at.is_some() && is_unreached;
        let is_first_round = self.turn < self.members && !self.is_at_known_leader;
        let has_next = self.candidates.iter().any(|candidate| !self.unreached.contains_key(candidate));
        if is_followed || is_first_round || (is_still_dead && has_next && self.calls_at_once <= self.members) {
            return if now < deadline { Step::CallNow } else { Step::Fail };
        }
        let pause = self.pause;
        if now + pause > deadline {
            return Step::Fail;
        }
        self.has_followed = false;
        self.calls_at_once = 0;
        let is_in_election = now + PATIENCE < deadline + ELECTION;
        self.pause = (pause * 2).min(if is_in_election { PAUSE_IN_ELECTION_MAX } else { PAUSE_MAX });
        Step::CallAfter(pause)
    }
}
