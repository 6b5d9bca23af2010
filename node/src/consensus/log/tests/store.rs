//! Runs openraft's test suite on the log store, and tests what the suite does not cover: restarts, group commit,
//! purging and full disks.

use std::io;
use std::sync::Arc;

use futures::{Stream, TryStreamExt as _};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{
    EntryResponder, IOFlushed, RaftLogReader as _, RaftLogStorage as _, RaftSnapshotBuilder, RaftStateMachine,
    Snapshot, SnapshotMeta,
};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt as _;
use openraft::{EntryPayload, OptionalSend, StorageError};
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use testkit::small_disk::SmallDisk;

use super::{append, entry, locked, open};
use crate::consensus::log::{LogDatabase, LogStore};
use crate::consensus::state::Outcome;
use crate::consensus::types::{LogId, StoredMembership, Types, Vote};
use crate::failure::Failure;
use crate::metrics::Metrics;

/// State machine for openraft's suite. It holds positions and memberships, but no data.
#[derive(Clone, Debug, Default)]
struct Positions {
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshot: Arc<parking_lot::Mutex<Option<SnapshotMetaOf<Types>>>>,
}

impl RaftStateMachine<Types> for Positions {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            self.applied = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(Outcome::None);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        *self.snapshot.lock() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        Ok(self.snapshot.lock().clone().map(|meta| Snapshot { meta, snapshot: () }))
    }
}

impl RaftSnapshotBuilder<Types> for Positions {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        *self.snapshot.lock() = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

struct Builder;

impl StoreBuilder<Types, LogStore, Positions, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, Positions), StorageError<Types>> {
        let folder = tempfile::tempdir().unwrap();
        let (log, _metrics) = open(folder.path());
        Ok((folder, LogStore::new(1, log), Positions::default()))
    }
}

#[tokio::test]
async fn the_log_store_passes_openrafts_suite() {
    Suite::test_all(Builder).await.unwrap();
}

#[tokio::test]
async fn vote_entries_and_purge_position_survive_reopening() {
    let folder = tempfile::tempdir().unwrap();
    {
        let mut store = LogStore::new(1, open(folder.path()).0);
        store.save_vote(&Vote::new_committed(7, 1)).await.unwrap();
        append(&mut store, (0..10).map(|index| entry(index, 100)).collect()).await.await.unwrap();
        store.purge(entry(3, 0).log_id).await.unwrap();
        store.truncate_after(Some(entry(7, 0).log_id)).await.unwrap();
    }
    let mut store = LogStore::new(1, open(folder.path()).0);
    assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new_committed(7, 1)));
    let entries = store.try_get_log_entries(..).await.unwrap();
    assert_eq!(entries, (4..8).map(|index| entry(index, 100)).collect::<Vec<_>>());
    let state = store.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(entry(3, 0).log_id));
    assert_eq!(state.last_log_id, Some(entry(7, 0).log_id));
}

#[tokio::test]
async fn shards_do_not_see_each_others_entries() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut one = LogStore::new(1, Arc::clone(&log));
    let mut two = LogStore::new(2, log);
    append(&mut one, vec![entry(0, 10), entry(1, 10)]).await.await.unwrap();
    append(&mut two, vec![entry(0, 20)]).await.await.unwrap();
    one.truncate_after(None).await.unwrap();
    assert_eq!(one.get_log_state().await.unwrap().last_log_id, None);
    assert_eq!(two.try_get_log_entries(..).await.unwrap(), vec![entry(0, 20)]);
}

#[tokio::test]
async fn another_nodes_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let metrics = Metrics::register(&mut Registry::default());
    let error = LogDatabase::open(&locked(folder.path()), 2, None, Failure::of_log(), metrics).unwrap_err();
    assert!(matches!(error, crate::NodeError::OtherNode { found: 1, expected: 2 }), "{error}");
}

#[tokio::test]
async fn the_number_of_shards_is_set_once() {
    let folder = tempfile::tempdir().unwrap();
    let open = |shards: u16| {
        let metrics = Metrics::register(&mut Registry::default());
        let shards = std::num::NonZeroU16::new(shards);
        LogDatabase::open(&locked(folder.path()), 1, shards, Failure::of_log(), metrics)
    };
    assert_eq!(open(3).unwrap().shards().get(), 3);
    // No number means the stored number.
    assert_eq!([0, 3].map(|shards| open(shards).unwrap().shards().get()), [3, 3]);
    let error = open(4).unwrap_err().to_string();
    assert!(error.contains("3 shards") && error.contains("--shards 3"), "{error}");
    assert_eq!(open(0).unwrap().shards().get(), 3);
}

#[tokio::test]
async fn the_identity_of_a_directory_is_random_and_survives_reopening() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let identity = open(one.path()).0.directory_id();
    assert_eq!(open(one.path()).0.directory_id(), identity);
    assert_ne!(open(two.path()).0.directory_id(), identity);
}

#[tokio::test]
async fn a_gap_in_the_log_is_an_error_and_not_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    append(&mut store, vec![entry(0, 10), entry(1, 10), entry(3, 10)]).await.await.unwrap();
    let error = store.try_get_log_entries(..).await.unwrap_err().to_string();
    assert!(error.contains("entry 2 is missing"), "{error}");
}

#[tokio::test]
async fn a_stream_whose_first_entry_is_missing_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    append(&mut store, vec![entry(2, 10)]).await.await.unwrap();
    let streamed: io::Result<Vec<_>> = Box::pin(store.entries_stream(1..3).await).try_collect().await;
    let error = streamed.unwrap_err().to_string();
    assert!(error.contains("entry 1 is missing"), "{error}");
}

#[tokio::test]
async fn entries_are_streamed_in_order_whatever_their_size() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    let entries: Vec<_> = (0..20).map(|index| entry(index, 1 << 20)).collect();
    append(&mut store, entries.clone()).await.await.unwrap();
    let stream = store.entries_stream(3..17).await;
    let streamed: Vec<_> = Box::pin(stream).try_collect().await.unwrap();
    assert_eq!(streamed, entries[3..17]);
}

#[tokio::test]
async fn entries_to_send_are_bounded_by_bytes_in_memory_and_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let entries: Vec<_> = (0..8).map(|index| entry(index, 400 << 10)).chain([entry(8, 3 << 20)]).collect();
    let mut store = LogStore::new(1, open(folder.path()).0);
    append(&mut store, entries.clone()).await.await.unwrap();
    for _ in 0..2 {
        assert_eq!(store.limited_get_log_entries(2, 9).await.unwrap(), entries[2..5]);
        assert_eq!(store.limited_get_log_entries(2, 4).await.unwrap(), entries[2..4]);
        assert_eq!(store.limited_get_log_entries(8, 9).await.unwrap(), entries[8..]);
        assert!(store.limited_get_log_entries(9, 10).await.is_err(), "the log has no such entry");
        drop(store);
        // The entries are not in memory after a restart.
        store = LogStore::new(1, open(folder.path()).0);
    }
}

#[tokio::test]
async fn many_appends_share_few_syncs() {
    let folder = tempfile::tempdir().unwrap();
    let (log, metrics) = open(folder.path());
    let mut store = LogStore::new(1, log);
    let mut done = Vec::new();
    for index in 0..2000 {
        done.push(append(&mut store, vec![entry(index, 100)]).await);
    }
    for done in done {
        done.await.unwrap();
    }
    let syncs = metrics.syncs.get();
    assert!(syncs < 1000, "{syncs} syncs for 2000 appends");
    assert_eq!(metrics.entries.get(), 2000);
}

#[tokio::test]
async fn a_full_disk_is_reported_as_such_and_loses_no_synced_entry() {
    let test = "a_full_disk_is_reported_as_such_and_loses_no_synced_entry";
    let Some(disk) = SmallDisk::mount(test, 64) else { return };
    let mut synced = 0;
    {
        let (log, _metrics) = open(disk.path());
        let mut store = LogStore::new(1, Arc::clone(&log));
        loop {
            let (sender, receiver) = Types::oneshot();
            let appended = store.append(vec![entry(synced, 100_000)], IOFlushed::signal(sender)).await;
            if appended.is_err() || receiver.await.unwrap().is_err() {
                break;
            }
            synced += 1;
        }
        let error = log.failure().get().unwrap();
        assert!(error.is_disk_full(), "{error}");
        assert!(synced > 100, "{synced}");
    }
    disk.resize(128);
    let mut store = LogStore::new(1, open(disk.path()).0);
    let entries = store.try_get_log_entries(..synced).await.unwrap();
    assert_eq!(entries, (0..synced).map(|index| entry(index, 100_000)).collect::<Vec<_>>());
    let next = store.get_log_state().await.unwrap().last_log_id.unwrap().index + 1;
    append(&mut store, vec![entry(next, 10)]).await.await.unwrap();
}
