//! The disk of a simulated node: the logs, votes and identities of all its groups, in memory.
//!
//! Like [`LogDatabase`](super::LogDatabase), one task syncs all waiting writes at once, in their order. A crash loses
//! the writes that are not synced, or a later part of them: the operating system may have written some by itself.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use storage_engine::Position;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::consensus::member::{DirectoryId, ReplicaRecord};
use crate::consensus::record;
use crate::consensus::types::{LogEntry, LogId, Types, Vote};

/// The log of one group.
#[derive(Clone, Debug, Default)]
struct Log {
    entries: BTreeMap<u64, LogEntry>,
    vote: Option<Vote>,
    purged: Option<LogId>,
    replica: Option<ReplicaRecord>,
}

#[derive(Clone, Debug)]
enum Write {
    Append(Vec<LogEntry>),
    Vote(Vote),
    Truncate {
        from: u64,
    },
    Purge(LogId),
    /// Deletes all entries. The log continues after the last entry of a snapshot.
    Restart(LogId),
    Renew(ReplicaRecord),
}

impl Log {
    fn write(&mut self, write: Write) {
        match write {
            Write::Append(entries) => self.entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry))),
            Write::Vote(vote) => self.vote = Some(vote),
            Write::Truncate { from } => drop(self.entries.split_off(&from)),
            Write::Purge(last) => {
                self.entries = self.entries.split_off(&(last.index + 1));
                self.purged = Some(last);
            }
            Write::Restart(last) => {
                self.entries.clear();
                self.purged = Some(last);
            }
            Write::Renew(replica) => *self = Self { replica: Some(replica), ..Self::default() },
        }
    }
}

/// The caller that waits for a sync.
enum Done {
    Openraft(IOFlushed<Types>),
    Writer(oneshot::Sender<()>),
}

impl Done {
    fn complete(self) {
        match self {
            Self::Openraft(callback) => callback.io_completed(Ok(())),
            // The writer may have stopped waiting.
            Self::Writer(writer) => drop(writer.send(())),
        }
    }
}

/// Faults that a simulation plants in a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskFaults {
    /// A vote is acknowledged, and never written.
    pub(crate) forgets_votes: bool,
    /// Entries are acknowledged before they are synced.
    pub(crate) skips_syncs: bool,
}

/// The disk of one node.
#[derive(Debug)]
pub(crate) struct Disk {
    directory: DirectoryId,
    faults: DiskFaults,
    files: Mutex<Files>,
    queued: Notify,
}

#[derive(Default)]
struct Files {
    /// The number of the start of the node that may use the disk; 0 while the node is down.
    start: u64,
    starts: u64,
    /// Logs as the running node reads them.
    written: BTreeMap<u32, Log>,
    /// Logs after a crash that loses everything that was not synced.
    synced: BTreeMap<u32, Log>,
    /// Writes that are not synced, in their order.
    unsynced: VecDeque<(u32, Write, Option<Done>)>,
}

impl Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("start", &self.start).finish_non_exhaustive()
    }
}

fn position(log_id: Option<LogId>) -> Option<Position> {
    log_id.map(|log_id| Position { index: log_id.index, log_id: record::encode_log_id(&log_id).into() })
}

fn crashed() -> io::Error {
    io::Error::other("the node has crashed")
}

impl Disk {
    pub(crate) fn new(directory: DirectoryId, faults: DiskFaults) -> Arc<Self> {
        Arc::new(Self { directory, faults, files: Mutex::default(), queued: Notify::new() })
    }

    pub(crate) fn directory_id(&self) -> DirectoryId {
        self.directory
    }

    /// Begins a start of the node. Only this start may use the disk. Returns its number.
    pub(crate) fn start(&self) -> u64 {
        let files = &mut *self.files.lock();
        files.starts += 1;
        files.start = files.starts;
        files.written = files.synced.clone();
        files.start
    }

    /// Ends the start of the node, which loses all writes that are not synced but the first `kept`. Returns the number
    /// of lost writes.
    pub(crate) fn crash(&self, kept: usize) -> u64 {
        let files = &mut *self.files.lock();
        let unsynced = std::mem::take(&mut files.unsynced);
        let lost = unsynced.len().saturating_sub(kept) as u64;
        for (shard, write, _nobody) in unsynced.into_iter().take(kept) {
            files.synced.entry(shard).or_default().write(write);
        }
        files.start = 0;
        lost
    }

    /// Returns the number of writes that are not synced.
    pub(crate) fn unsynced(&self) -> usize {
        self.files.lock().unsynced.len()
    }

    /// Syncs waiting writes, until the start ends. A sync takes the time that `takes` returns.
    pub(crate) async fn run(&self, start: u64, mut takes: impl FnMut() -> Duration) {
        loop {
            let waiting = self.unsynced();
            if waiting == 0 {
                self.queued.notified().await;
                continue;
            }
            sleep(takes()).await;
            let done: Vec<Done> = {
                let files = &mut *self.files.lock();
                if files.start != start {
                    return;
                }
                let mut done = Vec::new();
                for (shard, write, waits) in files.unsynced.drain(..waiting) {
                    files.synced.entry(shard).or_default().write(write);
                    done.extend(waits);
                }
                done
            };
            done.into_iter().for_each(Done::complete);
        }
    }

    fn request(&self, start: u64, shard: u32, write: Write, done: Done) -> io::Result<()> {
        let early = {
            let files = &mut *self.files.lock();
            if files.start != start {
                return Err(crashed());
            }
            let is_forgotten = self.faults.forgets_votes && matches!(write, Write::Vote(_));
            let is_early = is_forgotten || (self.faults.skips_syncs && matches!(write, Write::Append(_)));
            files.written.entry(shard).or_default().write(write.clone());
            let (early, done) = if is_early { (Some(done), None) } else { (None, Some(done)) };
            if !is_forgotten {
                files.unsynced.push_back((shard, write, done));
            }
            early
        };
        self.queued.notify_one();
        early.into_iter().for_each(Done::complete);
        Ok(())
    }

    async fn write(&self, start: u64, shard: u32, write: Write) -> io::Result<()> {
        let (done, synced) = oneshot::channel();
        self.request(start, shard, write, Done::Writer(done))?;
        synced.await.map_err(|_crashed| crashed())
    }

    /// Reads the log of a group as the running node sees it.
    fn read<T>(&self, start: u64, shard: u32, read: impl FnOnce(&Log) -> T) -> io::Result<T> {
        let files = &mut *self.files.lock();
        if files.start == start { Ok(read(files.written.entry(shard).or_default())) } else { Err(crashed()) }
    }

    /// Returns the record of a shard's replica, as [`LogDatabase::replica`](super::LogDatabase::replica) does.
    pub(crate) fn replica(&self, shard: u32) -> ReplicaRecord {
        let original = ReplicaRecord { identity: Some(self.directory), revision: 0 };
        self.files.lock().written.get(&shard).and_then(|log| log.replica).unwrap_or(original)
    }

    /// Deletes the log and the votes of a shard's replica, and stores another record.
    pub(crate) async fn renew_replica(&self, start: u64, shard: u32, replica: ReplicaRecord) -> io::Result<()> {
        self.write(start, shard, Write::Renew(replica)).await
    }

    /// Returns true if all entries of a shard up to `index` are synced.
    pub(crate) fn has_synced(&self, shard: u32, index: u64) -> bool {
        let files = self.files.lock();
        files.synced.get(&shard).is_some_and(|log| {
            let purged = log.purged.map_or(0, |purged| purged.index);
            log.entries.last_key_value().map_or(purged, |(&last, _)| last) >= index
        })
    }

    /// Returns the index of the last purged entry of a shard; 0 if nothing was purged.
    pub(crate) fn purged_index(&self, shard: u32) -> u64 {
        self.files.lock().written.get(&shard).and_then(|log| log.purged).map_or(0, |purged| purged.index)
    }

    /// Makes a shard's log continue where the shard's state ends, as [`LogDatabase::align`](super::LogDatabase::align)
    /// does.
    pub(crate) async fn align(&self, start: u64, shard: u32, state: Option<&Position>) -> io::Result<Option<Position>> {
        let state = state.map(|position| record::decode_log_id(&position.log_id).expect("a position"));
        let (purged, at) = self.read(start, shard, |log| {
            let at = state.and_then(|state| log.entries.get(&state.index)).map(|entry| entry.log_id);
            (log.purged, at)
        })?;
        let Some(state) = state.filter(|state| purged.is_none_or(|purged| purged.index < state.index)) else {
            return Ok(position(purged));
        };
        if at == Some(state) {
            return Ok(position(purged));
        }
        self.write(start, shard, Write::Restart(state)).await?;
        Ok(position(Some(state)))
    }
}

/// The log of one group on a simulated disk.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedLog {
    shard: u32,
    start: u64,
    disk: Arc<Disk>,
}

impl SimulatedLog {
    pub(crate) fn new(shard: u32, start: u64, disk: Arc<Disk>) -> Self {
        Self { shard, start, disk }
    }

    fn read<T>(&self, read: impl FnOnce(&Log) -> T) -> io::Result<T> {
        self.disk.read(self.start, self.shard, read)
    }

    async fn write(&self, write: Write) -> io::Result<()> {
        self.disk.write(self.start, self.shard, write).await
    }
}

impl RaftLogReader<Types> for SimulatedLog {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<LogEntry>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        if let (Bound::Included(start), Bound::Excluded(end)) = bounds
            && start >= end
        {
            return Ok(Vec::new());
        }
        // Like a real log, it does not return the decoded command, which only the proposing process keeps in memory.
        self.read(|log| log.entries.range(bounds).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.read(|log| log.vote)
    }
}

impl RaftLogStorage<Types> for SimulatedLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        self.read(|log| {
            let last = log.entries.last_key_value().map(|(_, entry)| entry.log_id);
            LogState { last_purged_log_id: log.purged, last_log_id: last.or(log.purged) }
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write(Write::Vote(*vote)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().collect();
        self.disk.request(self.start, self.shard, Write::Append(entries), Done::Openraft(callback))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.write(Write::Truncate { from: last.map_or(0, |last| last.index + 1) }).await
    }

    async fn purge(&mut self, last: LogId) -> io::Result<()> {
        self.write(Write::Purge(last)).await
    }
}
