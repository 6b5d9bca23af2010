//! Helpers that open and fill logs on disk, for the tests of this folder.

mod recovery;
mod store;

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, RaftLogStorage as _};
use openraft::type_config::TypeConfigExt as _;
use openraft::vote::RaftLeaderId as _;
use prometheus_client::registry::Registry;

use crate::consensus::log::{LogDatabase, LogStore};
use crate::consensus::payload::Payload;
use crate::consensus::types::{LeaderId, LogEntry, LogId, Types};
use crate::failure::Failure;
use crate::metrics::Metrics;

fn open(folder: &Path) -> (Arc<LogDatabase>, Metrics) {
    let metrics = Metrics::register(&mut Registry::default());
    let log = LogDatabase::open(&folder.join("raft"), 1, Failure::new(), metrics.clone()).unwrap();
    (Arc::new(log), metrics)
}

fn entry(index: u64, bytes: usize) -> LogEntry {
    let log_id = LogId::new(LeaderId::new(1, 1), index);
    LogEntry::new(log_id, EntryPayload::Normal(Payload::read(Bytes::from(vec![index as u8; bytes]))))
}

/// Appends entries. The returned future completes when the entries are synced.
async fn append(store: &mut LogStore, entries: Vec<LogEntry>) -> impl Future<Output = io::Result<()>> + use<> {
    let (sender, receiver) = Types::oneshot();
    store.append(entries, IOFlushed::signal(sender)).await.unwrap();
    async { receiver.await.unwrap() }
}
