//! A recording as pods play it: for each phase and CPU the samples in their order, and the jitter of the timer at each.

use std::collections::{BTreeSet, HashMap};

use crate::corpus::{PHASES, Recording};

/// CPUs of a pod.
pub(crate) const POD_CPUS: usize = 2;

/// One sample of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// How much later than usual after its timer's tick its time is, in nanoseconds.
    pub(crate) jitter_ns: i32,
    /// Into [`Lanes::threads`].
    pub(crate) thread: u32,
    /// The node of its stack in the recording, until [`super::service`] makes a rank of it.
    pub(crate) stack: u32,
}

/// What is known of a thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadKind {
    pub(crate) name: String,
    /// It began and ended while the program was recorded: whenever the recording is played again, it is another one.
    pub(crate) is_passing: bool,
}

/// All samples of a recording.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) threads: Vec<ThreadKind>,
    /// By phase, then CPU; each in the order of time.
    rows: Vec<Vec<Row>>,
}

impl Lanes {
    pub(crate) fn new(recording: &Recording) -> Self {
        let mut rows = vec![Vec::new(); PHASES as usize * POD_CPUS];
        let period = recording.period_ns.cast_signed();
        for (number, cpu) in cpus(recording).into_iter().enumerate() {
            let samples = || recording.samples.iter().filter(|sample| sample.cpu == cpu);
            let Some(first) = samples().next() else { continue };
            // The timer ticks at anchor + n x period for as long as the recording lasts: most samples are within microseconds
            // of that, and the few that came much later do not move a median.
            let since_first = |time_ns: u64| (time_ns - first.time_ns).cast_signed();
            let mut offsets: Vec<i64> = samples().map(|sample| centred(since_first(sample.time_ns), period)).collect();
            offsets.sort_unstable();
            let anchor = offsets[offsets.len() / 2];
            for sample in samples() {
                let since_anchor = since_first(sample.time_ns) - anchor;
                let jitter_ns = centred(since_anchor, period) as i32;
                let tick = (since_anchor - i64::from(jitter_ns)) / period;
                let lane = tick.rem_euclid(PHASES as i64) as usize * POD_CPUS + number % POD_CPUS;
                rows[lane].push(Row { jitter_ns, thread: sample.thread, stack: sample.stack });
            }
        }
        Self { threads: threads(recording), rows }
    }

    /// The row at a tick of a CPU of a pod that plays this phase, and how often the recording was played before. `start`: from
    /// where, as a share of the recording, so that both CPUs begin at the same moment of it.
    pub(crate) fn row(&self, phase: usize, cpu: usize, start: f64, tick: u64) -> (Row, u64) {
        let lane = &self.rows[phase * POD_CPUS + cpu];
        let at = (start * lane.len() as f64) as u64 + tick;
        (lane[(at % lane.len() as u64) as usize], at / lane.len() as u64)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flatten()
    }

    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        self.rows.iter_mut().flatten()
    }

    /// Whether every lane has something to play.
    pub(crate) fn is_complete(&self) -> bool {
        self.rows.iter().all(|lane| !lane.is_empty())
    }
}

/// What is left of a time without whole periods: from -period / 2 to period / 2.
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
    // Seen neither in the first nor in the last tenth.
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
    fn jitter_is_what_is_left_without_the_timers_ticks_and_ticks_lie_in_turn_on_the_lanes() {
        let sample = |time_ns, cpu| Sample { time_ns, cpu, thread: 0, stack: 0 };
        let mut samples = vec![sample(0, 7), sample(900, 8)];
        // On time but for the one at tick 5, which is 400 ns late, and the first one on CPU 7, 3 ns early.
        samples.extend((1..40).map(|tick| sample(tick * 1000 + 3 + if tick == 5 { 400 } else { 0 }, 7)));
        let frames = Frames { mappings: vec![], functions: vec![], locations: vec![], nodes: vec![] };
        let thread = Thread { pid: 1, tid: 1, name: "t".to_owned(), executable: "e".to_owned() };
        let recording = Recording { program: "p".to_owned(), period_ns: 1000, frames, threads: vec![thread], samples };
        let lanes = Lanes::new(&recording);
        let jitters = |phase: usize| {
            let lane = &lanes.rows[phase * POD_CPUS];
            lane.iter().map(|row| row.jitter_ns).collect::<Vec<_>>()
        };
        assert_eq!((jitters(0), jitters(5), jitters(9)), (vec![-3, 0, 0, 0], vec![400, 0, 0, 0], vec![0; 4]));
        assert!(!lanes.is_complete());
        assert_eq!(lanes.row(0, 0, 0.5, 3).1, 1);
    }
}
