//! A pod: which part of a recording it plays, and from where.

use super::mix::{PERIOD_NS, POD_CPUS, SERVICES, TIMER_SLACK_NS};
use super::random::Random;
use crate::corpus::PHASES;

/// Pids of Linux end here.
const TIDS: usize = 4 << 20;

/// One life of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Its place in the fleet: host and service follow from it.
    pub(crate) place: u64,
    /// Times that it was started again, and with another name.
    pub(crate) life: u64,
    seed: u64,
    /// Start in the recording: the phase, and the fraction of it.
    pub(crate) start: f64,
    /// When in a period the timers of its CPUs tick.
    pub(crate) ticks_at_ns: [u64; POD_CPUS],
    /// Its threads' ids begin here.
    pub(crate) tid: u32,
}

impl Pod {
    pub(crate) fn new(seed: u64, place: u64, life: u64) -> Self {
        let mut random = Random::of([seed, place, life]);
        // Pods of one service begin with different phases while there are enough.
        let phase = (place / SERVICES as u64 + life) % PHASES;
        let ticks_at_ns =
            [(); POD_CPUS].map(|()| TIMER_SLACK_NS + random.below((PERIOD_NS - 2 * TIMER_SLACK_NS) as usize) as u64);
        Self { place, life, seed, start: phase as f64 + random.unit(), ticks_at_ns, tid: random.below(TIDS) as u32 }
    }

    /// The random numbers of one sample, or of what else has two numbers.
    pub(crate) fn random(&self, tick: u64, cpu: usize) -> Random {
        Random::of([self.seed ^ (self.place << 32 | self.life << 48), tick << 2 | cpu as u64])
    }

    /// The id of a thread of the recording, of which `threads` are known; `round`: which of those that follow each
    /// other.
    pub(crate) fn tid(&self, thread: u32, threads: usize, round: u64) -> u32 {
        let number = round as usize * threads + thread as usize;
        // Never 0: that is the idle task's.
        ((self.tid as usize + number) % (TIDS - 1)) as u32 + 1
    }
}
