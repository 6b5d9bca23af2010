//! The adapter from openraft's log storage to one shard's log in the database.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Weak};

use futures::Stream;
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt as _;
use parking_lot::Mutex;

use crate::consensus::log::database::LogDatabase;
use crate::consensus::log::unapplied::Unapplied;
use crate::consensus::types::{LogEntry, LogId, Types, Vote};
use crate::error::RecordError;

/// Total size of entries, in bytes, at which one read stops if entries are read in order to apply them.
const READ_BYTES_MAX: usize = 4 << 20;

/// The log of one shard. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    shard: u32,
    log: Arc<LogDatabase>,
    unapplied: Arc<Mutex<Unapplied>>,
    /// Marker that a clone exists. It is dropped last.
    open: Arc<()>,
}

impl LogStore {
    pub(crate) fn new(shard: u32, log: Arc<LogDatabase>) -> Self {
        let unapplied = Arc::new(Mutex::new(Unapplied::new(log.unapplied_bytes().clone())));
        Self { shard, log, unapplied, open: Arc::default() }
    }

    /// Returns a weak reference that can be upgraded until all clones are dropped. Until then, a task of openraft may
    /// still read or write the shard's log.
    pub(crate) fn while_open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    fn read(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        self.log.read(self.shard, start, end, bytes_max).map_err(|error| self.log.failure().io_error(error))
    }
}

/// Converts a range to `[start, end)`.
fn half_open(range: &impl RangeBounds<u64>) -> Range<u64> {
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
    start..end
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<LogEntry>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let range = half_open(&range);
        self.read(range.start, range.end, usize::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.log.vote(self.shard).map_err(|error| self.log.failure().io_error(error))
    }

    // After a restart the range holds all entries since the last flush, which must not be in memory at one time.
    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let Range { start, end } = half_open(&range);
        let store = self.clone();
        futures::stream::unfold((Vec::new().into_iter(), start), move |(mut ready, next)| {
            let store = store.clone();
            async move {
                if ready.len() == 0 && next < end {
                    let kept = store.unapplied.lock().take(next, end);
                    let read = if kept.is_empty() { store.read(next, end, READ_BYTES_MAX) } else { Ok(kept) };
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
        let last_purged_log_id = self.log.last_purged(self.shard).map_err(failed)?;
        let last = self.log.last(self.shard).map_err(failed)?.map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id, last_log_id: last.or(last_purged_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let failed = |error| self.log.failure().io_error(error);
        self.log.write_vote(self.shard, vote).map_err(failed)?;
        // Votes and entries share a queue, so they are synced in the order of their writes.
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
        // Openraft reads entries to apply them only after their sync, so they are in memory by then.
        entries.into_iter().for_each({
            let mut unapplied = self.unapplied.lock();
            move |entry| unapplied.push(entry)
        });
        self.log.sync(callback, count).map_err(failed)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        self.unapplied.lock().clear();
        self.log.truncate(self.shard, from).map_err(|error| self.log.failure().io_error(error))
    }

    async fn purge(&mut self, last: LogId) -> io::Result<()> {
        self.log.purge(self.shard, &last).map_err(|error| self.log.failure().io_error(error))
    }
}
