//! The newest entries of a log, kept in memory, so that applying them and sending them to followers does not read them
//! from disk.
//!
//! Invariant: an entry that is not in the database yet is kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use openraft::EntryPayload;

use crate::consensus::types::LogEntry;

/// Largest total size of the kept entries of all shards, in bytes, without the entries that are not written yet.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Size of the applied entries of one shard that are kept for its followers, in bytes. A follower that has fallen
/// farther behind is sent entries from the database.
const APPLIED_BYTES_MAX: usize = 1 << 20;

/// Total size of the kept entries of all shards, in bytes. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct TailBytes(Arc<AtomicUsize>);

/// The newest entries of one shard, without gaps.
#[derive(Debug)]
pub(super) struct Tail {
    entries: VecDeque<LogEntry>,
    /// Size of the entries, in bytes.
    bytes: usize,
    of_all: TailBytes,
    /// Index after the last entry that is in the database.
    written_end: u64,
    /// Index after the last entry that was read in order to apply it.
    applied_end: u64,
    /// True if entries were read in order to send them to a follower.
    has_followers: bool,
}

impl Tail {
    pub(super) fn new(of_all: TailBytes) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, of_all, written_end: 0, applied_end: 0, has_followers: false }
    }

    /// Adds an entry that is about to be written.
    pub(super) fn push(&mut self, entry: LogEntry) {
        let bytes = bytes_of(&entry);
        self.bytes += bytes;
        self.of_all.0.fetch_add(bytes, Ordering::Relaxed);
        self.written_end = self.written_end.min(entry.log_id.index);
        self.entries.push_back(entry);
        self.evict();
    }

    /// Records that the entries before `end` are in the database.
    pub(super) fn note_written(&mut self, end: u64) {
        self.written_end = self.written_end.max(end);
        self.evict();
    }

    /// Drops the entries from `start` on. They must be deleted from the database before another entry is pushed.
    pub(super) fn truncate(&mut self, start: u64) {
        while self.entries.back().is_some_and(|entry| entry.log_id.index >= start) {
            let dropped = self.entries.pop_back();
            self.forget(dropped.as_ref());
        }
    }

    /// Records that the database has no entries from `start` on.
    pub(super) fn note_truncated(&mut self, start: u64) {
        self.written_end = self.written_end.min(start);
        self.applied_end = self.applied_end.min(start);
    }

    /// Drops the entries before `end`, which are about to be deleted from the database.
    pub(super) fn purge(&mut self, end: u64) {
        while self.first().is_some_and(|index| index < end) {
            let dropped = self.entries.pop_front();
            self.forget(dropped.as_ref());
        }
    }

    /// Index of the first kept entry.
    pub(super) fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    /// The last entry of the log, if it is kept.
    pub(super) fn last(&self) -> Option<&LogEntry> {
        self.entries.back()
    }

    /// Returns the kept entries of `[start, end)`. Stops after the entry with which their size reaches `bytes_max`.
    pub(super) fn read(&self, start: u64, end: u64, bytes_max: usize) -> Vec<LogEntry> {
        let first = self.first().unwrap_or_default();
        let skipped = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let entries = self.entries.iter().skip(skipped).take_while(|entry| {
            let is_taken = entry.log_id.index < end && bytes < bytes_max;
            bytes += bytes_of(entry);
            is_taken
        });
        entries.map(without_decoded).collect()
    }

    /// Returns the entries from `start` on as [`Tail::read`] does, if the entry at `start` is kept. They are for a
    /// follower, so applied entries are kept for a while from now on.
    pub(super) fn read_to_send(&mut self, start: u64, end: u64, bytes_max: usize) -> Vec<LogEntry> {
        self.has_followers = true;
        let is_kept = self.first().is_some_and(|first| first <= start);
        if is_kept { self.read(start, end, bytes_max) } else { Vec::new() }
    }

    /// Returns the entries of `[start, end)` in order to apply them, with their decoded commands, if the entry at
    /// `start` is kept. Each entry may be dropped afterwards.
    pub(super) fn read_to_apply(&mut self, start: u64, end: u64, bytes_max: usize) -> Vec<LogEntry> {
        let Some(first) = self.first().filter(|&first| first <= start) else { return Vec::new() };
        let skipped = usize::try_from(start - first).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut taken = Vec::new();
        for entry in self.entries.iter_mut().skip(skipped) {
            if entry.log_id.index >= end || bytes >= bytes_max {
                break;
            }
            bytes += bytes_of(entry);
            // The decoded command takes more memory than its bytes, and is used only once.
            let bare = without_decoded(entry);
            taken.push(std::mem::replace(entry, bare));
        }
        if let Some(last) = taken.last() {
            self.applied_end = last.log_id.index + 1;
            self.evict();
        }
        taken
    }

    /// Drops entries from the oldest on, as long as they are written, and are not needed or take too much memory.
    fn evict(&mut self) {
        while let Some(index) = self.first().filter(|&index| index < self.written_end) {
            let is_kept = index >= self.applied_end || (self.has_followers && self.bytes <= APPLIED_BYTES_MAX);
            if is_kept && self.of_all.0.load(Ordering::Relaxed) <= KEPT_BYTES_MAX {
                return;
            }
            let dropped = self.entries.pop_front();
            self.forget(dropped.as_ref());
        }
    }

    /// Subtracts the size of a dropped entry.
    fn forget(&mut self, dropped: Option<&LogEntry>) {
        let bytes = dropped.map_or(0, bytes_of);
        self.bytes -= bytes;
        self.of_all.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.of_all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn bytes_of(entry: &LogEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(payload) => payload.bytes().len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

fn without_decoded(entry: &LogEntry) -> LogEntry {
    match &entry.payload {
        EntryPayload::Normal(payload) => {
            LogEntry { log_id: entry.log_id, payload: EntryPayload::Normal(payload.without_decoded()) }
        }
        EntryPayload::Blank | EntryPayload::Membership(_) => entry.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use openraft::entry::RaftEntry as _;
    use openraft::vote::RaftLeaderId as _;

    use super::*;
    use crate::consensus::payload::{Form, Payload};
    use crate::consensus::types::{LeaderId, LogId};

    const MIB: usize = 1 << 20;

    fn entry(index: u64, bytes: usize) -> LogEntry {
        let log_id = LogId::new(LeaderId::new(1, 1), index);
        LogEntry::new(log_id, EntryPayload::Normal(Payload::proposed(Form::Plain, Bytes::from(vec![0; bytes]), index)))
    }

    fn indices(entries: &[LogEntry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.log_id.index).collect()
    }

    fn decoded(entries: &[LogEntry]) -> usize {
        let is_decoded = |entry: &&LogEntry| match &entry.payload {
            EntryPayload::Normal(payload) => payload.decoded::<u64>().is_some(),
            _ => false,
        };
        entries.iter().filter(is_decoded).count()
    }

    /// Returns the tail of a shard with the entries 5 to 9, of a byte each, and the total size of all shards.
    fn five() -> (Tail, TailBytes) {
        let bytes = TailBytes::default();
        let mut tail = Tail::new(bytes.clone());
        (5..10).for_each(|index| tail.push(entry(index, 1)));
        (tail, bytes)
    }

    #[test]
    fn entries_are_read_from_the_requested_index_on() {
        let (mut tail, _bytes) = five();
        assert_eq!(indices(&tail.read(0, 7, usize::MAX)), [5, 6]);
        assert_eq!(indices(&tail.read(7, 100, 2)), [7, 8]);
        assert!(tail.read(9, 9, usize::MAX).is_empty());
        assert!(tail.read(100, 200, usize::MAX).is_empty());
        assert!(tail.read_to_send(4, 8, usize::MAX).is_empty(), "4 must be read from the database");
        assert_eq!(indices(&tail.read_to_send(6, 8, usize::MAX)), [6, 7]);
        assert!(tail.read_to_apply(4, 8, usize::MAX).is_empty(), "4 must be read from the database");
        assert_eq!(indices(&tail.read_to_apply(5, 8, 1)), [5], "at least one entry is read");
    }

    #[test]
    fn applied_entries_are_dropped_when_they_are_written() {
        let (mut tail, bytes) = five();
        let applied = tail.read_to_apply(5, 8, usize::MAX);
        assert_eq!((indices(&applied), decoded(&applied)), (vec![5, 6, 7], 3));
        assert_eq!(tail.first(), Some(5), "an entry that is not written is kept");
        tail.note_written(7);
        assert_eq!(tail.first(), Some(7));
        tail.note_written(10);
        assert_eq!(tail.first(), Some(8), "an entry that is not applied is kept");
        tail.read_to_apply(8, 10, usize::MAX);
        assert_eq!((tail.first(), bytes.0.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn applied_entries_are_kept_for_followers_without_decoded_commands() {
        let (mut tail, _bytes) = five();
        tail.note_written(10);
        assert_eq!(decoded(&tail.read_to_send(5, 10, usize::MAX)), 0);
        assert_eq!(decoded(&tail.read_to_apply(5, 10, usize::MAX)), 5);
        assert_eq!(indices(&tail.read_to_send(5, 10, usize::MAX)), [5, 6, 7, 8, 9]);
        assert_eq!(decoded(&tail.read_to_apply(5, 10, usize::MAX)), 0, "a command is decoded only once");
        tail.push(entry(10, APPLIED_BYTES_MAX));
        assert_eq!(tail.first(), Some(10), "applied entries take too much memory");
    }

    #[test]
    fn an_entry_after_a_truncation_is_kept_until_it_is_written() {
        let (mut tail, bytes) = five();
        tail.note_written(10);
        tail.truncate(7);
        tail.note_truncated(7);
        assert_eq!(tail.last().map(|entry| entry.log_id.index), Some(6));
        tail.push(entry(7, KEPT_BYTES_MAX));
        tail.push(entry(8, 1));
        assert_eq!(indices(&tail.read(0, 100, usize::MAX)), [7, 8]);
        tail.note_written(8);
        assert_eq!(tail.first(), Some(8));
        tail.truncate(0);
        assert_eq!((tail.first(), bytes.0.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn written_entries_of_all_shards_stay_within_the_byte_limit() {
        let bytes = TailBytes::default();
        let [mut one, mut two] = [(); 2].map(|()| Tail::new(bytes.clone()));
        for index in 0..100 {
            for tail in [&mut one, &mut two] {
                tail.push(entry(index, MIB));
                tail.note_written(index + 1);
                assert!(bytes.0.load(Ordering::Relaxed) <= KEPT_BYTES_MAX + MIB);
            }
        }
        drop(one);
        assert!(bytes.0.load(Ordering::Relaxed) <= KEPT_BYTES_MAX);
        drop(two);
        assert_eq!(bytes.0.load(Ordering::Relaxed), 0);
    }
}
