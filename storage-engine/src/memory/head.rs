//! The head of a partition: samples that are not sealed into chunks yet, in one head chunk per window and series.
//!
//! Samples are kept in runs, each sorted by time. A closed run never changes, so queries and flushes share it without a
//! copy. Only the last run of a head chunk can still grow. The first `written` runs of a head chunk are also on disk,
//! so that a restart can restore them. They stay in memory, so queries never read them from disk.

use std::collections::BTreeMap;
use std::ops::{AddAssign, RangeInclusive, SubAssign};
use std::sync::Arc;

use proto::{Samples, Tier};

use crate::memory::interner::saturating_u32;
use crate::memory::run::Run;

/// Number of samples at which a run is closed.
const RUN_SAMPLES: usize = 256;

/// Size of a sample in memory, in bytes.
pub(crate) const SAMPLE_BYTES: usize = size_of::<i64>() * 2 + size_of::<u32>() * 2;

/// Memory of a head chunk without its runs, in bytes: its two lists, and its entry in the tree, whose nodes are two
/// thirds full.
const CHUNK_BYTES: usize = 240;
/// Memory of a run without its samples, in bytes: the run itself, and the allocator's overhead for its columns.
const RUN_BYTES: usize = 256;

/// Number of samples in heads, and their memory use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadSize {
    pub(crate) samples: usize,
    /// Approximate memory use of the samples, in bytes.
    pub(crate) bytes: usize,
}

impl AddAssign for HeadSize {
    fn add_assign(&mut self, other: Self) {
        self.samples += other.samples;
        self.bytes += other.bytes;
    }
}

impl SubAssign for HeadSize {
    fn sub_assign(&mut self, other: Self) {
        self.samples -= other.samples;
        self.bytes -= other.bytes;
    }
}

/// Unsealed samples of one series in one window.
#[derive(Debug, Default)]
pub(crate) struct HeadChunk {
    runs: Vec<Arc<Run>>,
    /// Times of the first and of the last sample, in nanoseconds since 1970. Lists of series need no more, so they do
    /// not read the runs, which are spread over the memory.
    times_ns: (i64, i64),
    /// True if the last run can still grow.
    is_open: bool,
    /// Number of runs, counted from the first, that are also on disk.
    written: u32,
    /// Log indexes of the flushes that wrote these runs, one for each head value.
    written_at: Vec<u64>,
    /// Time of the state's clock when the first sample arrived, in nanoseconds since 1970.
    since_ns: i64,
    size: HeadSize,
}

/// Unsealed samples by window and series.
#[derive(Debug, Default)]
pub(crate) struct Head {
    chunks: BTreeMap<(u32, u32), HeadChunk>,
    size: HeadSize,
}

/// The runs of a head chunk at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub(crate) window: u32,
    pub(crate) series: u32,
    pub(crate) runs: Vec<Arc<Run>>,
    /// Times of the first and of the last sample, in nanoseconds since 1970.
    pub(crate) times_ns: (i64, i64),
    /// Number of runs, counted from the first, that were on disk at that moment.
    pub(crate) written: usize,
    /// Log indexes of the flushes that wrote these runs, one for each head value.
    pub(crate) written_at: Vec<u64>,
    pub(crate) since_ns: i64,
}

impl Head {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn size(&self) -> HeadSize {
        self.size
    }

    /// Changes a head chunk. Creates it if it is missing, and removes it if it is empty afterwards.
    fn change(&mut self, at: (u32, u32), change: impl FnOnce(&mut HeadChunk)) {
        let chunk = self.chunks.entry(at).or_default();
        self.size -= chunk.size;
        change(chunk);
        self.size += chunk.size;
        if chunk.runs.is_empty() {
            self.chunks.remove(&at);
        }
    }

    /// Adds samples of one series. The samples may be of any windows.
    pub(crate) fn add(&mut self, series: u32, mut samples: Samples, now_ns: i64) {
        samples.sort_by_time();
        while let Some(&first) = samples.times_ns.first() {
            let window = Tier::Raw.window_of(first);
            let end = samples.times_ns.partition_point(|&time| Tier::Raw.window_of(time) == window);
            let later = split_off(&mut samples, end);
            self.change((window, series), |chunk| {
                if chunk.runs.is_empty() {
                    chunk.since_ns = now_ns;
                }
                chunk.add(samples);
            });
            samples = later;
        }
    }

    /// Adds the samples of a head value that was flushed at `log_index`.
    pub(crate) fn restore(&mut self, window: u32, series: u32, log_index: u64, samples: Samples, now_ns: i64) {
        let run = Run::new(samples);
        self.change((window, series), |chunk| {
            if chunk.runs.is_empty() {
                chunk.since_ns = now_ns;
            }
            chunk.runs.push(Arc::new(run));
            chunk.written_at.push(log_index);
            chunk.written = saturating_u32(chunk.join_small(chunk.runs.len()));
            chunk.recount();
        });
    }

    /// Closes the last run of every head chunk. Returns the runs of all head chunks.
    pub(crate) fn freeze(&mut self) -> Vec<Frozen> {
        let freeze = |(&(window, series), chunk): (&(u32, u32), &mut HeadChunk)| {
            chunk.is_open = false;
            let HeadChunk { runs, times_ns, written, written_at, since_ns, .. } = &*chunk;
            Frozen {
                window,
                series,
                runs: runs.clone(),
                times_ns: *times_ns,
                written: *written as usize,
                written_at: written_at.clone(),
                since_ns: *since_ns,
            }
        };
        self.chunks.iter_mut().map(freeze).collect()
    }

    /// Removes frozen runs from memory, after they were sealed into a chunk.
    pub(crate) fn remove(&mut self, frozen: &Frozen) {
        self.change((frozen.window, frozen.series), |chunk| {
            chunk.runs.drain(..frozen.runs.len().min(chunk.runs.len()));
            chunk.written = 0;
            chunk.written_at.clear();
            chunk.recount();
        });
    }

    /// Records that frozen runs are on disk. Runs that were not on disk before were flushed at `log_index`. All stay in
    /// memory.
    pub(crate) fn wrote(&mut self, frozen: &Frozen, log_index: u64) {
        if frozen.runs.len() > frozen.written {
            self.change((frozen.window, frozen.series), |chunk| {
                chunk.written_at.push(log_index);
                chunk.written = saturating_u32(chunk.join_small(frozen.runs.len()));
                chunk.recount();
            });
        }
    }

    /// Returns the windows with samples, ascending.
    pub(crate) fn windows(&self) -> impl Iterator<Item = u32> + '_ {
        // Seeks from one window to the next, because a window may have very many series.
        let from = |from: (u32, u32)| self.chunks.range(from..).next().map(|(&(window, _), _)| window);
        std::iter::successors(from((0, 0)), move |&window| from((window.checked_add(1)?, 0)))
    }

    /// Returns whether a series has samples in a window.
    pub(crate) fn holds(&self, window: u32, series: u32) -> bool {
        self.chunks.contains_key(&(window, series))
    }

    /// Returns the window of each head chunk, and the time at which its first sample arrived.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = (u32, i64)> + '_ {
        self.chunks.iter().map(|(&(window, _), chunk)| (window, chunk.since_ns))
    }

    /// Returns window, series and head chunk of all head chunks in these windows.
    pub(crate) fn in_windows(&self, windows: RangeInclusive<u32>) -> impl Iterator<Item = (u32, u32, &HeadChunk)> {
        let range = (*windows.start(), 0)..=(*windows.end(), u32::MAX);
        self.chunks.range(range).map(|(&(window, series), chunk)| (window, series, chunk))
    }
}

impl HeadChunk {
    /// Returns the times of the first and of the last sample, in nanoseconds since 1970.
    pub(crate) fn times_ns(&self) -> (i64, i64) {
        self.times_ns
    }

    /// Returns the number of samples.
    pub(crate) fn samples(&self) -> usize {
        self.size.samples
    }

    /// Returns the time of the state's clock when the first sample arrived, in nanoseconds since 1970.
    pub(crate) fn since_ns(&self) -> i64 {
        self.since_ns
    }

    pub(crate) fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }

    /// Sets the sizes and times after a change of the runs.
    fn recount(&mut self) {
        let times = self.runs.iter().map(|run| run.times_ns());
        self.times_ns = times.reduce(earliest_and_latest).unwrap_or_default();
        let empty = HeadSize { samples: 0, bytes: if self.runs.is_empty() { 0 } else { CHUNK_BYTES } };
        self.size = self.runs.iter().fold(empty, |mut size, run| {
            size += size_of_run(run);
            size
        });
    }

    /// Joins the small runs after the last large one among the first `runs` runs. Every flush closes a run, and a run
    /// takes more memory than a few samples. Returns the number of runs that replace the first `runs`.
    fn join_small(&mut self, runs: usize) -> usize {
        let small = self.runs[..runs].iter().rev().take_while(|run| run.len() < RUN_SAMPLES).count();
        if small < 2 {
            return runs;
        }
        let first = runs - small;
        let mut joined = Samples::with_capacity(self.runs[first..runs].iter().map(|run| run.len()).sum());
        self.runs.drain(first..runs).for_each(|run| joined.append(Samples::clone(&run)));
        self.runs.insert(first, Arc::new(Run::new(joined)));
        first + 1
    }

    fn add(&mut self, samples: Samples) {
        if self.is_open
            && let Some(run) = self.runs.last_mut().filter(|run| run.len() < RUN_SAMPLES)
            && let Some(run) = Arc::get_mut(run)
        {
            self.size -= size_of_run(run);
            run.append(samples);
            self.size += size_of_run(run);
            self.times_ns = earliest_and_latest(self.times_ns, run.times_ns());
            return;
        }
        let run = Run::new(samples);
        if self.runs.is_empty() {
            self.size.bytes += CHUNK_BYTES;
            self.times_ns = run.times_ns();
        }
        self.times_ns = earliest_and_latest(self.times_ns, run.times_ns());
        self.size += size_of_run(&run);
        self.runs.push(Arc::new(run));
        self.is_open = true;
    }
}

fn earliest_and_latest(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.min(b.0), a.1.max(b.1))
}

fn size_of_run(run: &Run) -> HeadSize {
    let bytes = RUN_BYTES
        + run.times_ns.capacity() * size_of::<i64>()
        + run.pairs.capacity() * size_of::<u32>()
        + run.values.capacity() * size_of::<i64>()
        + run.attribute_sets.capacity() * size_of::<u32>();
    HeadSize { samples: run.len(), bytes }
}

/// Removes the samples after the first `at` and returns them.
fn split_off(samples: &mut Samples, at: usize) -> Samples {
    Samples {
        times_ns: samples.times_ns.split_off(at),
        pairs: samples.pairs.split_off(at),
        values: samples.values.split_off(at),
        attribute_sets: samples.attribute_sets.split_off(at),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_stay_sorted_by_time_and_no_sample_is_lost(
            parts in prop::collection::vec((prop::collection::vec(0..2_000_000_000_000_i64, 1..90), 0..3_u8), 1..20),
        ) {
            let mut head = Head::default();
            let mut wanted = Vec::new();
            let mut frozen = Vec::new();
            for (log_index, (times, frozen_how)) in (0..).zip(parts) {
                let mut samples = Samples::default();
                for time in times {
                    samples.push(time + 1, 1, 1, 1);
                    wanted.push(time + 1);
                }
                head.add(3, samples, 5);
                if frozen_how > 0 {
                    frozen = head.freeze();
                }
                if frozen_how > 1 {
                    frozen.iter().for_each(|chunk| head.wrote(chunk, log_index));
                    // No two small written runs are adjacent.
                    for chunk in head.freeze() {
                        let sides: Vec<usize> = chunk.runs[..chunk.written].iter().map(|run| run.len()).collect();
                        prop_assert!(sides.windows(2).all(|pair| pair.iter().any(|&len| len >= RUN_SAMPLES)));
                    }
                    frozen.clear();
                }
            }
            let before: Vec<usize> = frozen.iter().map(|chunk| chunk.runs.iter().map(|run| run.len()).sum()).collect();
            let mut got = Vec::new();
            for (window, series, chunk) in head.in_windows(0..=u32::MAX) {
                prop_assert_eq!(series, 3);
                let times = || chunk.runs().iter().flat_map(|run| run.times_ns.iter().copied());
                prop_assert_eq!(Some(chunk.times_ns()), times().min().zip(times().max()));
                for run in chunk.runs() {
                    prop_assert!(run.times_ns.is_sorted());
                    prop_assert!(run.times_ns.iter().all(|&time| Tier::Raw.window_of(time) == window));
                    got.extend(run.times_ns.iter().copied());
                }
            }
            prop_assert_eq!(head.size().samples, wanted.len());
            got.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(got, wanted);
            // Frozen runs did not change. Removing them leaves the samples that were added later.
            let left = head.size().samples - before.iter().sum::<usize>();
            frozen.iter().for_each(|chunk| head.remove(chunk));
            prop_assert_eq!(head.size().samples, left);
            head.freeze().iter().for_each(|chunk| head.remove(chunk));
            prop_assert_eq!(head.size(), HeadSize::default());
        }
    }
}
