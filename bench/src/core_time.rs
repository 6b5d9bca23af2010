//! Time that this thread was on a core: unlike time that passed, the same whoever else works on the machine.

use std::time::Duration;

use anyhow::Context as _;

/// A moment of this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreTime(Duration);

impl CoreTime {
    /// Now. The kernel counts up at its ticks, some milliseconds apart: sums over many spans are exact, single ones are not.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
        let ns = text.split(' ').next().context("/proc/thread-self/schedstat is empty")?;
        Ok(Self(Duration::from_nanos(ns.parse()?)))
    }

    /// Core time since then.
    pub(crate) fn elapsed(self) -> anyhow::Result<Duration> {
        Ok(Self::now()?.0.saturating_sub(self.0))
    }
}
