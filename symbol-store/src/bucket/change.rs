//! Changes of a bucket: a table is added, or tables are removed. The other routers are told afterwards.
//!
//! Invariant: whatever fails in between, every table in the bucket is complete. At worst, the other routers learn of it
//! late, or a superseded table stays until the next upload of the same file.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::SystemTime;

use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use proto::TenantId;
use sha2::{Digest as _, Sha256};

use super::index;
use super::name::{FileName, ObjectName, TableName};
use super::{BucketError, Objects, REQUEST_TIME_MAX, bounded};
use crate::limits;
use crate::source::Source;
use crate::table::counted_bytes;

/// Size of the parts in which a large table is uploaded, in bytes. S3 allows 10,000 parts of at least 5 MiB.
const PART_BYTES: u64 = 8 << 20;

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

impl Objects {
    /// Tells all routers that names have changed.
    async fn announce(&self) -> Result<(), BucketError> {
        let random = || RandomState::new().hash_one(0);
        let text = format!("{:016x}{:016x}", random(), random());
        let put = async { Ok(self.store.put(&self.path.clone().join("changed"), PutPayload::from(text)).await?) };
        bounded(REQUEST_TIME_MAX, put).await.map(|_put| ())
    }

    pub(super) async fn publish(&self, new: &NewTable<'_>, bytes_max: u64) -> Result<Published, BucketError> {
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
        let known = index.bytes_without(tenant, file, counted_bytes);
        let all = known.saturating_add(counted_bytes(bytes));
        if all > bytes_max {
            return Err(BucketError::Full { bytes: all, bytes_max });
        }
        if index.objects + new.files.len() > limits::BUCKET_OBJECTS_MAX {
            return Err(BucketError::TooMany(limits::BUCKET_OBJECTS_MAX));
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

    pub(super) async fn remove(&self, tenant: &TenantId, id: Option<&FileName>) -> Result<u64, BucketError> {
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
