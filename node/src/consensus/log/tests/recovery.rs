//! Tests of opening the log after a crash, a power cut or damage: every synced write is there, or opening reports its
//! loss.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::storage::{RaftLogReader as _, RaftLogStorage as _};
use prometheus_client::registry::Registry;
use tempfile::TempDir;

use super::{append, entry, locked, open, reclaim};
use crate::consensus::log::{LogDatabase, LogStore};
use crate::consensus::types::{LogEntry, Vote};
use crate::failure::Failure;
use crate::metrics::Metrics;

/// Returns the path of the only WAL file, and its bytes.
fn wal(folder: &TempDir) -> (PathBuf, Vec<u8>) {
    let paths = fs::read_dir(folder.path().join("raft")).unwrap().map(|entry| entry.unwrap().path());
    let logs: Vec<_> = paths.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
    let [path] = &logs[..] else { panic!("{logs:?}") };
    let mut bytes = fs::read(path).unwrap();
    // RocksDB preallocates the file.
    bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    (path.clone(), bytes)
}

/// Opens a copy of the database in which the WAL has the content `bytes`. Returns the entries of the log, or the error.
/// A refused copy is opened again, to check that it is refused again.
async fn reopen(folder: &TempDir, bytes: &[u8]) -> Result<Vec<LogEntry>, String> {
    let copy = tempfile::tempdir().unwrap();
    let raft = copy.path().join("raft");
    fs::create_dir(&raft).unwrap();
    for file in fs::read_dir(folder.path().join("raft")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), raft.join(file.file_name())).unwrap();
    }
    fs::write(raft.join(wal(folder).0.file_name().unwrap()), bytes).unwrap();
    let opened = entries(&raft).await;
    if opened.is_err() {
        entries(&raft).await.unwrap_err();
    }
    opened
}

async fn entries(raft: &Path) -> Result<Vec<LogEntry>, String> {
    let metrics = Metrics::register(&mut Registry::default());
    let directory = locked(raft.parent().unwrap());
    let log = LogDatabase::open(&directory, 1, None, Failure::of_log(), metrics).map_err(|error| error.to_string())?;
    LogStore::new(1, log.into()).try_get_log_entries(..).await.map_err(|error| error.to_string())
}

fn flipped(bytes: &[u8], at: usize, bit: u8) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[at] ^= 1 << bit;
    flipped
}

fn range(indexes: std::ops::Range<u64>) -> Vec<LogEntry> {
    indexes.map(|index| entry(index, 100)).collect()
}

#[tokio::test]
async fn a_flipped_bit_in_synced_writes_is_never_a_silent_loss() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    for index in 0..20 {
        append(&mut store, range(index..index + 1)).await.await.unwrap();
    }
    drop(store);
    let (_, bytes) = wal(&folder);
    assert_eq!(reopen(&folder, &bytes).await, Ok(range(0..20)));
    let mut refused = 0;
    // One byte of about every record, and several bytes of the last record. The flipped bit differs from byte to byte.
    for at in (0..bytes.len()).step_by(131).chain((bytes.len() - 40..bytes.len()).step_by(5)) {
        match reopen(&folder, &flipped(&bytes, at, (at % 8) as u8)).await {
            Ok(entries) => assert_eq!(entries, range(0..20), "byte {at}"),
            Err(error) => {
                assert!(error.contains(".log is damaged (Corruption: "), "byte {at}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 25, "{refused} of {} bytes", bytes.len());
}

/// A flipped bit can give a record a kind that only recycled logs have. RocksDB would read such a WAL file or manifest
/// without end, so opening must refuse it.
#[tokio::test]
async fn a_record_of_a_recycled_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    for index in 0..3 {
        append(&mut store, range(index..index + 1)).await.await.unwrap();
    }
    drop(store);
    let (_, bytes) = wal(&folder);
    let second = 7 + usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
    let error = reopen(&folder, &flipped(&bytes, second + 6, 2)).await.unwrap_err();
    assert!(error.contains(&format!(".log: the record at byte {second} has kind 5")), "{error}");
    let raft = folder.path().join("raft");
    let list = raft.join(fs::read_to_string(raft.join("CURRENT")).unwrap().trim());
    let bytes = fs::read(&list).unwrap();
    let second = 7 + usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
    fs::write(&list, flipped(&bytes, second + 6, 2)).unwrap();
    let error = entries(&raft).await.unwrap_err();
    assert!(
        error.contains(&format!(": the record at byte {second} has kind 5")) && error.contains("MANIFEST"),
        "{error}"
    );
    fs::write(&list, bytes).unwrap();
    assert_eq!(entries(&raft).await, Ok(range(0..3)));
}

/// Copies a folder's files into another, which may have files of the same names.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Returns the names and bytes of RocksDB's files, except for the files that every open changes.
fn files(raft: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(raft).unwrap().map(|entry| entry.unwrap().path());
    let named = files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path));
    let kept = named.filter(|(name, _)| !name.starts_with("LOG") && name != "IDENTITY");
    kept.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// Overwrites the end of the manifest with zeros, from byte `was` on, except for the last byte. Returns the path of the
/// manifest.
fn tear_list(raft: &Path, was: usize) -> PathBuf {
    let list = raft.join(fs::read_to_string(raft.join("CURRENT")).unwrap().trim());
    let mut bytes = fs::read(&list).unwrap();
    assert!(was < bytes.len(), "the list has changed");
    // The last byte stays, so that the end does not look like space that was never written.
    let end = bytes.len() - 1;
    bytes[was..end].fill(0);
    fs::write(&list, bytes).unwrap();
    list
}

#[tokio::test]
async fn a_torn_manifest_is_truncated_only_if_no_file_is_lost() {
    for rounds in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        let raft = folder.path().join("raft");
        let (log, _metrics) = open(folder.path());
        let mut store = LogStore::new(1, Arc::clone(&log));
        let mut before = tempfile::tempdir().unwrap();
        let mut list_bytes = 0;
        for round in 0..rounds {
            append(&mut store, range(round * 10..round * 10 + 10)).await.await.unwrap();
            before = tempfile::tempdir().unwrap();
            copy(&raft, before.path());
            list_bytes =
                fs::metadata(raft.join(fs::read_to_string(raft.join("CURRENT")).unwrap().trim())).unwrap().len();
            // The flush writes the entries to a table file and deletes the WAL.
            log.flush().unwrap();
        }
        drop((store, log));
        let entries_there = range(0..rounds * 10);

        // A power cut during the last change of the manifest: the WAL is still there.
        let torn = tempfile::tempdir().unwrap();
        let crashed = torn.path().join("raft");
        copy(&raft, &crashed);
        copy(before.path(), &crashed);
        let current = fs::read_to_string(raft.join("CURRENT")).unwrap();
        fs::copy(raft.join(current.trim()), crashed.join(current.trim())).unwrap();
        tear_list(&crashed, list_bytes as usize);
        assert_eq!(entries(&crashed).await, Ok(entries_there.clone()), "{rounds}");
        assert!(!torn.path().join("raft-look").exists());
        assert_eq!(entries(&crashed).await, Ok(entries_there.clone()), "{rounds}");

        // Damage long after this change: the WAL is gone, and only the lost change named the table file of the entries.
        let list = tear_list(&raft, list_bytes as usize);
        let left = files(&raft);
        for _ in 0..2 {
            let error = entries(&raft).await.unwrap_err();
            assert!(error.contains("MANIFEST") && error.contains("is damaged from byte"), "{rounds}: {error}");
            assert_eq!(files(&raft), left, "{rounds}: every file is left alone");
            assert!(!folder.path().join("raft-look").exists());
        }
        assert!(list.exists());
    }
}

#[tokio::test]
async fn a_log_that_ends_before_the_last_synced_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    append(&mut store, range(0..10)).await.await.unwrap();
    let (_, short) = wal(&folder);
    append(&mut store, range(10..20)).await.await.unwrap();
    drop(store);
    for bytes in [&short[..], &short[..short.len() - 1], &[]] {
        let error = reopen(&folder, bytes).await.unwrap_err();
        assert!(error.contains("was synced") && error.contains(".log is damaged"), "{error}");
    }
}

#[tokio::test]
async fn a_tear_after_the_last_synced_write_is_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _metrics) = open(folder.path());
    let mut store = LogStore::new(1, Arc::clone(&log));
    append(&mut store, range(0..10)).await.await.unwrap();
    let synced = wal(&folder).1.len();
    for index in 10..20 {
        log.write_unsynced(1, &entry(index, 100));
    }
    drop((store, log));
    let (_, bytes) = wal(&folder);
    let check = async |bytes: &[u8]| {
        let entries = reopen(&folder, bytes).await.unwrap();
        assert!(entries.len() >= 10 && entries == range(0..entries.len() as u64), "{} entries", entries.len());
    };
    // RocksDB would read a file with this kind of record without end, so it is refused even after the last synced
    // write.
    let error = reopen(&folder, &flipped(&bytes, synced + 6, 2)).await.unwrap_err();
    assert!(error.contains(&format!(".log: the record at byte {synced} has kind 5")), "{error}");
    for at in (synced..bytes.len()).step_by(211) {
        check(&bytes[..at]).await;
        check(&flipped(&bytes, at, 3)).await;
        // Bytes that were never written, followed by bytes that were.
        let mut hole = bytes.clone();
        let end = hole.len().min(at + 300);
        hole[at..end].fill(0);
        check(&hole).await;
    }
}

#[tokio::test]
async fn a_damaged_mark_is_refused_by_name_and_a_missing_one_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = LogStore::new(1, open(folder.path()).0);
    append(&mut store, range(0..3)).await.await.unwrap();
    drop(store);
    let raft = folder.path().join("raft");
    let mark = folder.path().join("raft/SYNCED");
    let bytes = fs::read(&mark).unwrap();
    for at in 0..bytes.len() {
        fs::write(&mark, flipped(&bytes, at, 0)).unwrap();
        let error = entries(&raft).await.unwrap_err();
        assert!(error.contains("raft/SYNCED: "), "{error}");
    }
    fs::remove_file(&mark).unwrap();
    assert_eq!(entries(&raft).await, Ok(range(0..3)));
}

#[tokio::test]
async fn a_purged_and_reclaimed_log_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let (log, _metrics) = open(folder.path());
        let mut store = LogStore::new(1, Arc::clone(&log));
        append(&mut store, range(round * 10..round * 10 + 10)).await.await.unwrap();
        store.purge(entry(round * 10 + 9, 0).log_id).await.unwrap();
        store.save_vote(&Vote::new_committed(round + 1, 1)).await.unwrap();
        assert!(reclaim(&log, u64::MAX, 0));
        drop((store, log));
        assert_eq!(entries(&folder.path().join("raft")).await, Ok(Vec::new()), "round {round}");
    }
}
