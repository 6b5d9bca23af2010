//! The time as of which a member has everything that was acknowledged.
//!
//! # Invariant
//! Everything that the group acknowledged before [`Freshness::complete_since`] is applied on this member.
//!
//! A leader notes the time of the last message to which a majority has responded: it was the leader then, so no other
//! leader had acknowledged anything that it does not know. A follower that accepts a message of its leader has not
//! voted for another leader. If both vote and there are up to three voters, no other leader was elected before that
//! message was made.
//!
//! A new leader does not know which entries of earlier leaders were acknowledged. Its committed index therefore counts
//! only once it is that of an entry of its own.

use parking_lot::Mutex;
use tokio::time::Instant;

/// Times that a member knows about its state.
#[derive(Debug, Default)]
pub(super) struct Freshness(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    complete: Option<Instant>,
    /// A later time, and the index of the last entry that was committed then.
    next: Option<(Instant, u64)>,
    /// The newest such time and index. The times between both are dropped.
    newest: Option<(Instant, u64)>,
}

impl Freshness {
    /// Notes that nothing after the entry at index `committed` was acknowledged before `time`.
    pub(super) fn note(&self, time: Instant, committed: u64) {
        let notes = &mut *self.0.lock();
        // Messages may arrive in another order.
        if notes.newest.is_none_or(|(newest, _)| newest < time) {
            notes.newest = Some((time, committed));
        }
        notes.next = notes.next.or(notes.newest);
    }

    /// Returns the time as of which a state that has applied `applied` is complete; `None` if this is not known since
    /// the start.
    pub(super) fn complete_since(&self, applied: u64) -> Option<Instant> {
        let notes = &mut *self.0.lock();
        for (time, committed) in [notes.next, notes.newest].into_iter().flatten() {
            if committed <= applied {
                notes.complete = notes.complete.max(Some(time));
            }
        }
        if notes.next.is_some_and(|(_, committed)| committed <= applied) {
            notes.next = notes.newest.filter(|(_, committed)| *committed > applied);
        }
        notes.complete
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // The notes of a member, with the applied index after each. The oracle keeps all notes.
        #[test]
        fn a_state_is_complete_as_of_a_noted_time_whose_entries_it_has(
            steps in proptest::collection::vec((0_u64..50, 0_u64..4, 0_u64..4), 1..40),
        ) {
            let start = Instant::now();
            let freshness = Freshness::default();
            let (mut committed, mut applied) = (0, 0);
            let mut notes = Vec::new();
            for (at, more_committed, more_applied) in steps {
                committed += more_committed;
                applied = (applied + more_applied).min(committed);
                let time = start + Duration::from_secs(at);
                freshness.note(time, committed);
                notes.push((time, committed));
                let complete = freshness.complete_since(applied);
                let best = notes.iter().filter(|(_, committed)| *committed <= applied).map(|(time, _)| *time).max();
                prop_assert!(complete <= best, "{complete:?} {best:?}");
                // A member that has applied everything is as fresh as its newest note.
                if applied == committed {
                    prop_assert_eq!(complete, best);
                }
            }
        }
    }
}
