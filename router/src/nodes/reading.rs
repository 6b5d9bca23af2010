//! State that the calls of one request of a query share: the placement, the read points, the slot of the query, and the
//! limits on the size of all responses together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::{ReadAt, ReadPoint, limits};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

/// Largest size of the responses of all shards to one request, in bytes. The largest response of one shard takes about
/// as much.
const HELD_BYTES_MAX: usize = 1 << 30;

/// A state of a shard that the reads of a query see at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) state: ReadPoint,
    /// Number of the node that has the state; `None` if there is only one node.
    pub(crate) node: Option<u64>,
}

/// The read points of a query, by shard.
pub(crate) type Points = Arc<BTreeMap<u32, Point>>;

/// One request of a query to several shards.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Epoch of the placement that chose the shards.
    pub(crate) placement_epoch: u64,
    points: Points,
    slot: Arc<OwnedSemaphorePermit>,
    /// Remaining size of encoded responses, in bytes.
    received_left: AtomicUsize,
    /// Remaining size of decoded responses, in bytes.
    held_left: AtomicUsize,
}

impl Reading {
    /// Makes a request of the query that has this slot and these read points. A read of another shard is linearized by
    /// itself.
    pub(crate) fn new(placement_epoch: u64, points: Points, slot: Arc<OwnedSemaphorePermit>) -> Self {
        let made = Self::with_limits(placement_epoch, slot, limits::NODE_MESSAGE_BYTES_MAX, HELD_BYTES_MAX);
        Self { points, ..made }
    }

    /// Returns what a read of a shard refers to.
    pub(crate) fn at(&self, shard: u32) -> ReadAt {
        let applied_index = self.points.get(&shard).map(|point| point.state.applied_index);
        ReadAt { placement_epoch: self.placement_epoch, applied_index }
    }

    /// Returns the node that has the read point of a shard; `None` if there is no point, or only one node.
    pub(super) fn member(&self, shard: u32) -> Option<u64> {
        self.points.get(&shard)?.node
    }

    fn with_limits(
        placement_epoch: u64,
        slot: Arc<OwnedSemaphorePermit>,
        received_max: usize,
        held_max: usize,
    ) -> Self {
        Self {
            placement_epoch,
            points: Points::default(),
            slot,
            received_left: received_max.into(),
            held_left: held_max.into(),
        }
    }

    /// Counts an encoded response. To be called before the response is decoded.
    ///
    /// # Errors
    /// Returns RESOURCE_EXHAUSTED if all encoded responses together are larger than the largest message.
    pub(super) fn receive(&self, bytes: usize) -> Result<(), Status> {
        take(&self.received_left, bytes)
    }

    /// Counts a response in memory.
    ///
    /// # Errors
    /// Returns RESOURCE_EXHAUSTED if all responses together exceed [`HELD_BYTES_MAX`].
    pub(super) fn hold(&self, bytes: usize) -> Result<(), Status> {
        take(&self.held_left, bytes)
    }

    /// Runs work on a blocking thread. The query's slot stays taken until the work ends, even after the query is
    /// cancelled.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let slot = Arc::clone(&self.slot);
        let work = move || {
            let done = work();
            drop(slot);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|panic| Status::internal(panic.to_string()))?
    }
}

fn take(left: &AtomicUsize, bytes: usize) -> Result<(), Status> {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
    taken.map(|_before| ()).map_err(|_left| {
        Status::resource_exhausted(
            "the responses of the shards are too large together: narrow the selector or the range, use a longer step, \
             or group by fewer labels",
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc;

    use tokio::sync::Semaphore;

    use super::*;

    /// Makes a request with these limits, of a query that has a slot of its own.
    pub(in crate::nodes) fn reading(placement_epoch: u64, received_max: usize, held_max: usize) -> Reading {
        let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Reading::with_limits(placement_epoch, Arc::new(slot), received_max, held_max)
    }

    #[tokio::test]
    async fn decoding_keeps_the_slot_of_a_cancelled_query_until_it_ends() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Arc::clone(&slots).try_acquire_owned().unwrap();
        let reading = Reading::new(1, Points::default(), Arc::new(slot));
        let (began, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let decoding = reading.blocking(move || {
            began.send(()).unwrap();
            // The work waits until the test drops its end of the channel.
            let _closed = may_end.recv();
            Ok(())
        });
        tokio::select! {
            _ = decoding => panic!("the work does not end by itself"),
            _ = tokio::task::spawn_blocking(move || has_begun.recv()) => {}
        }
        drop(reading);
        assert_eq!(slots.available_permits(), 0);
        drop(end);
        let freed = tokio::time::timeout(std::time::Duration::from_secs(10), slots.acquire());
        drop(freed.await.expect("the slot is not freed").unwrap());
    }
}
