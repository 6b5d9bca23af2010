//! The adapter from openraft's log storage to one shard's log in the database.
//!
//! Nothing here touches the database on a thread of the async runtime: the thread of the log writes, and blocking
//! threads read.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Weak};

use futures::Stream;
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;

use crate::consensus::log::database::LogDatabase;
use crate::consensus::log::tail::Tail;
use crate::consensus::log::write_thread::{SharedTail, Write};
use crate::consensus::types::{LogEntry, LogId, Types, Vote};
use crate::error::{RecordError, ReplicaError};

/// Total size of entries, in bytes, at which one read stops if entries are read in order to apply them.
const APPLY_BYTES: usize = 4 << 20;
/// Total size of entries, in bytes, at which one read stops if entries are read in order to send them to a follower.
const SEND_BYTES: usize = 1 << 20;

/// The log of one shard. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    shard: u32,
    log: Arc<LogDatabase>,
    tail: SharedTail,
    /// Marker that a clone exists. It is dropped last.
    open: Arc<()>,
}

impl LogStore {
    pub(crate) fn new(shard: u32, log: Arc<LogDatabase>) -> Self {
        let tail = Arc::new(Mutex::new(Tail::new(log.tail_bytes().clone())));
        Self { shard, log, tail, open: Arc::default() }
    }

    /// Returns a weak reference that can be upgraded until all clones are dropped. Until then, a task of openraft may
    /// still read or write the shard's log.
    pub(crate) fn while_open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    /// Reads the database on a blocking thread.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&LogDatabase, u32) -> Result<T, ReplicaError> + Send + 'static,
    ) -> io::Result<T> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = read(&store.log, store.shard);
            done.map_err(|error| store.log.failure().io_error(error))
        });
        done.await.map_err(io::Error::other)?
    }

    /// Returns the entries of `[start, end)` that the database has.
    async fn read_entries(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        self.read(move |log, shard| log.read(shard, start, end, bytes_max)).await
    }

    async fn write(&self, write: Write) -> io::Result<()> {
        self.log.write(write).await.map_err(io::Error::other)
    }

    /// Returns an error if there is a gap between two entries.
    fn check_gaps(&self, entries: &[LogEntry]) -> io::Result<()> {
        let is_gap = |pair: &&[LogEntry]| pair[0].log_id.index + 1 != pair[1].log_id.index;
        match entries.windows(2).find(is_gap) {
            Some(pair) => Err(self.missing(pair[0].log_id.index + 1)),
            None => Ok(()),
        }
    }

    fn missing(&self, index: u64) -> io::Error {
        self.log.failure().io_error(RecordError::Missing { shard: self.shard, index })
    }

    /// Returns the next entries to apply, from `start` on.
    async fn to_apply(&self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        let kept = self.tail.lock().read_to_apply(start, end, APPLY_BYTES);
        let entries = if kept.is_empty() { self.read_entries(start, end, APPLY_BYTES).await? } else { kept };
        self.check_gaps(&entries)?;
        match entries.first() {
            Some(first) if first.log_id.index != start => Err(self.missing(start)),
            // The log may end before the range does.
            _ => Ok(entries),
        }
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
        let Range { start, end } = half_open(&range);
        // First the tail: the entries before its first entry are in the database by now.
        let kept = self.tail.lock().read(start, end, usize::MAX);
        let end = kept.first().map_or(end, |first| first.log_id.index);
        let mut entries = if start < end { self.read_entries(start, end, usize::MAX).await? } else { Vec::new() };
        entries.extend(kept);
        self.check_gaps(&entries)?;
        Ok(entries)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let kept = self.tail.lock().read_to_send(start, end, SEND_BYTES);
        let entries = if kept.is_empty() { self.read_entries(start, end, SEND_BYTES).await? } else { kept };
        self.check_gaps(&entries)?;
        if entries.first().is_some_and(|first| first.log_id.index == start) {
            return Ok(entries);
        }
        let purged = self.read(|log, shard| log.last_purged(shard)).await?;
        // The entries may have been purged a moment ago. Openraft then finds that it needs a snapshot.
        if purged.is_some_and(|last| last.index >= start) { Ok(Vec::new()) } else { Err(self.missing(start)) }
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.read(|log, shard| log.vote(shard)).await
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
                    ready = match store.to_apply(next, end).await {
                        Ok(entries) => entries.into_iter(),
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
        let last_purged_log_id = self.read(|log, shard| log.last_purged(shard)).await?;
        let kept = self.tail.lock().last().map(|entry| entry.log_id);
        let last = match kept {
            Some(last) => Some(last),
            None => self.read(|log, shard| log.last(shard)).await?.map(|entry| entry.log_id),
        };
        Ok(LogState { last_purged_log_id, last_log_id: last.or(last_purged_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write(Write::Vote { shard: self.shard, vote: *vote }).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        // The entries can be read from now on. The lock is held only for a moment.
        entries.iter().for_each({
            let mut tail = self.tail.lock();
            move |entry| tail.push(entry.clone())
        });
        let requested = self.log.append(self.shard, entries, Arc::clone(&self.tail), callback).await;
        requested.map_err(|error| self.log.failure().io_error(error))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        self.tail.lock().truncate(from);
        self.write(Write::Truncate { shard: self.shard, from, tail: Arc::clone(&self.tail) }).await
    }

    async fn purge(&mut self, last: LogId) -> io::Result<()> {
        self.tail.lock().purge(last.index + 1);
        self.write(Write::Purge { shard: self.shard, last }).await
    }
}
