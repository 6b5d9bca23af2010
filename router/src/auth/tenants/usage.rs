//! Use of this router by one tenant.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use proto::meta::Limits;

use super::bucket::Bucket;

/// Use of this router by one tenant.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pushes: Mutex<Pushes>,
    /// Number of queries that run or wait to run.
    queries: AtomicU32,
}

#[derive(Debug, Default)]
struct Pushes {
    samples: Bucket,
    bytes: Bucket,
}

/// The error of a request that exceeds a limit of its tenant at this moment. The client may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exceeded {
    #[error("the tenant may push {0} samples a second, and has pushed more: send this one again in a second")]
    Samples(NonZeroU64),
    #[error(
        "the tenant may push {0} bytes a second (after decompression), and has pushed more: send this one again in a \
         second"
    )]
    Bytes(NonZeroU64),
    #[error("the tenant may run {0} queries at one time, and runs them: try again in a second")]
    Queries(NonZeroU32),
}

/// One query's part of the queries that its tenant may run at one time.
#[derive(Debug, Default)]
pub(crate) struct QueryShare(Option<Arc<Usage>>);

impl Drop for QueryShare {
    fn drop(&mut self) {
        if let Some(usage) = &self.0 {
            usage.queries.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Usage {
    /// Counts the bytes of a push, or returns the rate that is used up.
    pub(super) fn charge(&self, limits: &Limits, bytes: u64, now: Instant) -> Result<(), Exceeded> {
        let Limits { samples_per_second_max, bytes_per_second_max, .. } = *limits;
        let pushes = &mut *self.pushes.lock();
        if let Some(max) = samples_per_second_max
            && !pushes.samples.has_some(max.get(), now)
        {
            return Err(Exceeded::Samples(max));
        }
        if let Some(max) = bytes_per_second_max
            && !pushes.bytes.has_some(max.get(), now)
        {
            return Err(Exceeded::Bytes(max));
        }
        if let Some(max) = bytes_per_second_max {
            pushes.bytes.take(bytes, max.get(), now);
        }
        Ok(())
    }

    /// Counts the samples of a push that was within its rates.
    pub(super) fn take_samples(&self, limits: &Limits, samples: u64, now: Instant) {
        if let Some(max) = limits.samples_per_second_max {
            self.pushes.lock().samples.take(samples, max.get(), now);
        }
    }

    /// Counts a query, unless `max` queries are counted.
    pub(super) fn admit_query(self: Arc<Self>, max: NonZeroU32) -> Result<QueryShare, Exceeded> {
        let one_more = |running| (running < max.get()).then(|| running + 1);
        match self.queries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_before) => Ok(QueryShare(Some(self))),
            Err(_running) => Err(Exceeded::Queries(max)),
        }
    }
}
