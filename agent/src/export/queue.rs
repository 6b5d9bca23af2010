//! The queue of requests that wait to be sent, or to be added to a recording. It is bounded in bytes. When it is full,
//! the oldest requests are dropped, and their samples are counted.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::export::request::EncodedRequest;
use crate::status::{DropReason, Status};

/// Largest total size of the requests that wait to be sent, in bytes. A small host that is busy makes 50 kB per
/// interval, so an unreachable endpoint fills the queue in 13 minutes.
pub(crate) const QUEUE_BYTES_MAX: usize = 8 << 20;

/// The queue between the sampler's thread, which pushes, and the sender, which pops.
#[derive(Debug)]
pub(crate) struct ExportQueue {
    state: Mutex<State>,
    changed: Notify,
    bytes_max: usize,
    status: Status,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<EncodedRequest>,
    bytes: usize,
    is_closed: bool,
    /// Reason for which requests that are pushed from now on count as dropped; `None` while requests are still sent.
    abandoned: Option<DropReason>,
    /// Number of requests that were dropped because the queue was full.
    overflows: u64,
}

impl ExportQueue {
    pub(crate) fn new(bytes_max: usize, status: Status) -> Self {
        Self { state: Mutex::new(State::default()), changed: Notify::new(), bytes_max, status }
    }

    /// Adds a request. Drops the oldest ones if the queue is full.
    pub(crate) fn push(&self, request: EncodedRequest) {
        let mut state = self.state.lock();
        if let Some(reason) = state.abandoned {
            self.status.count_dropped(reason, request.samples());
            return;
        }
        state.bytes += request.bytes.len();
        state.requests.push_back(request);
        while self.bytes_max < state.bytes
            && let Some(oldest) = state.requests.pop_front()
        {
            state.bytes -= oldest.bytes.len();
            state.overflows += 1;
            self.status.count_dropped(DropReason::QueueFull, oldest.samples());
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Closes the queue: no more requests will be pushed.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the oldest request and removes it from the queue. Returns `None` once the queue is closed and empty. A
    /// cancelled call removes nothing.
    pub(crate) async fn pop(&self) -> Option<EncodedRequest> {
        loop {
            if let Some(request) = self.try_pop() {
                return Some(request);
            }
            if self.is_over() {
                return None;
            }
            self.changed.notified().await;
        }
    }

    /// Removes the oldest request, if there is one.
    pub(crate) fn try_pop(&self) -> Option<EncodedRequest> {
        let mut state = self.state.lock();
        let request = state.requests.pop_front()?;
        state.bytes -= request.bytes.len();
        Some(request)
    }

    fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_closed && state.requests.is_empty()
    }

    /// Returns the number of requests that were dropped because the queue was full.
    pub(crate) fn overflows(&self) -> u64 {
        self.state.lock().overflows
    }

    /// Removes and returns the waiting requests. Requests pushed later are counted as dropped for `reason`.
    pub(crate) fn abandon(&self, reason: DropReason) -> VecDeque<EncodedRequest> {
        let mut state = self.state.lock();
        state.bytes = 0;
        state.abandoned = Some(reason);
        std::mem::take(&mut state.requests)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn queue() -> (ExportQueue, Status) {
        let status = Status::new(&mut Registry::default());
        (ExportQueue::new(QUEUE_BYTES_MAX, status.clone()), status)
    }

    fn request(bytes: usize, samples: u64) -> EncodedRequest {
        EncodedRequest { bytes: vec![0; bytes].into(), profile_samples: [samples].into() }
    }

    #[tokio::test]
    async fn requests_are_popped_in_order() {
        let (queue, status) = queue();
        for samples in 1..=3 {
            queue.push(request(10, samples));
        }
        queue.close();
        for samples in 1..=3 {
            assert_eq!(queue.pop().await.unwrap().samples(), samples);
        }
        assert!(queue.pop().await.is_none());
        assert_eq!(status.snapshot().dropped, 0);
    }

    #[tokio::test]
    async fn a_full_queue_drops_the_oldest_and_counts_its_samples() {
        let (queue, status) = queue();
        queue.push(request(QUEUE_BYTES_MAX / 2, 5));
        queue.push(request(QUEUE_BYTES_MAX / 2, 7));
        assert_eq!(status.snapshot().dropped, 0);
        queue.push(request(1, 9));
        assert_eq!(status.snapshot().dropped, 5);
        // Larger than the whole queue: it is dropped, and so are all before it.
        queue.push(request(QUEUE_BYTES_MAX + 1, 11));
        assert_eq!(status.snapshot().dropped, 5 + 7 + 9 + 11);
        queue.push(request(1, 13));
        assert_eq!(queue.pop().await.unwrap().samples(), 13);
    }

    #[tokio::test]
    async fn a_waiting_pop_is_woken() {
        let (queue, _) = queue();
        let queue = std::sync::Arc::new(queue);
        let waiting = tokio::spawn({
            let queue = std::sync::Arc::clone(&queue);
            async move { queue.pop().await.map(|request| request.samples()) }
        });
        tokio::task::yield_now().await;
        queue.push(request(1, 3));
        assert_eq!(waiting.await.unwrap(), Some(3));
    }

    #[test]
    fn an_abandoned_queue_returns_its_requests_and_counts_later_ones() {
        let (queue, status) = queue();
        queue.push(request(1, 3));
        queue.push(request(1, 4));
        let left: Vec<_> = queue.abandon(DropReason::Shutdown).iter().map(EncodedRequest::samples).collect();
        assert_eq!((left, status.snapshot().dropped), (vec![3, 4], 0));
        // This request is as from a sampler's thread that ends late.
        queue.push(request(1, 5));
        assert_eq!(status.snapshot().dropped, 5);
    }
}
