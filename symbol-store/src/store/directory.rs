//! The symbol tables on disk.
//!
//! ```text
//! lock                       held while the store is open
//! making/<number>            tables that are being made; leftovers of a process that died are deleted at start
//! uploaded/<id>.symbols      tables of files that the default tenant has uploaded, which are kept
//! uploaded/<tenant>/<id>.symbols   the same of other tenants
//! host/<id>.symbols          tables of files of this host
//! fetched/<sha256>.symbols   copies of tables in the bucket, by the hash of their content
//! ```
//!
//! `<id>` is a [`FileName`]. A table with several build IDs is one file with several names (hard links), one for each
//! build ID. Beyond the disk budget, the least recently used tables in `host` and `fetched` are evicted.
//!
//! Invariant: every name in `uploaded`, `host` and `fetched` refers to a complete table. Tables are written in
//! `making`, and only then renamed. Tables in `uploaded` and `host` are synced before; a damaged one in `fetched` is
//! fetched again.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use proto::{BuildId, TenantId};

use crate::bucket::name::FileName;
use crate::table::{Header, Table, TableError, counted_bytes};

/// Origin of the program or debug file from which a table was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Origin {
    /// The file was found on this host.
    Host,
    /// The file was uploaded.
    Uploaded,
    /// The table was fetched from the bucket.
    Fetched,
}

/// The directory of a store.
#[derive(Debug)]
pub(crate) struct Directory {
    root: PathBuf,
    /// The file `lock`, which is locked so that no second process uses the directory. Closing the file releases the
    /// lock.
    _lock: File,
    made: AtomicU64,
}

/// A table that is being made. Its file is deleted on drop.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished symbol table stays on disk");
        }
    }
}

/// The files that a request may use: those of this host, and those that a tenant has uploaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) id: &'a BuildId,
}

/// The file of a table, and all names of this file in the directory.
#[derive(Debug)]
struct Stored {
    names: Vec<PathBuf>,
    origin: Origin,
    bytes: u64,
    used: SystemTime,
}

impl Directory {
    /// Opens or creates the directory. Fails with `WouldBlock` if another process has it open.
    pub(crate) fn open(root: PathBuf) -> io::Result<Self> {
        for part in ["making", "uploaded", "host", "fetched"] {
            fs::create_dir_all(root.join(part))?;
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(root.join("lock"))?;
        lock.try_lock().map_err(|refused| match refused {
            TryLockError::WouldBlock => io::Error::from(io::ErrorKind::WouldBlock),
            TryLockError::Error(error) => error,
        })?;
        for entry in fs::read_dir(root.join("making"))? {
            fs::remove_file(entry?.path())?;
        }
        Ok(Self { root, _lock: lock, made: AtomicU64::new(0) })
    }

    /// Creates an empty file for a table or an upload.
    pub(crate) fn unfinished(&self) -> io::Result<Unfinished> {
        let path = self.making();
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path)?;
        Ok(Unfinished { path, file })
    }

    /// Stores a complete table under one name for each of `ids`. Older tables with these names are replaced.
    pub(crate) fn publish(
        &self,
        tenant: &TenantId,
        table: &Unfinished,
        ids: &[BuildId],
        origin: Origin,
    ) -> io::Result<()> {
        let folder = self.folder(tenant, origin);
        if !folder.exists() {
            fs::create_dir_all(&folder)?;
            File::open(self.root.join("uploaded"))?.sync_all()?;
        }
        for id in ids {
            self.link(table, &self.path(Of { tenant, id }, origin))?;
        }
        // Without this sync, a power cut may lose the new names.
        File::open(folder)?.sync_all()
    }

    /// Stores the copy of a table in the bucket.
    pub(crate) fn publish_fetched(&self, table: &Unfinished, sha256: &[u8; 32]) -> io::Result<()> {
        self.link(table, &self.fetched_path(sha256))
    }

    fn link(&self, table: &Unfinished, name: &Path) -> io::Result<()> {
        // A rename replaces a file atomically; a link does not.
        let link = self.making();
        fs::hard_link(&table.path, &link)?;
        fs::rename(&link, name).inspect_err(|_failed| remove(&link))?;
        // If both are the same file, the rename has done nothing.
        remove(&link);
        Ok(())
    }

    /// Opens the copy of a table in the bucket. `None` if there is none, or if it was damaged.
    pub(crate) fn fetched(&self, sha256: &[u8; 32]) -> Option<Table> {
        let path = self.fetched_path(sha256);
        match Table::open(&path) {
            Ok(table) => {
                note_use(&path);
                Some(table)
            }
            Err(TableError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.drop_damaged(&path, &error);
                None
            }
        }
    }

    /// Returns the table for `id`, and its origin. If both a file of this host and an uploaded file have a table for
    /// `id`, returns the one with the better source, or the uploaded one if the sources are equal. Removes damaged
    /// tables.
    pub(crate) fn best(&self, of: Of<'_>) -> Option<(Table, Origin)> {
        let mut headers: Vec<(Header, Origin)> = [Origin::Uploaded, Origin::Host]
            .into_iter()
            .filter_map(|origin| Some((self.header(of, origin)?, origin)))
            .collect();
        headers.sort_by_key(|(header, origin)| (header.source, *origin));
        while let Some((_, origin)) = headers.pop() {
            let path = self.path(of, origin);
            match self.open_table(of, origin) {
                Ok(mut table) => {
                    for (other, _) in &headers {
                        table.take_segments(other);
                    }
                    note_use(&path);
                    return Some((table, origin));
                }
                Err(error) => self.drop_damaged(&path, &error),
            }
        }
        None
    }

    /// Reads the header of the table for `id`. `None` if there is no table, or if it cannot be read. A damaged table is
    /// removed.
    pub(crate) fn header(&self, of: Of<'_>, origin: Origin) -> Option<Header> {
        let path = self.path(of, origin);
        let header = match File::open(&path) {
            Ok(file) => Header::read(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.into()),
        };
        match header {
            Ok((header, _)) if header.ids.contains(of.id) => Some(header),
            Ok(_) => {
                self.drop_damaged(&path, &TableError::Damaged { check: "build ID" });
                None
            }
            Err(error) => {
                self.drop_damaged(&path, &error);
                None
            }
        }
    }

    /// Opens the table for `id`.
    pub(crate) fn open_table(&self, of: Of<'_>, origin: Origin) -> Result<Table, TableError> {
        Table::open(&self.path(of, origin))
    }

    /// Evicts tables of files of this host and fetched tables, the least recently used first, until all tables together
    /// have at most
    /// `bytes_max` bytes. Returns the size of all tables, which is larger than `bytes_max` if the uploaded tables alone
    /// are larger.
    pub(crate) fn shrink(&self, bytes_max: u64) -> io::Result<u64> {
        let mut stored = self.stored()?;
        let mut bytes: u64 = stored.iter().map(|table| table.bytes).sum();
        stored.retain(|table| table.origin != Origin::Uploaded);
        stored.sort_by_key(|table| table.used);
        for table in stored {
            if bytes <= bytes_max {
                break;
            }
            table.names.iter().for_each(|name| remove(name));
            bytes = bytes.saturating_sub(table.bytes);
        }
        Ok(bytes)
    }

    /// Size of all uploaded tables except the one for `of`, in bytes.
    pub(crate) fn uploaded_bytes_without(&self, of: Of<'_>) -> io::Result<u64> {
        let path = self.path(of, Origin::Uploaded);
        let others = self.stored()?.into_iter().filter(|table| table.origin == Origin::Uploaded);
        Ok(others.filter(|table| !table.names.contains(&path)).map(|table| table.bytes).sum())
    }

    /// Removes the uploaded table of a tenant for `id`, or all of its uploaded tables. Returns the number of tables.
    pub(crate) fn remove_uploaded(&self, tenant: &TenantId, id: Option<&BuildId>) -> io::Result<u64> {
        let folder = self.folder(tenant, Origin::Uploaded);
        let path = id.map(|id| self.path(Of { tenant, id }, Origin::Uploaded));
        let is_wanted = |name: &PathBuf| match &path {
            Some(path) => name == path,
            None => name.parent() == Some(&folder),
        };
        let mut removed = 0;
        for table in self.stored()?.into_iter().filter(|table| table.origin == Origin::Uploaded) {
            if table.names.iter().any(is_wanted) {
                table.names.iter().for_each(|name| remove(name));
                removed += 1;
            }
        }
        if removed > 0 {
            File::open(folder)?.sync_all()?;
        }
        Ok(removed)
    }

    /// Lists the file of every table. A file with several names is listed once.
    fn stored(&self) -> io::Result<Vec<Stored>> {
        let mut stored: HashMap<u64, Stored> = HashMap::new();
        let mut folders: Vec<(PathBuf, Origin)> = [Origin::Host, Origin::Uploaded, Origin::Fetched]
            .map(|origin| (self.folder(&TenantId::default_tenant(), origin), origin))
            .into();
        while let Some((folder, origin)) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                // The file may have been removed since the directory was read.
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.is_dir() {
                    folders.push((entry.path(), origin));
                    continue;
                }
                let table = stored.entry(metadata.ino()).or_insert_with(|| Stored {
                    names: Vec::new(),
                    origin,
                    bytes: counted_bytes(metadata.len()),
                    used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                });
                table.names.push(entry.path());
            }
        }
        Ok(stored.into_values().collect())
    }

    fn path(&self, of: Of<'_>, origin: Origin) -> PathBuf {
        self.folder(of.tenant, origin).join(format!("{}.symbols", FileName::of(of.id)))
    }

    fn folder(&self, tenant: &TenantId, origin: Origin) -> PathBuf {
        match origin {
            Origin::Host => self.root.join("host"),
            Origin::Fetched => self.root.join("fetched"),
            Origin::Uploaded if *tenant == TenantId::default_tenant() => self.root.join("uploaded"),
            Origin::Uploaded => self.root.join("uploaded").join(tenant.as_str()),
        }
    }

    fn fetched_path(&self, sha256: &[u8; 32]) -> PathBuf {
        self.root.join("fetched").join(format!("{}.symbols", proto::build_id::to_hex(sha256)))
    }

    /// Returns an unused name in `making`.
    fn making(&self) -> PathBuf {
        self.root.join("making").join(self.made.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Logs the error of a table. Removes the table if it is damaged, so that it is made again.
    fn drop_damaged(&self, path: &Path, error: &TableError) {
        if let TableError::Damaged { check } = error {
            tracing::warn!(path = %path.display(), check, "a damaged symbol table is removed");
            remove(path);
        } else {
            let error = error as &dyn std::error::Error;
            tracing::error!(path = %path.display(), error, "cannot read a symbol table");
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a file");
    }
}

/// Records the use of a table as the file's time of modification, which is free for this purpose because the content
/// never changes.
fn note_use(path: &Path) {
    if let Err(error) = File::open(path).and_then(|file| file.set_modified(SystemTime::now())) {
        tracing::debug!(path = %path.display(), %error, "cannot record the use of a symbol table");
    }
}
