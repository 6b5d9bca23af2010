//! Functions that are known of a family of processes. A function that was read in one of them needs no other read: its
//! address and its identity are the same in the others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use super::{Position, copy_of};
use crate::names::location::LocationId;
use crate::names::shared_tables::SharedTables;
use crate::process::family::Family;
use crate::runtimes::function_cache::FunctionCache;
use crate::runtimes::languages::{Function, Layout};

/// Time after which functions are read again, in nanoseconds.
const AGE_NS_MAX: u64 = 60_000_000_000;
/// Number of families at which those without a process are forgotten.
const FAMILIES_MAX: usize = 1024;

/// Functions that were read, and their locations.
#[derive(Debug, Default)]
pub(crate) struct FamilyFunctions {
    pub(super) read: FunctionCache,
    pub(super) locations: HashMap<Position, LocationId, RandomState>,
    /// Time at which the oldest function was read.
    since_ns: u64,
}

impl FamilyFunctions {
    /// Forgets everything that is older than a minute at `now_ns`, except copies in place of those that will be gone.
    pub(super) fn forget_old(&mut self, now_ns: u64) {
        if AGE_NS_MAX < now_ns.saturating_sub(self.since_ns) {
            self.read.forget();
            self.locations = HashMap::default();
            self.since_ns = now_ns;
        }
    }

    /// Stores the location of a position in a function.
    pub(super) fn locate_in(&mut self, at: Position, function: &Function, layout: &Layout, tables: &mut SharedTables) {
        self.locations.insert(at, locate_in(at, function, layout, tables));
    }

    /// Returns the location of a position in a function of which only an earlier copy is known.
    pub(super) fn locate_earlier(&self, at: Position, tables: &mut SharedTables) -> Option<LocationId> {
        let layout = tables.runtimes.layout(at.function.runtime)?;
        let function = self.read.earlier(copy_of(at.function, &layout)?)?;
        Some(locate_in(at, &function, &layout, tables))
    }
}

fn locate_in(at: Position, function: &Function, layout: &Layout, tables: &mut SharedTables) -> LocationId {
    tables.locations.insert_calls(None, &function.calls(layout, at.position), layout.frame_type())
}

/// The functions of a family, which its processes share. Only the thread that locates samples locks them, so it may
/// read memory meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFunctions(Arc<Mutex<FamilyFunctions>>);

impl SharedFunctions {
    pub(super) fn lock(&self) -> MutexGuard<'_, FamilyFunctions> {
        self.0.lock()
    }

    /// Returns the part of a number that falls to one of the processes.
    pub(super) fn part_of(&self, number: usize) -> usize {
        number / Arc::strong_count(&self.0)
    }
}

/// The families of all processes that run.
#[derive(Debug, Default)]
pub(crate) struct Families(HashMap<Family, Weak<Mutex<FamilyFunctions>>, RandomState>);

impl Families {
    /// Returns what is known of a family.
    pub(crate) fn functions_of(&mut self, family: Family) -> SharedFunctions {
        if let Some(known) = self.0.get(&family).and_then(Weak::upgrade) {
            return SharedFunctions(known);
        }
        if FAMILIES_MAX <= self.0.len() {
            self.0.retain(|_, functions| functions.strong_count() != 0);
        }
        let new = SharedFunctions::default();
        self.0.insert(family, Arc::downgrade(&new.0));
        new
    }
}
