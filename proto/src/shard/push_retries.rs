//! Decision whether a push that shards refused is sent again.
//!
//! The decision neither waits nor reads a clock, so routers and the simulation of a cluster run the same code.

use std::slice::Iter;
use std::time::{Duration, Instant};

/// Maximum number of times that one push is placed again because the node has another placement. Placements change far
/// less often than pushes are sent.
const REPLACEMENTS_MAX: u32 = 3;

/// Pauses before the shards that refused their parts of a push get these parts again. Most refusals are short: a budget
/// is exhausted, or a shard changes its leader.
pub const PAUSES: &[Duration] = &[Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];

/// Time after which no part of a push that was refused for a moment is sent again. OpenTelemetry SDKs wait ten seconds
/// for a response.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The stacks whose definitions are part of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definitions {
    /// Only stacks that the shard might not have yet.
    OfUnknownStacks,
    /// All stacks.
    OfAllStacks,
}

/// The reason why one shard did not acknowledge its part of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartFailure {
    /// The node has another placement. Nothing was stored.
    Misplaced,
    /// The shard is missing definitions. Nothing was stored.
    Dangling,
    /// The shard may accept the part in a moment, and may have stored it.
    Temporary,
    /// Another attempt would fail, too. The shard may have stored the part.
    Lasting,
}

/// The retries of one push.
#[derive(Debug)]
pub struct PushRetries {
    definitions: Definitions,
    pauses: Iter<'static, Duration>,
    began: Instant,
    replacements_left: u32,
    /// True if a shard has stored samples, or may have. These must not be placed again: they might get another shard.
    is_pinned: bool,
}

/// The next step after shards have refused their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    /// After this pause, the shards get their parts again.
    SendAgain(Duration),
    /// The whole push is placed again, with the node's placement.
    PlaceAgain,
    /// The push fails.
    Fail,
    /// The push fails, because shards are missing definitions although all were sent.
    Inconsistent,
}

impl PushRetries {
    /// Begins the retries of a push that arrives at `now`. `pauses` is [`PAUSES`], except in tests.
    #[must_use]
    pub fn new(pauses: &'static [Duration], now: Instant) -> Self {
        Self {
            definitions: Definitions::OfUnknownStacks,
            pauses: pauses.iter(),
            began: now,
            replacements_left: REPLACEMENTS_MAX,
            is_pinned: false,
        }
    }

    /// Definitions that are sent next time.
    #[must_use]
    pub fn definitions(&self) -> Definitions {
        self.definitions
    }

    /// Decides what to do after an attempt. `failures` has the failures of all parts that were not acknowledged, and at
    /// least one; `is_acknowledged` is true if any shard has acknowledged a part, now or earlier.
    pub fn next(&mut self, failures: &[PartFailure], is_acknowledged: bool, now: Instant) -> NextAttempt {
        let defined_all = self.definitions == Definitions::OfAllStacks;
        if failures.contains(&PartFailure::Dangling) {
            self.definitions = Definitions::OfAllStacks;
        }
        let may_be_stored = |failure: &PartFailure| matches!(failure, PartFailure::Temporary | PartFailure::Lasting);
        self.is_pinned |= is_acknowledged || failures.iter().any(may_be_stored);
        if failures.iter().all(|failure| *failure == PartFailure::Dangling) {
            return if defined_all { NextAttempt::Inconsistent } else { NextAttempt::SendAgain(Duration::ZERO) };
        }
        if failures.contains(&PartFailure::Misplaced) {
            if self.is_pinned || self.replacements_left == 0 {
                return NextAttempt::Fail;
            }
            self.replacements_left -= 1;
            return NextAttempt::PlaceAgain;
        }
        let is_in_time = now.saturating_duration_since(self.began) < TIME_MAX;
        let is_temporary = is_in_time && !failures.contains(&PartFailure::Lasting);
        let pause = self.pauses.next().filter(|_| is_temporary);
        pause.map_or(NextAttempt::Fail, |&pause| NextAttempt::SendAgain(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::PartFailure::{Dangling, Lasting, Misplaced, Temporary};
    use super::*;

    /// Runs the retries of a push whose attempts fail like this, with a clock that only the pauses move.
    fn steps(attempts: &[&[PartFailure]], is_acknowledged: bool) -> Vec<NextAttempt> {
        let mut now = Instant::now();
        let mut retries = PushRetries::new(PAUSES, now);
        let mut next = |failures: &&[PartFailure]| {
            let step = retries.next(failures, is_acknowledged, now);
            if let NextAttempt::SendAgain(pause) = step {
                now += pause;
            }
            step
        };
        attempts.iter().map(&mut next).collect()
    }

    #[test]
    fn a_push_is_placed_again_only_if_no_shard_can_have_stored_anything() {
        assert_eq!(steps(&[&[Misplaced]], false), [NextAttempt::PlaceAgain]);
        assert_eq!(steps(&[&[Misplaced, Dangling]], false), [NextAttempt::PlaceAgain]);
        assert_eq!(steps(&[&[Misplaced]], true), [NextAttempt::Fail]);
        for may_be_stored in [Temporary, Lasting] {
            assert_eq!(steps(&[&[Misplaced, may_be_stored]], false), [NextAttempt::Fail]);
        }
        // A part that may have been stored earlier still may be.
        let later = steps(&[&[Temporary], &[Misplaced]], false);
        assert_eq!(later, [NextAttempt::SendAgain(PAUSES[0]), NextAttempt::Fail]);
    }

    #[test]
    fn the_number_of_placements_and_of_pauses_is_bounded() {
        let mut placed: Vec<NextAttempt> = vec![NextAttempt::PlaceAgain; 3];
        placed.push(NextAttempt::Fail);
        assert_eq!(steps(&[[Misplaced].as_slice(); 4], false), placed);
        let mut sent: Vec<NextAttempt> = PAUSES.iter().map(|&pause| NextAttempt::SendAgain(pause)).collect();
        sent.push(NextAttempt::Fail);
        assert_eq!(steps(&[[Temporary].as_slice(); 4], false), sent);
        assert_eq!(steps(&[&[Temporary, Lasting]], false), [NextAttempt::Fail]);
    }

    #[test]
    fn a_push_whose_time_is_over_is_not_sent_again() {
        let began = Instant::now();
        let mut retries = PushRetries::new(PAUSES, began);
        assert_eq!(retries.next(&[Temporary], false, began + TIME_MAX), NextAttempt::Fail);
    }

    #[test]
    fn missing_definitions_are_sent_once_and_then_are_a_fault() {
        let sent = NextAttempt::SendAgain(Duration::ZERO);
        assert_eq!(steps(&[&[Dangling, Dangling], &[Dangling]], true), [sent, NextAttempt::Inconsistent]);
        let mut retries = PushRetries::new(PAUSES, Instant::now());
        assert_eq!(retries.definitions(), Definitions::OfUnknownStacks);
        assert_eq!(retries.next(&[Dangling, Temporary], false, Instant::now()), NextAttempt::SendAgain(PAUSES[0]));
        assert_eq!(retries.definitions(), Definitions::OfAllStacks);
    }
}
