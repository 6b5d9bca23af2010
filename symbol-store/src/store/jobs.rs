//! Jobs in progress. A job is the search for the file with one build ID and its conversion to a table, or the fetch of
//! a table from a bucket.
//!
//! Invariant: there is at most one job for each table, and at most [`limits::CONVERSIONS_MAX`] conversions. No file
//! is read or written while the lock of the jobs is held.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::cache::TableKey;
use crate::limits;

/// The jobs of a store.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: HashSet<TableKey>,
    converting: usize,
}

/// The result of an attempt to begin a job.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The caller has the job until it drops this value.
    Mine(Job),
    /// Another caller has the job.
    Pending,
    /// There are already [`limits::JOBS_MAX`] jobs.
    Full,
}

/// The right to make or fetch one table. The job ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    jobs: Arc<Jobs>,
    key: TableKey,
}

/// The right to run a converter, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    jobs: &'a Jobs,
}

impl Jobs {
    pub(crate) fn begin(self: &Arc<Self>, key: &TableKey) -> Begun {
        let mut state = self.state.lock();
        if state.pending.contains(key) {
            return Begun::Pending;
        }
        if state.pending.len() >= limits::JOBS_MAX {
            return Begun::Full;
        }
        state.pending.insert(key.clone());
        Begun::Mine(Job { jobs: Arc::clone(self), key: key.clone() })
    }

    /// Waits until the job for `key` has ended, if there is one. Returns false if the deadline passed first.
    pub(crate) fn wait(&self, key: &TableKey, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while state.pending.contains(key) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return !state.pending.contains(key);
            }
        }
        true
    }

    /// Waits for the right to run a converter.
    pub(crate) fn slot(&self) -> Slot<'_> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.converting >= limits::CONVERSIONS_MAX);
        state.converting += 1;
        Slot { jobs: self }
    }

    /// Waits for the right to run a converter. `None` if the deadline passed first.
    pub(crate) fn slot_until(&self, deadline: Instant) -> Option<Slot<'_>> {
        let mut state = self.state.lock();
        let is_none_left = |state: &mut State| state.converting >= limits::CONVERSIONS_MAX;
        if self.changed.wait_while_until(&mut state, is_none_left, deadline).timed_out() && is_none_left(&mut state) {
            return None;
        }
        state.converting += 1;
        Some(Slot { jobs: self })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.jobs.state.lock().pending.remove(&self.key);
        self.jobs.changed.notify_all();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.jobs.state.lock().converting -= 1;
        self.jobs.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn waiting_for_a_converter_ends_at_the_deadline() {
        let jobs = Jobs::default();
        let soon = || Instant::now() + Duration::from_millis(20);
        let mut slots: Vec<_> = (0..limits::CONVERSIONS_MAX).map(|_| jobs.slot()).collect();
        assert!(jobs.slot_until(soon()).is_none());
        drop(slots.pop());
        slots.extend(jobs.slot_until(soon()));
        assert_eq!(slots.len(), limits::CONVERSIONS_MAX);
        assert!(jobs.slot_until(soon()).is_none());
    }
}
