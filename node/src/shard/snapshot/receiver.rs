//! The receiver: pulls the files of a snapshot into the staging folder of a shard, and checks them.
//!
//! ```text
//! staging/LOCK               locked (flock) while a snapshot is received or installed
//! staging/MANIFEST           the manifest of the staged snapshot
//! staging/files/             its files; the last one may be incomplete
//! ```
//!
//! Invariant: files in the staging folder are those of its manifest, or parts of them. After an interruption, only the
//! missing bytes are requested. A later snapshot keeps the files that it has in common with the staged one.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proto::wire;
use proto::wire::snapshots_client::SnapshotsClient;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

use crate::directory::shard::{ShardDirectory, remove};
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::manifest::{MANIFEST_BYTES_MAX, Manifest, SnapshotFile, hash};
use crate::space::Space;

/// Longest time that the receiver waits for the manifest. The sender hashes about 900 GiB in this time.
const MANIFEST_PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Longest time that the receiver waits for the next chunk. The sender's limit on the rate delays a chunk far less.
const CHUNK_PATIENCE: Duration = Duration::from_secs(30);
/// Name of the file with the manifest.
const MANIFEST: &str = "MANIFEST";
/// Bytes of a response in addition to the manifest.
const RESPONSE_BYTES: usize = 64;

/// A snapshot that is complete, checked and on disk. It is not installed yet.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(super) manifest: Manifest,
    pub(super) staging: Arc<Staging>,
}

impl Staged {
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// Receives a snapshot of a shard over `channel` from a member that has one, into the shard's `directory`. Only the
/// bytes that are not staged yet are transferred. Dropping the future stops the transfer. The channel must allow
/// requests of minutes, because the sender hashes all files before it responds.
///
/// # Errors
/// [`SnapshotError`]. What is staged stays, so that another call continues. A damaged file is deleted first.
pub(crate) async fn receive(channel: Channel, shard: u32, directory: ShardDirectory) -> Result<Staged, SnapshotError> {
    let mut client = SnapshotsClient::new(channel).max_decoding_message_size(MANIFEST_BYTES_MAX + RESPONSE_BYTES);
    let staging = blocking(move || Staging::open(&directory)).await?;
    let staging = Arc::new(staging);
    let manifest = timeout(MANIFEST_PATIENCE, client.manifest(wire::SnapshotRequest { shard })).await;
    let late = |_elapsed| Status::deadline_exceeded(format!("no manifest came within {MANIFEST_PATIENCE:?}"));
    let response = manifest.map_err(late)??.into_inner();
    let manifest = Manifest::decode(&response.manifest)?;
    if manifest.shard != shard {
        return Err(SnapshotError::OtherShard { found: manifest.shard, expected: shard });
    }
    let begun = (Arc::clone(&staging), manifest.clone());
    blocking(move || begun.0.begin(&begun.1, &response.manifest)).await?;
    tracing::info!(shard, index = manifest.position.index, bytes = manifest.bytes(), "receiving a snapshot");
    for file in &manifest.files {
        fetch(&mut client, shard, response.lease, &staging, file).await?;
    }
    let completed = (Arc::clone(&staging), manifest.clone());
    blocking(move || completed.0.complete(&completed.1)).await?;
    Ok(Staged { manifest, staging })
}

/// Deletes what is staged of a snapshot that the state of the shard has overtaken. Does nothing while a snapshot is
/// received. `flushed` is the index of the last entry in the state. Blocks.
pub(crate) fn discard_overtaken(directory: &ShardDirectory, flushed: Option<u64>) -> Result<(), SnapshotError> {
    if !directory.staging().exists() {
        return Ok(());
    }
    let Ok(staging) = Staging::open(directory) else { return Ok(()) };
    let is_overtaken = |staged: Manifest| Some(staged.position.index) <= flushed;
    if staging.manifest().is_none_or(is_overtaken) { staging.discard() } else { Ok(()) }
}

/// Fetches the missing part of a file, and checks the file.
async fn fetch(
    client: &mut SnapshotsClient<Channel>,
    shard: u32,
    lease: u64,
    staging: &Arc<Staging>,
    file: &SnapshotFile,
) -> Result<(), SnapshotError> {
    let of_file = Arc::clone(staging);
    let name = file.clone();
    let mut at = blocking(move || of_file.staged_bytes(&name)).await?;
    if at < file.bytes {
        let request = wire::SnapshotReadRequest { shard, lease, file: file.name.clone(), offset: at };
        let late = |_elapsed| Status::deadline_exceeded(format!("no file came within {CHUNK_PATIENCE:?}"));
        let chunks = timeout(CHUNK_PATIENCE, client.read(request)).await;
        let mut chunks = chunks.map_err(late)??.into_inner();
        while let Some(chunk) = next(&mut chunks).await? {
            at += chunk.len() as u64;
            let of_chunk = Arc::clone(staging);
            let of_file = file.clone();
            blocking(move || of_chunk.append(&of_file, at, &chunk)).await?;
        }
        if at < file.bytes {
            return Err(Status::unavailable(format!("the stream of file {} ended early", file.name)).into());
        }
    }
    let of_file = Arc::clone(staging);
    let file = file.clone();
    blocking(move || of_file.check(&file)).await
}

async fn next(chunks: &mut tonic::Streaming<wire::SnapshotChunk>) -> Result<Option<Bytes>, SnapshotError> {
    let late = |_elapsed| Status::deadline_exceeded(format!("no chunk came within {CHUNK_PATIENCE:?}"));
    let chunk = timeout(CHUNK_PATIENCE, chunks.message()).await.map_err(late)??;
    Ok(chunk.map(|chunk| chunk.content))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SnapshotError> + Send + 'static,
) -> Result<T, SnapshotError> {
    spawn_blocking(work).await?
}

/// The locked staging folder of a shard. Blocking work holds a reference, so that the folder stays locked until the
/// work of an abandoned transfer has ended.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) directory: ShardDirectory,
    _lock: File,
}

impl Staging {
    /// Makes and locks the folder.
    fn open(directory: &ShardDirectory) -> Result<Self, SnapshotError> {
        let folder = directory.staging();
        fs::create_dir_all(&folder).map_err(SnapshotError::at(&folder))?;
        let path = folder.join("LOCK");
        let lock = File::options().write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(SnapshotError::at(&path))?;
        lock.try_lock().map_err(|error| SnapshotError::at(&path)(error.into()))?;
        Ok(Self { directory: directory.clone(), _lock: lock })
    }

    pub(super) fn files(&self) -> PathBuf {
        self.directory.staging().join("files")
    }

    fn path(&self, file: &SnapshotFile) -> PathBuf {
        self.files().join(&file.name)
    }

    /// Returns the manifest of the staged files; `None` if it is missing or damaged. It then belongs to no files.
    fn manifest(&self) -> Option<Manifest> {
        let bytes = fs::read(self.directory.staging().join(MANIFEST)).ok()?;
        Manifest::decode(&bytes).ok()
    }

    /// Stores the manifest of the snapshot to receive. Keeps the staged files that are also files of this snapshot.
    fn begin(&self, manifest: &Manifest, encoded: &[u8]) -> Result<(), SnapshotError> {
        let folder = self.directory.staging();
        let files = self.files();
        let stored = folder.join(MANIFEST);
        let staged = self.manifest();
        let begin = || {
            fs::create_dir_all(&files)?;
            let is_kept = |name: &str| {
                let file = manifest.file(name);
                file.is_some() && staged.as_ref().is_some_and(|staged| staged.file(name) == file)
            };
            remove_unless(&files, is_kept)?;
            let new = folder.join("MANIFEST.new");
            fs::write(&new, encoded)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &stored)?;
            File::open(&folder)?.sync_all()
        };
        begin().map_err(SnapshotError::at(&folder))?;
        let staged_bytes: u64 = manifest.files.iter().map(|file| length(&self.path(file)).unwrap_or_default()).sum();
        let space = Space::of(&folder).map_err(SnapshotError::at(&folder))?;
        let needed_bytes = manifest.bytes().saturating_sub(staged_bytes);
        let free_bytes = space.free_bytes.saturating_sub(space.reserve_bytes());
        if needed_bytes > free_bytes {
            return Err(SnapshotError::DiskFull { needed_bytes, free_bytes });
        }
        Ok(())
    }

    /// Returns the number of bytes of a file that are staged. Makes the file if it does not exist, and truncates it if
    /// it is too long.
    fn staged_bytes(&self, file: &SnapshotFile) -> Result<u64, SnapshotError> {
        let path = self.path(file);
        let staged = || {
            let opened = File::options().write(true).create(true).truncate(false).open(&path)?;
            let bytes = opened.metadata()?.len();
            if bytes > file.bytes {
                opened.set_len(0)?;
                return Ok(0);
            }
            Ok(bytes)
        };
        staged().map_err(SnapshotError::at(&path))
    }

    /// Appends a chunk to a file, after which the file has `bytes` bytes.
    fn append(&self, file: &SnapshotFile, bytes: u64, chunk: &[u8]) -> Result<(), SnapshotError> {
        if chunk.is_empty() || bytes > file.bytes {
            return Err(self.damaged(file));
        }
        let path = self.path(file);
        let appended = File::options().append(true).open(&path).and_then(|mut file| file.write_all(chunk));
        appended.map_err(SnapshotError::at(&path))
    }

    /// Syncs a complete file, and compares its length and its hash with the manifest.
    fn check(&self, file: &SnapshotFile) -> Result<(), SnapshotError> {
        let path = self.path(file);
        let checked = File::open(&path).and_then(|mut opened| {
            opened.sync_all()?;
            hash(&mut opened, |_bytes| ())
        });
        let found = checked.map_err(SnapshotError::at(&path))?;
        if found == (file.bytes, file.hash) { Ok(()) } else { Err(self.damaged(file)) }
    }

    /// Deletes a damaged file, so that it is requested again. Returns the error.
    fn damaged(&self, file: &SnapshotFile) -> SnapshotError {
        let path = self.path(file);
        match fs::remove_file(&path) {
            Ok(()) => SnapshotError::Damaged { file: file.name.clone() },
            Err(error) => SnapshotError::at(path)(error),
        }
    }

    /// Makes the names of the files durable.
    fn complete(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        let files = self.files();
        let completed = remove_unless(&files, |name| manifest.file(name).is_some())
            .and_then(|()| File::open(&files)?.sync_all())
            .and_then(|()| File::open(self.directory.staging())?.sync_all());
        completed.map_err(SnapshotError::at(&files))
    }

    /// Deletes all that is staged.
    pub(super) fn discard(&self) -> Result<(), SnapshotError> {
        let folder = self.directory.staging();
        remove(&folder).map_err(SnapshotError::at(&folder))
    }
}

/// Deletes the files of a folder that are not to be kept.
fn remove_unless(folder: &Path, is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(&is_kept) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn length(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.len())
}
