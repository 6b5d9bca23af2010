//! Functions that are known of a family of processes. A function that was read in one of them needs no other read if
//! its address and its identity are the same in the others, and if the identity has the name.

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
    /// Time before which no function was read, and no copy a minute earlier.
    since_ns: u64,
}

impl FamilyFunctions {
    /// Forgets everything that is older than a minute at `now_ns`, except copies in place of those that will be gone.
    /// These are forgotten after two minutes.
    pub(super) fn forget_old(&mut self, now_ns: u64) {
        let age_ns = now_ns.saturating_sub(self.since_ns);
        if age_ns <= AGE_NS_MAX {
            return;
        }
        self.locations = HashMap::default();
        if age_ns <= 2 * AGE_NS_MAX {
            self.read.forget();
            self.since_ns += AGE_NS_MAX;
        } else {
            self.read = FunctionCache::default();
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

/// Functions that processes share. Only the thread that locates samples locks them, so it never waits, and may read
/// memory meanwhile.
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

/// The family of a process, as it was found at some time.
#[derive(Debug)]
pub(crate) struct Membership {
    /// `None` if it is not known. The process is alone then.
    family: Option<Family>,
    pub(super) functions: SharedFunctions,
    since_ns: u64,
}

impl Membership {
    /// Describes a process that is in a family at `now_ns`, and that was in another one before, or in the same.
    pub(super) fn of(family: Option<Family>, before: Option<Self>, now_ns: u64, families: &mut Families) -> Self {
        let same = before.filter(|before| before.family == family).map(|before| before.functions);
        let functions = same.unwrap_or_else(|| match &family {
            Some(family) => families.functions_of(family.clone()),
            None => SharedFunctions::default(),
        });
        Self { family, functions, since_ns: now_ns }
    }

    /// True if the family is to be found again at `now_ns`.
    pub(super) fn is_old(&self, now_ns: u64) -> bool {
        AGE_NS_MAX < now_ns.saturating_sub(self.since_ns)
    }
}
