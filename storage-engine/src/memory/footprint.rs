//! Memory use of definitions. Each change updates the total, so reading the total takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Total memory use of all definitions, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTotal(Arc<AtomicUsize>);

impl MemoryTotal {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
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
        self.total.0.fetch_add(bytes, Ordering::Relaxed);
        self.total.0.fetch_sub(self.bytes, Ordering::Relaxed);
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
        let total = MemoryTotal::default();
        let mut first = Footprint::new(&total);
        let mut second = Footprint::new(&total);
        first.set(10);
        second.set(5);
        first.set(7);
        assert_eq!(total.bytes(), 12);
        drop(first);
        assert_eq!(total.bytes(), 5);
    }
}
