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
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use parking_lot::{Condvar, Mutex};
use proto::TenantId;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::limits;
use crate::source::Source;

pub(crate) mod index;
mod location;
pub(crate) mod name;

use index::{Index, Stored};
use name::{FileName, ObjectName, TableName};

/// Interval at which the object `changed` is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which the names are listed again although `changed` has not changed, because a router may have died
/// between its upload and the change.
const INDEX_AGE_MAX: Duration = Duration::from_secs(600);

/// Longest time of one small request, such as reading `changed`.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(15);

/// Size of the parts in which a large table is uploaded, in bytes. S3 allows 10,000 parts of at least 5 MiB.
const PART_BYTES: u64 = 8 << 20;

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

/// A new table of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewTable<'a> {
    pub(crate) tenant: &'a TenantId,
    /// Build IDs of the file, the best first.
    pub(crate) files: &'a [FileName],
    pub(crate) content: &'a File,
    pub(crate) source: Source,
    pub(crate) has_file_offsets: bool,
}

/// The result of adding a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// True if the table is the best one of its file.
    pub(crate) is_used: bool,
    pub(crate) sha256: [u8; 32],
}

impl Bucket {
    /// Opens the bucket at `url`, which is `file:///path` or `s3://bucket/prefix`. Does not wait for S3. `changes` grows
    /// with each change of the names.
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

    /// Tells all routers that names have changed.
    async fn announce(&self) -> Result<(), BucketError> {
        let random = || RandomState::new().hash_one(0);
        let text = format!("{:016x}{:016x}", random(), random());
        let put = async { Ok(self.store.put(&self.path.clone().join("changed"), PutPayload::from(text)).await?) };
        bounded(REQUEST_TIME_MAX, put).await.map(|_put| ())
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
        let mut count = 0;
        for folder in ["tables", "aliases"] {
            let mut listed = self.store.list(Some(&self.path.clone().join(folder)));
            while let Some(object) = listed.try_next().await? {
                count += 1;
                if count > limits::BUCKET_OBJECTS_MAX {
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

    async fn publish(&self, new: &NewTable<'_>, bytes_max: u64) -> Result<Published, BucketError> {
        let Some((file, others)) = new.files.split_first() else { return Err(BucketError::Damaged) };
        let (tenant, bytes) = (new.tenant, new.content.metadata()?.len());
        let sha256 = hash_of(new.content)?;
        let index = self.refresh().await?;
        let mut tables = index.tables(tenant, file);
        let table = TableName {
            source: new.source,
            uploaded_ms: upload_time(&tables),
            has_file_offsets: new.has_file_offsets,
            sha256,
        };
        tables.push(table);
        let kept = index::kept(&tables);
        let published = Published { is_used: kept.first() == Some(&table), sha256 };
        if !kept.contains(&table) {
            return Ok(published);
        }
        // Tables of the same file do not count, because the new table supersedes them.
        let known = index.bytes_without(tenant, file, crate::table::counted_bytes);
        let all = known.saturating_add(crate::table::counted_bytes(bytes));
        if all > bytes_max {
            return Err(BucketError::Full { bytes: all, bytes_max });
        }
        // Aliases come first: an alias without a table is harmless, and a table without aliases would be incomplete.
        for alias in others {
            let name = ObjectName::Alias { tenant: tenant.clone(), alias: alias.clone(), file: file.clone() };
            self.store.put(&name.path(&self.path), PutPayload::default()).await?;
        }
        let name = |table| ObjectName::Table { tenant: tenant.clone(), file: file.clone(), table };
        self.put(&name(table).path(&self.path), new.content, bytes).await?;
        for superseded in tables.into_iter().filter(|table| !kept.contains(table)) {
            self.delete(&name(superseded)).await?;
        }
        self.announce().await?;
        self.refresh().await?;
        Ok(published)
    }

    /// Stores a file. The object exists only when it is complete.
    async fn put(&self, path: &Path, content: &File, bytes: u64) -> Result<(), BucketError> {
        if bytes <= PART_BYTES {
            self.store.put(path, read_part(content, 0, bytes)?).await?;
            return Ok(());
        }
        let mut upload = self.store.put_multipart(path).await?;
        let parts = async {
            for start in (0..bytes).step_by(usize::try_from(PART_BYTES).unwrap_or(usize::MAX)) {
                upload.put_part(read_part(content, start, PART_BYTES.min(bytes - start))?).await?;
            }
            upload.complete().await?;
            Ok(())
        };
        let outcome: Result<(), BucketError> = parts.await;
        if outcome.is_err()
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(%error, "parts of an upload stay in the store of debug files");
        }
        outcome
    }

    async fn delete(&self, name: &ObjectName) -> Result<(), BucketError> {
        match self.store.delete(&name.path(&self.path)).await {
            // Another router has deleted it.
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn remove(&self, tenant: &TenantId, id: Option<&FileName>) -> Result<u64, BucketError> {
        let index = self.refresh().await?;
        // The build ID may be another one than the first of the file.
        let wanted = id.and_then(|id| index.wanted(tenant, id));
        let file = wanted.as_ref().map(|wanted| &wanted.table.file).or(id);
        let objects = index.objects(tenant, file);
        for name in &objects {
            self.delete(name).await?;
        }
        self.announce().await?;
        self.refresh().await?;
        Ok(objects.iter().filter(|name| matches!(name, ObjectName::Table { .. })).count() as u64)
    }
}

/// Returns the time of a new upload, in milliseconds since 1970. It is later than the times of all known tables of the
/// file, because the clocks of routers differ.
fn upload_time(known: &[TableName]) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    known.iter().map(|table| table.uploaded_ms.saturating_add(1)).fold(now, u64::max)
}

fn read_part(content: &File, start: u64, bytes: u64) -> io::Result<PutPayload> {
    let mut part = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    content.read_exact_at(&mut part, start)?;
    Ok(PutPayload::from(part))
}

fn hash_of(content: &File) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut start = 0;
    loop {
        let read = content.read_at(&mut buffer, start)?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return Ok(hash.finalize().into());
        };
        hash.update(bytes);
        start += read as u64;
    }
}
