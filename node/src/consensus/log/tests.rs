//! Helpers that open and fill logs on disk, for the tests of this folder.

mod align;
mod recovery;
mod replicas;
mod store;
mod tables;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, RaftLogStorage as _};
use openraft::type_config::TypeConfigExt as _;
use openraft::vote::RaftLeaderId as _;
use prometheus_client::registry::Registry;

use crate::consensus::log::{LogDatabase, LogStore, Terms};
use crate::consensus::payload::Payload;
use crate::consensus::types::{LeaderId, LogEntry, LogId, Types};
use crate::directory::DataDirectory;
use crate::failure::Failure;
use crate::metrics::Metrics;

/// Locks a data directory, and waits for the threads of a log that was open before.
fn locked(folder: &Path) -> Arc<DataDirectory> {
    let start = Instant::now();
    loop {
        match DataDirectory::open(folder) {
            Ok(directory) => return Arc::new(directory),
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open(folder: &Path) -> (Arc<LogDatabase>, Metrics) {
    let metrics = Metrics::register(&mut Registry::default());
    let log = LogDatabase::open(&locked(folder), 1, None, Failure::of_log(), metrics.clone()).unwrap();
    (Arc::new(log), metrics)
}

fn entry(index: u64, bytes: usize) -> LogEntry {
    let log_id = LogId::new(LeaderId::new(1, 1), index);
    LogEntry::new(log_id, EntryPayload::Normal(Payload::plain(Bytes::from(vec![index as u8; bytes]))))
}

/// Appends entries. The returned future completes when the entries are synced.
async fn append(store: &mut LogStore, entries: Vec<LogEntry>) -> impl Future<Output = io::Result<()>> + use<> {
    let (sender, receiver) = Types::oneshot();
    store.append(entries, IOFlushed::signal(sender)).await.unwrap();
    async { receiver.await.unwrap() }
}

/// Reclaims the space of purged entries, if that writes at most `written_max` bytes for each returned byte. All shards
/// together have `live_bytes` bytes that are not purged.
fn reclaim(log: &LogDatabase, written_max: u64, live_bytes: u64) -> bool {
    let live = [(1, Some(live_bytes))].into();
    log.reclaim(&Terms { written_max, live, reserve_bytes: 0 }).unwrap()
}
