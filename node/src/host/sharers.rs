//! The number of replicas that share the budgets of a node.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the replicas of a node. Its budgets are divided into as many equal parts. While fewer replicas are open than
/// at the node's first start, the parts do not grow: the others may be open again soon.
#[derive(Debug)]
pub(crate) struct Sharers {
    initial: u64,
    now: AtomicU64,
}

impl Sharers {
    /// Returns a count that begins with `initial` replicas, and is never less.
    pub(crate) fn new(initial: u16) -> Self {
        let initial = u64::from(initial.max(1));
        Self { initial, now: AtomicU64::new(initial) }
    }

    /// Sets the number of replicas.
    pub(crate) fn set(&self, replicas: usize) {
        self.now.store(self.initial.max(replicas as u64), Ordering::Relaxed);
    }

    /// Returns one replica's equal part of a budget.
    pub(crate) fn part(&self, budget: u64) -> u64 {
        budget / self.now.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_shrink_with_more_replicas_and_not_beyond_the_first_number() {
        let sharers = Sharers::new(4);
        let parts = [1, 4, 8, 64, 2].map(|replicas| {
            sharers.set(replicas);
            sharers.part(640)
        });
        assert_eq!(parts, [160, 160, 80, 10, 160]);
    }
}
