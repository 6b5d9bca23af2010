//! Limit on searches in processes, each of which has a thread of its own.
//!
//! A process can make a search block for as long as it lives. Such a search is *late*. Late searches have a limit of
//! their own, so that a few of these processes do not stop the searches in others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Largest number of searches at the same time that are not late, in all processes.
const SEARCHES_MAX: usize = 4;
/// Time after which a search is late. Nearly all take a few milliseconds.
const LATE: Duration = Duration::from_secs(2);
/// Largest number of searches at the same time. If there are so many, the late ones stop all others.
const ALL_MAX: usize = 64;

/// Start of each search that runs, by its number.
#[derive(Debug, Default)]
struct Started {
    next: u64,
    running: Vec<(u64, Instant)>,
}

/// The searches that run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searches(Arc<Mutex<Started>>);

impl Searches {
    /// Counts a search until the returned value is dropped; `None` if too many run already.
    pub(crate) fn begin(&self) -> Option<Running> {
        let started = &mut *self.0.lock();
        let in_time = started.running.iter().filter(|(_, start)| start.elapsed() < LATE).count();
        if SEARCHES_MAX <= in_time || ALL_MAX <= started.running.len() {
            return None;
        }
        let number = started.next;
        started.next += 1;
        started.running.push((number, Instant::now()));
        Some(Running { number, searches: self.clone() })
    }
}

/// A search that runs.
pub(crate) struct Running {
    number: u64,
    searches: Searches,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.searches.0.lock().running.retain(|(number, _)| *number != self.number);
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

    #[test]
    fn late_searches_do_not_stop_others_until_there_are_very_many() {
        let searches = Searches::default();
        let mut late = Vec::new();
        while let Some(running) = searches.begin() {
            late.push(running);
            searches.0.lock().running.iter_mut().for_each(|(_, start)| *start -= LATE);
        }
        assert_eq!(late.len(), ALL_MAX);
        drop(late.drain(SEARCHES_MAX..));
        let in_time: Vec<_> = (0..SEARCHES_MAX).map(|_| searches.begin().unwrap()).collect();
        assert!(searches.begin().is_none());
        drop((in_time, late));
        assert!(searches.0.lock().running.is_empty());
    }
}
