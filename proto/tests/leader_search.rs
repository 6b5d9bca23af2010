//! Searches for the leader of a shard, in generated clusters with a clock of their own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proto::leader_search::{CallFailure, KnownLeaders, LeaderSearch, PROBE, Step};

const SHARD: u32 = 3;
/// Time that a search may take after its first failure.
const PATIENCE: Duration = Duration::from_secs(8);
/// Duration of a call to a member that does not respond. No other call takes so long.
const SILENT_CALL: Duration = Duration::from_secs(2);
const CALL: Duration = Duration::from_millis(1);

/// The behaviour of a member during the faults.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Its process was killed: no connection can be made.
    Dead,
    /// The connection breaks.
    Breaks,
    /// It is starting.
    Starts,
    /// Its process was stopped: calls end by their time limit.
    Silent,
    /// It does not lead, and names any node, or none, as the leader.
    Follows(Option<u64>),
    /// It does not know if the call has its effect.
    Unknown,
    Full,
    Missing,
    /// It responds with an error that no other member can avert.
    Refuses,
}

/// Members of a shard that have faults until a time. From then on one of them leads, and the others name it.
#[derive(Clone, Debug)]
struct Script {
    members: Vec<u64>,
    /// Each member's faults, which take turns of 300 ms.
    faults: Vec<Vec<Fault>>,
    healed: Duration,
    leader: usize,
    /// The leader that the caller knows, and a node that was silent lately.
    known: Option<u64>,
    silent: Option<u64>,
}

/// The calls of a search, and its result.
#[derive(Debug)]
struct Run {
    /// Calls: time, member, and its failure, if any.
    calls: Vec<(Duration, u64, Option<CallFailure>)>,
    ended: Duration,
    has_succeeded: bool,
}

/// Returns scripts with at least `members` members, whose faults end after `healed_ms` at the latest.
fn scripts(
    members: usize,
    fault: impl Strategy<Value = Fault> + Clone + 'static,
    healed_ms: u64,
) -> impl Strategy<Value = Script> {
    (members..=5).prop_flat_map(move |count| {
        let members: Vec<u64> = (0..count).map(|index| 10 + index as u64).collect();
        let faults = vec(vec(fault.clone(), 1..8), count);
        let known = proptest::option::of(8..18_u64);
        let silent = proptest::option::of(8..18_u64);
        (faults, 0..=healed_ms, 0..count, known, silent).prop_map(move |(faults, healed_ms, leader, known, silent)| {
            let healed = Duration::from_millis(healed_ms);
            Script { members: members.clone(), faults, healed, leader, known, silent }
        })
    })
}

/// Faults of members that may lead later.
fn passing() -> impl Strategy<Value = Fault> + Clone {
    let hint = proptest::option::of(8..18_u64);
    prop_oneof![
        Just(Fault::Dead),
        Just(Fault::Breaks),
        Just(Fault::Starts),
        Just(Fault::Silent),
        hint.prop_map(Fault::Follows),
        Just(Fault::Unknown)
    ]
}

fn any_fault() -> impl Strategy<Value = Fault> + Clone {
    prop_oneof![4 => passing(), 1 => Just(Fault::Full), 1 => Just(Fault::Missing), 1 => Just(Fault::Refuses)]
}

impl Script {
    /// Returns the response of a member to a call at a time, and the duration of the call.
    fn response(&self, member: usize, at: Duration) -> (Option<CallFailure>, Duration) {
        if at >= self.healed {
            let follows = CallFailure::NotLeader { leader: Some(self.members[self.leader]) };
            return ((member != self.leader).then_some(follows), CALL);
        }
        let faults = &self.faults[member];
        match faults[(at.as_millis() / 300) as usize % faults.len()] {
            Fault::Dead => (Some(CallFailure::NotSent), CALL),
            Fault::Breaks => (Some(CallFailure::Unreached), CALL),
            Fault::Starts => (Some(CallFailure::Unready), CALL),
            Fault::Silent => (Some(CallFailure::Unreached), SILENT_CALL),
            Fault::Follows(leader) => (Some(CallFailure::NotLeader { leader }), CALL),
            Fault::Unknown => (Some(CallFailure::Unknown), CALL),
            Fault::Full => (Some(CallFailure::Full), CALL),
            Fault::Missing => (Some(CallFailure::Missing), CALL),
            Fault::Refuses => (Some(CallFailure::Final), CALL),
        }
    }

    fn run(&self, is_repeatable: bool) -> Run {
        let start = Instant::now();
        let mut known = KnownLeaders::default();
        self.known.into_iter().for_each(|leader| known.set_leader(SHARD, leader));
        self.silent.into_iter().for_each(|node| known.set_silent(node, start));
        let mut search = LeaderSearch::new(SHARD, is_repeatable);
        let (mut at, mut calls) = (Duration::ZERO, Vec::new());
        loop {
            let node = search.member(&self.members, &known, start + at).unwrap();
            let member = self.members.iter().position(|&member| member == node).expect("only members are called");
            let (failure, elapsed) = self.response(member, at);
            calls.push((at, node, failure));
            at += elapsed;
            let Some(failure) = failure else {
                search.succeeded(node, &mut known);
                assert_eq!(known.leader(SHARD), Some(node));
                return Run { calls, ended: at, has_succeeded: true };
            };
            if LeaderSearch::may_be_silent(failure, elapsed) {
                at += PROBE;
                known.set_silent(node, start + at);
            }
            match search.failed(node, failure, &mut known, start + at) {
                Step::CallNow => {}
                Step::CallAfter(pause) => at += pause,
                Step::Fail => return Run { calls, ended: at, has_succeeded: false },
            }
        }
    }
}

#[test]
fn a_hint_to_a_silent_leader_is_followed_after_its_silence() {
    let members = [10, 11, 12];
    let (start, mut known) = (Instant::now(), KnownLeaders::default());
    let mut search = LeaderSearch::new(SHARD, true);
    assert_eq!(search.member(&members, &known, start), Some(10));
    known.set_silent(10, start);
    search.failed(10, CallFailure::Unreached, &mut known, start);
    let hint = CallFailure::NotLeader { leader: Some(10) };
    for (after_ms, node, followed) in [(100, 11, None), (2_999, 12, None), (3_000, 11, Some(10))] {
        let now = start + Duration::from_millis(after_ms);
        search.member(&members, &known, now);
        let step = search.failed(node, hint, &mut known, now);
        assert_eq!(known.leader(SHARD), followed, "after {after_ms} ms");
        assert!(followed.is_none() || step == Step::CallNow, "{step:?}");
    }
    assert_eq!(search.member(&members, &known, start + Duration::from_secs(3)), Some(10));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// After the faults, the search takes at most a silent call with its probe, and a pause before a call to each
    /// member. In addition, the new leader is left alone for a while if it was silent.
    #[test]
    fn a_leader_is_found_soon_after_the_faults(script in scripts(2, passing(), 500)) {
        let run = script.run(true);
        let pauses = Duration::from_millis(500) * script.members.len() as u32;
        let late = Duration::from_secs(3) + SILENT_CALL + PROBE + pauses;
        prop_assert!(run.has_succeeded && run.ended <= script.healed + late, "{run:?}");
    }

    #[test]
    fn every_search_ends_in_time_and_after_few_calls(script in scripts(1, any_fault(), 20_000), is_repeatable: bool) {
        let run = script.run(is_repeatable);
        let first_failure = run.calls.iter().find(|(_, _, failure)| failure.is_some());
        let begun = first_failure.map_or(Duration::ZERO, |(at, ..)| *at + SILENT_CALL + PROBE);
        prop_assert!(run.ended <= begun + PATIENCE + SILENT_CALL + PROBE, "{run:?}");
        // Pauses of 20, 40 and 80 ms, of 150 ms for two seconds, and of 500 ms for six seconds.
        prop_assert!(run.calls.len() <= (3 + 14 + 12 + 1) * (script.members.len() + 2), "{run:?}");
    }

    #[test]
    fn no_call_follows_an_unknown_outcome_unless_it_may_be_repeated(script in scripts(1, any_fault(), 20_000)) {
        let run = script.run(false);
        let unknown = run.calls.iter().position(|(_, _, failure)| failure.is_some_and(CallFailure::is_unknown));
        prop_assert!(unknown.is_none_or(|position| position + 1 == run.calls.len() && !run.has_succeeded), "{run:?}");
    }

    /// If no fault ends the search, a call fails only by its time, or because the only member gives no hint.
    #[test]
    fn a_call_that_may_be_repeated_fails_early_only_for_a_lasting_reason(script in scripts(1, any_fault(), 20_000)) {
        let run = script.run(true);
        let Some((_, _, Some(last))) = run.calls.last().filter(|_| !run.has_succeeded) else { return Ok(()) };
        let is_only = script.members.len() == 1;
        let is_lasting = match last {
            CallFailure::Final => true,
            CallFailure::Full | CallFailure::Missing => is_only || run.calls.len() > script.members.len(),
            CallFailure::NotLeader { leader: None }
            | CallFailure::NotSent
            | CallFailure::Unreached
            | CallFailure::Unready => is_only,
            CallFailure::NotLeader { leader: Some(_) } | CallFailure::Unknown => false,
        };
        prop_assert!(is_lasting || run.ended + Duration::from_millis(500) >= PATIENCE, "{run:?}");
    }
}
