//! The symbol tables on disk.
//!
//! ```text
//! lock                       held while the store is open
//! making/<number>            tables that are being made; leftovers of a process that died are deleted at start
//! uploaded/<id>.symbols      tables of uploaded files, which are kept
//! host/<id>.symbols          tables of files of this host; the least recently used are evicted beyond the disk budget
//! ```
//!
//! `<id>` is `gnu-<hex>`, `htlhash-<hex>`, or `go-` and a hash of the Go build ID, which has slashes. A table with
//! several build IDs is one file with several names (hard links), one for each build ID.
//!
//! Invariant: every name in `uploaded` and `host` refers to a complete table. Tables are written in `making`, synced,
//! and only then renamed.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use proto::BuildId;
use sha2::{Digest as _, Sha256};

use crate::table::{Header, Table, TableError, counted_bytes};

/// Origin of the program or debug file from which a table was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Origin {
    /// The file was found on this host.
    Host,
    /// The file was uploaded.
    Uploaded,
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
        for part in ["making", "uploaded", "host"] {
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
    pub(crate) fn publish(&self, table: &Unfinished, ids: &[BuildId], origin: Origin) -> io::Result<()> {
        for id in ids {
            // A rename replaces a file atomically; a link does not.
            let link = self.making();
            fs::hard_link(&table.path, &link)?;
            fs::rename(&link, self.path(id, origin)).inspect_err(|_failed| remove(&link))?;
        }
        // Without this sync, a power cut may lose the new names.
        File::open(self.root.join(folder(origin)))?.sync_all()
    }

    /// Returns the table for `id`, and its origin. If both a file of this host and an uploaded file have a table for
    /// `id`, returns the one with the better source, or the uploaded one if the sources are equal. Removes damaged
    /// tables.
    pub(crate) fn best(&self, id: &BuildId) -> Option<(Table, Origin)> {
        let mut headers: Vec<(Header, Origin)> = [Origin::Uploaded, Origin::Host]
            .into_iter()
            .filter_map(|origin| Some((self.header(id, origin)?, origin)))
            .collect();
        headers.sort_by_key(|(header, origin)| (header.source, *origin));
        while let Some((_, origin)) = headers.pop() {
            let path = self.path(id, origin);
            match self.open_table(id, origin) {
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
    pub(crate) fn header(&self, id: &BuildId, origin: Origin) -> Option<Header> {
        let path = self.path(id, origin);
        let header = match File::open(&path) {
            Ok(file) => Header::read(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.into()),
        };
        match header {
            Ok((header, _)) if header.ids.contains(id) => Some(header),
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
    pub(crate) fn open_table(&self, id: &BuildId, origin: Origin) -> Result<Table, TableError> {
        Table::open(&self.path(id, origin))
    }

    /// Evicts tables of files of this host, the least recently used first, until all tables together have at most
    /// `bytes_max` bytes. Returns the size of all tables, which is larger than `bytes_max` if the uploaded tables alone
    /// are larger.
    pub(crate) fn shrink(&self, bytes_max: u64) -> io::Result<u64> {
        let mut stored = self.stored()?;
        let mut bytes: u64 = stored.iter().map(|table| table.bytes).sum();
        stored.retain(|table| table.origin == Origin::Host);
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

    /// Size of all uploaded tables except the table for `id`, in bytes.
    pub(crate) fn uploaded_bytes_without(&self, id: &BuildId) -> io::Result<u64> {
        let path = self.path(id, Origin::Uploaded);
        let others = self.stored()?.into_iter().filter(|table| table.origin == Origin::Uploaded);
        Ok(others.filter(|table| !table.names.contains(&path)).map(|table| table.bytes).sum())
    }

    /// Lists the file of every table. A file with several names is listed once.
    fn stored(&self) -> io::Result<Vec<Stored>> {
        let mut stored: HashMap<u64, Stored> = HashMap::new();
        for origin in [Origin::Host, Origin::Uploaded] {
            for entry in fs::read_dir(self.root.join(folder(origin)))? {
                let entry = entry?;
                // The file may have been removed since the directory was read.
                let Ok(metadata) = entry.metadata() else { continue };
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

    fn path(&self, id: &BuildId, origin: Origin) -> PathBuf {
        let name = match id {
            BuildId::Gnu(bytes) => format!("gnu-{}", proto::build_id::to_hex(bytes)),
            BuildId::Go(text) => format!("go-{}", proto::build_id::to_hex(&Sha256::digest(text))),
            BuildId::Htlhash(hash) => format!("htlhash-{}", proto::build_id::to_hex(hash)),
        };
        self.root.join(folder(origin)).join(format!("{name}.symbols"))
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

fn folder(origin: Origin) -> &'static str {
    match origin {
        Origin::Host => "host",
        Origin::Uploaded => "uploaded",
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
