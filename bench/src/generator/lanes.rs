//! A recording in the form that pods play: for each CPU, all samples in order, with the timer's jitter at each sample.
//!
//! A pod plays the samples of one phase, and then the samples of the next phase. A phase has the samples that an agent
//! at the fleet's frequency would have taken of the whole execution. No sample is repeated before all were played.
//! Within a chunk of ten minutes, a compressor therefore finds only the repetitions of the real program.

use std::collections::{BTreeSet, HashMap};

use super::mix::POD_CPUS;
use super::random::Random;
use crate::corpus::{PHASES, Recording};

/// One sample of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Jitter, in nanoseconds: the sample's delay after the timer's tick, minus the usual delay.
    pub(crate) jitter_ns: i32,
    /// Index into [`Lanes::threads`].
    pub(crate) thread: u32,
    /// Stack of the sample. At first it is a node in the recording; [`super::service`] replaces the node by the stack's
    /// rank.
    pub(crate) stack: u32,
}

/// Properties of a thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadKind {
    pub(crate) name: String,
    /// True if the thread began and ended during the recording. Such a thread gets a new ID each time the recording is
    /// played.
    pub(crate) is_passing: bool,
}

/// All samples of a recording.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) threads: Vec<ThreadKind>,
    cpus: [Lane; POD_CPUS],
}

/// Samples of one CPU: one phase after another, each ordered by time.
#[derive(Debug, Default)]
struct Lane {
    rows: Vec<Row>,
    /// For each phase, the index after its last row.
    ends: Vec<usize>,
}

impl Lanes {
    pub(crate) fn new(recording: &Recording) -> Self {
        let mut phases = [(); POD_CPUS].map(|()| vec![Vec::new(); PHASES as usize]);
        let period = recording.period_ns.cast_signed();
        for (number, cpu) in cpus(recording).into_iter().enumerate() {
            let samples = || recording.samples.iter().filter(|sample| sample.cpu == cpu);
            let Some(first) = samples().next() else { continue };
            // The timer ticks at anchor + n x period for as long as the recording lasts. Most samples are within
            // microseconds of a tick. The few samples that came much later do not move the median.
            let since_first = |time_ns: u64| (time_ns - first.time_ns).cast_signed();
            let mut offsets: Vec<i64> = samples().map(|sample| centred(since_first(sample.time_ns), period)).collect();
            offsets.sort_unstable();
            let anchor = offsets[offsets.len() / 2];
            for sample in samples() {
                let since_anchor = since_first(sample.time_ns) - anchor;
                let jitter_ns = centred(since_anchor, period) as i32;
                let phase = ((since_anchor - i64::from(jitter_ns)) / period).rem_euclid(PHASES as i64) as usize;
                let row = Row { jitter_ns, thread: sample.thread, stack: sample.stack };
                phases[number % POD_CPUS][phase].push(row);
            }
        }
        Self { threads: threads(recording), cpus: phases.map(Lane::new) }
    }

    /// Returns the row at a tick of a pod's CPU, and the number of phases that end before this tick, counted from the
    /// start of the recording.
    ///
    /// `start` is the position of tick 0. Its integer part is the phase, and its fractional part is the position in the
    /// phase. Both CPUs thus begin at the same moment of the recording.
    pub(crate) fn row(&self, start: f64, cpu: usize, tick: u64) -> (Row, u64) {
        let lane = &self.cpus[cpu];
        let at = lane.place(start) as u64 + tick;
        let lap = at / lane.rows.len() as u64;
        let within = (at % lane.rows.len() as u64) as usize;
        let phase = lane.ends.partition_point(|&end| end <= within) as u64;
        (lane.rows[within], lap * PHASES + phase)
    }

    /// Returns the jitter at a tick. The jitter follows the recorded sequence from a random position, forwards or
    /// backwards.
    ///
    /// If a pod plays the recording again, its times are therefore different.
    pub(crate) fn jitter_ns(&self, mut random: Random, cpu: usize, tick: u64) -> i32 {
        let rows = &self.cpus[cpu].rows;
        let at = (random.below(rows.len()) + (tick % rows.len() as u64) as usize) % rows.len();
        let at = if random.below(2) == 0 { at } else { rows.len() - 1 - at };
        rows[at].jitter_ns
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.cpus.iter().flat_map(|lane| &lane.rows)
    }

    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        self.cpus.iter_mut().flat_map(|lane| &mut lane.rows)
    }

    /// Returns true if each CPU has samples to play.
    pub(crate) fn is_complete(&self) -> bool {
        self.cpus.iter().all(|lane| !lane.rows.is_empty())
    }
}

impl Lane {
    fn new(phases: Vec<Vec<Row>>) -> Self {
        let mut lane = Self::default();
        for phase in phases {
            lane.rows.extend(phase);
            lane.ends.push(lane.rows.len());
        }
        lane
    }

    fn place(&self, start: f64) -> usize {
        let phase = start as usize;
        let begin = if phase == 0 { 0 } else { self.ends[phase - 1] };
        begin + (start.fract() * (self.ends[phase] - begin) as f64) as usize
    }
}

/// Returns the remainder of a time modulo the period, from -period / 2 to period / 2.
fn centred(time_ns: i64, period: i64) -> i64 {
    (time_ns + period / 2).rem_euclid(period) - period / 2
}

fn cpus(recording: &Recording) -> BTreeSet<u32> {
    recording.samples.iter().map(|sample| sample.cpu).collect()
}

fn threads(recording: &Recording) -> Vec<ThreadKind> {
    let mut spans: HashMap<u32, (u64, u64)> = HashMap::new();
    for sample in &recording.samples {
        let span = spans.entry(sample.thread).or_insert((sample.time_ns, sample.time_ns));
        span.1 = sample.time_ns;
    }
    let end = recording.samples.last().map_or(0, |sample| sample.time_ns);
    // A passing thread has samples neither in the first nor in the last tenth of the recording.
    let margin = end / 10;
    let is_passing =
        |thread: u32| spans.get(&thread).is_some_and(|&(first, last)| first > margin && last < end - margin);
    let kind = |(id, thread): (u32, &crate::corpus::Thread)| ThreadKind {
        name: thread.name.clone(),
        is_passing: is_passing(id),
    };
    (0..).zip(&recording.threads).map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{Frames, Sample, Thread};

    #[test]
    fn jitter_is_the_distance_from_ticks_which_alternate_between_lanes() {
        let sample = |time_ns, cpu| Sample { time_ns, cpu, thread: 0, stack: 0 };
        let mut samples = vec![sample(0, 7), sample(900, 8)];
        // All samples are on time, except two on CPU 7: the sample at tick 5 is 400 ns late, and the first sample is 3
        // ns early.
        samples.extend((1..40).map(|tick| sample(tick * 1000 + 3 + if tick == 5 { 400 } else { 0 }, 7)));
        let frames = Frames { mappings: vec![], functions: vec![], locations: vec![], nodes: vec![] };
        let thread = Thread { pid: 1, tid: 1, name: "t".to_owned(), executable: "e".to_owned() };
        let recording = Recording { program: "p".to_owned(), period_ns: 1000, frames, threads: vec![thread], samples };
        let lanes = Lanes::new(&recording);
        let jitters = |phase: f64| (0..4).map(|tick| lanes.row(phase, 0, tick).0.jitter_ns).collect::<Vec<_>>();
        assert_eq!((jitters(0.0), jitters(5.0), jitters(9.0)), (vec![-3, 0, 0, 0], vec![400, 0, 0, 0], vec![0; 4]));
        // After a phase the next phase follows, and after the last phase the first.
        assert_eq!((jitters(4.5), lanes.row(4.5, 0, 1).1, lanes.row(4.5, 0, 2).1), (vec![0, 0, 400, 0], 4, 5));
        assert_eq!(lanes.row(9.5, 0, 2).1, 10);
        // The other CPU has only one sample, which is played again and again.
        assert!(lanes.is_complete());
        assert_eq!((lanes.row(0.0, 1, 0).0.jitter_ns, lanes.row(0.0, 1, 7).1), (0, 70));
    }
}
