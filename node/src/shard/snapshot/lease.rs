//! Leases: checkpoints that other members are reading.
//!
//! A shard has at most one lease. Several receivers share it. It ends when nothing was read for [`IDLE_MAX`], and when
//! the shard is opened again, which deletes its folder. Its files are hard links, so it takes only the space of files
//! that the shard has replaced since.
//!
//! Invariant: while a lease is held, [`Leases::kept_index`] keeps the log after its position, so that a receiver can
//! continue from there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use crate::directory::shard::remove;
use crate::shard::Shard;
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::manifest::{Manifest, SnapshotFile, hash};
use crate::shard::snapshot::rate::RateLimit;

/// Time without reads after which a lease ends. A receiver that was restarted comes back sooner.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(60);
/// Rate at which files are hashed. An unlimited rate would take the disk from the syncs of the log.
const HASHED_BYTES_PER_SECOND: u64 = 256 << 20;

/// A checkpoint that other members read.
#[derive(Debug)]
pub(crate) struct Lease {
    id: u64,
    manifest: Manifest,
    encoded: Bytes,
    folder: PathBuf,
    used_at: Mutex<Instant>,
    is_ended: AtomicBool,
}

impl Lease {
    /// Number of the lease, which is part of a hash of the manifest. After a restart of the sender, a lease with other
    /// files has another number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the encoded manifest.
    pub(crate) fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Opens a file of the manifest. Blocks.
    pub(super) fn open(&self, file: &SnapshotFile) -> std::io::Result<File> {
        File::open(self.folder.join(&file.name))
    }

    /// Records that the lease was used now. Returns false if the lease has ended.
    pub(super) fn touch(&self) -> bool {
        *self.used_at.lock() = Instant::now();
        !self.is_ended.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.used_at.lock().elapsed() >= IDLE_MAX
    }
}

/// Leases of all shards of a node.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    shards: Mutex<BTreeMap<u32, Arc<Slot>>>,
}

/// The lease of a shard.
#[derive(Debug, Default)]
struct Slot {
    /// Lock that is held while a lease is made.
    making: tokio::sync::Mutex<()>,
    held: Mutex<Held>,
    /// Number of leases made so far, for the names of their folders.
    made: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    lease: Option<Arc<Lease>>,
    /// Index after which the log is kept: that of the lease, or a smaller one while a lease is made.
    kept_index: Option<u64>,
}

impl Leases {
    /// Returns the lease of a shard. Makes one if there is none, or if the log was purged beyond its position: up to
    /// `purged`. Other calls for the shard wait meanwhile. If the caller goes away, the lease is made nevertheless.
    ///
    /// # Errors
    /// [`SnapshotError`]: no checkpoint can be made, or its files cannot be read.
    pub(crate) async fn lease(&self, shard: Arc<Shard>, purged: Option<u64>) -> Result<Arc<Lease>, SnapshotError> {
        let slot = Arc::clone(self.shards.lock().entry(shard.id()).or_default());
        let leased = tokio::spawn(async move {
            let _making = slot.making.lock().await;
            let usable = slot.held.lock().lease.clone();
            if let Some(lease) = usable.filter(|lease| Some(lease.manifest.position.index) >= purged)
                && lease.folder.exists()
                && lease.touch()
            {
                return Ok(lease);
            }
            let of_shard = Arc::clone(&slot);
            spawn_blocking(move || of_shard.make(shard)).await?
        });
        leased.await?
    }

    /// Returns a lease that has not ended, by its number.
    pub(crate) fn held(&self, shard: u32, id: u64) -> Option<Arc<Lease>> {
        let slot = Arc::clone(self.shards.lock().get(&shard)?);
        let lease = slot.held.lock().lease.clone();
        lease.filter(|lease| lease.id == id && lease.touch())
    }

    /// Returns the index after which a shard's log must be kept for a lease; `None` if there is no lease.
    pub(crate) fn kept_index(&self, shard: u32) -> Option<u64> {
        let slot = Arc::clone(self.shards.lock().get(&shard)?);
        let held = slot.held.lock();
        held.kept_index
    }

    /// Ends the leases from which nothing was read for [`IDLE_MAX`], and deletes their files. Blocks. To be called
    /// every few seconds.
    pub(crate) fn end_idle(&self) {
        let slots: Vec<Arc<Slot>> = self.shards.lock().values().map(Arc::clone).collect();
        for slot in slots {
            // A lease that is being made is not idle.
            let Ok(_making) = slot.making.try_lock() else { continue };
            let is_idle = slot.held.lock().lease.as_ref().is_some_and(|lease| lease.is_idle());
            if is_idle {
                slot.end();
            }
        }
    }
}

impl Slot {
    /// Makes a lease, which replaces the one before. Blocks, for minutes if the state is large.
    fn make(&self, shard: Arc<Shard>) -> Result<Arc<Lease>, SnapshotError> {
        self.end();
        self.held.lock().kept_index = Some(shard.flushed_index().unwrap_or_default());
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let leases = shard.directory().leases();
        let folder = leases.join(number.to_string());
        let made = fs::create_dir_all(&leases)
            .map_err(SnapshotError::at(&leases))
            // Left by a lease that could not be deleted.
            .and_then(|()| remove(&folder).map_err(SnapshotError::at(&folder)))
            .and_then(|()| checkpoint(shard, &folder));
        match made {
            Ok(lease) => {
                let lease = Arc::new(lease);
                let kept_index = Some(lease.manifest.position.index);
                *self.held.lock() = Held { lease: Some(Arc::clone(&lease)), kept_index };
                Ok(lease)
            }
            Err(error) => {
                self.held.lock().kept_index = None;
                // The cause is the error above. The folder is deleted when the shard is opened at the latest.
                let _removed = remove(&folder);
                Err(error)
            }
        }
    }

    fn end(&self) {
        let Held { lease, .. } = std::mem::take(&mut *self.held.lock());
        if let Some(lease) = lease {
            lease.is_ended.store(true, Ordering::Relaxed);
            if let Err(error) = remove(&lease.folder) {
                tracing::error!(%error, folder = %lease.folder.display(), "a lease cannot be deleted");
            }
        }
    }
}

/// Makes a checkpoint, and hashes its files.
fn checkpoint(shard: Arc<Shard>, folder: &Path) -> Result<Lease, SnapshotError> {
    let flushed = shard.checkpoint(folder)?;
    let number = shard.id();
    // The shard can be closed while the files are hashed.
    drop(shard);
    let position = flushed.position.ok_or(SnapshotError::Empty { shard: number })?;
    let rate = RateLimit::new(HASHED_BYTES_PER_SECOND);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(SnapshotError::at(folder))? {
        let path = entry.map_err(SnapshotError::at(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut file = File::open(&path).map_err(SnapshotError::at(&path))?;
        let pause = |bytes| std::thread::sleep(rate.take(bytes, Instant::now()));
        let (bytes, hash) = hash(&mut file, pause).map_err(SnapshotError::at(&path))?;
        files.push(SnapshotFile { name, bytes, hash });
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let manifest = Manifest { shard: number, position, membership: flushed.membership, files };
    let encoded = manifest.encode()?;
    let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = Sha256::digest(&encoded).into();
    Ok(Lease {
        id: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        manifest,
        encoded,
        folder: folder.to_owned(),
        used_at: Mutex::new(Instant::now()),
        is_ended: AtomicBool::new(false),
    })
}

#[cfg(test)]
impl Lease {
    /// Makes the lease look as if nothing was read for [`IDLE_MAX`].
    pub(super) fn make_idle(&self) {
        *self.used_at.lock() = Instant::now() - IDLE_MAX;
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}
