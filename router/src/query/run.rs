//! One query being answered: its place among all, its blocking work, its cancellation and its timings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::query::error::QueryError;

/// How long one query waits for symbol tables that must be made first; later ones have them.
const SYMBOLS_WAIT_MAX: Duration = Duration::from_secs(1);

/// See the module. Dropped when nobody waits for the answer any more, which cancels what still runs.
#[derive(Debug)]
pub(crate) struct Run {
    permit: Arc<OwnedSemaphorePermit>,
    cancelled: Cancelled,
    timings: Timings,
    /// When it came, and when it had its place.
    came: Instant,
    began: Instant,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}

/// Whether nobody waits for the answer any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Nobody waits any more.
    pub(crate) fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// [`QueryError::Cancelled`] if nobody waits any more; long work asks this now and then.
    pub(crate) fn check(&self) -> Result<(), QueryError> {
        if self.0.load(Ordering::Relaxed) { Err(QueryError::Cancelled) } else { Ok(()) }
    }
}

/// How long each part of an answer took, in the order in which they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timings(pub(crate) Vec<(&'static str, Duration)>);

impl Timings {
    /// Does a part.
    pub(crate) fn measure<T>(&mut self, part: &'static str, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.add(part, began.elapsed());
        done
    }

    /// Adds to a part.
    pub(crate) fn add(&mut self, part: &'static str, took: Duration) {
        match self.0.iter_mut().find(|(known, _)| *known == part) {
            Some((_, total)) => *total += took,
            None => self.0.push((part, took)),
        }
    }
}

impl Run {
    /// Waits for a place among the queries that are answered at one time.
    pub(crate) async fn start(at_once: &Arc<Semaphore>) -> Result<Self, QueryError> {
        let came = Instant::now();
        // Never closed.
        let permit = Arc::clone(at_once).acquire_owned().await.map_err(|_closed| QueryError::Broken)?;
        let mut timings = Timings::default();
        timings.add("wait", came.elapsed());
        Ok(Self { permit: Arc::new(permit), cancelled: Cancelled::default(), timings, came, began: Instant::now() })
    }

    /// Does work that uses the CPU or the disk on a thread for that; it keeps the query's place until it ends, even if
    /// nobody waits for it any more. The work says how long its parts take; what else passes is the way to the thread and back.
    pub(crate) async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Cancelled, &mut Timings) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, QueryError> {
        let permit = Arc::clone(&self.permit);
        let cancelled = self.cancelled.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut timings = Timings::default();
            let done = work(&cancelled, &mut timings);
            drop(permit);
            (done, timings)
        });
        let (done, timings) = work.await.map_err(|error| {
            tracing::error!(%error, "a query's work did not end");
            QueryError::Broken
        })?;
        timings.0.into_iter().for_each(|(part, took)| self.timings.add(part, took));
        done
    }

    /// Waits for shards.
    pub(crate) async fn shards<T, E>(&mut self, question: impl Future<Output = Result<T, E>>) -> Result<T, QueryError>
    where
        QueryError: From<E>,
    {
        let began = Instant::now();
        let answer = question.await?;
        self.timings.add("shards", began.elapsed());
        Ok(answer)
    }

    /// Until when the query waits for symbol tables.
    pub(crate) fn symbols_deadline(&self) -> Instant {
        self.began + SYMBOLS_WAIT_MAX
    }

    /// What took how long, from when the query came until now.
    pub(crate) fn timings(&self) -> Timings {
        let mut timings = self.timings.clone();
        timings.add("total", self.came.elapsed());
        timings
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_cancelled_and_keeps_its_place_until_it_ends() {
        let at_once = Arc::new(Semaphore::new(1));
        let mut run = Run::start(&at_once).await.unwrap();
        let (began, has_begun) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let work = run.blocking(move |cancelled, _| {
            began.send(()).unwrap();
            // Ends in any case, so that a fault fails this test and does not stop all.
            for _ in 0..10_000 {
                if cancelled.check().is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(cancelled.check()).unwrap();
            Ok(())
        });
        // Whoever waited goes away as soon as the work has begun.
        tokio::select! {
            _ = work => panic!("it does not end by itself"),
            _ = tokio::task::spawn_blocking(move || has_begun.recv()) => {}
        }
        assert_eq!(at_once.available_permits(), 0);
        drop(run);
        let ended = tokio::task::spawn_blocking(move || has_ended.recv()).await.unwrap().unwrap();
        assert!(matches!(ended, Err(QueryError::Cancelled)));
        Run::start(&at_once).await.unwrap();
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        let mut run = Run::start(&Arc::new(Semaphore::new(1))).await.unwrap();
        let done: Result<(), _> = run.blocking(|_, _| panic!("as the test wishes")).await;
        assert!(matches!(done, Err(QueryError::Broken)));
    }
}
