//! What files take that are being received: places, and room on the disk.
//!
//! Invariant: at most [`limits::UPLOADS_MAX`] have a place, and what [`Staging::bytes`] says is no less than what they
//! have on disk.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits;

/// The files that are being received.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    places: usize,
    bytes: u64,
}

/// One file's place and room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    staging: Arc<Staging>,
    bytes: u64,
}

impl Staging {
    /// A place, if one is free.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state.lock();
        (state.places < limits::UPLOADS_MAX).then(|| {
            state.places += 1;
            Place { staging: Arc::clone(self), bytes: 0 }
        })
    }

    /// The room that all of them have taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

impl Place {
    /// Takes more room, in addition to what it has; returns what all have now.
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        let mut state = self.staging.state.lock();
        state.bytes += bytes;
        self.bytes += bytes;
        state.bytes
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.staging.state.lock();
        state.places -= 1;
        state.bytes -= self.bytes;
    }
}
