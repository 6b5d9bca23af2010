//! One running query: its slot among the concurrent queries, its blocking work, its shards, its cancellation and its
//! timings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proto::Consistency;
use proto::placement::Placement;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::tenants::QueryShare;
use crate::query::error::QueryError;
use crate::query::selection::asked::AskedShards;
use crate::query::selection::coverage::Coverage;

/// Longest time that one query waits for symbol tables that are being built. Later queries have these tables.
const SYMBOLS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The responses that the caller of a query accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadOptions {
    pub(crate) consistency: Consistency,
    /// True if a response without some shards is an error.
    pub(crate) refuses_partial: bool,
}

/// A running query. If the client disconnects, the query is dropped, and dropping it cancels its running work.
#[derive(Debug)]
pub(crate) struct Run {
    pub(in crate::query) options: ReadOptions,
    pub(in crate::query) slots: Arc<Semaphore>,
    pub(in crate::query) worker: Worker,
    /// Placement that the whole query uses; `None` until the query needs shards.
    pub(in crate::query) placement: Option<Arc<Placement>>,
    /// True if the query runs for the second time, with another placement.
    pub(in crate::query) is_placed_again: bool,
    pub(in crate::query) shards: AskedShards,
    pub(in crate::query) timings: Timings,
    /// Time at which the query arrived.
    arrived: Instant,
    began: Instant,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.worker.cancelled.cancel();
    }
}

/// Runs the blocking work of one query. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(in crate::query) permit: Arc<OwnedSemaphorePermit>,
    /// Part of the queries that the tenant may run at one time.
    share: Arc<QueryShare>,
    cancelled: Cancelled,
}

impl Worker {
    /// Runs work on a blocking thread. The query's slot stays taken until the work ends, even after the query is
    /// cancelled.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cancelled) -> T + Send + 'static,
    ) -> Result<T, QueryError> {
        let Self { permit, share, cancelled } = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let done = work(&cancelled);
            drop((permit, share));
            done
        });
        work.await.map_err(|error| {
            tracing::error!(%error, "a query's work did not end");
            QueryError::Broken
        })
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

/// Duration of each part of a query, and the shards that the response covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timings {
    /// Durations, in the order in which the parts first ended.
    pub(crate) parts: Vec<(&'static str, Duration)>,
    pub(crate) coverage: Coverage,
}

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
        match self.parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, total)) => *total += took,
            None => self.parts.push((part, took)),
        }
    }
}

impl Run {
    /// Waits for a free slot. The number of slots limits the number of concurrent queries.
    pub(crate) async fn start(slots: &Arc<Semaphore>, options: ReadOptions) -> Result<Self, QueryError> {
        let arrived = Instant::now();
        // The semaphore is never closed.
        let permit = Arc::clone(slots).acquire_owned().await.map_err(|_closed| QueryError::Broken)?;
        let mut timings = Timings::default();
        timings.add("wait", arrived.elapsed());
        let worker = Worker { permit: Arc::new(permit), share: Arc::default(), cancelled: Cancelled::default() };
        let slots = Arc::clone(slots);
        let shards = AskedShards::default();
        let began = Instant::now();
        Ok(Self { options, slots, worker, placement: None, is_placed_again: false, shards, timings, arrived, began })
    }

    /// Returns the query with its part of the queries that its tenant may run at one time.
    pub(crate) fn with_share(mut self, share: QueryShare) -> Self {
        self.worker.share = Arc::new(share);
        self
    }

    /// Returns what runs the query's blocking work.
    pub(crate) fn worker(&self) -> Worker {
        self.worker.clone()
    }

    /// Runs work that uses the CPU or the disk on a blocking thread. The work measures its own parts. The query's slot
    /// stays taken until the work ends, even after the query is cancelled.
    pub(crate) async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Cancelled, &mut Timings) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, QueryError> {
        let work = self.worker.blocking(move |cancelled| {
            let mut timings = Timings::default();
            (work(cancelled, &mut timings), timings)
        });
        let (done, timings) = work.await?;
        timings.parts.into_iter().for_each(|(part, took)| self.timings.add(part, took));
        done
    }

    /// Returns the time until which the query waits for symbol tables.
    pub(crate) fn symbols_deadline(&self) -> Instant {
        self.began + SYMBOLS_WAIT_MAX
    }

    /// Returns the timings of all parts, the total time since the query arrived, and the covered shards.
    pub(crate) fn timings(&self) -> Timings {
        let mut timings = self.timings.clone();
        timings.add("total", self.arrived.elapsed());
        timings.coverage = self.coverage();
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
        let mut run = Run::start(&slots, ReadOptions::default()).await.unwrap();
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
        Run::start(&slots, ReadOptions::default()).await.unwrap();
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        let mut run = Run::start(&Arc::new(Semaphore::new(1)), ReadOptions::default()).await.unwrap();
        let done: Result<(), _> = run.blocking(|_, _| panic!("as the test wishes")).await;
        assert!(matches!(done, Err(QueryError::Broken)));
    }
}
