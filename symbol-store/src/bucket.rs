//! Symbol tables that several routers share: objects in a directory or in an S3-compatible object store.
//!
//! ```text
//! changed                          random text, which is written after each change of the objects below
//! tables/<tenant>/<file>/<table>   a symbol table; its name has all of its metadata
//! aliases/<tenant>/<file>/<other>  empty: the file <other> also has the build ID <file>
//! ```
//!
//! Each router holds a copy of all names ([`index`]). It reads `changed` once a second, and lists the names again when
//! the text is another one, or after ten minutes.
//!
//! Invariant: an object with a name (see [`name`]) is never changed, only added and removed. A table is added in one
//! step with its metadata, so there is never one without the other. A router that dies before it writes `changed` only
//! delays the other routers.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use parking_lot::{Condvar, Mutex};
use proto::TenantId;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::limits;

mod change;
pub(crate) mod index;
mod location;
pub(crate) mod name;

pub(crate) use change::{NewTable, Published};
use index::{Index, Stored};
use name::{FileName, ObjectName};

/// Interval at which the object `changed` is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which the names are listed again although `changed` has not changed, because a router may have died
/// between its upload and the change.
const INDEX_AGE_MAX: Duration = Duration::from_secs(600);

/// Longest time of one small request, such as reading `changed`.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(15);

/// Largest size of the object `changed` that is read, in bytes.
const CHANGED_BYTES_MAX: u64 = 1024;

/// The error of a request to a bucket.
#[derive(Debug, Error)]
pub(crate) enum BucketError {
    /// The store has refused the request, or cannot be reached.
    #[error(transparent)]
    Store(#[from] object_store::Error),
    /// The local file cannot be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// The request took too long.
    #[error("the store of debug files did not respond within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The object does not have the size or the hash in its name.
    #[error("a stored symbol table does not have the size or the SHA-256 in its name")]
    Damaged,
    /// The bucket has too many objects.
    #[error("the store of debug files has more than {0} objects: delete some")]
    TooMany(usize),
    /// The tables of the tenant would be too large.
    #[error("the tenant's tables would have {bytes} bytes, the limit is {bytes_max}")]
    Full {
        /// Size of all tables of the tenant, in bytes.
        bytes: u64,
        /// Largest size that is allowed, in bytes.
        bytes_max: u64,
    },
}

impl From<BucketError> for io::Error {
    fn from(error: BucketError) -> Self {
        match error {
            BucketError::File(error) => error,
            other => Self::other(other),
        }
    }
}

/// A bucket, with a copy of its names.
#[derive(Debug)]
pub(crate) struct Bucket {
    objects: Arc<Objects>,
    /// Runs the requests to the store, so that callers need no async runtime. `None` while it is dropped.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Objects {
    store: Arc<dyn ObjectStore>,
    /// Path of the bucket in the store.
    path: Path,
    known: Mutex<Known>,
    /// Wakes the callers that wait for the first copy of the names.
    loaded: Condvar,
    /// Lock that is held while the names are listed, so that an older list never replaces a newer one.
    listing: tokio::sync::Mutex<()>,
    fetches: Semaphore,
    /// The counter of the symbol store, which grows with each new or improved table.
    changes: Arc<AtomicU64>,
}

/// The copy of the names, and when it was made.
#[derive(Debug, Default)]
struct Known {
    /// `None` before the first list.
    index: Option<Arc<Index>>,
    /// Text of `changed` before the list; `None` if there was no such object.
    changed: Option<Bytes>,
    listed: Option<Instant>,
    /// True if the last request failed.
    has_failed: bool,
}

impl Bucket {
    /// Opens the bucket at `url`, which is `file:///path` or `s3://bucket/prefix`. Does not wait for S3. `changes`
    /// grows with each change of the names.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the URL or a setting of S3 is invalid; the error of a system call on the
    /// directory.
    pub(crate) fn open(url: &str, changes: Arc<AtomicU64>) -> io::Result<Self> {
        let (store, path) = location::open(url)?;
        let objects = Arc::new(Objects {
            store,
            path,
            known: Mutex::default(),
            loaded: Condvar::new(),
            listing: tokio::sync::Mutex::default(),
            fetches: Semaphore::new(limits::FETCHES_MAX),
            changes,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("debug-files")
            .enable_all()
            .build()?;
        runtime.spawn(watch(Arc::clone(&objects)));
        Ok(Self { objects, runtime: Some(runtime) })
    }

    /// Returns the names. Waits for the first list until `deadline`; `None` if there is none by then, or if the store
    /// cannot be reached.
    pub(crate) fn index(&self, deadline: Instant) -> Option<Arc<Index>> {
        let mut known = self.objects.known.lock();
        while known.index.is_none() && !known.has_failed {
            if self.objects.loaded.wait_until(&mut known, deadline).timed_out() {
                break;
            }
        }
        known.index.clone()
    }

    /// Writes the content of a table to the empty file `to`, and checks its size and hash.
    pub(crate) fn fetch(&self, tenant: &TenantId, stored: &Stored, to: &File) -> Result<(), BucketError> {
        let limit = limits::FETCH_TIME_MAX;
        self.wait(limit, async { self.objects.fetch(tenant, stored, to).await })
    }

    /// Adds a table, unless a better one makes it useless. Removes the tables of the same file that it supersedes.
    pub(crate) fn publish(&self, new: &NewTable<'_>, bytes_max: u64) -> Result<Published, BucketError> {
        self.wait(limits::PUBLISH_TIME_MAX, async { self.objects.publish(new, bytes_max).await })
    }

    /// Removes all tables of a tenant, or those of the file with the build ID `id`. Returns the number of tables.
    pub(crate) fn remove(&self, tenant: &TenantId, id: Option<&FileName>) -> Result<u64, BucketError> {
        self.wait(limits::PUBLISH_TIME_MAX, async { self.objects.remove(tenant, id).await })
    }

    fn wait<T>(&self, limit: Duration, work: impl Future<Output = Result<T, BucketError>>) -> Result<T, BucketError> {
        let Some(runtime) = &self.runtime else { return Err(BucketError::TimedOut(Duration::ZERO)) };
        runtime.block_on(bounded(limit, work))
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // A runtime that is simply dropped waits for its threads, which is not allowed in async code.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn bounded<T>(limit: Duration, work: impl Future<Output = Result<T, BucketError>>) -> Result<T, BucketError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_elapsed) => Err(BucketError::TimedOut(limit)),
    }
}

/// Keeps the copy of the names up to date.
async fn watch(objects: Arc<Objects>) {
    loop {
        let polled = objects.poll().await;
        let has_failed = polled.is_err();
        let had_failed = std::mem::replace(&mut objects.known.lock().has_failed, has_failed);
        match polled {
            Err(error) if !had_failed => tracing::error!(%error, "the store of debug files does not work"),
            Ok(()) if had_failed => tracing::info!("the store of debug files works again"),
            _ => {}
        }
        objects.loaded.notify_all();
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

impl Objects {
    async fn poll(&self) -> Result<(), BucketError> {
        let changed = self.changed().await?;
        let is_due = {
            let known = self.known.lock();
            let is_old = known.listed.is_none_or(|listed| listed.elapsed() >= INDEX_AGE_MAX);
            is_old || known.changed != changed
        };
        if is_due { self.refresh().await.map(|_index| ()) } else { Ok(()) }
    }

    /// Reads the object `changed`; `None` if it does not exist yet.
    async fn changed(&self) -> Result<Option<Bytes>, BucketError> {
        let read = async {
            match self.store.get_range(&self.path.clone().join("changed"), 0..CHANGED_BYTES_MAX).await {
                Ok(text) => Ok(Some(text)),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        bounded(REQUEST_TIME_MAX, read).await
    }

    /// Lists all names again.
    async fn refresh(&self) -> Result<Arc<Index>, BucketError> {
        let _one = self.listing.lock().await;
        // The text is read before the list, so that a change during the list causes another one.
        let changed = self.changed().await?;
        let index = Arc::new(bounded(limits::LIST_TIME_MAX, self.list()).await?);
        let is_new = {
            let mut known = self.known.lock();
            let is_new = known.index.as_ref() != Some(&index);
            (known.index, known.changed, known.listed) = (Some(Arc::clone(&index)), changed, Some(Instant::now()));
            is_new
        };
        self.loaded.notify_all();
        if is_new {
            // The counter comes last: whoever sees the new value also sees the new names.
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(index)
    }

    async fn list(&self) -> Result<Index, BucketError> {
        let mut index = Index::default();
        for folder in ["tables", "aliases"] {
            let mut listed = self.store.list(Some(&self.path.clone().join(folder)));
            while let Some(object) = listed.try_next().await? {
                index.objects += 1;
                // Uploads end at half of this number, so only other programs can exceed it.
                if index.objects > limits::BUCKET_OBJECTS_MAX * 2 {
                    return Err(BucketError::TooMany(limits::BUCKET_OBJECTS_MAX));
                }
                match ObjectName::parse(&self.path, &object.location) {
                    Some(name) => index.add(name, object.size),
                    None => tracing::debug!(path = %object.location, "not an object of varve"),
                }
            }
        }
        Ok(index)
    }

    async fn fetch(&self, tenant: &TenantId, stored: &Stored, to: &File) -> Result<(), BucketError> {
        let Ok(_permit) = self.fetches.acquire().await else { return Err(BucketError::Damaged) };
        let Stored { file, table, bytes } = stored;
        let name = ObjectName::Table { tenant: tenant.clone(), file: file.clone(), table: *table };
        let mut content = self.store.get(&name.path(&self.path)).await?.into_stream();
        let mut hash = Sha256::new();
        let mut written = 0;
        while let Some(piece) = content.next().await {
            let piece = piece?;
            if written + piece.len() as u64 > *bytes {
                return Err(BucketError::Damaged);
            }
            to.write_all_at(&piece, written)?;
            hash.update(&piece);
            written += piece.len() as u64;
        }
        let is_whole = written == *bytes && <[u8; 32]>::from(hash.finalize()) == table.sha256;
        if is_whole { Ok(()) } else { Err(BucketError::Damaged) }
    }
}
