//! Tables in the bucket that several stores share: fetches, and uploads.
//!
//! Invariant: only the names in the bucket decide which table a tenant gets. The local copies of tables, which have no
//! tenant, are found by the hash of their content, and only after the decision.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use host_files::elf::ElfImage;
use proto::{BuildId, TenantId};

use super::cache::TableKey;
use super::directory::{Origin, Unfinished};
use super::jobs::{Begun, Slot};
use super::make::{Input, Made};
use super::upload::{AddError, has_file_offsets};
use super::{Shared, SymbolStore};
use crate::bucket::index::{Stored, Wanted};
use crate::bucket::name::FileName;
use crate::bucket::{Bucket, BucketError, NewTable};
use crate::limits;
use crate::reason::Reason;
use crate::table::Table;

impl SymbolStore {
    /// Returns the table that the bucket has for `id`. `None` if it has none, or if there is no bucket. Waits until
    /// `deadline` for the fetch of a table; the fetch then goes on.
    pub(super) fn bucket_table(
        &self,
        tenant: &TenantId,
        id: &BuildId,
        deadline: Instant,
    ) -> Result<Option<Arc<Table>>, Reason> {
        let shared = &self.shared;
        let Some(bucket) = &shared.bucket else { return Ok(None) };
        let index = bucket.index(deadline).ok_or(Reason::StoreUnavailable)?;
        let Some(wanted) = index.wanted(tenant, &FileName::of(id)) else { return Ok(None) };
        let key = TableKey::of_objects(tenant, &wanted);
        // Another round is needed only if the table was evicted at once, which takes extremely low limits.
        for _ in 0..3 {
            if let Some((table, _)) = shared.mapped.lock().get(&key, &shared.limits) {
                return Ok(Some(table));
            }
            if let Some(reason) = shared.fetch_failures.lock().get(&key, "") {
                return Err(reason);
            }
            match shared.jobs.begin(&key) {
                Begun::Mine(job) => {
                    let (tenant, wanted, key) = (tenant.clone(), wanted.clone(), key.clone());
                    self.start(job, move |shared| shared.fetch(&tenant, &wanted, &key))?;
                }
                Begun::Pending => {}
                Begun::Full => return Err(Reason::Converting),
            }
            if !shared.jobs.wait(&key, deadline) {
                return Err(Reason::Converting);
            }
        }
        Err(Reason::Converting)
    }
}

impl Shared {
    /// Maps a table of the bucket, or remembers why it cannot be used.
    fn fetch(&self, tenant: &TenantId, wanted: &Wanted, key: &TableKey) {
        let removals = self.mapped.lock().removals();
        let opened = self.copy_of(tenant, &wanted.table).and_then(|mut table| {
            if let Some(other) = &wanted.segments {
                table.take_segments(self.copy_of(tenant, other)?.header());
            }
            Ok(table)
        });
        match opened {
            Ok(table) => self.mapped.lock().insert(key, &Arc::new(table), Origin::Fetched, removals),
            Err(reason) => self.fetch_failures.lock().insert(key, "", reason),
        }
    }

    /// Opens the local copy of a table, and fetches the table if there is no copy.
    fn copy_of(&self, tenant: &TenantId, stored: &Stored) -> Result<Table, Reason> {
        let sha256 = &stored.table.sha256;
        let table = match self.directory.fetched(sha256) {
            Some(table) => table,
            None => {
                self.make_copy(tenant, stored).map_err(|error| reason(tenant, stored, &error))?;
                let table = self.directory.fetched(sha256).ok_or(Reason::DebugFileDamaged)?;
                if let Err(error) = self.directory.shrink(self.table_bytes_max()) {
                    tracing::error!(%error, "symbol tables could not be evicted");
                }
                table
            }
        };
        // The name of an object is only a claim.
        let is_of_file = table.header().ids.iter().any(|id| FileName::of(id) == stored.file);
        if is_of_file { Ok(table) } else { Err(Reason::DebugFileDamaged) }
    }

    /// Keeps a table that this store has made and the bucket has, too.
    fn keep_copy(&self, table: &Unfinished, sha256: &[u8; 32]) -> io::Result<()> {
        self.directory.publish_fetched(table, sha256)?;
        self.directory.shrink(self.table_bytes_max()).map(|_bytes| ())
    }

    fn make_copy(&self, tenant: &TenantId, stored: &Stored) -> Result<(), BucketError> {
        let Some(bucket) = &self.bucket else { return Err(BucketError::Damaged) };
        if stored.bytes > self.limits.table_bytes_max {
            return Err(BucketError::Damaged);
        }
        let copy = self.directory.unfinished()?;
        bucket.fetch(tenant, stored, &copy.file)?;
        Ok(self.directory.publish_fetched(&copy, &stored.table.sha256)?)
    }

    /// Makes the table of an uploaded file, and adds it to the bucket. Returns it, and whether its names are used.
    pub(super) fn add_to_bucket(
        &self,
        bucket: &Bucket,
        tenant: &TenantId,
        file: &File,
        image: &ElfImage,
        ids: &[BuildId],
        slot: Slot<'_>,
    ) -> Result<(Made, bool), AddError> {
        let ids = ids.get(..limits::IDS_MAX).unwrap_or(ids);
        let made = self.make_named(&Input { file, debug_file: None, image, ids, segments: &image.segments }, slot)?;
        let files: Vec<FileName> = ids.iter().map(FileName::of).collect();
        let new = NewTable {
            tenant,
            files: &files,
            content: &made.table.file,
            source: made.source,
            has_file_offsets: has_file_offsets(&image.segments),
        };
        let published = match bucket.publish(&new, self.limits.tenant_bytes_max) {
            Ok(published) => published,
            Err(BucketError::Full { bytes, bytes_max }) => return Err(AddError::Full { bytes, bytes_max }),
            Err(error) => return Err(AddError::Io(error.into())),
        };
        // The table need not be fetched again. If this fails, it is fetched.
        if published.is_used
            && let Err(error) = self.keep_copy(&made.table, &published.sha256)
        {
            tracing::warn!(%error, "an uploaded symbol table was not kept on this host");
        }
        Ok((made, published.is_used))
    }
}

/// Logs the error of a fetch, and returns the reason for the frames that get no names.
fn reason(tenant: &TenantId, stored: &Stored, error: &BucketError) -> Reason {
    let Stored { file, table, .. } = stored;
    tracing::error!(%tenant, %file, %table, %error, "a symbol table could not be fetched");
    match error {
        BucketError::Damaged => Reason::DebugFileDamaged,
        // Another router has replaced it. The new names arrive within a second or two.
        BucketError::Store(object_store::Error::NotFound { .. }) => Reason::Converting,
        _ => Reason::StoreUnavailable,
    }
}
