//! Splits the series of a large query among several threads.
//!
//! A query of a fleet reads hundreds of thousands of series, and one thread needs about a microsecond for each. Sums do
//! not depend on the order in which series are read, so the response is the same for any number of threads.

use std::num::NonZero;
use std::thread::{Builder, available_parallelism, scope};

use parking_lot::Mutex;

/// Smallest number of series for each thread. To read them takes tens of times as long as to start the thread. In unit
/// tests, few series make several pieces.
const SERIES_MIN: usize = if cfg!(test) { 3 } else { 4096 };
/// Largest number of threads of a query.
const THREADS_MAX: usize = 4;

/// Splits series into consecutive pieces of about equal length, one for each thread. There is at least one piece.
pub(crate) fn pieces<T>(series: &[T]) -> Vec<&[T]> {
    let cpus = if cfg!(test) { THREADS_MAX } else { available_parallelism().map_or(1, NonZero::get) };
    let threads = cpus.min(THREADS_MAX).min(series.len() / SERIES_MIN).max(1);
    let pieces: Vec<&[T]> = series.chunks(series.len().div_ceil(threads).max(1)).collect();
    if pieces.is_empty() { vec![series] } else { pieces }
}

/// Runs all jobs, on this thread and, if there are several, on new ones. Returns their results in order. If the system
/// refuses new threads, this thread runs all of them.
pub(crate) fn run<R: Send, F: FnOnce() -> R + Send>(jobs: Vec<F>) -> Vec<R> {
    let helpers = jobs.len().saturating_sub(1);
    let waiting = Mutex::new(jobs.into_iter().enumerate());
    let next = || waiting.lock().next();
    let work = || std::iter::from_fn(|| next().map(|(at, job)| (at, job()))).collect::<Vec<_>>();
    let mut results = scope(|scope| {
        let helper = |_: usize| Builder::new().name("varve-query".to_owned()).spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (0..helpers).filter_map(helper).collect();
        let mut results = work();
        for helper in helpers {
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
        fn pieces_hold_all_series_in_order_and_results_follow_them(length in 0..40_usize) {
            let series: Vec<usize> = (0..length).collect();
            let pieces = pieces(&series);
            prop_assert_eq!(pieces.len(), (length / SERIES_MIN).clamp(1, THREADS_MAX).min(pieces.len()));
            prop_assert!(pieces.len() > 1 || length < 2 * SERIES_MIN);
            prop_assert!(pieces.len() == 1 || pieces[0].len() >= SERIES_MIN);
            let jobs = pieces.iter().map(|piece| || piece.to_vec()).collect();
            prop_assert_eq!(run(jobs).concat(), series);
        }
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
