//! Tests of the space that purged entries take, and of its return to the file system.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::storage::{RaftLogReader as _, RaftLogStorage as _};
use tempfile::TempDir;
use testkit::small_disk::SmallDisk;

use super::{append, entry, open, reclaim};
use crate::consensus::log::{LogDatabase, LogStore, Terms};
use crate::directory::used_bytes;

#[tokio::test]
async fn purged_entries_return_their_space_to_the_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut store = LogStore::new(1, Arc::clone(&log));
    let mut next = 0;
    let mut largest = 0;
    let start = Instant::now();
    for _round in 0..8 {
        for _ in 0..64 {
            append(&mut store, vec![entry(next, 1 << 20)]).await.await.unwrap();
            next += 1;
        }
        store.purge(entry(next - 1, 0).log_id).await.unwrap();
        assert!(reclaim(&log, u64::MAX, 0));
        tokio::time::sleep(Duration::from_millis(100)).await;
        largest = largest.max(used_bytes(folder.path()).unwrap());
    }
    println!("{} MiB went through in {:?}, at most {} MiB on disk between", next, start.elapsed(), largest >> 20);
    assert!(largest < 96 << 20, "{} MiB on disk", largest >> 20);
}

/// Appends 64 entries of 1 MiB, from the index `first` on, and purges all of them but the last. Returns the index of
/// the last entry.
async fn append_and_purge(store: &mut LogStore, first: u64) -> u64 {
    for index in first..first + 64 {
        append(store, vec![entry(index, 1 << 20)]).await.await.unwrap();
    }
    store.purge(entry(first + 62, 0).log_id).await.unwrap();
    first + 63
}

/// Returns the disk space of the logs in MiB, after RocksDB has deleted unused files.
async fn used_mib(folder: &TempDir) -> u64 {
    tokio::time::sleep(Duration::from_millis(300)).await;
    used_bytes(folder.path()).unwrap() >> 20
}

#[tokio::test]
async fn only_a_reclaim_merges_files_of_entries() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut stores = [1, 2].map(|shard| LogStore::new(shard, Arc::clone(&log)));
    for index in 0..128 {
        for store in &mut stores {
            append(store, vec![entry(index, 1 << 20)]).await.await.unwrap();
        }
    }
    log.flush().unwrap();
    used_mib(&folder).await;
    let tables = || {
        let files = std::fs::read_dir(log.directory().raft()).unwrap().map(|file| file.unwrap());
        let tables = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "sst"));
        tables.map(|file| file.metadata().unwrap().len()).collect::<Vec<_>>()
    };
    let unmerged = tables();
    assert!(unmerged.len() >= 8 && unmerged.iter().all(|&bytes| bytes < 40 << 20), "{unmerged:?}");
    stores[0].purge(entry(0, 0).log_id).await.unwrap();
    assert!(reclaim(&log, u64::MAX, 0));
    used_mib(&folder).await;
    let merged = tables();
    assert!(merged.len() < unmerged.len() && merged.iter().any(|&bytes| bytes > 60 << 20), "{merged:?}");
}

#[tokio::test]
async fn purged_space_is_reclaimed_for_every_order_of_shards() {
    for (large, small) in [(1, 2), (2, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let (log, _metrics) = open(folder.path());
        let mut store = LogStore::new(large, Arc::clone(&log));
        let mut other = LogStore::new(small, Arc::clone(&log));
        append(&mut store, (0..24).map(|index| entry(index, 1 << 20)).collect()).await.await.unwrap();
        // Both files are of this shard alone, one with its entries and one with the purge. RocksDB does not compact a
        // single file.
        log.flush().unwrap();
        store.purge(entry(23, 0).log_id).await.unwrap();
        log.flush().unwrap();
        append(&mut other, vec![entry(0, 10), entry(1, 10)]).await.await.unwrap();
        other.purge(entry(0, 0).log_id).await.unwrap();
        assert!(reclaim(&log, u64::MAX, 0));
        let used = used_mib(&folder).await;
        assert!(used < 12, "shard {large}, then shard {small}: {used} MiB are left");
    }
}

#[tokio::test]
async fn interleaved_purges_and_a_truncate_lose_no_live_entry() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let [mut one, mut two, mut three] = [1, 2, 3].map(|shard| LogStore::new(shard, Arc::clone(&log)));
    append(&mut two, vec![entry(0, 10), entry(1, 10)]).await.await.unwrap();
    let last = append_and_purge(&mut three, 0).await;
    append_and_purge(&mut one, 0).await;
    three.truncate_after(Some(entry(last - 1, 0).log_id)).await.unwrap();
    append_and_purge(&mut three, last).await;
    append_and_purge(&mut one, 64).await;
    assert!(reclaim(&log, u64::MAX, 0));
    assert!(!log.is_reclaimable());
    let used = used_mib(&folder).await;
    assert!(used < 32, "{used} MiB are left");
    for (store, entries) in [(&mut one, vec![127]), (&mut two, vec![0, 1]), (&mut three, vec![126])] {
        let read = store.try_get_log_entries(..).await.unwrap();
        assert_eq!(read.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), entries);
    }
}

#[tokio::test]
async fn space_purged_before_a_restart_is_reclaimed_after_it() {
    let folder = tempfile::tempdir().unwrap();
    {
        let (log, _metrics) = open(folder.path());
        for shard in [1, 2] {
            append_and_purge(&mut LogStore::new(shard, Arc::clone(&log)), 0).await;
        }
    }
    let (log, _metrics) = open(folder.path());
    assert!(log.is_reclaimable());
    assert!(reclaim(&log, u64::MAX, 0));
    let used = used_mib(&folder).await;
    assert!(used < 32, "{used} MiB are left");
}

/// Appends entries of 1 MiB with the indexes `[from, to)` to a log, and writes them to files.
async fn fill(store: &mut LogStore, log: &LogDatabase, from: u64, to: u64) {
    for index in from..to {
        append(store, vec![entry(index, 1 << 20)]).await.await.unwrap();
    }
    log.flush().unwrap();
}

#[tokio::test]
async fn a_reclaim_that_writes_much_and_returns_little_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut store = LogStore::new(1, Arc::clone(&log));
    fill(&mut store, &log, 0, 80).await;
    assert!(!reclaim(&log, u64::MAX, 80 << 20), "nothing was purged");
    store.purge(entry(19, 0).log_id).await.unwrap();
    // It would write 60 MiB and return 20 MiB.
    assert_eq!((reclaim(&log, 2, 60 << 20), log.is_reclaimable()), (false, true));
    assert_eq!((reclaim(&log, 4, 60 << 20), log.is_reclaimable()), (true, false));
    assert!((55..70).contains(&used_mib(&folder).await));
    fill(&mut store, &log, 80, 110).await;
    assert!(!reclaim(&log, u64::MAX, 90 << 20), "nothing was purged since");
    store.purge(entry(69, 0).log_id).await.unwrap();
    // The size of the live entries is not known, but found: 40 MiB of 90.
    let known = |live| Terms { written_max: 1, live: [(1, live), (2, Some(0))].into(), reserve_bytes: 0 };
    assert!(!log.reclaim(&known(Some(60 << 20))).unwrap());
    assert_eq!((log.reclaim(&known(None)).unwrap(), log.is_reclaimable()), (true, false));
    assert!((35..50).contains(&used_mib(&folder).await));
}

#[tokio::test]
async fn a_log_that_is_being_closed_is_not_merged_and_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut store = LogStore::new(1, Arc::clone(&log));
    fill(&mut store, &log, 0, 80).await;
    store.purge(entry(69, 0).log_id).await.unwrap();
    log.stop_merges();
    assert_eq!((reclaim(&log, u64::MAX, 10 << 20), log.is_reclaimable()), (false, true));
    drop((store, log));
    let (log, _metrics) = open(folder.path());
    let kept = LogStore::new(1, Arc::clone(&log)).try_get_log_entries(..).await.unwrap();
    assert_eq!(kept.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), Vec::from_iter(70..80));
    assert!(reclaim(&log, u64::MAX, 10 << 20));
}

#[tokio::test]
async fn sizes_of_entries_are_known_without_reading_them() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut stores = [1, 2, 3].map(|shard| LogStore::new(shard, Arc::clone(&log)));
    for index in 0..30 {
        for store in &mut stores {
            append(store, vec![entry(index, 1 << 20)]).await.await.unwrap();
        }
    }
    log.flush().unwrap();
    for start in [0, 1, 10, 17, 29, 30, 31] {
        for shard in 1..4 {
            let bytes = log.table_bytes(shard, start).unwrap();
            let expected = 30_u64.saturating_sub(start) << 20;
            // There are three files, with at most one entry too much each.
            assert!((expected..=expected + (4 << 20)).contains(&bytes), "shard {shard} from {start} on: {bytes}");
        }
    }
    assert_eq!(log.table_bytes(4, 0).unwrap() >> 20, 0);
}

#[tokio::test]
async fn a_log_without_space_for_its_live_entries_is_reclaimed_later() {
    let test = "a_log_without_space_for_its_live_entries_is_reclaimed_later";
    let Some(disk) = SmallDisk::mount(test, 384) else { return };
    let (log, _metrics) = open(disk.path());
    let mut store = LogStore::new(1, Arc::clone(&log));
    fill(&mut store, &log, 0, 128).await;
    store.purge(entry(27, 0).log_id).await.unwrap();
    let live_bytes = log.table_bytes(1, 28).unwrap();
    let free = || crate::space::Space::of(disk.path()).unwrap().free_bytes;
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; (free() - (80 << 20)) as usize]).unwrap();
    assert!((64 << 20..100 << 20).contains(&free()));
    assert_eq!((reclaim(&log, u64::MAX, live_bytes), log.is_reclaimable()), (false, true));
    append(&mut store, vec![entry(128, 10)]).await.await.expect("the log failed");
    fs::remove_file(&ballast).unwrap();
    assert_eq!((reclaim(&log, u64::MAX, live_bytes), log.is_reclaimable()), (true, false));
    let kept = store.try_get_log_entries(..).await.unwrap();
    assert_eq!(kept.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), Vec::from_iter(28..129));
}
