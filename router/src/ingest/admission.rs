//! Whether a push may come in now. The only place that refuses one for being too much.
//!
//! Bytes in flight are counted from when they come until their push is acknowledged, so that who only announces a body takes
//! nothing from others; unpacking, where a small body can become a large one, has few slots, and pushes wait for one.

use std::sync::Arc;

use proto::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, spawn_blocking};

/// Bytes that one permit stands for: permits are counted in u32.
const PERMIT_BYTES: usize = 1024;

/// Pushes that are unpacked and decoded at one time.
const DECODING_AT_ONCE: usize = 4;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    bytes: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
}

/// Too much is in flight.
#[derive(Debug, thiserror::Error)]
#[error("{} MiB of pushes are in flight already: send this one again in a second", limits::PUSHES_IN_FLIGHT_BYTES_MAX >> 20)]
pub(crate) struct Overloaded;

/// Bytes in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    admission: Admission,
    bytes: usize,
    /// As many as hold `bytes`.
    permits: OwnedSemaphorePermit,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(limits::PUSHES_IN_FLIGHT_BYTES_MAX / PERMIT_BYTES)),
            decoding: Arc::new(Semaphore::new(DECODING_AT_ONCE)),
        }
    }
}

impl Admission {
    fn take(&self, permits: usize) -> Result<OwnedSemaphorePermit, Overloaded> {
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Arc::clone(&self.bytes).try_acquire_many_owned(permits).map_err(|_none_left| Overloaded)
    }

    /// Lets a push in of which this many bytes are here.
    pub(crate) fn enter(&self, bytes: usize) -> Result<InFlight, Overloaded> {
        let permits = self.take(bytes.div_ceil(PERMIT_BYTES))?;
        Ok(InFlight { bytes, permits, admission: self.clone() })
    }

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.bytes.available_permits() * PERMIT_BYTES
    }
}

impl InFlight {
    /// Counts more bytes of the body as it comes.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Overloaded> {
        self.grow_to(self.bytes.saturating_add(bytes))
    }

    /// Counts so many bytes in all, with what the body is unpacked to; never fewer than before.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Overloaded> {
        let bytes = bytes.max(self.bytes);
        let missing = bytes.div_ceil(PERMIT_BYTES).saturating_sub(self.permits.num_permits());
        if missing > 0 {
            self.permits.merge(self.admission.take(missing)?);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Unpacks and decodes, on a thread for that, when there is a slot. The slot and the bytes stay taken until it is done,
    /// also for a sender who has gone.
    pub(crate) async fn decode<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> Result<(Self, T), JoinError> {
        let decoding = Arc::clone(&self.admission.decoding);
        // Never an error: the semaphore is never closed.
        let slot = decoding.acquire_owned().await;
        spawn_blocking(move || {
            let done = work(&mut self);
            drop(slot);
            (self, done)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn who_leaves_while_his_push_is_decoded_frees_neither_its_slot_nor_its_bytes() {
        let admission = Admission::default();
        let all = admission.free_bytes();
        let (began, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let decoding = admission.enter(5000).unwrap().decode(move |in_flight| {
            in_flight.grow(1000).unwrap();
            began.send(()).unwrap();
            // Until the test lets go.
            let _closed = may_end.recv();
        });
        let task = tokio::spawn(decoding);
        tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(admission.decoding.available_permits(), DECODING_AT_ONCE - 1);
        assert_eq!(all - admission.free_bytes(), 6 * PERMIT_BYTES);
        drop(end);
        while admission.decoding.available_permits() < DECODING_AT_ONCE || admission.free_bytes() < all {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}
