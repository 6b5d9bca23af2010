//! The newest entries of a log, kept in memory so that applying them does not read them from disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use openraft::EntryPayload;

use crate::consensus::types::LogEntry;

/// Largest total size of the kept entries of all shards, in bytes.
const UNAPPLIED_BYTES_MAX: usize = 64 << 20;

/// Total size of the kept entries of all shards, in bytes. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct UnappliedBytes(Arc<AtomicUsize>);

/// The newest entries of one shard, without gaps, until they are applied.
#[derive(Debug)]
pub(super) struct Unapplied {
    entries: VecDeque<LogEntry>,
    of_all: UnappliedBytes,
}

impl Unapplied {
    pub(super) fn new(of_all: UnappliedBytes) -> Self {
        Self { entries: VecDeque::new(), of_all }
    }

    /// Adds an entry. If the entries of all shards then exceed the byte limit, drops those of this shard. It drops all
    /// of them, because the others are of no use without the oldest.
    pub(super) fn push(&mut self, entry: LogEntry) {
        let bytes = bytes_of(&entry);
        self.entries.push_back(entry);
        if self.of_all.0.fetch_add(bytes, Ordering::Relaxed) + bytes > UNAPPLIED_BYTES_MAX {
            self.clear();
        }
    }

    /// Drops all entries.
    pub(super) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    /// Removes and returns the entries of `[start, end)`; returns none if the entry at `start` is not kept. Entries
    /// before `start` are dropped.
    pub(super) fn take(&mut self, start: u64, end: u64) -> Vec<LogEntry> {
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
        self.of_all.0.fetch_sub(bytes_of(&entry), Ordering::Relaxed);
        Some(entry)
    }
}

impl Drop for Unapplied {
    fn drop(&mut self) {
        self.clear();
    }
}

fn bytes_of(entry: &LogEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(payload) => payload.bytes().len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use openraft::entry::RaftEntry as _;
    use openraft::vote::RaftLeaderId as _;

    use super::*;
    use crate::consensus::payload::Payload;
    use crate::consensus::types::{LeaderId, LogId};

    fn entry(index: u64, bytes: usize) -> LogEntry {
        let log_id = LogId::new(LeaderId::new(1, 1), index);
        LogEntry::new(log_id, EntryPayload::Normal(Payload::read(Bytes::from(vec![0; bytes]))))
    }

    fn indices(entries: &[LogEntry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.log_id.index).collect()
    }

    #[test]
    fn taken_entries_begin_at_the_requested_index_or_none_are_taken() {
        let bytes = UnappliedBytes::default();
        let mut unapplied = Unapplied::new(bytes.clone());
        (5..10).for_each(|index| unapplied.push(entry(index, 1)));
        assert!(unapplied.take(4, 8).is_empty(), "4 must be read from the log");
        assert_eq!(indices(&unapplied.take(5, 7)), [5, 6]);
        assert_eq!(indices(&unapplied.take(8, 100)), [8, 9], "7 was read from the log meanwhile");
        assert!(unapplied.take(10, 11).is_empty());
        assert_eq!(bytes.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn unapplied_entries_of_all_shards_stay_within_the_byte_limit() {
        let bytes = UnappliedBytes::default();
        let [mut one, mut two] = [(); 2].map(|()| Unapplied::new(bytes.clone()));
        for index in 0..100 {
            one.push(entry(index, 1 << 20));
            assert!(bytes.0.load(Ordering::Relaxed) <= UNAPPLIED_BYTES_MAX);
            two.push(entry(index, 1 << 20));
            assert!(bytes.0.load(Ordering::Relaxed) <= UNAPPLIED_BYTES_MAX);
        }
        assert_eq!(indices(&two.take(99, 100)), [99]);
        drop(one);
        two.clear();
        assert_eq!(bytes.0.load(Ordering::Relaxed), 0);
    }
}
