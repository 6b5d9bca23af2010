//! Memory that definitions take: counted where it changes, so that asking for the sum takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all definitions in memory take together.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTotal(Arc<AtomicUsize>);

impl MemoryTotal {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one of them takes, a part of the total for as long as it lives.
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
    fn the_total_is_what_those_that_live_take() {
        let total = MemoryTotal::default();
        let (mut first, mut second) = (Footprint::new(&total), Footprint::new(&total));
        first.set(10);
        second.set(5);
        first.set(7);
        assert_eq!(total.bytes(), 12);
        drop(first);
        assert_eq!(total.bytes(), 5);
    }
}
