//! Disk space that uploads reserve while they are received.
//!
//! Invariant: there are at most [`limits::UPLOADS_MAX`] reservations, and [`Staging::bytes`] is at least the size of
//! the received files on disk.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits;

/// The reservations of all uploads.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reservations: usize,
    bytes: u64,
}

/// The reservation of one upload, which is released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    staging: Arc<Staging>,
    bytes: u64,
}

impl Staging {
    /// Admits an upload. Its reservation has no bytes yet. `None` if there are too many uploads.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Reservation> {
        let mut state = self.state.lock();
        (state.reservations < limits::UPLOADS_MAX).then(|| {
            state.reservations += 1;
            Reservation { staging: Arc::clone(self), bytes: 0 }
        })
    }

    /// Returns the disk space that all uploads together have reserved, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

impl Reservation {
    /// Reserves `bytes` more bytes. Returns the disk space that all uploads together have reserved, in bytes.
    pub(crate) fn grow(&mut self, bytes: u64) -> u64 {
        let mut state = self.staging.state.lock();
        state.bytes += bytes;
        self.bytes += bytes;
        state.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.staging.state.lock();
        state.reservations -= 1;
        state.bytes -= self.bytes;
    }
}
