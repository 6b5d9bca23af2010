//! Limits of the time that reads of functions take.
//!
//! Reads are work for the agent, so their CPU time is limited. A process can also make reads slow without work, so the
//! time that passes is limited, too. On a busy host that time is much longer, so its limit allows more.

use std::time::{Duration, Instant};

use super::reader::{Late, Reader, Timed};
use crate::process::rate_limit::RateLimit;

/// Work that may be done at once for a process: the functions of a large program are met within seconds.
const BURST: Duration = Duration::from_secs(1);
/// Work that may be done at once for all processes: that of a few large programs which start together.
const BURST_OF_ALL: Duration = Duration::from_secs(4);

/// Limit of the reads for a process, or for all of them.
#[derive(Debug)]
pub(crate) struct ReadLimit {
    cpu: RateLimit,
    wall: RateLimit,
}

impl ReadLimit {
    /// 1 % of a CPU, and 10 % of the time.
    pub(crate) fn of_process() -> Self {
        Self { cpu: RateLimit::with_burst(100, BURST), wall: RateLimit::with_burst(10, BURST) }
    }

    /// 2 % of a CPU, and 25 % of the time.
    pub(crate) fn of_all() -> Self {
        Self { cpu: RateLimit::with_burst(50, BURST_OF_ALL), wall: RateLimit::with_burst(4, 2 * BURST_OF_ALL) }
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { cpu: RateLimit::new(0), wall: RateLimit::new(0) }
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.cpu.is_reached() || self.wall.is_reached()
    }

    pub(crate) fn count(&mut self, cpu: Duration, wall: Duration) {
        self.cpu.count(cpu);
        self.wall.count(wall);
    }
}

/// Runs `read` by the reader, within both limits. `None` if one of them is reached.
pub(crate) fn run<T: Send + 'static>(
    reader: &mut Reader,
    limits: [&mut ReadLimit; 2],
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<Result<T, Late>> {
    if limits.iter().any(|limit| limit.is_reached()) {
        return None;
    }
    let began = Instant::now();
    let read = reader.run(read);
    let cpu = read.as_ref().map_or(Duration::ZERO, |read| read.cpu);
    for limit in limits {
        limit.count(cpu, began.elapsed());
    }
    Some(read.map(|Timed { result, .. }| result))
}
