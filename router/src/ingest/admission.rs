//! Admission of pushes: limits the bytes in flight and the number of pushes that are decoded at one time.
//!
//! The bytes of a push count as in flight from their arrival until the push is acknowledged. Bytes of a body that are
//! announced, but have not arrived, do not count. Unpacking can turn a small body into a large one. So only a few
//! pushes are unpacked and decoded at one time, and further pushes wait.

use std::sync::Arc;

use proto::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, spawn_blocking};

/// Number of bytes that one permit of the semaphore stands for. The semaphore accepts numbers of permits as u32.
const PERMIT_BYTES: usize = 1024;

/// Maximum number of pushes that are decoded at one time.
const DECODING_AT_ONCE: usize = 4;

/// The limits on pushes. Cloning is cheap, and all clones share the limits.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    bytes: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
}

/// The error of a push that exceeds the limit of bytes in flight. The sender may retry.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} MiB of pushes are in flight already: send this one again in a second",
    limits::PUSHES_IN_FLIGHT_BYTES_MAX >> 20
)]
pub(crate) struct Overloaded;

/// The bytes of one push that count as in flight. Dropping this value releases them.
#[derive(Debug)]
pub(crate) struct InFlight {
    admission: Admission,
    bytes: usize,
    /// Permits of the semaphore for `bytes`.
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

    /// Admits a push. `bytes` is the number of its bytes that have arrived.
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
    /// Counts `bytes` more bytes of the body as in flight. To be called as the bytes arrive.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Overloaded> {
        self.grow_to(self.bytes.saturating_add(bytes))
    }

    /// Raises the number of bytes in flight to `bytes`, which counts both the received and the unpacked body. The
    /// number never decreases.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Overloaded> {
        let bytes = bytes.max(self.bytes);
        let missing = bytes.div_ceil(PERMIT_BYTES).saturating_sub(self.permits.num_permits());
        if missing > 0 {
            self.permits.merge(self.admission.take(missing)?);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Reserves memory of the budget for `bytes` more bytes, until the permit is dropped; `None` if not enough is free.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.admission.take(bytes.div_ceil(PERMIT_BYTES)).ok()
    }

    /// Runs `work` on a blocking thread as soon as a slot is free. The slot and the bytes stay taken until the work
    /// ends, even if the sender disconnects.
    pub(crate) async fn run_blocking<T: Send + 'static>(
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
    async fn a_push_being_decoded_keeps_its_slot_and_bytes_when_its_sender_leaves() {
        let admission = Admission::default();
        let all = admission.free_bytes();
        let (began, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let decoding = admission.enter(5000).unwrap().run_blocking(move |in_flight| {
            in_flight.grow(1000).unwrap();
            began.send(()).unwrap();
            // The work waits until the test drops its end of the channel.
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
