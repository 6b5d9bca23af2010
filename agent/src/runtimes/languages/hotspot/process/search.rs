//! Looks for HotSpot in a process, so that BPF can walk its frames.
//!
//! A process may run HotSpot if a frame is in `libjvm.so`, or in memory without a file. The code heaps may not be made
//! yet, so the search is repeated, each time after a longer interval. It is also repeated when HotSpot was found, in
//! case that BPF has forgotten the process.
//!
//! Each search has a thread of its own, because it takes a few milliseconds, and because a read of memory may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ebpf::{Sample, UserFrame};

use super::{HotSpot, LIBRARY};
use crate::names::shared_tables::SharedTables;
use crate::process::file::table::open_mapping;
use crate::process::key::ProcessKey;
use crate::process::mappings::ProcessMappings;
use crate::process::maps::ProcessMapping;
use crate::runtimes::Runtimes;
use crate::runtimes::memory::ProcessMemory;

/// Time between the first two searches, in nanoseconds. HotSpot starts within this time.
const INTERVAL_NS_MIN: u64 = 50_000_000;
/// Longest time between two searches, in nanoseconds.
const INTERVAL_NS_MAX: u64 = 60_000_000_000;
/// Search for HotSpot in one process.
#[derive(Debug, Default)]
pub(crate) struct Search {
    due_ns: u64,
    interval_ns: u64,
    is_found: Arc<AtomicBool>,
}

impl Search {
    /// Searches the process of `sample`, if the sample shows that it may run HotSpot. What is found is added to
    /// `tables.runtimes`.
    pub(crate) fn follow(
        &mut self,
        key: ProcessKey,
        sample: &Sample<'_>,
        mappings: &mut ProcessMappings,
        tables: &mut SharedTables,
    ) {
        let now_ns = sample.header.ktime_ns;
        // An earlier search that still runs holds a reference.
        if now_ns < self.due_ns || 1 < Arc::strong_count(&self.is_found) || !self.may_run(sample, tables) {
            return;
        }
        let Some(running) = tables.runtimes.searches.begin() else { return };
        self.interval_ns = (2 * self.interval_ns).clamp(INTERVAL_NS_MIN, INTERVAL_NS_MAX);
        self.due_ns = now_ns + self.interval_ns;
        let Some(library) = mappings.find_file(LIBRARY, now_ns, &mut tables.reads).cloned() else { return };
        let (runtimes, is_found) = (tables.runtimes.clone(), Arc::clone(&self.is_found));
        let search = move || {
            search(key, &library, &runtimes, &is_found);
            drop(running);
        };
        if let Err(error) = thread::Builder::new().name("varve-hotspot".to_owned()).spawn(search) {
            tracing::warn!("cannot start a thread that reads code heaps: {error}");
        }
    }

    /// True if a frame of the sample can be that of a process that runs HotSpot.
    fn may_run(&self, sample: &Sample<'_>, tables: &SharedTables) -> bool {
        let is_found = self.is_found.load(Ordering::Acquire);
        sample.user_frames().any(|frame| match frame {
            UserFrame::Address(_) => true,
            UserFrame::File { number, .. } if !is_found => {
                let file = tables.files.of_number(number).and_then(Result::ok).and_then(|id| tables.files.get(id));
                file.is_some_and(|file| file.name.ends_with(LIBRARY))
            }
            UserFrame::File { .. } | UserFrame::Function { .. } => false,
        })
    }
}

/// Reads HotSpot from a process that has mapped its library.
fn search(key: ProcessKey, library: &ProcessMapping, runtimes: &Runtimes, is_found: &AtomicBool) {
    let Ok(file) = open_mapping(key.pid, library) else { return };
    let memory = ProcessMemory::open(key);
    if let Some(mut hotspot) = memory.and_then(|memory| HotSpot::read(&memory, &file, library.start, library.offset)) {
        hotspot.layout.method.has_parameters = runtimes.java_parameters;
        is_found.store(true, Ordering::Release);
        runtimes.add_hotspot(key, hotspot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::mappings::MapsError;
    use crate::process::test_record::TestRecord;

    #[test]
    fn no_search_begins_while_an_earlier_one_of_the_process_runs() {
        let bytes = TestRecord { user: &[0x1000], ..TestRecord::default() }.bytes();
        let sample = Sample::read(&bytes).unwrap();
        let key = ProcessKey::of(&sample);
        let mut tables = SharedTables::new(Arc::default(), Runtimes::default());
        let mut mappings = ProcessMappings::unread(key, MapsError::Unreadable, 0);
        let mut search = Search::default();
        let running = Arc::clone(&search.is_found);
        search.follow(key, &sample, &mut mappings, &mut tables);
        assert_eq!(search.interval_ns, 0);
        drop(running);
        search.follow(key, &sample, &mut mappings, &mut tables);
        assert_eq!(search.interval_ns, INTERVAL_NS_MIN);
    }
}
