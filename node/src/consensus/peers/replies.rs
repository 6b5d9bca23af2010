//! Times of the replies that were sent to one peer.
//!
//! A request names a reply that its sender had received when it made the request. The request was therefore made after
//! the time of this reply. Both times are of the receiver's monotonic clock, so no clocks are compared, and neither a
//! slow network nor a paused receiver makes a request look newer than it is.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Largest number of replies that are remembered. A peer names a reply that it received two heartbeats ago.
const REMEMBERED_MAX: usize = 8192;

/// Numbers and times of the last replies of one stream, in the order of the times.
#[derive(Debug, Default)]
pub(super) struct SentReplies(Mutex<VecDeque<(u64, Instant)>>);

impl SentReplies {
    /// Remembers a reply that is sent after `now`.
    pub(super) fn add(&self, number: u64, now: Instant) {
        let replies = &mut *self.0.lock();
        if replies.len() >= REMEMBERED_MAX {
            replies.pop_front();
        }
        replies.push_back((number, now));
    }

    /// Returns a time before the reply with this number was sent; `None` if it is not known. The peer names no older
    /// reply any more, apart from requests that have waited.
    pub(super) fn time_of(&self, number: u64) -> Option<Instant> {
        self.0.lock().iter().rev().find(|(known, _)| *known == number).map(|&(_, time)| time)
    }
}
