//! A program that a process runs: its description, and the locations of its code outside of files.
//!
//! The description is read on the first sample. What the program publishes later is added to it.
//!
//! Invariant: a location that was derived from a mapping is used at most ten seconds longer than the mapping exists,
//! because mappings are checked at that interval.

use std::sync::Arc;

use ebpf::Sample;

use super::jit::Jit;
use super::location::{Location, LocationId, Marker};
use super::shared_tables::SharedTables;
use crate::process::key::ProcessKey;
use crate::process::mappings::{MapsError, ProcessMappings, REREAD_NS_MIN};
use crate::process::maps::Backing;
use crate::process::rate_limit::RateLimit;
use crate::process::resource::{self, Resource};
use crate::runtimes::contexts;
use crate::runtimes::functions::{Position, RuntimeFunctions};
use crate::runtimes::languages::hotspot::process::search::Search;

/// A program that runs, or ran.
#[derive(Debug)]
pub(crate) struct Process {
    key: ProcessKey,
    /// Description without what the program has published.
    unpublished: Arc<Resource>,
    /// Attributes that the program has published.
    published: Vec<(String, String)>,
    /// The whole description.
    resource: Arc<Resource>,
    /// Time from which `unpublished` is read once more; `None` if it is complete. It is incomplete if the process was
    /// inside execve when it was read.
    resource_due_ns: Option<u64>,
    mappings: ProcessMappings,
    /// Value of [`ProcessMappings::changes`] when the locations of `jit` were found.
    mapping_changes: u64,
    jit: Jit,
    functions: RuntimeFunctions,
    hotspot: Search,
    context: contexts::Search,
    pub(crate) last_sample_ns: u64,
}

impl Process {
    /// Reads the description of the process of `sample`.
    pub(crate) fn of(sample: &Sample<'_>, tables: &SharedTables) -> Self {
        let header = &sample.header;
        let key = ProcessKey::of(sample);
        let executable = tables.files.path_of_number(header.executable);
        let ((resource, is_set_up), reason) = if header.kernel_thread != 0 {
            ((Resource::kernel_thread(key.pid), true), MapsError::NotMapped)
        } else if key.is_running() {
            let resource = Resource::of_process(key.pid, &header.comm, executable, &tables.environment);
            (resource, MapsError::Unreadable)
        } else {
            ((Resource::exited(key.pid, &header.comm, executable), true), MapsError::Exited)
        };
        let resource = Arc::new(resource);
        Self {
            key,
            unpublished: Arc::clone(&resource),
            published: Vec::new(),
            resource,
            resource_due_ns: (!is_set_up).then_some(header.ktime_ns + REREAD_NS_MIN),
            mappings: ProcessMappings::unread(key, reason, header.ktime_ns),
            mapping_changes: 0,
            jit: Jit::default(),
            functions: RuntimeFunctions::default(),
            hotspot: Search::default(),
            context: contexts::Search::new(header.ktime_ns),
            last_sample_ns: header.ktime_ns,
        }
    }

    /// Returns the description of the process, read again if it was incomplete, or if the program has published
    /// attributes since.
    pub(crate) fn resource(&mut self, sample: &Sample<'_>, tables: &SharedTables) -> Arc<Resource> {
        let header = &sample.header;
        let reported = tables.files.path_of_number(header.executable);
        let path = self.unpublished.executable_path();
        // The description is read again only once, because the environment of a process may really be empty.
        let is_due = self.resource_due_ns.take_if(|at_ns| *at_ns <= header.ktime_ns).is_some();
        let has_new_path = path.is_none() && reported.is_some();
        if is_due || has_new_path {
            let path = path.or(reported);
            let read = if self.key.is_running() {
                Some(Resource::of_process(self.key.pid, &header.comm, path, &tables.environment).0)
            } else {
                has_new_path.then(|| Resource::exited(self.key.pid, &header.comm, path))
            };
            if let Some(resource) = read {
                self.unpublished = Arc::new(resource);
                self.describe();
            }
        }
        if let Some(published) = self.context.take_published() {
            self.published = published;
            self.describe();
        }
        Arc::clone(&self.resource)
    }

    fn describe(&mut self) {
        self.resource = match &self.published[..] {
            [] => Arc::clone(&self.unpublished),
            published => Arc::new(self.unpublished.with_published(published)),
        };
    }

    /// Returns the location of an address that BPF found in no file, and true if the location will be the same next
    /// time. `ktime_ns` is the time of the sample.
    pub(crate) fn locate(&mut self, address: u64, ktime_ns: u64, tables: &mut SharedTables) -> (LocationId, bool) {
        let found = self.mappings.find(address, ktime_ns, &mut tables.reads);
        let marker = match found.map(|mapping| &mapping.backing) {
            Ok(Backing::Anonymous) => None,
            // BPF had no number left for the file, or the mapping was changing.
            Ok(Backing::File { .. } | Backing::Vdso) => Some(Marker::FileUnreadable),
            Err(MapsError::NotMapped) => Some(Marker::NoMapping),
            Err(MapsError::Exited) => Some(Marker::ProcessExited),
            Err(MapsError::Unreadable) => Some(Marker::MapsUnreadable),
        };
        self.follow_mappings();
        match (marker, self.mappings.maps()) {
            (None, Some(maps)) => self.jit.locate(self.key.pid, address, ktime_ns, maps, tables),
            (marker, _) => (tables.locations.insert(Location::Marker(marker.unwrap_or(Marker::NoMapping))), false),
        }
    }

    /// Finds the locations of positions in functions of language runtimes. `now_ns` is the time of the sample that has
    /// them.
    pub(crate) fn find_functions(
        &mut self,
        positions: impl Iterator<Item = Position>,
        now_ns: u64,
        tables: &mut SharedTables,
    ) {
        self.functions.find(self.key, positions, now_ns, tables);
    }

    /// Returns the location of a position in a function of a language runtime, and true if it will be the same next
    /// time.
    pub(crate) fn locate_function(&self, at: Position, tables: &mut SharedTables) -> (LocationId, bool) {
        self.functions.locate(at, tables)
    }

    /// Looks for HotSpot in the process, if `sample` shows that it may run there.
    pub(crate) fn search_hotspot(&mut self, sample: &Sample<'_>, tables: &mut SharedTables) {
        self.hotspot.follow(self.key, sample, &mut self.mappings, tables);
        self.follow_mappings();
    }

    /// Looks for the contexts of the process and of its threads, if a search is due.
    pub(crate) fn search_context(&mut self, sample: &Sample<'_>, tables: &SharedTables) {
        if sample.header.kernel_thread == 0 {
            self.context.follow(self.key, sample.header.ktime_ns, &tables.runtimes.contexts);
        }
    }

    /// Reads the mappings again if they are old.
    pub(crate) fn refresh_mappings(&mut self, ktime_ns: u64, rate_limit: &mut RateLimit) {
        self.mappings.refresh(ktime_ns, rate_limit);
        self.follow_mappings();
    }

    fn follow_mappings(&mut self) {
        if self.mapping_changes != self.mappings.changes() {
            self.mapping_changes = self.mappings.changes();
            self.jit.forget_locations();
        }
    }

    /// Forgets every location id.
    pub(crate) fn forget_locations(&mut self) {
        self.jit.forget_locations();
        self.functions.forget_locations();
    }

    /// Approximate memory that the mappings and the description take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let published = resource::bytes(&self.published);
        let described = if published == 0 { 0 } else { published + self.resource.bytes() };
        self.mappings.bytes() + self.unpublished.bytes() + described + size_of::<(ProcessKey, Self)>()
    }

    /// Number of addresses whose location is cached.
    pub(crate) fn addresses(&self) -> usize {
        self.jit.addresses() + self.functions.positions()
    }

    /// Approximate memory that names of code without a file take, in bytes.
    pub(crate) fn functions_bytes(&self) -> usize {
        self.jit.bytes() + self.functions.bytes()
    }
}
