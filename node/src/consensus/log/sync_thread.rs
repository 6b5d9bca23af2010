//! Group commit: one thread syncs the log for all waiting requests.
//!
//! The thread takes all waiting requests, syncs once, and completes these requests. Requests that arrive during a sync
//! form the next group, so a slower disk has larger groups.
//!
//! Invariant: a request succeeds only if a sync that began after its write succeeded. After the first error every
//! request fails, and nothing is synced again. A request fails only after the error is reported.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use rocksdb::DB;

use crate::consensus::log::synced_mark::SyncedMark;
use crate::consensus::types::Types;
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::metrics::Metrics;

/// Largest number of requests that wait for a sync at one time. Openraft makes one request for many entries, so the
/// limit is never reached.
const WAITING_MAX: usize = 4096;
/// Longest time that the sync thread waits for the error of a failed write. The thread that wrote reports the error as
/// soon as no sync runs.
const WRITE_ERROR_PATIENCE: Duration = Duration::from_secs(1);

/// A request that waits for a sync.
struct Waiting {
    callback: IOFlushed<Types>,
    entries: usize,
}

/// The sync thread. Dropping it completes all waiting requests and joins the thread.
#[derive(Debug)]
pub(super) struct SyncThread {
    sender: Option<SyncSender<Waiting>>,
    thread: Option<JoinHandle<()>>,
    /// Lock that is held from the start of a sync until its error, if any, is reported.
    in_flight: Arc<Mutex<()>>,
}

impl SyncThread {
    pub(super) fn start(
        database: Arc<DB>,
        mark: SyncedMark,
        failure: Failure,
        metrics: Metrics,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let in_flight = Arc::new(Mutex::new(()));
        let run = {
            let in_flight = Arc::clone(&in_flight);
            move || run(&database, &mark, &receiver, &in_flight, &failure, &metrics)
        };
        let thread = std::thread::Builder::new().name("raft-log-sync".to_owned()).spawn(run)?;
        Ok(Self { sender: Some(sender), thread: Some(thread), in_flight })
    }

    /// Blocks until the running sync, if any, has ended and its error, if any, is reported.
    pub(super) fn wait_for_report(&self) {
        drop(self.in_flight.lock());
    }

    /// Calls `callback` when everything that was written before this call is on disk. `entries` is for the metrics.
    pub(super) fn request(&self, callback: IOFlushed<Types>, entries: usize) -> Result<(), ReplicaError> {
        let gone = || ReplicaError::Consensus("the thread that syncs the log has ended".into());
        let sender = self.sender.as_ref().ok_or_else(gone)?;
        sender.send(Waiting { callback, entries }).map_err(|_receiver_gone| gone())
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that syncs the Raft log panicked");
        }
    }
}

fn run(
    database: &DB,
    mark: &SyncedMark,
    receiver: &Receiver<Waiting>,
    in_flight: &Mutex<()>,
    failure: &Failure,
    metrics: &Metrics,
) {
    let mut failed = None;
    while let Ok(first) = receiver.recv() {
        let group: Vec<_> = std::iter::once(first).chain(receiver.try_iter()).collect();
        if failed.is_none() {
            let start = Instant::now();
            failed = sync_and_mark(database, mark, in_flight, failure).err();
            metrics.syncs.inc();
            metrics.sync_seconds.observe(start.elapsed().as_secs_f64());
            metrics.sync_entries.observe(group.iter().map(|waiting| waiting.entries).sum::<usize>() as f64);
        }
        for waiting in group {
            waiting.callback.io_completed(match &failed {
                None => Ok(()),
                Some(error) => Err(std::io::Error::other(Arc::clone(error))),
            });
        }
    }
}

/// Syncs the log, and writes the mark of the last synced write. Reports an error before it returns the error.
fn sync_and_mark(
    database: &DB,
    mark: &SyncedMark,
    in_flight: &Mutex<()>,
    failure: &Failure,
) -> Result<(), Arc<ReplicaError>> {
    let refused = {
        let _in_flight = in_flight.lock();
        // Read before the sync, because the sync may or may not include later writes.
        let written = database.latest_sequence_number();
        match sync(database) {
            Ok(()) => return mark.write(written).map_err(|error| failure.report(error)),
            // After a failed write, RocksDB refuses to sync.
            Err(error) if error.as_ref().contains("Writer has previous error") => error,
            Err(error) => return Err(failure.report(ReplicaError::Sync(error))),
        }
    };
    Err(error_of_write(refused, failure))
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

#[cfg(not(feature = "planted-skip-sync"))]
fn sync(database: &DB) -> Result<(), rocksdb::Error> {
    database.flush_wal(true)
}

/// Planted fault for tests: reports success without a sync.
#[cfg(feature = "planted-skip-sync")]
fn sync(_database: &DB) -> Result<(), rocksdb::Error> {
    Ok(())
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
