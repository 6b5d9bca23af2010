//! A pod: its recording, and its start in the recording.

use super::mix::{PERIOD_NS, POD_CPUS, SERVICES, TIMER_SLACK_NS};
use super::random::Random;
use crate::corpus::PHASES;

/// Thread IDs in Linux are below this number.
const TIDS: usize = 4 << 20;

/// One life of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Index of the pod in the fleet. It determines the pod's host and service.
    pub(crate) place: u64,
    /// Number of earlier lives of the pod. Each life has another name.
    pub(crate) life: u64,
    seed: u64,
    /// Start in the recording. The integer part is the phase, and the fractional part is the position in the phase.
    pub(crate) start: f64,
    /// Offsets of the CPUs' timer ticks within a period, in nanoseconds.
    pub(crate) ticks_at_ns: [u64; POD_CPUS],
    /// First ID of the pod's threads.
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

    /// Returns random numbers for the sample at a tick of a CPU. Other uses pass two numbers of their own instead of
    /// `tick` and `cpu`.
    pub(crate) fn random(&self, tick: u64, cpu: usize) -> Random {
        Random::of([self.seed ^ (self.place << 32 | self.life << 48), tick << 2 | cpu as u64])
    }

    /// Returns the ID of a thread. `thread` is one of the `threads` of the recording; `round` is the number of earlier
    /// plays of the recording.
    pub(crate) fn tid(&self, thread: u32, threads: usize, round: u64) -> u32 {
        let number = round as usize * threads + thread as usize;
        // Never 0: that is the idle task's.
        ((self.tid as usize + number) % (TIDS - 1)) as u32 + 1
    }
}
