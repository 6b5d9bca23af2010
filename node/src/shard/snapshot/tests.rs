//! Tests of whole transfers: real engines, a real connection, and faults at every point.

mod peer;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use proto::wire;
use proto::wire::snapshots_client::SnapshotsClient;
use storage_engine::{LogBarrier, Position};
use testkit::small_disk::SmallDisk;
use tonic::Code;

use self::peer::{Fault, Hostile, Peer, SHARD, Served, index_of, open_shard, open_with, serve};
use crate::consensus::GroupState as _;
use crate::directory::used_bytes;
use crate::error::ReplicaError;
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::manifest::{Manifest, SnapshotFile};
use crate::shard::snapshot::receiver::discard_overtaken;

/// Number of entries of a sender: their definitions take several chunks.
const ENTRIES: u64 = 30;
/// Distance of the points at which a transfer fails: a part of a chunk.
const STEP_BYTES: u64 = 200_000;

/// A member with a few entries that the sender's log no longer has, and a sender.
struct Pair {
    receiver: Peer,
    sender: Peer,
    served: Served,
    _folders: [tempfile::TempDir; 2],
}

async fn pair() -> Pair {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let receiver = Peer::open(folders[0].path());
    receiver.apply(3);
    receiver.shard.flush().unwrap();
    let sender = Peer::open(folders[1].path());
    sender.apply(ENTRIES);
    // From here on, RocksDB has too few new files for a compaction, which would replace the files of a snapshot.
    sender.shard.compact().unwrap();
    let served = Served::of(&sender, None).await;
    Pair { receiver, sender, served, _folders: folders }
}

/// Checks that a member still has its own three entries, also after a restart.
fn is_unchanged(receiver: Peer) -> Peer {
    let before = receiver.content();
    assert_eq!(receiver.index(), 3);
    let receiver = receiver.reopen();
    assert_eq!(receiver.content(), before);
    receiver
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_replaces_the_state_also_after_a_restart() {
    let Pair { mut receiver, sender, served, _folders } = pair().await;
    let staged = receiver.receive(&served.channel).await.unwrap();
    assert_eq!(staged.manifest().position.index, ENTRIES);
    assert_eq!(served.sent(), staged.manifest().bytes());
    let old = receiver.of_shard().path().join("state-1");
    assert!(old.exists());
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
    assert_eq!(index_of(&receiver.shard.flushed()), ENTRIES);
    assert!(!old.exists() && !receiver.of_shard().staging().exists());
    let mut receiver = receiver.reopen();
    assert_eq!(receiver.content(), sender.content());
    // Both go on alike, and a second snapshot replaces the first.
    receiver.apply(2);
    sender.apply(5);
    let served = Served::of(&sender, None).await;
    let staged = receiver.receive(&served.channel).await.unwrap();
    receiver.install(staged).unwrap();
    assert_eq!(receiver.index(), ENTRIES + 5);
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_breaks_at_any_point_continues_there() {
    let Pair { receiver, sender, served, _folders } = pair().await;
    let total = receiver.receive(&served.channel).await.unwrap().manifest().bytes();
    let mut receiver = receiver;
    let mut broken = 0;
    for at in (0..total).step_by(STEP_BYTES as usize) {
        std::fs::remove_dir_all(receiver.of_shard().staging()).unwrap();
        served.set(Fault::Break(at));
        let error = receiver.receive(&served.channel).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Sender(_)), "{error}");
        let first = served.sent();
        assert!(first >= at, "{first} {at}");
        // The receiver dies, and starts again.
        receiver = is_unchanged(receiver);
        served.set(Fault::Nothing);
        receiver.receive(&served.channel).await.unwrap();
        // A chunk may be on its way when the connection breaks.
        let sent = first + served.sent();
        assert!((total..=total + first).contains(&sent) && served.sent() < total || at == 0, "{sent} of {total}");
        broken += 1;
    }
    assert!(broken > 5, "{total} bytes are too few");
    let staged = receiver.receive(&served.channel).await.unwrap();
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_is_dropped_releases_the_staging_folder() {
    let Pair { mut receiver, sender, served, _folders } = pair().await;
    for micros in [0, 100, 300, 1000, 3000, 10_000] {
        let within = std::time::Duration::from_micros(micros);
        let receiving = receiver.receive(&served.channel);
        let _dropped = tokio::time::timeout(within, receiving).await;
        receiver = is_unchanged(receiver);
    }
    let staged = loop {
        match receiver.receive(&served.channel).await {
            // The last work of the dropped transfer still holds the lock.
            Err(SnapshotError::Files { path, .. }) if path.ends_with("LOCK") => tokio::task::yield_now().await,
            staged => break staged.unwrap(),
        }
    };
    let busy = receiver.receive(&served.channel).await.unwrap_err();
    assert!(busy.to_string().contains("LOCK"), "two transfers write to one folder: {busy}");
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_bit_in_any_chunk_is_found_and_only_its_file_sent_again() {
    let Pair { mut receiver, sender, served, _folders } = pair().await;
    let manifest = receiver.receive(&served.channel).await.unwrap().manifest().clone();
    let largest = manifest.files.iter().map(|file| file.bytes).max().unwrap();
    for at in (0..manifest.bytes()).step_by(STEP_BYTES as usize) {
        std::fs::remove_dir_all(receiver.of_shard().staging()).unwrap();
        served.set(Fault::Flip(at));
        let error = receiver.receive(&served.channel).await.unwrap_err();
        let SnapshotError::Damaged { file } = &error else { panic!("{error}") };
        assert!(manifest.file(file).is_some() && error.to_string().contains(file.as_str()), "{error}");
        receiver = is_unchanged(receiver);
        let first = served.sent();
        served.set(Fault::Nothing);
        receiver.receive(&served.channel).await.unwrap();
        assert!(first + served.sent() <= manifest.bytes() + largest, "more than one file was sent again");
    }
    let staged = receiver.receive(&served.channel).await.unwrap();
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_during_a_read_is_followed_by_another() {
    let Pair { mut receiver, sender, served, _folders } = pair().await;
    let total = receiver.receive(&served.channel).await.unwrap().manifest().bytes();
    let first = served.leases.kept_index(SHARD);
    assert_eq!(first, Some(ENTRIES));
    std::fs::remove_dir_all(receiver.of_shard().staging()).unwrap();
    served.set(Fault::EndLease(total / 2));
    let error = receiver.receive(&served.channel).await.unwrap_err();
    assert!(error.to_string().contains("the lease has ended"), "{error}");
    assert_eq!(served.leases.kept_index(SHARD), None, "the log may be purged");
    assert_eq!(std::fs::read_dir(sender.of_shard().leases()).unwrap().count(), 0, "its files are deleted");
    sender.apply(1);
    served.set(Fault::Nothing);
    let staged = receiver.receive(&served.channel).await.unwrap();
    assert_eq!(staged.manifest().position.index, ENTRIES + 1);
    assert!(served.sent() < total, "files that both snapshots have were sent again");
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_receivers_share_one_lease_that_takes_no_space() {
    let Pair { mut receiver, sender, served, _folders } = pair().await;
    let folder = tempfile::tempdir().unwrap();
    let mut second = Peer::open(folder.path());
    let before = used_bytes(sender.directory.path()).unwrap();
    let (one, other) = tokio::join!(receiver.receive(&served.channel), second.receive(&served.channel));
    let [one, other] = [one, other].map(Result::unwrap);
    assert_eq!(one.manifest(), other.manifest());
    assert_eq!(served.sent(), 2 * one.manifest().bytes());
    assert_eq!(std::fs::read_dir(sender.of_shard().leases()).unwrap().count(), 1);
    let tables: u64 =
        one.manifest().files.iter().filter(|file| file.name.ends_with(".sst")).map(|file| file.bytes).sum();
    let used = used_bytes(sender.directory.path()).unwrap();
    assert!(tables > 1 << 20 && used < before + tables / 2, "{used} {before} {tables}");
    receiver.install(one).unwrap();
    second.install(other).unwrap();
    assert_eq!(receiver.content(), sender.content());
    assert_eq!(second.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_purged_beyond_or_without_files_is_replaced() {
    let Pair { sender, served, _folders, .. } = pair().await;
    let lease = async |purged| served.leases.lease(Arc::clone(&sender.shard), purged).await.unwrap();
    let first = lease(Some(ENTRIES)).await;
    sender.apply(5);
    assert_eq!(lease(Some(ENTRIES)).await.id(), first.id());
    let second = lease(Some(ENTRIES + 1)).await;
    assert_eq!(second.manifest().position.index, ENTRIES + 5);
    assert!(!first.folder().exists() && second.folder().exists());
    assert!(served.leases.held(SHARD, first.id()).is_none());
    served.leases.end_idle();
    assert!(second.folder().exists(), "it is not idle");
    // The shard was opened again.
    std::fs::remove_dir_all(sender.of_shard().leases()).unwrap();
    assert!(lease(None).await.folder().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_anything_but_files_of_the_lease_are_refused() {
    let Pair { served, _folders, .. } = pair().await;
    let mut client = SnapshotsClient::new(served.channel.clone());
    let manifest = client.manifest(wire::SnapshotRequest { shard: SHARD }).await.unwrap().into_inner();
    let lease = manifest.lease;
    let read =
        |shard, lease, file: &str, offset| wire::SnapshotReadRequest { shard, lease, file: file.to_owned(), offset };
    for (request, code) in [
        (read(SHARD, lease, "../../../FORMAT", 0), Code::InvalidArgument),
        (read(SHARD, lease, "", 0), Code::InvalidArgument),
        (read(SHARD, lease, "CURRENT", u64::MAX), Code::InvalidArgument),
        (read(SHARD, lease ^ 1, "CURRENT", 0), Code::NotFound),
        (read(SHARD + 1, lease, "CURRENT", 0), Code::NotFound),
    ] {
        let status = client.read(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}: {status}");
    }
    let status = client.manifest(wire::SnapshotRequest { shard: SHARD + 1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(client.read(read(SHARD, lease, "CURRENT", 0)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_entries_has_no_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let sender = Peer::open(folder.path());
    let served = Served::of(&sender, None).await;
    let mut client = SnapshotsClient::new(served.channel.clone());
    let status = client.manifest(wire::SnapshotRequest { shard: SHARD }).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(served.leases.kept_index(SHARD), None);
}

/// Returns the manifest of a snapshot with one file, and a sender of it.
fn one_file(bytes: u64) -> Manifest {
    let file = SnapshotFile { name: "CURRENT".to_owned(), bytes, hash: [0; 32] };
    let position = Position { index: 9, log_id: Bytes::from_static(b"id") };
    Manifest { shard: SHARD, position, membership: None, files: vec![file] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_sender_gets_an_error_and_changes_nothing() {
    let Pair { receiver, _folders, .. } = pair().await;
    let error_of = async |manifest: Bytes, chunk: &'static [u8]| {
        let channel = serve(Hostile { manifest, chunk: Bytes::from_static(chunk) }).await;
        receiver.receive(&channel).await.unwrap_err()
    };
    let of = |manifest: Manifest| manifest.encode().unwrap();
    assert!(matches!(error_of(Bytes::from_static(b"\x01"), b"").await, SnapshotError::Manifest(_)));
    assert!(matches!(error_of(Bytes::from(vec![1; 4 << 20]), b"").await, SnapshotError::Manifest(_)));
    let other = Manifest { shard: 7, ..one_file(1) };
    assert!(matches!(error_of(of(other), b"").await, SnapshotError::OtherShard { found: 7, expected: SHARD }));
    // Too many bytes, an empty chunk, and wrong bytes.
    assert!(matches!(error_of(of(one_file(2)), b"abc").await, SnapshotError::Damaged { .. }));
    assert!(matches!(error_of(of(one_file(2)), b"").await, SnapshotError::Damaged { .. }));
    assert!(matches!(error_of(of(one_file(2)), b"ab").await, SnapshotError::Damaged { .. }));
    assert!(matches!(error_of(of(one_file(2)), b"a").await, SnapshotError::Sender(_)), "it ended early");
    let error = error_of(of(one_file(1 << 60)), b"").await;
    assert!(
        matches!(error, SnapshotError::DiskFull { .. }) && error.to_string().contains("free some space"),
        "{error}"
    );
    is_unchanged(receiver);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_comes_twice_is_found() {
    let Pair { mut receiver, sender, served, _folders } = pair().await;
    for at in [0, 300_000] {
        served.set(Fault::Repeat(at));
        let error = receiver.receive(&served.channel).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
    }
    let staged = receiver.receive(&served.channel).await.unwrap();
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_contradicts_its_manifest_is_not_installed() {
    let Pair { receiver, served, _folders, .. } = pair().await;
    let mut staged = receiver.receive(&served.channel).await.unwrap();
    staged.manifest.position.index += 1;
    let error = staged.install(|state| open_shard(&receiver.directory, state)).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Position { found: ENTRIES, expected } if expected == ENTRIES + 1),
        "{error}"
    );
    let receiver = is_unchanged(receiver);
    // The engine does not open.
    let staged = receiver.receive(&served.channel).await.unwrap();
    let failed = |_: &std::path::Path| Err::<(), _>(ReplicaError::Damaged);
    assert!(matches!(staged.install(failed).unwrap_err(), SnapshotError::Replica(ReplicaError::Damaged)));
    is_unchanged(receiver);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_the_pointer_changes_leaves_the_old_state() {
    let Pair { receiver, sender, served, _folders } = pair().await;
    let staged = receiver.receive(&served.channel).await.unwrap();
    // The process dies after the engine of the new state was opened.
    let state = receiver.of_shard().adopt(&staged.staging.files()).unwrap();
    drop(open_shard(&receiver.directory, state.path()).unwrap());
    drop(staged);
    let mut receiver = is_unchanged(receiver);
    assert!(!state.path().exists());
    let staged = receiver.receive(&served.channel).await.unwrap();
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staged_snapshot_is_kept_until_the_state_has_overtaken_it() {
    let Pair { receiver, served, _folders, .. } = pair().await;
    served.set(Fault::Break(STEP_BYTES));
    let directory = receiver.of_shard();
    let receiving = receiver.receive(&served.channel);
    receiving.await.unwrap_err();
    discard_overtaken(&directory, None).unwrap();
    discard_overtaken(&directory, Some(ENTRIES - 1)).unwrap();
    assert!(directory.staging().join("MANIFEST").exists());
    discard_overtaken(&directory, Some(ENTRIES)).unwrap();
    assert!(!directory.staging().exists());
    discard_overtaken(&directory, Some(ENTRIES)).unwrap();
    // A snapshot that is being installed is left alone.
    served.set(Fault::Nothing);
    let staged = receiver.receive(&served.channel).await.unwrap();
    discard_overtaken(&directory, Some(ENTRIES)).unwrap();
    assert!(staged.staging.files().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_the_snapshot_received_when_there_is_space() {
    let Some(disk) = SmallDisk::mount("a_full_disk_is_reported", 24) else { return };
    let Pair { sender, _folders, .. } = pair().await;
    sender.apply(400);
    let served = Served::of(&sender, None).await;
    let mut receiver = Peer::open(&disk.path().join("data"));
    receiver.apply(3);
    receiver.shard.flush().unwrap();
    let error = receiver.receive(&served.channel).await.unwrap_err();
    let SnapshotError::DiskFull { needed_bytes, free_bytes } = error else { panic!("{error}") };
    assert!(needed_bytes > free_bytes && served.sent() == 0, "{needed_bytes} {free_bytes}");
    // The disk fills up during the transfer.
    disk.resize(64);
    served.set(Fault::Break(1 << 20));
    receiver.receive(&served.channel).await.unwrap_err();
    let ballast = disk.path().join("ballast");
    fill(&ballast);
    receiver = is_unchanged(receiver);
    served.set(Fault::Nothing);
    let error = receiver.receive(&served.channel).await.unwrap_err();
    assert!(matches!(error, SnapshotError::DiskFull { .. } | SnapshotError::Files { .. }), "{error}");
    std::fs::remove_file(&ballast).unwrap();
    let staged = receiver.receive(&served.channel).await.unwrap();
    receiver.install(staged).unwrap();
    assert_eq!(receiver.content(), sender.content());
    drop(receiver);
}

/// Writes a file until the disk has 2 MiB left, which the restart of a shard needs.
fn fill(path: &PathBuf) {
    let free = crate::space::Space::of(path.parent().unwrap()).unwrap().free_bytes;
    std::fs::write(path, vec![1; free.saturating_sub(2 << 20) as usize]).unwrap();
}

#[test]
fn a_flush_waits_until_the_log_has_synced_all_applied_entries() {
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::open(folder.path());
    peer.apply(1);
    let peer = peer.reopen();
    assert_eq!(peer.index(), 0, "nothing was flushed");
    let Peer { shard, directory } = peer;
    drop(shard);
    let state = directory.shard(SHARD).recover().unwrap();
    let (sync, synced) = std::sync::mpsc::channel::<u64>();
    let synced = parking_lot::Mutex::new(synced);
    let barrier = LogBarrier::new(move |index| {
        let synced = synced.lock();
        while synced.recv()? < index {}
        Ok(())
    });
    let shard = Arc::new(open_with(&directory, &state, barrier).unwrap());
    let peer = Peer { shard, directory };
    peer.apply(2);
    let flush = std::thread::spawn({
        let shard = Arc::clone(&peer.shard);
        move || shard.flush()
    });
    sync.send(1).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!flush.is_finished() && peer.shard.flushed_index().is_none(), "it did not wait for entry 2");
    sync.send(2).unwrap();
    flush.join().unwrap().unwrap();
    assert_eq!(peer.shard.flushed_index(), Some(2));
    // The log has failed.
    drop(sync);
    peer.apply(1);
    let error = peer.shard.flush().unwrap_err().to_string();
    assert!(error.contains("entry 3 is not synced in the log"), "{error}");
    assert_eq!(peer.shard.flushed_index(), Some(2));
}
