//! One shard's log, as openraft wants it.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::Stream;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt as _;
use openraft::{EntryPayload, OptionalSend};
use parking_lot::Mutex;

use crate::consensus::log_database::LogDatabase;
use crate::consensus::record::RecordError;
use crate::consensus::types::{LogEntry, LogId, Types, Vote};

/// Entries that are read at one time for applying.
const READ_BYTES_MAX: usize = 4 << 20;

/// Bytes of entries that are kept for applying, so that they need not be read back.
const UNAPPLIED_BYTES_MAX: usize = 64 << 20;

/// Cheap to clone; all clones are the same log.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    shard: u32,
    log: Arc<LogDatabase>,
    unapplied: Arc<Mutex<Unapplied>>,
}

/// The newest entries, without gaps, until they are applied.
#[derive(Debug, Default)]
struct Unapplied {
    entries: VecDeque<LogEntry>,
    bytes: usize,
}

impl Unapplied {
    /// Behind the last; where there is no room, all are forgotten: the oldest are wanted first.
    fn push(&mut self, entry: LogEntry) {
        self.bytes += bytes_of(&entry);
        self.entries.push_back(entry);
        if self.bytes > UNAPPLIED_BYTES_MAX {
            *self = Self::default();
        }
    }

    /// Takes the entries of `[start, end)`, if the first of them is here; those before go too.
    fn take(&mut self, start: u64, end: u64) -> Vec<LogEntry> {
        while self.first_index().is_some_and(|index| index < start) {
            self.pop();
        }
        let mut taken = Vec::new();
        if self.first_index() == Some(start) {
            while self.first_index().is_some_and(|index| index < end) {
                taken.extend(self.pop());
            }
        }
        taken
    }

    fn first_index(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    fn pop(&mut self) -> Option<LogEntry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= bytes_of(&entry);
        Some(entry)
    }
}

fn bytes_of(entry: &LogEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(payload) => payload.bytes().len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

impl LogStore {
    pub(crate) fn new(shard: u32, log: Arc<LogDatabase>) -> Self {
        Self { shard, log, unapplied: Arc::default() }
    }

    fn read(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        self.log.read(self.shard, start, end, bytes_max).map_err(|error| self.log.failure().io_error(error))
    }
}

/// As `[start, end)`.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<LogEntry>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        self.read(start, end, usize::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.log.vote(self.shard).map_err(|error| self.log.failure().io_error(error))
    }

    // After a restart the range is all that was not flushed: it must not be in memory at one time.
    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        let store = self.clone();
        futures::stream::unfold((Vec::new().into_iter(), start), move |(mut ready, next)| {
            let store = store.clone();
            async move {
                if ready.len() == 0 && next < end {
                    let at_hand = store.unapplied.lock().take(next, end);
                    let read = if at_hand.is_empty() { store.read(next, end, READ_BYTES_MAX) } else { Ok(at_hand) };
                    ready = match read {
                        // The log may end before the range does.
                        Ok(entries) if entries.first().is_none_or(|entry| entry.log_id.index == next) => {
                            entries.into_iter()
                        }
                        Ok(_) => {
                            let missing = RecordError::Missing { shard: store.shard, index: next };
                            return Some((Err(store.log.failure().io_error(missing)), (ready, end)));
                        }
                        Err(error) => return Some((Err(error), (ready, end))),
                    };
                }
                let entry = ready.next()?;
                let next = entry.log_id.index + 1;
                Some((Ok(entry), (ready, next)))
            }
        })
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let failed = |error| self.log.failure().io_error(error);
        let last_purged_log_id = self.log.cut_off(self.shard).map_err(failed)?;
        let last = self.log.last(self.shard).map_err(failed)?.map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id, last_log_id: last.or(last_purged_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let failed = |error| self.log.failure().io_error(error);
        self.log.write_vote(self.shard, vote).map_err(failed)?;
        // The same queue as appends: votes and entries are synced in the order in which they were written.
        let (sender, receiver) = Types::oneshot();
        self.log.sync(IOFlushed::signal(sender), 0).map_err(failed)?;
        receiver.await.map_err(io::Error::other)?
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let failed = |error| self.log.failure().io_error(error);
        let entries: Vec<_> = entries.into_iter().collect();
        self.log.append(self.shard, &entries).map_err(failed)?;
        let count = entries.len();
        // They are there when openraft asks for them, which is after the sync.
        entries.into_iter().for_each({
            let mut unapplied = self.unapplied.lock();
            move |entry| unapplied.push(entry)
        });
        self.log.sync(callback, count).map_err(failed)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        *self.unapplied.lock() = Unapplied::default();
        self.log.truncate(self.shard, from).map_err(|error| self.log.failure().io_error(error))
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.log.cut(self.shard, &upto).map_err(|error| self.log.failure().io_error(error))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use openraft::entry::RaftEntry as _;
    use openraft::vote::RaftLeaderId as _;

    use super::*;
    use crate::consensus::types::Payload;

    fn entry(index: u64, bytes: usize) -> LogEntry {
        let log_id = LogId::new(openraft::alias::LeaderIdOf::<Types>::new(1, 1), index);
        LogEntry::new(log_id, EntryPayload::Normal(Payload::read(Bytes::from(vec![0; bytes]))))
    }

    fn indices(entries: &[LogEntry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.log_id.index).collect()
    }

    #[test]
    fn what_is_taken_begins_where_it_was_asked_for_or_is_nothing() {
        let mut unapplied = Unapplied::default();
        (5..10).for_each(|index| unapplied.push(entry(index, 1)));
        assert!(unapplied.take(4, 8).is_empty(), "4 must be read from the log");
        assert_eq!(indices(&unapplied.take(5, 7)), [5, 6]);
        assert_eq!(indices(&unapplied.take(8, 100)), [8, 9], "7 was read from the log meanwhile");
        assert!(unapplied.take(10, 11).is_empty());
        assert_eq!(unapplied.bytes, 0);
    }

    #[test]
    fn what_nobody_applies_is_not_kept_for_ever() {
        let mut unapplied = Unapplied::default();
        for index in 0..100 {
            unapplied.push(entry(index, 1 << 20));
            assert!(unapplied.bytes <= UNAPPLIED_BYTES_MAX);
        }
        assert_eq!(indices(&unapplied.take(99, 100)), [99]);
    }
}
