//! Finds the contexts that a program publishes: attributes of the process, and the place where it keeps the context of
//! each thread, which is the trace and the span for which the thread works.
//!
//! The context of the process (OTEP 4719) is in a mapping that has a name. It is read again if it has changed.
//!
//! A program that publishes OpenTelemetry's thread context (OTEP 4947) exports the thread-local pointer [`VARIABLE`].
//! The code that sets it is rarely sampled, and so is its library. So the variable is searched in all files that a
//! process has mapped, after the process has lived for a while. BPF then reads the pointer at each sample of this
//! process, and of no other.
//!
//! The search is repeated, each time after a longer interval: a library may be loaded later, and BPF may have forgotten
//! the process. It ends early as long as the same files without the variable are mapped.
//!
//! Invariant: a process that shows wrong values loses only its own links and attributes. One that blocks the read of
//! its memory holds one of a few places for searches, until it ends. If all places are held, no search begins.

mod attributes;
mod place;

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ebpf::{Program, ThreadPointer};
use foldhash::fast::RandomState;
use host_files::elf::ThreadLocal;
use parking_lot::Mutex;

use self::place::place;
use super::memory::ProcessMemory;
use super::searches::Searches;
use crate::process::file::table::{FileKey, open_mapping};
use crate::process::key::ProcessKey;
use crate::process::maps::{Backing, Maps, ProcessMapping};

/// Name of the thread-local pointer to the thread's context.
const VARIABLE: &str = "otel_thread_ctx_v1";
/// Time from the first sample of a process to its first search, in nanoseconds. Processes that end sooner cost nothing.
const INTERVAL_NS_MIN: u64 = 500_000_000;
/// Each interval between two searches is this many times the one before.
const INTERVAL_GROWTH: u64 = 4;
/// Longest time between two searches, in nanoseconds.
const INTERVAL_NS_MAX: u64 = 60_000_000_000;
/// Longest time in which one search opens files. A later search goes on, because the files before are known by then.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(200);
/// Number of files at which all files are forgotten. A host with hundreds of containers has a few thousand.
const FILES_MAX: usize = 8192;

/// Contexts that were found, and the files that were searched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contexts {
    searches: Searches,
    files: Arc<Mutex<HashMap<FileKey, Option<ThreadLocal>, RandomState>>>,
    found: Arc<Mutex<Vec<(u32, Program)>>>,
}

/// Result of the last search of a process.
#[derive(Debug, Default)]
struct Last {
    /// Hash of the mapped files, if none of them has the variable.
    without: Option<u64>,
    pointer: Option<ThreadPointer>,
    /// Time of publication of the context of the process that was read last.
    published_ns: Option<u64>,
    /// Attributes of this context, until they are taken.
    published: Option<Vec<(String, String)>>,
}

impl Last {
    /// Reads the context of the process, if it is another one than before. Without one, there are no attributes.
    fn read_process(&mut self, key: ProcessKey, maps: &Maps) {
        // A process that ends, or begins to run another program, has no mappings.
        let Some(memory) = ProcessMemory::open(key).filter(|_| maps.len() != 0) else { return };
        let Some(address) = maps.context else {
            if self.published_ns.take().is_some() {
                self.published = Some(Vec::new());
            }
            return;
        };
        if let Some(published) = attributes::read(&memory, address, self.published_ns) {
            self.published_ns = Some(published.at_ns);
            self.published = Some(published.attributes);
        }
    }
}

/// Search for the contexts of one process.
#[derive(Debug)]
pub(crate) struct Search {
    due_ns: u64,
    interval_ns: u64,
    last: Arc<Mutex<Last>>,
}

impl Search {
    /// Creates the search of a process that was first sampled at `ktime_ns`.
    pub(crate) fn new(ktime_ns: u64) -> Self {
        Self { due_ns: ktime_ns + INTERVAL_NS_MIN, interval_ns: INTERVAL_NS_MIN, last: Arc::default() }
    }

    /// Searches a process that was sampled at `ktime_ns`, if a search is due. What is found is added to `contexts`.
    pub(crate) fn follow(&mut self, key: ProcessKey, ktime_ns: u64, contexts: &Contexts) {
        // An earlier search that still runs holds a reference.
        if ktime_ns < self.due_ns || 1 < Arc::strong_count(&self.last) {
            return;
        }
        let Some(running) = contexts.searches.begin() else { return };
        self.interval_ns = (INTERVAL_GROWTH * self.interval_ns).min(INTERVAL_NS_MAX);
        self.due_ns = ktime_ns + self.interval_ns;
        let (contexts, last) = (contexts.clone(), Arc::clone(&self.last));
        let search = move || {
            contexts.search(key, &mut last.lock());
            drop(running);
        };
        if let Err(error) = thread::Builder::new().name("varve-context".to_owned()).spawn(search) {
            tracing::warn!("cannot start a thread that looks for contexts of a process: {error}");
        }
    }

    /// Returns the attributes that the process has published, once after each search that has found others.
    pub(crate) fn take_published(&self) -> Option<Vec<(String, String)>> {
        // A search that runs holds the lock.
        self.last.try_lock()?.published.take()
    }
}

impl Contexts {
    /// Returns the programs whose context was found or is gone, by pid, since the last call.
    pub(crate) fn take_found(&self) -> Vec<(u32, Program)> {
        std::mem::take(&mut *self.found.lock())
    }

    /// Searches a process.
    fn search(&self, key: ProcessKey, last: &mut Last) {
        let Ok(maps) = Maps::of_process(key.pid) else { return };
        last.read_process(key, &maps);
        self.search_threads(key, &maps, last);
    }

    /// Looks for the variable in the files of a process.
    fn search_threads(&self, key: ProcessKey, maps: &Maps, last: &mut Last) {
        let files = files_of(maps);
        let hash = hash_of(&files);
        if last.without == Some(hash) {
            return;
        }
        let Some(memory) = ProcessMemory::open(key) else { return };
        let started = Instant::now();
        let (mut pointer, mut is_without) = (None, true);
        for mapping in files {
            if SEARCH_TIME_MAX < started.elapsed() {
                is_without = false;
                break;
            }
            let Ok(file) = open_mapping(key.pid, mapping) else { continue };
            let Some(variable) = self.variable_of(&file) else { continue };
            is_without = false;
            pointer = place(&memory, key.pid, maps, mapping, &file, variable);
            if pointer.is_some() {
                break;
            }
        }
        last.without = is_without.then_some(hash);
        // BPF may have forgotten a context, but not that there is none.
        if pointer.is_some() || last.pointer.is_some() {
            let ProcessKey { pid, start_boottime_ns, exec_id } = key;
            self.found.lock().push((pid, Program { start_boottime_ns, exec_id, context: pointer, eager: 0 }));
        }
        last.pointer = pointer;
    }

    /// Returns the variable of a file; `None` if the file does not export it.
    fn variable_of(&self, file: &File) -> Option<ThreadLocal> {
        let key = FileKey::new(&file.metadata().ok()?);
        if let Some(known) = self.files.lock().get(&key) {
            return *known;
        }
        let variable = ThreadLocal::find(file, VARIABLE).ok().flatten();
        let mut files = self.files.lock();
        if FILES_MAX <= files.len() {
            files.clear();
        }
        files.insert(key, variable);
        variable
    }
}

/// Returns the first executable mapping of each file, by address.
fn files_of(maps: &Maps) -> Vec<&ProcessMapping> {
    let mut files: Vec<&ProcessMapping> = Vec::new();
    let mut seen = std::collections::HashSet::<_, RandomState>::default();
    for mapping in maps.iter() {
        if let Backing::File { device, inode, .. } = &mapping.backing
            && seen.insert((device, inode))
        {
            files.push(mapping);
        }
    }
    files
}

/// Returns a hash of the files and of the places at which they are mapped.
fn hash_of(files: &[&ProcessMapping]) -> u64 {
    let words = files.iter().flat_map(|mapping| match mapping.backing {
        Backing::File { device: (major, minor), inode, .. } => {
            [mapping.start, mapping.offset, inode, u64::from(major) << 32 | u64::from(minor)]
        }
        Backing::Vdso | Backing::Anonymous => [mapping.start, mapping.offset, 0, 0],
    });
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

#[cfg(test)]
pub(crate) mod tests;
