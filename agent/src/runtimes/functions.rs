//! Functions of runtimes in one process, and their locations.
//!
//! Invariant: no answer is older than a minute. A program may replace a function by another one with the same identity.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::names::location::{Location, LocationId, Marker};
use crate::names::shared_tables::SharedTables;
use crate::process::key::ProcessKey;
use crate::runtimes::function_cache::{CopyKey, FunctionCache, FunctionKey, Known};
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::languages::{Function, Layout};
use crate::runtimes::memory::ProcessMemory;
use crate::runtimes::read_limit::{self, ReadLimit};
use crate::runtimes::reader::Late;

/// Largest number of positions whose location is cached for one process.
const POSITIONS_MAX: usize = 32_768;
/// Largest number of functions that are read at once. Each batch is limited in time.
const BATCH_MAX: usize = 64;
/// Shortest time after which BPF is asked again to wake the agent for new functions of a process, in nanoseconds.
const EAGER_NS: u64 = 200_000_000;
/// Time after which functions are read again, in nanoseconds.
const AGE_NS_MAX: u64 = 60_000_000_000;

/// A position in a function, as BPF reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) function: FunctionKey,
    pub(crate) position: u32,
}

/// A function that is to be read for a position.
struct Wanted {
    at: Position,
    /// The function, and the position for which it is read.
    key: (FunctionKey, u32),
    layout: Arc<Layout>,
}

impl Wanted {
    fn copy(&self) -> Option<CopyKey> {
        let FunctionKey { runtime, address, identity } = self.at.function;
        self.layout.copied_kind(address).map(|kind| CopyKey { runtime, kind, identity })
    }
}

/// The functions of the runtimes in one process.
#[derive(Debug)]
pub(crate) struct RuntimeFunctions {
    read: FunctionCache,
    sources: Sources,
    locations: HashMap<Position, LocationId, RandomState>,
    /// Time at which the oldest function was read.
    since_ns: u64,
    reads: ReadLimit,
    /// A read that was late. Nothing more is read of this process until it has returned.
    late: Option<Late>,
    /// Number of times that functions were gone when they were read, so that BPF was asked to wake the agent for new
    /// ones; 0 if it was not asked.
    eager: u64,
    /// Time before which BPF is not asked again.
    eager_after_ns: u64,
    /// The reason why functions were not read when positions were sought last; `None` if all were read.
    unread: Option<Marker>,
}

impl Default for RuntimeFunctions {
    fn default() -> Self {
        Self {
            read: FunctionCache::default(),
            sources: Sources::default(),
            locations: HashMap::default(),
            since_ns: 0,
            reads: ReadLimit::of_process(),
            late: None,
            eager: 0,
            eager_after_ns: 0,
            unread: None,
        }
    }
}

impl RuntimeFunctions {
    /// Finds the locations of positions that are new, and reads the functions for that. `now_ns` is the time of the
    /// sample that has the positions.
    ///
    /// Functions are read in batches. Each batch is run by another thread, which may have to wait for a CPU.
    pub(crate) fn find(
        &mut self,
        process: ProcessKey,
        positions: impl Iterator<Item = Position>,
        now_ns: u64,
        tables: &mut SharedTables,
    ) {
        if AGE_NS_MAX < now_ns.saturating_sub(self.since_ns) {
            self.read = FunctionCache::default();
            self.locations = HashMap::default();
            self.since_ns = now_ns;
        }
        self.unread = None;
        let mut left: Vec<Position> = positions.filter(|at| !self.locations.contains_key(at)).collect();
        left.sort_unstable();
        left.dedup();
        if POSITIONS_MAX < self.locations.len() + left.len() {
            self.locations = HashMap::default();
        }
        while !left.is_empty() {
            let mut batch: Vec<Wanted> = Vec::new();
            left.retain(|at| self.is_left(*at, &mut batch, now_ns, tables));
            if batch.is_empty() {
                continue;
            }
            match self.read(process, batch, tables) {
                Ok(read) => {
                    for (wanted, function) in read {
                        left.retain(|at| *at != wanted.at);
                        let known = self.read.insert(wanted.key, wanted.copy(), function, now_ns);
                        if matches!(known, Known::Gone) && self.eager_after_ns <= now_ns {
                            // The same function may be made again, and counts as new again.
                            self.eager += 1;
                            self.eager_after_ns = now_ns + EAGER_NS;
                            tables.eager.push((process, self.eager));
                        }
                        self.locate_in(wanted.at, &known, &wanted.layout, tables);
                    }
                }
                Err(reason) => {
                    self.unread = Some(reason);
                    return;
                }
            }
        }
    }

    /// Stores the location of a position if its function is known, and returns false. Also returns false if the
    /// function is gone. Otherwise, adds the function to `batch`, unless the batch is full or has it.
    fn is_left(&mut self, at: Position, batch: &mut Vec<Wanted>, now_ns: u64, tables: &mut SharedTables) -> bool {
        let layout = tables.runtimes.layout(at.function.runtime).filter(|_| at.function.identity != 0);
        let Some(layout) = layout else { return false };
        let key = (at.function, layout.read_position(at.function.address, at.position));
        match self.read.known(key, now_ns) {
            Some(Known::Function(function)) if !function.covers(at.position) => {}
            Some(known) => {
                self.locate_in(at, &known, &layout, tables);
                return false;
            }
            None => {}
        }
        if batch.len() < BATCH_MAX && batch.iter().all(|wanted| wanted.key != key) {
            batch.push(Wanted { at, key, layout });
        }
        true
    }

    /// Stores the location of a position in a function, unless the function is gone.
    fn locate_in(&mut self, at: Position, known: &Known, layout: &Layout, tables: &mut SharedTables) {
        if let Known::Function(function) = known {
            let calls = function.calls(layout, at.position);
            self.locations.insert(at, tables.locations.insert_calls(None, &calls, layout.frame_type()));
        }
    }

    /// Returns the location of a position after [`RuntimeFunctions::find`], and true if it will be the same next time.
    pub(crate) fn locate(&self, at: Position, tables: &mut SharedTables) -> (LocationId, bool) {
        match self.locations.get(&at) {
            Some(id) => (*id, true),
            None => {
                let marker = self.unread.unwrap_or(Marker::FunctionGone);
                (tables.locations.insert(Location::Marker(marker)), false)
            }
        }
    }

    /// Reads the functions of a batch; `None` in place of one that is gone.
    fn read(
        &mut self,
        process: ProcessKey,
        batch: Vec<Wanted>,
        tables: &mut SharedTables,
    ) -> Result<Vec<(Wanted, Option<Function>)>, Marker> {
        if self.late.take_if(|late| late.has_returned()).is_none() && self.late.is_some() {
            return Err(Marker::FunctionUnread);
        }
        let sources = self.sources.clone();
        let read = move || {
            let memory = ProcessMemory::open(process).ok_or(Marker::ProcessExited)?;
            let function = |wanted: &Wanted| {
                let FunctionKey { address, identity, .. } = wanted.at.function;
                Function::read(&memory, &wanted.layout, &sources, (address, wanted.at.position, identity))
            };
            let functions: Vec<_> = batch.iter().map(function).collect();
            Ok(batch.into_iter().zip(functions).collect())
        };
        let SharedTables { function_reads, reader, .. } = tables;
        match read_limit::run(reader, [&mut self.reads, function_reads], read) {
            Some(Ok(read)) => read,
            Some(Err(late)) => {
                self.late = Some(late);
                Err(Marker::FunctionUnread)
            }
            None => Err(Marker::FunctionUnread),
        }
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
