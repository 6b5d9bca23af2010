//! Splits the series of a large query among several threads.
//!
//! A query of a fleet reads hundreds of thousands of series, and one thread needs about a microsecond for each. Sums do
//! not depend on the order in which series are read, so the response is the same for any number of threads.

use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, available_parallelism, scope};

use parking_lot::Mutex;

/// Smallest number of series for each thread. To read them takes tens of times as long as to start the thread. In unit
/// tests, few series make several pieces.
const SERIES_MIN: usize = if cfg!(test) { 3 } else { 4096 };
/// Largest number of threads of a query.
const THREADS_MAX: usize = 4;

/// Number of threads that run now beside those that called [`run`], for all queries of the process together. The other
/// work of a node needs the CPUs too.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Number of CPUs of this process. The system is asked once, because that takes as long as to read tens of series.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    if cfg!(test) { THREADS_MAX } else { *CPUS.get_or_init(|| available_parallelism().map_or(1, NonZero::get)) }
}

/// Splits series into consecutive pieces of about equal length, one for each thread. There are at most `pieces_max`,
/// and none without series.
pub(crate) fn pieces<T>(series: &[T], pieces_max: usize) -> Vec<&[T]> {
    if series.len() < 2 * SERIES_MIN {
        return Vec::from_iter((!series.is_empty()).then_some(series));
    }
    let count = cpus().min(THREADS_MAX).min(pieces_max).min(series.len() / SERIES_MIN).max(1);
    let end = |piece: usize| series.len() * piece / count;
    (0..count).filter_map(|piece| series.get(end(piece)..end(piece + 1))).collect()
}

/// Threads that a query may start. They count as running until this value is dropped.
struct Helpers<'a> {
    running: &'a AtomicUsize,
    taken: usize,
}

impl<'a> Helpers<'a> {
    /// Takes `wanted` threads, or as many as may run beside those in `running`, which are `helpers_max` in total.
    fn take(running: &'a AtomicUsize, helpers_max: usize, wanted: usize) -> Self {
        let taken = |running: usize| wanted.min(helpers_max.saturating_sub(running));
        let more = |running: usize| Some(running + taken(running));
        let before = running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        Self { running, taken: before.map_or(0, taken) }
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        self.running.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

/// Runs all jobs, on this thread and, if there are several, on new ones. Returns their results in order. While other
/// queries use the CPUs, or if the system refuses new threads, this thread runs more of the jobs, or all of them.
pub(crate) fn run<R: Send, F: FnOnce() -> R + Send>(jobs: Vec<F>) -> Vec<R> {
    // All queries together have one thread less than there are CPUs.
    let helpers_max = if cfg!(test) { usize::MAX } else { cpus() - 1 };
    let helpers = Helpers::take(&HELPERS, helpers_max, jobs.len().saturating_sub(1));
    let waiting = Mutex::new(jobs.into_iter().enumerate());
    let next = || waiting.lock().next();
    let work = || std::iter::from_fn(|| next().map(|(at, job)| (at, job()))).collect::<Vec<_>>();
    let mut results = scope(|scope| {
        let helper = |_: usize| Builder::new().name("varve-query".to_owned()).spawn_scoped(scope, work).ok();
        let started: Vec<_> = (0..helpers.taken).filter_map(helper).collect();
        let mut results = work();
        for helper in started {
            results.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_hold_all_series_in_order_and_results_follow_them(length in 0..40_usize, pieces_max in 1..6_usize) {
            let series: Vec<usize> = (0..length).collect();
            let pieces = pieces(&series, pieces_max);
            let count = (length / SERIES_MIN).clamp(1, THREADS_MAX).min(pieces_max).min(length);
            prop_assert_eq!(pieces.len(), count);
            prop_assert!(pieces.len() < 2 || pieces.iter().all(|piece| piece.len() >= SERIES_MIN));
            let jobs = pieces.iter().map(|piece| || piece.to_vec()).collect();
            prop_assert_eq!(run(jobs).concat(), series);
        }
    }

    #[test]
    fn queries_share_the_threads_that_may_run() {
        let running = AtomicUsize::new(0);
        let take = |wanted| Helpers::take(&running, 3, wanted);
        let [first, second, third] = [take(2), take(2), take(1)];
        assert_eq!((first.taken, second.taken, third.taken), (2, 1, 0));
        drop(first);
        let [fourth, fifth] = [take(4), take(1)];
        assert_eq!((fourth.taken, fifth.taken), (2, 0));
        drop((second, third, fourth, fifth));
        assert_eq!(running.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn jobs_run_at_the_same_time() {
        let barrier = std::sync::Barrier::new(3);
        let jobs: Vec<_> = (0..3).map(|number| (number, &barrier)).collect();
        let jobs = jobs.into_iter().map(|(number, barrier)| {
            move || {
                barrier.wait();
                (number, std::thread::current().id())
            }
        });
        let (numbers, threads): (Vec<_>, Vec<_>) = run(jobs.collect()).into_iter().unzip();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(threads[0] != threads[1] && threads[1] != threads[2] && threads[0] != threads[2]);
    }

    #[test]
    #[should_panic(expected = "damaged")]
    fn the_panic_of_a_job_is_the_panic_of_the_query() {
        run(vec![|| (), || panic!("damaged")]);
    }
}
