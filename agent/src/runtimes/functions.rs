//! Functions of runtimes in one process, and their locations.
//!
//! Invariant: no answer is older than a minute. A program may replace a function by another one with the same identity.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::names::location::{Location, LocationId, Marker};
use crate::names::shared_tables::SharedTables;
use crate::process::key::ProcessKey;
use crate::process::rate_limit::RateLimit;
use crate::runtimes::function_cache::{FunctionCache, FunctionKey};
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::languages::{Function, Layout};
use crate::runtimes::memory::ProcessMemory;
use crate::runtimes::reader::TIME_MAX;

/// Largest number of positions whose location is cached for one process.
const POSITIONS_MAX: usize = 32_768;
/// Number of late reads after which nothing more is read of a process. On a busy host, a few reads may be late.
const LATE_MAX: u32 = 3;
/// Time after which functions are read again, in nanoseconds.
const AGE_NS_MAX: u64 = 60_000_000_000;

/// A position in a function, as BPF reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    pub(crate) function: FunctionKey,
    pub(crate) position: u32,
}

/// The functions of the runtimes in one process.
#[derive(Debug)]
pub(crate) struct RuntimeFunctions {
    read: FunctionCache,
    sources: Sources,
    locations: HashMap<Position, LocationId, RandomState>,
    /// Time at which the oldest function was read.
    since_ns: u64,
    /// Limit of the work for this process: 1 % of a CPU.
    reads: RateLimit,
    /// Number of late reads. After [`LATE_MAX`] of them, nothing more is read of this process.
    late: u32,
}

impl Default for RuntimeFunctions {
    fn default() -> Self {
        Self {
            read: FunctionCache::default(),
            sources: Sources::default(),
            locations: HashMap::default(),
            since_ns: 0,
            reads: RateLimit::new(100),
            late: 0,
        }
    }
}

impl RuntimeFunctions {
    /// Returns the location of a position, and true if it will be the same next time. `now_ns` is the time of the
    /// sample.
    pub(crate) fn locate(
        &mut self,
        process: ProcessKey,
        at: Position,
        now_ns: u64,
        tables: &mut SharedTables,
    ) -> (LocationId, bool) {
        if AGE_NS_MAX < now_ns.saturating_sub(self.since_ns) {
            self.read = FunctionCache::default();
            self.locations = HashMap::default();
            self.since_ns = now_ns;
        }
        if let Some(id) = self.locations.get(&at) {
            return (*id, true);
        }
        match self.find(process, at, tables) {
            Ok(id) => {
                if self.locations.len() < POSITIONS_MAX {
                    self.locations.insert(at, id);
                }
                (id, true)
            }
            Err(marker) => (tables.locations.insert(Location::Marker(marker)), marker != Marker::FunctionUnread),
        }
    }

    /// Returns the location of a position that is not cached, or the reason why there is none.
    fn find(&mut self, process: ProcessKey, at: Position, tables: &mut SharedTables) -> Result<LocationId, Marker> {
        let key = at.function;
        let layout = tables.runtimes.layout(key.runtime).filter(|_| key.identity != 0).ok_or(Marker::FunctionGone)?;
        let position = layout.read_position(key.address, at.position);
        let known = self.read.known((key, position));
        let function = match known.filter(|known| known.as_ref().is_none_or(|known| known.covers(at.position))) {
            Some(known) => known,
            None => {
                let function = self.read(process, at, Arc::clone(&layout), tables)?;
                self.read.insert((key, position), function)
            }
        };
        let calls = function.ok_or(Marker::FunctionGone)?.calls(&layout, at.position);
        Ok(tables.locations.insert_calls(None, &calls, layout.frame_type()))
    }

    /// Reads a function; `None` if it is gone.
    fn read(
        &mut self,
        process: ProcessKey,
        at: Position,
        layout: Arc<Layout>,
        tables: &mut SharedTables,
    ) -> Result<Option<Function>, Marker> {
        let SharedTables { reads, reader, memory, .. } = tables;
        if LATE_MAX <= self.late || self.reads.is_reached() || reads.is_reached() {
            return Err(Marker::FunctionUnread);
        }
        let sources = self.sources.clone();
        let opened = memory.take().filter(|(key, _)| *key == process).map(|(_, memory)| memory);
        let read = move || {
            let memory = opened.or_else(|| ProcessMemory::open(process)).ok_or(Marker::ProcessExited)?;
            let FunctionKey { address, identity, .. } = at.function;
            Ok((Function::read(&memory, &layout, &sources, (address, at.position, identity)), memory))
        };
        let done = reader.run(read);
        let work = done.as_ref().map_or(TIME_MAX, |done| done.work);
        self.reads.add(work);
        reads.add(work);
        self.late += u32::from(done.is_err());
        let (function, opened) = done.map_err(|_late| Marker::FunctionUnread)?.result?;
        *memory = Some((process, opened));
        Ok(function)
    }

    pub(crate) fn forget_locations(&mut self) {
        self.locations = HashMap::default();
    }

    /// Number of positions whose location is cached.
    pub(crate) fn positions(&self) -> usize {
        self.locations.len()
    }

    /// Approximate memory of the functions, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.read.bytes() + self.sources.bytes()
    }
}

#[cfg(test)]
mod tests;
