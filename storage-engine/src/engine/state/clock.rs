//! Clock of a shard: the times that entries and the node passed to the shard. The shard itself reads no clock.

/// Latest times, in nanoseconds since 1970, that were passed to a shard. Neither goes back.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Largest `proposed_at_ns` of the applied entries.
    entries_ns: i64,
    /// Largest time that the node passed with [`Clock::pass`].
    passed_ns: i64,
}

impl Clock {
    /// Creates a clock at the time of the last applied entry.
    pub(crate) fn at(entries_ns: i64) -> Self {
        Self { entries_ns, passed_ns: 0 }
    }

    /// Returns the largest `proposed_at_ns` of the applied entries. Applying entries depends on no other clock.
    pub(crate) fn entries_ns(&self) -> i64 {
        self.entries_ns
    }

    /// Returns the clock for sealing and rolling up. These change no response, so replicas may use different times.
    pub(crate) fn sealing_ns(&self) -> i64 {
        self.entries_ns.max(self.passed_ns)
    }

    /// Advances the clock for applying entries to at least this time.
    pub(crate) fn apply(&mut self, now_ns: i64) {
        self.entries_ns = self.entries_ns.max(now_ns);
    }

    /// Advances the clock for sealing to at least this time.
    pub(crate) fn pass(&mut self, now_ns: i64) {
        self.passed_ns = self.passed_ns.max(now_ns);
    }
}
