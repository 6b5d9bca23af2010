//! Functions of runtimes in one process, and their locations.
//!
//! Processes that were forked from one program share what is known of functions whose identity has the name. Other
//! identities are unique in one process only: after a fork, two processes may make different functions with one.
//!
//! Invariant: no answer is older than a minute, or than two minutes for a function that is gone and that has copies. A
//! program may replace a function by another one with the same identity.

pub(crate) mod family;

use std::collections::HashMap;
use std::sync::Arc;

use self::family::{FamilyFunctions, Membership, SharedFunctions};
use crate::names::location::{Location, LocationId, Marker};
use crate::names::shared_tables::SharedTables;
use crate::process::family::Family;
use crate::process::key::ProcessKey;
use crate::runtimes::function_cache::{CopyKey, FunctionKey, GoneFunctions};
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::languages::{Function, Layout};
use crate::runtimes::memory::ProcessMemory;
use crate::runtimes::read_limit::{self, ReadLimit};
use crate::runtimes::reader::Late;

/// Largest number of positions whose location is cached for one family of processes.
const POSITIONS_MAX: usize = 32_768;
/// Largest number of functions that are read at once. Each batch is limited in time.
const BATCH_MAX: usize = 64;
/// Shortest time after which BPF is asked again to wake the agent for new functions of a process, in nanoseconds.
const EAGER_NS: u64 = 200_000_000;

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

/// Returns the key that all copies of a function have; `None` if it has no copies.
fn copy_of(function: FunctionKey, layout: &Layout) -> Option<CopyKey> {
    let FunctionKey { runtime, address, identity } = function;
    layout.copied_kind(address).map(|kind| CopyKey { runtime, kind, identity })
}

/// The functions of the runtimes in one process.
#[derive(Debug)]
pub(crate) struct RuntimeFunctions {
    /// Functions that are known for this process only; `None` until there is one.
    own: Option<SharedFunctions>,
    /// The family, whose processes share other functions; `None` until there is one of these.
    family: Option<Membership>,
    gone: GoneFunctions,
    sources: Sources,
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
            own: None,
            family: None,
            gone: GoneFunctions::default(),
            sources: Sources::default(),
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
        self.unread = None;
        self.known().for_each(|known| known.lock().forget_old(now_ns));
        // The family is found again when a function is sought.
        let is_family_old = self.family.as_ref().is_some_and(|membership| membership.is_old(now_ns));
        let is_located = |at: &Position| self.known().any(|known| known.lock().locations.contains_key(at));
        let is_new = |at: &Position| is_family_old || !is_located(at);
        let mut left: Vec<Position> = positions.filter(is_new).collect();
        left.sort_unstable();
        left.dedup();
        let is_shared = |at: &Position| {
            tables.runtimes.layout(at.function.runtime).is_some_and(|layout| layout.identities_have_names())
        };
        let (shared, own): (Vec<_>, Vec<_>) = left.into_iter().partition(is_shared);
        if !own.is_empty() {
            let known = self.own.get_or_insert_default().clone();
            self.find_in(&known, own, process, now_ns, tables);
        }
        if !shared.is_empty() {
            match self.family(process, now_ns, tables) {
                Ok(known) => self.find_in(&known, shared, process, now_ns, tables),
                Err(reason) => self.unread = Some(reason),
            }
        }
    }

    /// Finds the locations of positions that are new, among and for the functions that are `known`.
    fn find_in(
        &mut self,
        known: &SharedFunctions,
        mut left: Vec<Position>,
        process: ProcessKey,
        now_ns: u64,
        tables: &mut SharedTables,
    ) {
        let known = &mut *known.lock();
        known.forget_old(now_ns);
        if POSITIONS_MAX < known.locations.len() + left.len() {
            known.locations = HashMap::default();
        }
        while !left.is_empty() {
            let mut batch: Vec<Wanted> = Vec::new();
            left.retain(|at| self.is_left(*at, known, &mut batch, now_ns, tables));
            if batch.is_empty() {
                continue;
            }
            match self.read(process, batch, tables) {
                Ok(read) => {
                    for (wanted, function) in read {
                        left.retain(|at| *at != wanted.at);
                        let copy = copy_of(wanted.at.function, &wanted.layout);
                        match known.read.insert(wanted.key, copy, function) {
                            Some(function) => known.locate_in(wanted.at, &function, &wanted.layout, tables),
                            None => self.miss(wanted.key, process, now_ns, tables),
                        }
                    }
                }
                Err(reason) => {
                    self.unread = Some(reason);
                    return;
                }
            }
        }
    }

    /// Returns what is known of functions: of those of this process, and of those of its family.
    fn known(&self) -> impl Iterator<Item = &SharedFunctions> {
        self.own.iter().chain(self.family.as_ref().map(|family| &family.functions))
    }

    /// Returns what is known in the family of the process. A process may change its user, and then its family.
    fn family(
        &mut self,
        process: ProcessKey,
        now_ns: u64,
        tables: &mut SharedTables,
    ) -> Result<SharedFunctions, Marker> {
        if self.family.as_ref().is_none_or(|membership| membership.is_old(now_ns)) {
            let family = self.run(tables, move || Family::of(process))?;
            self.family = Some(Membership::of(family, self.family.take(), now_ns, &mut tables.families));
        }
        Ok(self.family.as_ref().map(|membership| membership.functions.clone()).unwrap_or_default())
    }

    /// Reads memory of the process, within the limits of time.
    fn run<T: Send + 'static>(
        &mut self,
        tables: &mut SharedTables,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Marker> {
        if self.late.take_if(|late| late.has_returned()).is_none() && self.late.is_some() {
            return Err(Marker::FunctionUnread);
        }
        let SharedTables { function_reads, reader, .. } = tables;
        match read_limit::run(reader, [&mut self.reads, function_reads], read) {
            Some(Ok(read)) => Ok(read),
            Some(Err(late)) => {
                self.late = Some(late);
                Err(Marker::FunctionUnread)
            }
            None => Err(Marker::FunctionUnread),
        }
    }

    /// Notes that a function was gone when it was read.
    fn miss(&mut self, key: (FunctionKey, u32), process: ProcessKey, now_ns: u64, tables: &mut SharedTables) {
        self.gone.insert(key, now_ns);
        if self.eager_after_ns <= now_ns {
            // The same function may be made again, and counts as new again.
            self.eager += 1;
            self.eager_after_ns = now_ns + EAGER_NS;
            tables.eager.push((process, self.eager));
        }
    }

    /// Stores the location of a position if its function is known, and returns false. Also returns false if the
    /// function is gone. Otherwise, adds the function to `batch`, unless the batch is full or has it.
    fn is_left(
        &self,
        at: Position,
        known: &mut FamilyFunctions,
        batch: &mut Vec<Wanted>,
        now_ns: u64,
        tables: &mut SharedTables,
    ) -> bool {
        let layout = tables.runtimes.layout(at.function.runtime).filter(|_| at.function.identity != 0);
        let Some(layout) = layout else { return false };
        let key = (at.function, layout.read_position(at.function.address, at.position));
        match known.read.get(key).filter(|function| function.covers(at.position)) {
            Some(function) => {
                known.locate_in(at, &function, &layout, tables);
                return false;
            }
            None if self.gone.has(key, now_ns) => return false,
            None => {}
        }
        if batch.len() < BATCH_MAX && batch.iter().all(|wanted| wanted.key != key) {
            batch.push(Wanted { at, key, layout });
        }
        true
    }

    /// Returns the location of a position after [`RuntimeFunctions::find`], and true if it will be the same next time.
    pub(crate) fn locate(&self, at: Position, tables: &mut SharedTables) -> (LocationId, bool) {
        for known in self.known() {
            let known = known.lock();
            if let Some(id) = known.locations.get(&at) {
                return (*id, true);
            }
            if let Some(id) = known.locate_earlier(at, tables) {
                return (id, false);
            }
        }
        let marker = self.unread.unwrap_or(Marker::FunctionGone);
        (tables.locations.insert(Location::Marker(marker)), false)
    }

    /// Reads the functions of a batch; `None` in place of one that is gone.
    fn read(
        &mut self,
        process: ProcessKey,
        batch: Vec<Wanted>,
        tables: &mut SharedTables,
    ) -> Result<Vec<(Wanted, Option<Function>)>, Marker> {
        let sources = self.sources.for_batch();
        self.run(tables, move || {
            let memory = ProcessMemory::open(process).ok_or(Marker::ProcessExited)?;
            let function = |wanted: &Wanted| {
                let FunctionKey { address, identity, .. } = wanted.at.function;
                Function::read(&memory, &wanted.layout, &sources, (address, wanted.at.position, identity))
            };
            let functions: Vec<_> = batch.iter().map(function).collect();
            Ok(batch.into_iter().zip(functions).collect())
        })?
    }

    pub(crate) fn forget_locations(&mut self) {
        self.known().for_each(|known| known.lock().locations = HashMap::default());
    }

    /// Number of positions whose location is cached, without those that fall to the rest of the family.
    pub(crate) fn positions(&self) -> usize {
        self.known().map(|known| known.part_of(known.lock().locations.len())).sum()
    }

    /// Approximate memory of the functions, in bytes, without what falls to the rest of the family.
    pub(crate) fn bytes(&self) -> usize {
        let known: usize = self.known().map(|known| known.part_of(known.lock().read.bytes())).sum();
        known + self.gone.bytes() + self.sources.bytes()
    }
}

#[cfg(test)]
mod tests;
