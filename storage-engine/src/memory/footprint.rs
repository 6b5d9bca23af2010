//! Memory use of one kind, such as definitions. Each change updates the total, so reading the total takes no lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Total memory use of one engine, in bytes. It is also part of the total of all engines that share a budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTotal {
    own: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
}

impl MemoryTotal {
    /// Creates the total of an engine, which is part of the total `all`.
    pub(crate) fn within(all: &Arc<AtomicUsize>) -> Self {
        Self { own: Arc::default(), all: Arc::clone(all) }
    }

    /// Returns a reference to the engine's total, which can be upgraded as long as the engine is open.
    pub(crate) fn downgrade(&self) -> Weak<AtomicUsize> {
        Arc::downgrade(&self.own)
    }

    /// Returns the total of the engine.
    pub(crate) fn bytes(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }
}

/// Memory use of one item, which the total includes for as long as the item lives.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    total: MemoryTotal,
    bytes: usize,
}

impl Footprint {
    pub(crate) fn new(total: &MemoryTotal) -> Self {
        Self { total: total.clone(), bytes: 0 }
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        for total in [&self.total.own, &self.total.all] {
            total.fetch_add(bytes, Ordering::Relaxed);
            total.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Footprint {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_counts_only_live_parts() {
        let all = Arc::default();
        let total = MemoryTotal::within(&all);
        let mut first = Footprint::new(&total);
        let mut second = Footprint::new(&total);
        let mut other = Footprint::new(&MemoryTotal::within(&all));
        other.set(100);
        first.set(10);
        second.set(5);
        first.set(7);
        assert_eq!([total.bytes(), all.load(Ordering::Relaxed)], [12, 112]);
        drop(first);
        assert_eq!([total.bytes(), all.load(Ordering::Relaxed)], [5, 105]);
    }
}
