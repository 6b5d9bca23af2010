//! The symbol store. It makes missing symbol tables, maps them, and looks up addresses in them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proto::{Address, BuildId, TenantId};

use crate::bucket::Bucket;
use crate::bucket::name::FileName;
use crate::convert::{ConvertError, Converter};
use crate::frame::{Frame, Nameless, ObjectKey};
use crate::host::{Found, HostSearch};
use crate::limits::{self, Limits};
use crate::reason::Reason;
use crate::table::Table;
use make::Input;

mod bucket_tables;
mod cache;
mod directory;
mod jobs;
mod make;
mod named;
mod staging;
mod upload;

use cache::{Failures, Mapped, TableKey};
use directory::{Directory, Of, Origin};
use jobs::{Begun, Job, Jobs};
use named::Named;
use staging::Staging;

pub use upload::{AddError, Added, Upload};

/// The configuration of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Directory of the tables, which is created if it is missing. No other process may use the directory.
    pub directory: PathBuf,
    /// Program that runs [`crate::convert::run_child`].
    pub converter: Converter,
    /// True if tables are also made from files of this host; false if only from uploaded files.
    pub host_files: bool,
    /// Directory in which the distribution puts separate debug files, normally `/usr/lib/debug`.
    pub debug_directory: String,
    /// URL of a bucket that keeps the uploaded files for several stores: `file:///path` or `s3://bucket/prefix`. `None`
    /// if this store keeps them in its own directory.
    pub bucket: Option<String>,
    /// Limits of the store and of its conversions.
    pub limits: Limits,
}

/// A store of names for native addresses. Clones are cheap and share one store.
#[derive(Clone, Debug)]
pub struct SymbolStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: Directory,
    converter: Converter,
    limits: Limits,
    host: Option<HostSearch>,
    jobs: Arc<Jobs>,
    staging: Arc<Staging>,
    /// Lock that is held while an uploaded table is added, from the check against the disk limit until the table is
    /// stored. So two uploads cannot both count on the same free space.
    publishing: Mutex<()>,
    mapped: Mutex<Mapped>,
    named: Mutex<Named>,
    failures: Mutex<Failures>,
    bucket: Option<Bucket>,
    fetch_failures: Mutex<Failures>,
    /// Counter of new or improved tables; 0 at the start.
    changes: Arc<AtomicU64>,
}

impl SymbolStore {
    /// Opens the store.
    ///
    /// # Errors
    ///
    /// The error of a system call on the directory or on that of the bucket, [`io::ErrorKind::WouldBlock`] if another
    /// process has the store open, or [`io::ErrorKind::InvalidInput`] if the bucket is invalid.
    pub fn open(config: Config) -> io::Result<Self> {
        let Config { directory, converter, host_files, debug_directory, bucket, limits } = config;
        let changes = Arc::default();
        let shared = Shared {
            directory: Directory::open(directory)?,
            converter,
            limits,
            host: host_files.then(|| HostSearch::new(debug_directory)),
            jobs: Arc::default(),
            staging: Arc::default(),
            publishing: Mutex::default(),
            mapped: Mutex::new(Mapped::new(limits.mapped_bytes_max)),
            named: Mutex::default(),
            failures: Mutex::new(Failures::new(limits.failure_remembered)),
            bucket: bucket.map(|url| Bucket::open(&url, Arc::clone(&changes))).transpose()?,
            fetch_failures: Mutex::new(Failures::new(limits::FETCH_FAILURE_REMEMBERED)),
            changes,
        };
        shared.directory.shrink(limits.disk_bytes_max)?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the frames of each address of one object, innermost first and at least one, or the reason why there is
    /// no name. The response has the order and length of `addresses`.
    ///
    /// Addresses must be those of instructions: the caller must have moved return addresses into the call instruction.
    ///
    /// Frames are cached. Blocks while the disk is read, and for up to `wait` while a missing table is made. If the
    /// table is not complete by then, the reason is [`Reason::Converting`], and the table is made in the background.
    #[must_use]
    pub fn symbolize(
        &self,
        object: &ObjectKey<'_>,
        addresses: &[Address],
        wait: Duration,
    ) -> Vec<Result<Arc<[Frame]>, Nameless>> {
        let table = match self.table(object, Instant::now() + wait) {
            Ok(table) => table,
            Err(reason) => return vec![Err(reason.into()); addresses.len()],
        };
        let known = self.shared.named.lock().of(&table, addresses);
        let mut found = Vec::new();
        let named = table.symbolize(addresses, known, &mut found);
        if !found.is_empty() {
            self.shared.named.lock().keep(&table, found);
        }
        named
    }

    /// Returns the number of the table for an object. No other table has this number. The names of the object's
    /// addresses are valid as long as the number stays the same. Blocks like [`SymbolStore::symbolize`].
    ///
    /// # Errors
    /// The reason why there is no table, which applies to all addresses.
    pub fn table_number(&self, object: &ObjectKey<'_>, wait: Duration) -> Result<u64, Reason> {
        self.table(object, Instant::now() + wait).map(|table| table.number())
    }

    /// Returns a counter that grows with each new or improved table. When it has grown, callers that cache
    /// [`SymbolStore::table_number`] must call it again.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::SeqCst)
    }

    /// Removes the uploaded files of a tenant with the build ID `id`, or all of them. Returns the number of tables.
    ///
    /// # Errors
    /// The error of the disk or of the bucket. The removal may be incomplete; it can be repeated.
    pub fn remove_uploads(&self, tenant: &TenantId, id: Option<&BuildId>) -> io::Result<u64> {
        let in_bucket = self.shared.bucket.as_ref().map(|bucket| bucket.remove(tenant, id.map(FileName::of).as_ref()));
        let removed = self.shared.directory.remove_uploaded(tenant, id)?;
        self.shared.mapped.lock().clear();
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
        Ok(removed + in_bucket.transpose()?.unwrap_or(0))
    }

    fn table(&self, object: &ObjectKey<'_>, deadline: Instant) -> Result<Arc<Table>, Reason> {
        let id = object.build_id.ok_or(Reason::NoBuildId)?;
        if let Some(table) = self.bucket_table(object.tenant, id, deadline)? {
            return Ok(table);
        }
        // No file has a path of more than the limit, so such a path is ignored. The build ID alone may still be found.
        let path = Some(object.file).filter(|path| path.len() <= limits::PATH_BYTES_MAX).unwrap_or_default();
        let sought = Sought::new(object.tenant, id, path);
        // A job ends with a table or a remembered failure. If another caller started the job, the failure may be for
        // another path, so a second round is needed. More rounds are needed only with extremely low limits.
        for round in 0..3 {
            let failure = self.shared.failures.lock().get(&sought.key, path);
            if let Some(table) = self.known_table(&sought, round > 0 || failure.is_some()) {
                return Ok(table);
            }
            if let Some(reason) = failure {
                return Err(reason);
            }
            if self.shared.host.is_none() {
                return Err(Reason::NoDebugFile);
            }
            match self.shared.jobs.begin(&sought.key) {
                Begun::Mine(job) => self.make_in_background(job, sought.clone(), Purpose::Make)?,
                Begun::Pending => {}
                Begun::Full => return Err(Reason::Converting),
            }
            if !self.shared.jobs.wait(&sought.key, deadline) {
                return Err(Reason::Converting);
            }
        }
        Err(Reason::Converting)
    }

    /// Returns a table from memory or disk. Starts a search for a better file if one is due. `was_searched` is passed
    /// to [`Shared::load`].
    fn known_table(&self, sought: &Sought, was_searched: bool) -> Option<Arc<Table>> {
        let mapped = self.shared.mapped.lock().get(&sought.key, &self.shared.limits);
        if let Some((table, improve)) = mapped {
            if improve && let Begun::Mine(job) = self.shared.jobs.begin(&sought.key) {
                let started = self.make_in_background(job, sought.clone(), Purpose::Improve);
                if let Err(reason) = started {
                    tracing::debug!(%reason, "the search for a better debug file was not started");
                }
            }
            return Some(table);
        }
        self.shared.load(sought, was_searched)
    }

    fn make_in_background(&self, job: Job, sought: Sought, purpose: Purpose) -> Result<(), Reason> {
        self.start(job, move |shared| shared.make_of_host(&sought, purpose))
    }

    /// Does `job` in a separate thread, because the caller may stop waiting before the job is done.
    fn start(&self, job: Job, work: impl FnOnce(&Shared) + Send + 'static) -> Result<(), Reason> {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            work(&shared);
            // The end of the job wakes the waiting callers, so it comes last. These callers must find the result. If
            // this thread was the last user of the store, they must also find its directory closed.
            drop(shared);
            drop(job);
        };
        match thread::Builder::new().name("symbols".to_owned()).spawn(work) {
            Ok(_detached) => Ok(()),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread to search for debug files");
                Err(Reason::StoreUnavailable)
            }
        }
    }
}

/// The file that a request needs.
#[derive(Clone, Debug)]
struct Sought {
    key: TableKey,
    tenant: TenantId,
    id: BuildId,
    path: String,
}

impl Sought {
    fn new(tenant: &TenantId, id: &BuildId, path: &str) -> Self {
        Self { key: TableKey::of(tenant, id), tenant: tenant.clone(), id: id.clone(), path: path.to_owned() }
    }

    fn of(&self) -> Of<'_> {
        Of { tenant: &self.tenant, id: &self.id }
    }
}

/// The purpose of a search for a file of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Make a missing table.
    Make,
    /// Improve a table with a better file.
    Improve,
}

impl Shared {
    /// Maps the table that is on disk. A table without names that was made from a file of this host is
    /// returned only if `was_searched` is true, which means that this host was just searched. Symbols may have been
    /// installed since the table was made, so a search must come first.
    fn load(&self, sought: &Sought, was_searched: bool) -> Option<Arc<Table>> {
        let removals = self.mapped.lock().removals();
        let (table, origin) = self.directory.best(sought.of())?;
        if origin == Origin::Host && table.header().is_nameless() && !was_searched {
            return None;
        }
        let table = Arc::new(table);
        self.mapped.lock().insert(&sought.key, &table, origin, removals);
        Some(table)
    }

    /// Searches this host for a file, and makes a table of it. If the purpose is [`Purpose::Make`], a failure is
    /// remembered.
    fn make_of_host(&self, sought: &Sought, purpose: Purpose) {
        let Sought { key, id, path, .. } = sought;
        let found = self.host.as_ref().and_then(|host| host.find(id, path));
        if purpose == Purpose::Improve && !found.as_ref().is_some_and(|found| self.is_better(sought.of(), found)) {
            return;
        }
        let made = match found {
            None => Err(Reason::NoDebugFile),
            Some(found) => self.make_table_of(&sought.tenant, &found).map_err(|error| self.reason(id, path, error)),
        };
        match made {
            Ok(()) => tracing::info!(build_id = %id, path, "made a symbol table of a file of this host"),
            Err(reason) if purpose == Purpose::Make => self.failures.lock().insert(key, path, reason),
            Err(reason) => tracing::debug!(build_id = %id, path, %reason, "the symbol table could not be improved"),
        }
        if purpose == Purpose::Make {
            // The table is mapped here, so that a later caller uses it without another search, even if nobody waits for
            // this search.
            let _now_mapped = self.load(sought, true);
        }
    }

    /// Returns whether a file may have more symbols than the table that was made from a file of this host.
    fn is_better(&self, of: Of<'_>, found: &Found) -> bool {
        found.has_dwarf || self.directory.header(of, Origin::Host).is_some_and(|header| header.is_old())
    }

    fn make_table_of(&self, tenant: &TenantId, found: &Found) -> Result<(), ConvertError> {
        let ids = make::ids(&found.image, &found.file)?;
        let both = Input {
            file: &found.file,
            debug_file: found.debug_file.as_ref(),
            image: &found.image,
            ids: &ids,
            segments: &found.image.segments,
        };
        let made = match self.make(&both, self.jobs.slot()) {
            // The debug file cannot be used, but the symbols of the program itself are better than none.
            Err(ConvertError::Unusable(why)) if both.debug_file.is_some() => {
                tracing::warn!(build_id = ?ids.first(), %why, "a debug file cannot be used");
                self.make(&Input { debug_file: None, ..both }, self.jobs.slot())?
            }
            other => other?,
        };
        self.directory.publish(tenant, &made.table, &ids, Origin::Host)?;
        self.directory.shrink(self.table_bytes_max())?;
        self.forget(&ids);
        Ok(())
    }

    /// Disk space for tables, in bytes: the disk budget minus the size of the files that are being received.
    fn table_bytes_max(&self) -> u64 {
        self.limits.disk_bytes_max.saturating_sub(self.staging.bytes())
    }

    /// Drops the cached results for `ids`, so that the next request reads the disk.
    fn forget(&self, ids: &[BuildId]) {
        for id in ids {
            self.mapped.lock().remove(id);
            self.failures.lock().remove(id);
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn reason(&self, id: &BuildId, path: &str, error: ConvertError) -> Reason {
        match error {
            ConvertError::Stripped => Reason::Stripped,
            ConvertError::Unusable(why) => {
                tracing::warn!(build_id = %id, path, %why, "a file of this host cannot be used for symbols");
                Reason::DebugFileUnusable(why)
            }
            ConvertError::Io(error) => {
                tracing::error!(build_id = %id, path, %error, "cannot make a symbol table");
                Reason::StoreUnavailable
            }
        }
    }
}
