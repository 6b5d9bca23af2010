//! Functions of runtimes in one process, and their locations.
//!
//! Invariant: no answer is older than a minute. A program may replace a function by another one with the same identity.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::names::location::{FrameType, Location, LocationId, Marker};
use crate::names::shared_tables::SharedTables;
use crate::process::key::ProcessKey;
use crate::process::rate_limit::RateLimit;
use crate::runtimes::memory::ProcessMemory;
use crate::runtimes::python;
use crate::runtimes::python::code::Code;
use crate::runtimes::python::layout::Layout;

/// Largest number of positions whose location is cached for one process.
const POSITIONS_MAX: usize = 32_768;
/// Number of late reads after which nothing more is read of a process. On a busy host, a few reads may be late.
const LATE_MAX: u32 = 3;
/// Time after which functions are read again, in nanoseconds.
const AGE_NS_MAX: u64 = 60_000_000_000;

/// A position in a function, as BPF reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    /// Id of the runtime.
    pub(crate) runtime: u16,
    pub(crate) address: u64,
    pub(crate) position: u32,
    pub(crate) identity: u32,
}

/// The functions of the runtimes in one process.
#[derive(Debug)]
pub(crate) struct RuntimeFunctions {
    python: python::functions::Functions,
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
            python: python::functions::Functions::default(),
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
        key: ProcessKey,
        at: Position,
        now_ns: u64,
        tables: &mut SharedTables,
    ) -> (LocationId, bool) {
        if AGE_NS_MAX < now_ns.saturating_sub(self.since_ns) {
            self.python = python::functions::Functions::default();
            self.locations = HashMap::default();
            self.since_ns = now_ns;
        }
        if let Some(id) = self.locations.get(&at) {
            return (*id, true);
        }
        match self.find(key, at, tables) {
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
    fn find(&mut self, key: ProcessKey, at: Position, tables: &mut SharedTables) -> Result<LocationId, Marker> {
        let layout = tables.runtimes.python(at.runtime).filter(|_| at.identity != 0).ok_or(Marker::FunctionGone)?;
        let code = match self.python.known(at.address, at.identity) {
            Some(known) => known,
            None => {
                let code = self.read(key, at, layout, tables)?;
                self.python.insert(at.address, at.identity, code)
            }
        };
        let call = code.ok_or(Marker::FunctionGone)?.call(&layout, at.position);
        Ok(tables.locations.insert_calls(None, &[call], FrameType::Python))
    }

    /// Reads the function at a position; `None` if it is gone.
    fn read(
        &mut self,
        key: ProcessKey,
        at: Position,
        layout: Layout,
        tables: &mut SharedTables,
    ) -> Result<Option<Code>, Marker> {
        let read = move || {
            let memory = ProcessMemory::open(key).ok_or(Marker::ProcessExited)?;
            Ok(Code::read(&memory, &layout, at.address, at.identity))
        };
        if LATE_MAX <= self.late {
            return Err(Marker::FunctionUnread);
        }
        let SharedTables { reads, reader, .. } = tables;
        let read = self.reads.run(|| reads.run(|| reader.run(read))).flatten().ok_or(Marker::FunctionUnread)?;
        self.late += u32::from(read.is_err());
        read.unwrap_or(Err(Marker::FunctionUnread))
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
        self.python.bytes()
    }
}

#[cfg(test)]
mod tests;
