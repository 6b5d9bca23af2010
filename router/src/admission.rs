//! Whether a push may come in now. The only place that refuses one for being too much.
//!
//! Bytes in flight are counted from when they come until their push is acknowledged, so that who only announces a body takes
//! nothing from others; unpacking, where a small body can
//! become a large one, has few slots, and pushes wait for one.

use std::sync::Arc;

use proto::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Overloaded> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.bytes).try_acquire_many_owned(permits).map_err(|_none_left| Overloaded)
    }

    /// Lets a push in of which this many bytes are here.
    pub(crate) fn enter(&self, bytes: usize) -> Result<InFlight, Overloaded> {
        Ok(InFlight { permits: self.take(bytes)?, admission: self.clone() })
    }
}

impl InFlight {
    /// Waits for a slot to unpack and decode in.
    pub(crate) async fn decoding_slot(&self) -> Result<OwnedSemaphorePermit, Overloaded> {
        // Never closed.
        Arc::clone(&self.admission.decoding).acquire_owned().await.map_err(|_closed| Overloaded)
    }

    /// Counts more bytes: of the body as it comes, and of what it is unpacked to.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Overloaded> {
        let more = self.admission.take(bytes)?;
        self.permits.merge(more);
        Ok(())
    }
}
