//! Limit on searches in processes, each of which has a thread of its own, because a read of memory may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest number of searches at the same time, in all processes.
const SEARCHES_MAX: usize = 4;

/// Counter of the searches that run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searches(Arc<AtomicUsize>);

impl Searches {
    /// Counts a search until the returned value is dropped; `None` if too many run already.
    pub(crate) fn begin(&self) -> Option<Running> {
        let running = Running(Arc::clone(&self.0));
        (running.0.fetch_add(1, Ordering::AcqRel) < SEARCHES_MAX).then_some(running)
    }
}

/// A search that runs.
pub(crate) struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_few_searches_run_at_a_time() {
        let searches = Searches::default();
        let running: Vec<_> = (0..SEARCHES_MAX).map(|_| searches.begin().unwrap()).collect();
        assert!(searches.begin().is_none() && searches.clone().begin().is_none());
        drop(running);
        assert!(searches.begin().is_some());
    }
}
