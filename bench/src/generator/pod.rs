//! A pod: its place in the fleet, and the position in the recording at which it starts.

use super::mix::{PERIOD_NS, POD_CPUS, SERVICES, TIMER_SLACK_NS};
use super::random::Random;
use crate::corpus::PHASES;

/// Number of possible thread IDs. Thread IDs in Linux are below this number.
const TIDS: usize = 4 << 20;

/// One life of a pod, from its start to its restart.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Index of the pod in the fleet. It determines the pod's host and service.
    pub(crate) place: u64,
    /// Number of earlier lives of the pod. Each life has another name.
    pub(crate) life: u64,
    seed: u64,
    /// Position in the recording at which the pod starts. The integer part is the phase, and the fractional part is the
    /// position in the phase.
    pub(crate) start: f64,
    /// Offsets of the CPUs' timer ticks within a period, in nanoseconds.
    pub(crate) ticks_at_ns: [u64; POD_CPUS],
    /// First ID of the pod's threads.
    pub(crate) tid: u32,
}

impl Pod {
    pub(crate) fn new(seed: u64, place: u64, life: u64) -> Self {
        let mut random = Random::of([seed, place, life]);
        // Pods of one service begin with different phases, as long as there are enough phases.
        let phase = (place / SERVICES as u64 + life) % PHASES;
        let ticks_at_ns =
            [(); POD_CPUS].map(|()| TIMER_SLACK_NS + random.below((PERIOD_NS - 2 * TIMER_SLACK_NS) as usize) as u64);
        Self { place, life, seed, start: phase as f64 + random.unit(), ticks_at_ns, tid: random.below(TIDS) as u32 }
    }

    /// Returns random numbers for the sample at a tick of a CPU. For other purposes, callers pass two numbers that no
    /// sample has as `tick` and `cpu`.
    pub(crate) fn random(&self, tick: u64, cpu: usize) -> Random {
        Random::of([self.seed ^ (self.place << 32 | self.life << 48), tick << 2 | cpu as u64])
    }

    /// Returns the ID of a thread. `thread` is the index of the thread among the `threads` threads of the recording.
    /// The ID differs for each `round`.
    pub(crate) fn tid(&self, thread: u32, threads: usize, round: u64) -> u32 {
        let number = round as usize * threads + thread as usize;
        // The ID is never 0, which is the ID of the idle task.
        ((self.tid as usize + number) % (TIDS - 1)) as u32 + 1
    }
}
