//! One running query: its slot among the concurrent queries, its blocking work, its cancellation and its timings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::query::error::QueryError;

/// Longest time that one query waits for symbol tables that are being built. Later queries have these tables.
const SYMBOLS_WAIT_MAX: Duration = Duration::from_secs(1);

/// A running query. If the client disconnects, the query is dropped, and dropping it cancels its running work.
#[derive(Debug)]
pub(crate) struct Run {
    permit: Arc<OwnedSemaphorePermit>,
    cancelled: Cancelled,
    timings: Timings,
    /// Time at which the query arrived.
    arrived: Instant,
    began: Instant,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}

/// Flag that is set if the query is cancelled, because the client has disconnected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Cancels the query.
    pub(crate) fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Checks for cancellation. Long work calls this regularly.
    ///
    /// # Errors
    /// Returns [`QueryError::Cancelled`] if the query is cancelled.
    pub(crate) fn check(&self) -> Result<(), QueryError> {
        if self.0.load(Ordering::Relaxed) { Err(QueryError::Cancelled) } else { Ok(()) }
    }
}

/// Duration of each part of a query, in the order in which the parts first ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timings(pub(crate) Vec<(&'static str, Duration)>);

impl Timings {
    /// Runs a part of the query and measures its time.
    pub(crate) fn measure<T>(&mut self, part: &'static str, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.add(part, began.elapsed());
        done
    }

    /// Adds a duration to the time of a part.
    pub(crate) fn add(&mut self, part: &'static str, took: Duration) {
        match self.0.iter_mut().find(|(known, _)| *known == part) {
            Some((_, total)) => *total += took,
            None => self.0.push((part, took)),
        }
    }
}

impl Run {
    /// Waits for a free slot. The number of slots limits the number of concurrent queries.
    pub(crate) async fn start(slots: &Arc<Semaphore>) -> Result<Self, QueryError> {
        let arrived = Instant::now();
        // The semaphore is never closed.
        let permit = Arc::clone(slots).acquire_owned().await.map_err(|_closed| QueryError::Broken)?;
        let mut timings = Timings::default();
        timings.add("wait", arrived.elapsed());
        Ok(Self { permit: Arc::new(permit), cancelled: Cancelled::default(), timings, arrived, began: Instant::now() })
    }

    /// Runs work that uses the CPU or the disk on a blocking thread. The work measures its own parts. The query's slot
    /// stays taken until the work ends, even after the query is cancelled.
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

    /// Waits for the responses of shards, and measures the time.
    pub(crate) async fn shards<T, E>(&mut self, request: impl Future<Output = Result<T, E>>) -> Result<T, QueryError>
    where
        QueryError: From<E>,
    {
        let began = Instant::now();
        let response = request.await?;
        self.timings.add("shards", began.elapsed());
        Ok(response)
    }

    /// Returns the time until which the query waits for symbol tables.
    pub(crate) fn symbols_deadline(&self) -> Instant {
        self.began + SYMBOLS_WAIT_MAX
    }

    /// Returns the timings of all parts, and the total time since the query arrived.
    pub(crate) fn timings(&self) -> Timings {
        let mut timings = self.timings.clone();
        timings.add("total", self.arrived.elapsed());
        timings
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn cancelled_work_keeps_its_slot_until_it_ends() {
        let slots = Arc::new(Semaphore::new(1));
        let mut run = Run::start(&slots).await.unwrap();
        let (began, has_begun) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let work = run.blocking(move |cancelled, _| {
            began.send(()).unwrap();
            // The loop ends in any case, so that a fault fails this test instead of blocking it.
            for _ in 0..10_000 {
                if cancelled.check().is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(cancelled.check()).unwrap();
            Ok(())
        });
        // The client leaves as soon as the work has begun.
        tokio::select! {
            _ = work => panic!("it does not end by itself"),
            _ = tokio::task::spawn_blocking(move || has_begun.recv()) => {}
        }
        assert_eq!(slots.available_permits(), 0);
        drop(run);
        let ended = tokio::task::spawn_blocking(move || has_ended.recv()).await.unwrap().unwrap();
        assert!(matches!(ended, Err(QueryError::Cancelled)));
        Run::start(&slots).await.unwrap();
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        let mut run = Run::start(&Arc::new(Semaphore::new(1))).await.unwrap();
        let done: Result<(), _> = run.blocking(|_, _| panic!("as the test wishes")).await;
        assert!(matches!(done, Err(QueryError::Broken)));
    }
}
