//! Decision whether a push that shards refused is sent again.

use std::slice::Iter;
use std::time::{Duration, Instant};

use crate::ingest::append::{Acknowledged, Failures};

/// Maximum number of times that one push is placed again because the node has another placement. Placements change far
/// less often than pushes are sent.
const REPLACEMENTS_MAX: u32 = 3;

/// Pauses before the shards that refused their parts of a push get these parts again. Most refusals are short: a budget
/// is exhausted, or a shard changes its leader.
pub(super) const PAUSES: &[Duration] =
    &[Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];

/// Time after which no part of a push that was refused for a moment is sent again. OpenTelemetry SDKs wait ten seconds
/// for a response.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The stacks whose definitions are part of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Definitions {
    /// Only stacks that the shard might not have yet.
    OfUnknownStacks,
    OfAllStacks,
}

/// The retries of one push.
#[derive(Debug)]
pub(super) struct Retries {
    /// Definitions that are sent next time.
    pub(super) definitions: Definitions,
    pauses: Iter<'static, Duration>,
    began: Instant,
    replacements_left: u32,
    /// True if a shard has stored samples, or may have. These must not be placed again: they might get another shard.
    is_pinned: bool,
}

/// The next action after shards have refused their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The shards get their parts again.
    SendAgain,
    /// The whole push is placed again, with the node's placement.
    PlaceAgain,
    /// The push fails.
    Fail,
    /// The push fails, because shards are missing definitions although all were sent.
    Inconsistent,
}

impl Retries {
    pub(super) fn new(pauses: &'static [Duration]) -> Self {
        Self {
            definitions: Definitions::OfUnknownStacks,
            pauses: pauses.iter(),
            began: Instant::now(),
            replacements_left: REPLACEMENTS_MAX,
            is_pinned: false,
        }
    }

    /// Decides what to do next. If the refusals are temporary, waits first.
    pub(super) async fn next(&mut self, failures: &Failures, acknowledged: &Acknowledged) -> Next {
        let defined_all = self.definitions == Definitions::OfAllStacks;
        if failures.has_dangling() {
            self.definitions = Definitions::OfAllStacks;
        }
        self.is_pinned |= failures.may_be_stored() || !acknowledged.shards.is_empty();
        if failures.are_dangling() {
            return if defined_all { Next::Inconsistent } else { Next::SendAgain };
        }
        if failures.are_misplaced() {
            if self.is_pinned || self.replacements_left == 0 {
                return Next::Fail;
            }
            self.replacements_left -= 1;
            return Next::PlaceAgain;
        }
        let is_in_time = failures.are_temporary() && self.began.elapsed() < TIME_MAX;
        let Some(pause) = self.pauses.next().filter(|_| is_in_time) else { return Next::Fail };
        tokio::time::sleep(*pause).await;
        Next::SendAgain
    }
}
