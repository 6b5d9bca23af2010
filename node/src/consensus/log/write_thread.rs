//! Group commit: one thread writes and syncs the log for all waiting writers.
//!
//! The thread takes all waiting writes, writes them at once, syncs once, and completes these writes. Writes that arrive
//! meanwhile form the next group, so a slower disk has larger groups.
//!
//! Invariant: writes are made in the order of their requests. A write succeeds only if a sync that began after it
//! succeeded. After the first error every write fails, and nothing is written or synced again. A write fails only after
//! the error is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openraft::EntryPayload;
use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use rocksdb::{DB, WriteBatch};
use tokio::sync::{mpsc, oneshot};

use crate::consensus::log::families::{LOG, META, family};
use crate::consensus::log::keys::{PURGED, REPLICA, TIME_KEY, VOTE, meta_key};
use crate::consensus::log::synced_mark::SyncedMark;
use crate::consensus::log::tail::Tail;
use crate::consensus::member::ReplicaRecord;
use crate::consensus::record::{self, entry_key};
use crate::consensus::types::{LogEntry, LogId, Types, Vote};
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::host::planted::is_planted;
use crate::metrics::{Metrics, gauge};

/// Largest number of writes that wait at one time. Openraft makes one write of many entries, so the limit is hardly
/// ever reached.
const WAITING_MAX: usize = 4096;
/// Size of the entries of one group, in bytes, at which no further write is added to it.
const GROUP_BYTES: usize = 32 << 20;
/// Longest time that the thread waits for the error of another thread's failed write. That thread reports the error as
/// soon as no sync runs.
const WRITE_ERROR_PATIENCE: Duration = Duration::from_secs(1);

/// Tail of a shard's log, which its store and the thread share.
pub(super) type SharedTail = Arc<Mutex<Tail>>;

/// A change of the log.
#[derive(Debug)]
pub(super) enum Write {
    /// Appends entries, which are already in the tail.
    Append { shard: u32, entries: Vec<LogEntry>, tail: SharedTail },
    /// Stores a vote.
    Vote { shard: u32, vote: Vote },
    /// Deletes the entries whose index is at least `from`. They are already dropped from the tail.
    Truncate { shard: u32, from: u64, tail: SharedTail },
    /// Deletes the entries up to and including `last`, and stores `last` as the purge position.
    Purge { shard: u32, last: LogId },
    /// Deletes all entries, and stores `last` as the purge position.
    Restart { shard: u32, last: LogId },
    /// Deletes the entries, the vote and the purge position of a shard, and stores the record of its replica.
    Renew { shard: u32, replica: ReplicaRecord },
    /// Stores the accepted time, in nanoseconds since 1970.
    Time(i64),
    /// Writes nothing. When this request is completed, all earlier writes are on disk.
    Nothing,
}

impl Write {
    fn entry_bytes(&self) -> usize {
        let bytes = |entry: &LogEntry| match &entry.payload {
            EntryPayload::Normal(payload) => payload.bytes().len(),
            EntryPayload::Blank | EntryPayload::Membership(_) => 0,
        };
        match self {
            Self::Append { entries, .. } => entries.iter().map(bytes).sum(),
            _ => 0,
        }
    }

    fn entries(&self) -> usize {
        match self {
            Self::Append { entries, .. } => entries.len(),
            _ => 0,
        }
    }
}

/// Receiver of the result of a write.
pub(super) enum Done {
    Openraft(IOFlushed<Types>),
    Writer(oneshot::Sender<Result<(), Arc<ReplicaError>>>),
}

impl Done {
    fn complete(self, result: Result<(), Arc<ReplicaError>>) {
        match self {
            Self::Openraft(callback) => callback.io_completed(result.map_err(std::io::Error::other)),
            // The writer may have stopped waiting.
            Self::Writer(sender) => drop(sender.send(result)),
        }
    }
}

type Waiting = (Write, Done);

/// The thread. Dropping it completes all waiting writes and joins the thread.
#[derive(Debug)]
pub(super) struct WriteThread {
    sender: Option<mpsc::Sender<Waiting>>,
    thread: Option<JoinHandle<()>>,
    /// Lock that is held from the start of a write until the error of its sync, if any, is reported.
    in_flight: Arc<Mutex<()>>,
}

impl WriteThread {
    pub(super) fn start(writer: Writer) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let in_flight = Arc::clone(&writer.in_flight);
        let thread = std::thread::Builder::new().name("raft-log".to_owned()).spawn(move || writer.run(receiver))?;
        Ok(Self { sender: Some(sender), thread: Some(thread), in_flight })
    }

    /// Blocks until the running group commit, if any, has ended and its error, if any, is reported.
    pub(super) fn wait_for_report(&self) {
        drop(self.in_flight.lock());
    }

    /// Requests a write. `done` is completed when the write and all earlier ones are on disk.
    pub(super) async fn request(&self, write: Write, done: Done) -> Result<(), ReplicaError> {
        self.sender()?.send((write, done)).await.map_err(|_receiver_gone| gone())
    }

    /// Requests a write from a thread that may block.
    pub(super) fn blocking_request(&self, write: Write, done: Done) -> Result<(), ReplicaError> {
        self.sender()?.blocking_send((write, done)).map_err(|_receiver_gone| gone())
    }

    fn sender(&self) -> Result<&mpsc::Sender<Waiting>, ReplicaError> {
        self.sender.as_ref().ok_or_else(gone)
    }
}

fn gone() -> ReplicaError {
    ReplicaError::Consensus("the thread that writes the log has ended".into())
}

impl Drop for WriteThread {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the Raft log panicked");
        }
    }
}

/// Everything that the thread needs.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) database: Arc<DB>,
    pub(super) mark: SyncedMark,
    pub(super) failure: Failure,
    pub(super) metrics: Metrics,
    /// True if entries were purged that still take space.
    pub(super) purged: Arc<AtomicBool>,
    pub(super) in_flight: Arc<Mutex<()>>,
}

impl Writer {
    fn run(self, mut receiver: mpsc::Receiver<Waiting>) {
        let mut failed = None;
        while let Some(first) = receiver.blocking_recv() {
            let mut bytes = first.0.entry_bytes();
            let mut group = vec![first];
            while bytes < GROUP_BYTES
                && let Ok(next) = receiver.try_recv()
            {
                bytes += next.0.entry_bytes();
                group.push(next);
            }
            let (writes, done): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            if failed.is_none() {
                failed = self.commit(&writes).err();
            }
            // Frees the entries before the writers go on.
            drop(writes);
            for done in done {
                done.complete(failed.clone().map_or(Ok(()), Err));
            }
        }
    }

    /// Writes and syncs a group. Reports an error before it returns the error.
    fn commit(&self, writes: &[Write]) -> Result<(), Arc<ReplicaError>> {
        let refused = {
            let _in_flight = self.in_flight.lock();
            self.write(writes).map_err(|error| self.failure.report(error))?;
            let start = Instant::now();
            // Read before the sync, because the sync may or may not include later writes.
            let written = self.database.latest_sequence_number();
            let synced = sync(&self.database);
            self.metrics.syncs.inc();
            self.metrics.sync_seconds.observe(start.elapsed().as_secs_f64());
            self.metrics.sync_entries.observe(writes.iter().map(Write::entries).sum::<usize>() as f64);
            match synced {
                Ok(()) => return self.mark.write(written).map_err(|error| self.failure.report(error)),
                // After a failed write, RocksDB refuses to sync.
                Err(error) if error.as_ref().contains("Writer has previous error") => error,
                Err(error) => return Err(self.failure.report(ReplicaError::Sync(error))),
            }
        };
        Err(error_of_write(refused, &self.failure))
    }

    /// Writes a group without syncing it.
    fn write(&self, writes: &[Write]) -> Result<(), ReplicaError> {
        let mut batch = WriteBatch::default();
        let mut purged = Vec::new();
        for write in writes {
            self.add(&mut batch, write, &mut purged)?;
        }
        self.database.write(batch).map_err(ReplicaError::Log)?;
        for (shard, end) in purged {
            self.metrics.of_shard(shard).first_log_index.set(gauge(end));
            self.purged.store(true, Ordering::Release);
        }
        for write in writes {
            match write {
                Write::Append { entries, tail, .. } => {
                    self.metrics.entries.inc_by(entries.len() as u64);
                    if let Some(last) = entries.last() {
                        tail.lock().note_written(last.log_id.index + 1);
                    }
                }
                Write::Truncate { from, tail, .. } => tail.lock().note_truncated(*from),
                Write::Vote { .. }
                | Write::Purge { .. }
                | Write::Restart { .. }
                | Write::Renew { .. }
                | Write::Time(_)
                | Write::Nothing => {}
            }
        }
        Ok(())
    }

    /// Adds a write to the batch, and to `purged` the shard of a purge with the index after the purged entries.
    fn add(&self, batch: &mut WriteBatch, write: &Write, purged: &mut Vec<(u32, u64)>) -> Result<(), ReplicaError> {
        let log = family(&self.database, LOG)?;
        let meta = family(&self.database, META)?;
        match write {
            Write::Append { shard, entries, .. } => {
                for entry in entries {
                    let key = entry_key(*shard, entry.log_id.index);
                    let value = record::encode_entry(&key, entry);
                    self.metrics.entry_bytes.inc_by(value.len() as u64);
                    batch.put_cf(log, key, value);
                }
            }
            Write::Vote { .. } if is_planted("forget-votes") => {}
            Write::Vote { shard, vote } => batch.put_cf(meta, meta_key(*shard, VOTE), record::encode_vote(vote)),
            Write::Truncate { shard, from, .. } => {
                batch.delete_range_cf(log, entry_key(*shard, *from), entry_key(*shard, u64::MAX));
            }
            Write::Purge { shard, last } => self.add_purge(batch, *shard, last, purged)?,
            Write::Restart { shard, last } => {
                self.add_purge(batch, *shard, last, purged)?;
                batch.delete_range_cf(log, entry_key(*shard, last.index + 1), entry_key(*shard, u64::MAX));
            }
            Write::Renew { shard, replica } => {
                batch.delete_range_cf(log, entry_key(*shard, 0), entry_key(*shard, u64::MAX));
                batch.delete_cf(meta, meta_key(*shard, VOTE));
                batch.delete_cf(meta, meta_key(*shard, PURGED));
                batch.put_cf(meta, meta_key(*shard, REPLICA), record::encode_replica(replica));
                purged.push((*shard, 0));
            }
            Write::Time(accepted_ns) => batch.put_cf(meta, TIME_KEY, record::encode_time(*accepted_ns)),
            Write::Nothing => {}
        }
        Ok(())
    }

    /// Adds the deletion of a shard's entries up to and including `last` to the batch, and the shard with the index
    /// after `last` to `purged`.
    fn add_purge(
        &self,
        batch: &mut WriteBatch,
        shard: u32,
        last: &LogId,
        purged: &mut Vec<(u32, u64)>,
    ) -> Result<(), ReplicaError> {
        let meta = family(&self.database, META)?;
        let key = meta_key(shard, PURGED);
        let before = self.database.get_cf(meta, key).map_err(ReplicaError::Log)?;
        let before = before.map(|value| record::decode_log_id(&value)).transpose()?;
        // The range begins at the end of the last purge. A range that always began at 0 would overlap every file.
        let first = before.map_or(0, |log_id| log_id.index + 1);
        let end = last.index + 1;
        batch.delete_range_cf(family(&self.database, LOG)?, entry_key(shard, first), entry_key(shard, end));
        batch.put_cf(meta, key, record::encode_log_id(last));
        purged.push((shard, end));
        Ok(())
    }
}

/// Returns the error of the failed write after which RocksDB refused to sync. Only that error distinguishes a full disk
/// from a broken disk. The thread that wrote reports it once no sync runs. If it does not report in time, returns
/// `refused`.
fn error_of_write(refused: rocksdb::Error, failure: &Failure) -> Arc<ReplicaError> {
    let start = Instant::now();
    while start.elapsed() < WRITE_ERROR_PATIENCE {
        if let Some(error) = failure.get() {
            return error;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    failure.report(ReplicaError::Log(refused))
}

fn sync(database: &DB) -> Result<(), rocksdb::Error> {
    if is_planted("skip-sync") { Ok(()) } else { database.flush_wal(true) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::failed_sync;

    #[test]
    fn the_error_of_a_failed_write_replaces_that_of_the_refused_sync() {
        let ReplicaError::Sync(refused) = failed_sync() else { panic!("not a sync") };
        let failure = Failure::of_log();
        let writer = std::thread::spawn({
            let failure = failure.clone();
            move || {
                std::thread::sleep(Duration::from_millis(50));
                let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
                failure.report(ReplicaError::Files(full));
            }
        });
        let error = error_of_write(refused, &failure);
        writer.join().unwrap();
        assert!(error.is_disk_full(), "{error}");
    }
}
