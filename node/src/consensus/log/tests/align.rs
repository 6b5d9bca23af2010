//! Tests of a log whose state was replaced by a snapshot.

use std::sync::Arc;

use openraft::storage::{RaftLogReader as _, RaftLogStorage as _};
use openraft::vote::RaftLeaderId as _;
use storage_engine::Position;

use super::{append, entry, open};
use crate::consensus::log::LogStore;
use crate::consensus::record::encode_log_id;
use crate::consensus::types::{LeaderId, LogId};

fn position(log_id: LogId) -> Position {
    Position { index: log_id.index, log_id: encode_log_id(&log_id).into() }
}

/// Log id of an entry of [`entry`], or of an entry of another leader.
fn log_id(index: u64, is_other: bool) -> LogId {
    LogId::new(LeaderId::new(if is_other { 2 } else { 1 }, 1), index)
}

/// A log before it is aligned.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Index of the last purged entry.
    purged: Option<u64>,
    /// Index of the last entry.
    last: u64,
    /// Position of the state.
    flushed: Option<LogId>,
}

impl Case {
    /// Returns true if the log does not continue the state.
    fn is_restarted(&self) -> bool {
        let Some(flushed) = self.flushed else { return false };
        Some(flushed.index) > self.purged && (flushed.index > self.last || flushed.leader_id.term == 2)
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for purged in [None, Some(3)] {
        for last in purged.unwrap_or(0)..=6 {
            cases.push(Case { purged, last, flushed: None });
            for (index, is_other) in (1..=8).flat_map(|index| [(index, false), (index, true)]) {
                cases.push(Case { purged, last, flushed: Some(log_id(index, is_other)) });
            }
        }
    }
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_does_not_continue_the_state_begins_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    // Each case has its own shard.
    for (shard, case) in (1..).zip(cases()) {
        let mut store = LogStore::new(shard, Arc::clone(&log));
        append(&mut store, (1..=case.last).map(|index| entry(index, 10)).collect()).await.await.unwrap();
        if let Some(purged) = case.purged {
            store.purge(log_id(purged, false)).await.unwrap();
        }
    }
    for (shard, case) in (1..).zip(cases()) {
        let log = Arc::clone(&log);
        let flushed = case.flushed.map(position);
        let aligned = tokio::task::spawn_blocking(move || log.align(shard, flushed.as_ref()).unwrap()).await.unwrap();
        let purged = case.purged.map(|purged| log_id(purged, false));
        let expected = if case.is_restarted() { case.flushed } else { purged };
        assert_eq!(aligned, expected.map(position), "{case:?}");
    }
    drop(log);
    // Also after a restart.
    let (log, _metrics) = open(folder.path());
    let mut restarted = 0;
    for (shard, case) in (1..).zip(cases()) {
        let mut store = LogStore::new(shard, Arc::clone(&log));
        let state = store.get_log_state().await.unwrap();
        let entries = store.try_get_log_entries(0..100).await.unwrap();
        let indexes: Vec<u64> = entries.iter().map(|entry| entry.log_id.index).collect();
        if case.is_restarted() {
            assert_eq!((state.last_purged_log_id, state.last_log_id), (case.flushed, case.flushed), "{case:?}");
            assert!(indexes.is_empty(), "{case:?}: {indexes:?}");
            restarted += 1;
        } else {
            let kept: Vec<u64> = (case.purged.unwrap_or(0) + 1..=case.last).collect();
            assert_eq!(indexes, kept, "{case:?}");
        }
        // The log goes on after the state.
        let next = state.last_log_id.map_or(0, |last| last.index) + 1;
        append(&mut store, vec![entry(next, 10)]).await.await.unwrap();
    }
    assert!(restarted > 0 && restarted < cases().len());
}
