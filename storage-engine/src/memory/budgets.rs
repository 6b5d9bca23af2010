//! Budgets of memory that the engines of one process share.
//!
//! A shared budget restricts an engine only while all engines together reach a limit, and the engine itself uses at
//! least an equal part of the budget. Below that, no engine is restricted because of another one, and no engine waits
//! for another one. At worst, one engine alone reaches the limit and each other one uses nearly an equal part.
//!
//! - Heads: at the budget, the engine with the largest head should flush. At 9/8 of the budget, entries of an engine
//!   wait for its flush. So all heads together stay below 17/8 of the budget, except for the entry that exceeds it.
//! - Dictionaries: at 3/4 of the budget, each engine evicts idle partitions down to an equal part of the 3/4. At the
//!   budget, an engine refuses new definitions. So accepted definitions stay below twice the budget, except for the
//!   batch that exceeds it. Partitions that queries load count, but queries are not refused.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rocksdb::{Cache, WriteBufferManager};

use crate::memory::footprint::MemoryTotal;

/// Largest number of bytes that all write buffers together may take, even if the block cache is smaller.
pub(crate) const WRITE_BUFFERS_BYTES_MIN: usize = 64 << 20;

/// Total number of table files that all engines keep open, as far as the two limits per engine permit.
const OPEN_FILES_MAX: usize = 2048;
/// Limits of the number of open table files of one engine. RocksDB opens a file again for each read beyond the limit.
const ENGINE_OPEN_FILES: std::ops::RangeInclusive<usize> = 32..=512;

/// Sizes of the budgets that engines share, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSizes {
    /// Number of engines that will share the budgets; more may be added.
    pub engines: usize,
    /// Size of the unsealed samples in memory. When all heads exceed it, the engine with the largest head should flush.
    pub head_bytes_max: usize,
    /// Size of the dictionaries and series in memory. Above it, [`Engine::strip`](crate::Engine::strip) refuses new
    /// definitions.
    pub dictionary_bytes_max: usize,
    /// Size of RocksDB's block cache. Write buffers count against it, but may always take 64 MiB.
    pub cache_bytes: usize,
}

/// Budgets of memory. Engines that are opened with clones of one value share its budgets.
#[derive(Clone)]
pub struct Budgets {
    heads: Arc<Budget>,
    dictionaries: Arc<Budget>,
    /// RocksDB's block cache.
    pub(crate) cache: Cache,
    /// RocksDB's limit for all write buffers, which count against the cache.
    pub(crate) write_buffers: WriteBufferManager,
}

impl Budgets {
    /// Creates budgets that no engine uses yet.
    #[must_use]
    pub fn new(sizes: BudgetSizes) -> Self {
        let BudgetSizes { engines, head_bytes_max, dictionary_bytes_max, cache_bytes } = sizes;
        let engines = engines.max(1);
        let cache = Cache::new_lru_cache(cache_bytes);
        let write_buffers = WriteBufferManager::new_write_buffer_manager_with_cache(
            cache_bytes.max(WRITE_BUFFERS_BYTES_MIN),
            false,
            cache.clone(),
        );
        Self {
            heads: Budget::new(engines, head_bytes_max),
            dictionaries: Budget::new(engines, dictionary_bytes_max),
            cache,
            write_buffers,
        }
    }

    /// Returns the largest number of table files that the next engine keeps open.
    pub(crate) fn open_files(&self) -> usize {
        let engines = self.heads.engines.max(self.heads.open_engines() + 1);
        (OPEN_FILES_MAX / engines).clamp(*ENGINE_OPEN_FILES.start(), *ENGINE_OPEN_FILES.end())
    }

    /// Adds an engine to the engines that share the budgets.
    pub(crate) fn join(&self) -> Shares {
        Shares { heads: Share::of(&self.heads), dictionaries: Share::of(&self.dictionaries) }
    }
}

impl fmt::Debug for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, dictionaries, .. } = self;
        f.debug_struct("Budgets").field("heads", heads).field("dictionaries", dictionaries).finish_non_exhaustive()
    }
}

/// A budget of one kind of memory.
#[derive(Debug)]
struct Budget {
    /// Number of engines that share the budget, whether they are open or not. If more are open, their number counts.
    engines: usize,
    bytes_max: usize,
    /// Memory use of all engines, in bytes.
    all: Arc<AtomicUsize>,
    /// Memory use of each open engine, in bytes. No other lock is taken while this one is held.
    open: Mutex<Vec<Weak<AtomicUsize>>>,
}

impl Budget {
    fn new(engines: usize, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { engines, bytes_max, all: Arc::default(), open: Mutex::default() })
    }

    fn open_engines(&self) -> usize {
        self.open.lock().iter().filter(|engine| engine.strong_count() > 0).count()
    }
}

/// The shares of one engine.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) heads: Share,
    pub(crate) dictionaries: Share,
}

/// One engine's use of a shared budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    total: MemoryTotal,
}

impl Share {
    fn of(budget: &Arc<Budget>) -> Self {
        let total = MemoryTotal::within(&budget.all);
        let mut open = budget.open.lock();
        open.retain(|engine| engine.strong_count() > 0);
        open.push(total.downgrade());
        Self { budget: Arc::clone(budget), total }
    }

    /// Returns the counter that the engine's memory use is added to.
    pub(crate) fn total(&self) -> &MemoryTotal {
        &self.total
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.budget.bytes_max
    }

    /// Returns the memory use of all engines, in bytes.
    pub(crate) fn bytes_of_all(&self) -> usize {
        self.budget.all.load(Ordering::Relaxed)
    }

    /// Returns true if all engines together use at least `limit` bytes, and this engine at least an equal part of the
    /// budget.
    pub(crate) fn reaches(&self, limit: usize) -> bool {
        self.bytes_of_all() >= limit && self.total.bytes() >= self.equal_part(self.budget.bytes_max)
    }

    /// Returns true if all engines together reach the budget, and no other engine uses more than this one.
    pub(crate) fn is_largest_at_limit(&self) -> bool {
        self.bytes_of_all() >= self.budget.bytes_max && self.total.bytes() >= self.bytes_of_largest()
    }

    /// Returns the number of bytes that this engine may keep, so that all engines together use at most `limit` bytes.
    /// It is at least an equal part of the limit. Every engine is to free the whole excess, because the memory of the
    /// largest may be in use.
    pub(crate) fn kept_bytes(&self, limit: usize) -> usize {
        let excess = self.bytes_of_all().saturating_sub(limit);
        if excess == 0 {
            return usize::MAX;
        }
        self.total.bytes().saturating_sub(excess).max(self.equal_part(limit))
    }

    /// Returns an engine's equal part of `limit` bytes.
    pub(crate) fn equal_part(&self, limit: usize) -> usize {
        limit / self.budget.engines.max(self.budget.open_engines())
    }

    fn bytes_of_largest(&self) -> usize {
        let open = self.budget.open.lock();
        let bytes = |engine: &Weak<AtomicUsize>| engine.upgrade().map_or(0, |bytes| bytes.load(Ordering::Relaxed));
        open.iter().map(bytes).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::footprint::Footprint;

    fn share(budget: &Arc<Budget>, bytes: usize) -> (Share, Footprint) {
        let share = Share::of(budget);
        let mut used = Footprint::new(share.total());
        used.set(bytes);
        (share, used)
    }

    #[test]
    fn an_engine_alone_is_restricted_at_the_whole_budget() {
        let budget = Budget::new(1, 100);
        let (share, mut used) = share(&budget, 99);
        assert!(!share.reaches(100) && !share.is_largest_at_limit());
        assert_eq!(share.kept_bytes(100), usize::MAX);
        used.set(130);
        assert!(share.reaches(100) && share.is_largest_at_limit());
        assert_eq!(share.kept_bytes(75), 75);
    }

    #[test]
    fn the_largest_comes_first_and_a_small_one_is_never_restricted() {
        let budget = Budget::new(3, 100);
        let (large, _large) = share(&budget, 60);
        let (middle, _middle) = share(&budget, 40);
        let (small, _small) = share(&budget, 10);
        assert_eq!([&large, &middle, &small].map(Share::is_largest_at_limit), [true, false, false]);
        assert_eq!([&large, &middle, &small].map(|share| share.reaches(100)), [true, true, false]);
        assert_eq!([&large, &middle, &small].map(|share| share.kept_bytes(90)), [40, 30, 30]);
    }

    #[test]
    fn an_engine_that_is_added_later_makes_the_parts_smaller() {
        let budget = Budget::new(1, 100);
        let (first, _first) = share(&budget, 60);
        let (second, used) = share(&budget, 45);
        assert!(first.reaches(100) && !second.reaches(100));
        let (third, _third) = share(&budget, 0);
        assert!([&first, &second].iter().all(|share| share.reaches(100)) && !third.reaches(100));
        drop((second, used));
        assert_eq!(first.equal_part(100), 50);
    }

    #[test]
    fn a_closed_engine_no_longer_counts() {
        let budget = Budget::new(2, 100);
        let (large, used) = share(&budget, 90);
        let (small, mut of_small) = share(&budget, 40);
        assert!(!small.reaches(100) && !small.is_largest_at_limit());
        drop(used);
        drop(large);
        assert_eq!(small.bytes_of_all(), 40);
        of_small.set(99);
        assert!(!small.reaches(100) && !small.is_largest_at_limit());
        of_small.set(100);
        assert!(small.reaches(100) && small.is_largest_at_limit());
    }

    #[test]
    fn engines_share_the_open_files() {
        let sizes = |engines| BudgetSizes { engines, head_bytes_max: 1, dictionary_bytes_max: 1, cache_bytes: 1 };
        assert_eq!([1, 4, 16, 64].map(|engines| Budgets::new(sizes(engines)).open_files()), [512, 512, 128, 32]);
    }
}
