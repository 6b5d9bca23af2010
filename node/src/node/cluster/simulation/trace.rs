//! The trace of a simulation: a hash over all its events, and the last events as text.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of events that are kept as text.
const KEPT_MAX: usize = 50_000;

/// The events of a simulation.
#[derive(Debug)]
pub(super) struct Trace {
    start: Instant,
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    hash: u64,
    count: u64,
    last: VecDeque<String>,
}

impl Trace {
    /// Begins a trace now.
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    /// Adds an event.
    pub(super) fn event(&self, event: fmt::Arguments<'_>) {
        let line = format!("{:6} ms  {event}", self.start.elapsed().as_millis());
        let events = &mut *self.events.lock();
        events.hash = xxh3_64_with_seed(line.as_bytes(), events.hash);
        events.count += 1;
        if events.last.len() == KEPT_MAX {
            events.last.pop_front();
        }
        events.last.push_back(line);
    }

    /// Returns the number of events, and the hash over all of them with their times.
    pub(super) fn digest(&self) -> (u64, u64) {
        let events = self.events.lock();
        (events.count, events.hash)
    }

    /// Returns the last events.
    pub(super) fn last(&self) -> Vec<String> {
        self.events.lock().last.iter().cloned().collect()
    }
}
