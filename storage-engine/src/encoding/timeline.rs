//! Timeline: for each bin of time, the number of a chunk's samples and their sum, over all stacks.
//!
//! A query that groups by labels alone reads the timeline and no events, if its windows begin and end on edges of bins.
//! A bin is an interval `(start, end]`, as windows are, and bins are aligned to 1970.
//!
//! ```text
//! timeline: | width u8 | first bin varint | bins varint | samples of each bin, in blocks | sums |
//! sums:     | 0 u8 | value zigzag |                         every sample has this value
//!           | 1 u8 | unit varint | sum / unit, in blocks |  one for each bin that has samples
//!           | 2 u8 | unit varint | sum / unit ... |         same as 1, if a sum is negative or exceeds 32 bits
//! block:    | minimum varint | up to 128 numbers minus the minimum, as a packed block |
//! ```
//!
//! The width is an index into [`WIDTHS_NS`]. The first bin is counted from the start of the window. A reader checks
//! that the first and the last bin have samples, that all bins are in the window, that samples and total equal the
//! chunk's, and that no bytes remain.

mod bins;

use proto::{Samples, Tier};

use crate::encoding::packed::{BLOCK, Block, take_block};
use crate::encoding::timeline::bins::Bins;
use crate::encoding::varint::{take, take_length, take_sum, take_u32, unzigzag};

/// Widths of bins in nanoseconds, finest first. Each width divides a minute.
const WIDTHS_NS: [i64; 3] = [100_000_000, 1_000_000_000, 5_000_000_000];
/// Divisors that limit the size of a timeline, one for each width. A timeline may take the bytes of the chunk and its
/// events, divided by this number. The finest timeline that fits is stored. The coarsest may be larger than the others,
/// because queries read the events if there is no timeline.
const PARTS_MAX: [usize; 3] = [100, 100, 50];

const SAME_VALUE: u8 = 0;
const NARROW: u8 = 1;
const WIDE: u8 = 2;

/// A decoded timeline. It holds the number of samples before each bin and their sum, and the totals at the end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    width_ns: i64,
    start_ns: i64,
    first: usize,
    samples: Vec<u32>,
    sums: BinSums,
}

#[derive(Debug, PartialEq, Eq)]
enum BinSums {
    Same(i64),
    Each(Vec<i128>),
}

/// An interval, split into whole bins, which a timeline covers, and parts of bins, which need events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Number of samples in whole bins.
    pub(crate) samples: u64,
    /// Sum of the values of these samples.
    pub(crate) sum: i128,
    /// Part of a bin at each of the two ends of the interval, as `(start, end]`; `None` if an end needs no events.
    pub(crate) parts: [Option<(i64, i64)>; 2],
}

/// Encodes a timeline of these samples, which are sorted by time. Returns the finest timeline that is small enough
/// relative to `chunk_bytes`; `None` if all are too large.
pub(crate) fn timeline_of(samples: &Samples, window: u32, chunk_bytes: usize) -> Option<Vec<u8>> {
    (0..).zip(WIDTHS_NS.into_iter().zip(PARTS_MAX)).find_map(|(width, (width_ns, part_max))| {
        let bins = Bins::of(samples, Tier::Raw.window_start_ns(window), width_ns)?;
        let bytes = bins.encode(width);
        (bytes.len() <= chunk_bytes / part_max).then_some(bytes)
    })
}

/// Removes blocks with `count` numbers from the front of `bytes`, and calls `visit` with each number.
fn take_blocks(bytes: &mut &[u8], mut count: usize, mut visit: impl FnMut(u32) -> Option<()>) -> Option<()> {
    let mut block: Block = [0; BLOCK];
    while count > 0 {
        let of_block = count.min(BLOCK);
        let minimum = take_u32(bytes)?;
        take_block(bytes, of_block, &mut block)?;
        block[..of_block].iter().try_for_each(|&above| visit(minimum.checked_add(above)?))?;
        count -= of_block;
    }
    Some(())
}

impl Timeline {
    /// Reads a timeline that [`timeline_of`] returned for a chunk of this window; `None` if a check fails. `samples`
    /// and `total` are those of the chunk.
    pub(crate) fn read(mut bytes: &[u8], window: u32, samples: u64, total: i128) -> Option<Self> {
        let (&width, rest) = bytes.split_first()?;
        bytes = rest;
        let width_ns = *WIDTHS_NS.get(usize::from(width))?;
        let bins_max = usize::try_from(Tier::Raw.window_ns() / width_ns).ok()?;
        let first = take_length(&mut bytes).filter(|&first| first < bins_max)?;
        let bins = take_length(&mut bytes).filter(|&bins| 0 < bins && bins <= bins_max - first)?;
        let counts = take_counts(&mut bytes, bins)?;
        let sums = BinSums::take(&mut bytes, &counts)?;
        let start_ns = Tier::Raw.window_start_ns(window);
        let timeline = Self { width_ns, start_ns, first, samples: counts, sums };
        let whole = timeline.of_bins(first, first + bins);
        (bytes.is_empty() && whole == (samples, total)).then_some(timeline)
    }

    /// Splits `(start, end]` into whole bins and the parts of bins at its ends.
    pub(crate) fn split(&self, start_ns: i64, end_ns: i64) -> Split {
        let window_end_ns = self.start_ns.saturating_add(Tier::Raw.window_ns());
        let [start_ns, end_ns] = [start_ns, end_ns].map(|time_ns| time_ns.clamp(self.start_ns, window_end_ns));
        let bin = |time_ns: i64| usize::try_from((time_ns - self.start_ns) / self.width_ns).unwrap_or_default();
        let edge_ns = |bin: usize| self.start_ns + bin as i64 * self.width_ns;
        let first = bin(start_ns);
        let to = bin(end_ns);
        let is_on_edge = edge_ns(first) == start_ns;
        let from = if is_on_edge { first } else { first + 1 };
        if from > to {
            return Split { samples: 0, sum: 0, parts: [self.part(first, start_ns, end_ns), None] };
        }
        let (samples, sum) = self.of_bins(from, to);
        let parts = [self.part(first, start_ns, edge_ns(from)), self.part(to, edge_ns(to), end_ns)];
        Split { samples, sum, parts: if is_on_edge { [None, parts[1]] } else { parts } }
    }

    /// Returns the interval `(start, end]`, which is a part of a bin; `None` if the interval is empty or the bin has no
    /// samples.
    fn part(&self, bin: usize, start_ns: i64, end_ns: i64) -> Option<(i64, i64)> {
        (start_ns < end_ns && self.of_bins(bin, bin + 1).0 > 0).then_some((start_ns, end_ns))
    }

    /// Returns whether this is the timeline of these samples, which are sorted by time.
    pub(crate) fn is_of(&self, samples: &Samples) -> bool {
        let Some(bins) = Bins::of(samples, self.start_ns, self.width_ns) else { return false };
        let is_as_long = (bins.first, bins.samples.len() + 1) == (self.first, self.samples.len());
        let of_samples = bins.samples.iter().map(|&samples| u64::from(samples)).zip(bins.sums.iter().copied());
        is_as_long && (self.first..).zip(of_samples).all(|(bin, wanted)| self.of_bins(bin, bin + 1) == wanted)
    }

    /// Returns the number of samples in the bins `[from, to)`, and their sum. Bins are counted from the window's start.
    fn of_bins(&self, from: usize, to: usize) -> (u64, i128) {
        let bins = self.samples.len() - 1;
        let index = |bin: usize| bin.saturating_sub(self.first).min(bins);
        let from = index(from);
        let to = index(to).max(from);
        let samples = u64::from(self.samples[to] - self.samples[from]);
        let sum = match &self.sums {
            BinSums::Same(value) => i128::from(samples) * i128::from(*value),
            BinSums::Each(sums) => sums[to].wrapping_sub(sums[from]),
        };
        (samples, sum)
    }
}

/// Decodes the sample counts. Returns the number of samples before each bin, then the total; `None` if the first or the
/// last bin is empty.
fn take_counts(bytes: &mut &[u8], bins: usize) -> Option<Vec<u32>> {
    let mut before = Vec::with_capacity(bins + 1);
    let mut sum = 0_u32;
    before.push(sum);
    take_blocks(bytes, bins, |samples| {
        sum = sum.checked_add(samples)?;
        before.push(sum);
        Some(())
    })?;
    let is_there = |bin: usize| before.get(bin) < before.get(bin + 1);
    (is_there(0) && is_there(bins - 1)).then_some(before)
}

impl BinSums {
    /// Decodes the sums. Returns the sum before each bin, then the total. `before` holds the number of samples before
    /// each bin.
    fn take(bytes: &mut &[u8], before: &[u32]) -> Option<Self> {
        let (&form, rest) = bytes.split_first().filter(|(form, _)| **form <= WIDE)?;
        *bytes = rest;
        if form == SAME_VALUE {
            return take(bytes).map(unzigzag).map(Self::Same);
        }
        let unit = i128::from(take(bytes).filter(|&unit| unit > 0)?);
        let has_samples = || before.windows(2).map(|bin| bin[0] < bin[1]);
        let filled = has_samples().filter(|&has| has).count();
        let mut in_units = Vec::with_capacity(filled);
        if form == NARROW {
            take_blocks(bytes, filled, |sum| {
                in_units.push(i128::from(sum));
                Some(())
            })?;
        } else {
            for _ in 0..filled {
                in_units.push(take_sum(bytes)?);
            }
        }
        let mut in_units = in_units.into_iter();
        let mut sum = 0_i128;
        let mut sums = Vec::with_capacity(before.len());
        sums.push(sum);
        for has_samples in has_samples() {
            if has_samples {
                sum = sum.checked_add(in_units.next()?.checked_mul(unit)?)?;
            }
            sums.push(sum);
        }
        Some(Self::Each(sums))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: u32 = 2_983_333;
    const SECOND_NS: i64 = 1_000_000_000;

    fn samples(rows: &[(i64, i64)]) -> Samples {
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        let mut samples = Samples::default();
        rows.iter().for_each(|&(time, value)| samples.push(Tier::Raw.window_start_ns(WINDOW) + time, 0, value, 0));
        samples
    }

    /// Generates times since the window's start, many of them on the edges of bins.
    fn time() -> impl Strategy<Value = i64> {
        let on_edge = (1..600_i64, -1..2_i64).prop_map(|(second, off)| second * SECOND_NS + off);
        prop_oneof![1..=600 * SECOND_NS, on_edge, 1..=SECOND_NS]
    }

    fn rows() -> impl Strategy<Value = Vec<(i64, i64)>> {
        let value = prop_oneof![Just(0..=0_i64), Just(52..=52), Just(1..=9), Just(-4..=4), Just(i64::MIN..=i64::MAX)];
        value.prop_flat_map(|value| prop::collection::vec((time(), value), 1..500))
    }

    /// Returns the number and the sum of the samples in `(start, end]`, counted one by one.
    fn naive(samples: &Samples, start_ns: i64, end_ns: i64) -> (u64, i128) {
        let rows = samples.times_ns.iter().zip(&samples.values);
        let inside = rows.filter(|(time, _)| start_ns < **time && **time <= end_ns);
        inside.fold((0, 0), |(count, sum), (_, &value)| (count + 1, sum + i128::from(value)))
    }

    proptest! {
        #[test]
        fn whole_bins_and_parts_of_bins_add_up_to_any_interval(
            rows in rows(),
            width in 0..WIDTHS_NS.len(),
            edges in prop::collection::vec((time(), time()), 1..20),
        ) {
            let samples = samples(&rows);
            let width_ns = WIDTHS_NS[width];
            let start_ns = Tier::Raw.window_start_ns(WINDOW);
            let bytes = Bins::of(&samples, start_ns, width_ns).unwrap().encode(width as u8);
            let (count, total) = naive(&samples, i64::MIN, i64::MAX);
            let timeline = Timeline::read(&bytes, WINDOW, count, total).unwrap();
            prop_assert!(timeline.is_of(&samples));
            prop_assert!(Timeline::read(&bytes, WINDOW, count + 1, total).is_none());
            prop_assert!(Timeline::read(&bytes, WINDOW, count, total + 1).is_none());
            let edges = edges.into_iter().map(|(a, b)| (start_ns + a.min(b), start_ns + a.max(b)));
            for (from_ns, to_ns) in edges.chain([(i64::MIN, i64::MAX), (start_ns, start_ns)]) {
                let split = timeline.split(from_ns, to_ns);
                let mut got = (split.samples, split.sum);
                for (from_ns, to_ns) in split.parts.into_iter().flatten() {
                    prop_assert!(from_ns < to_ns && to_ns - from_ns < width_ns, "{from_ns} {to_ns}");
                    let part = naive(&samples, from_ns, to_ns);
                    got = (got.0 + part.0, got.1 + part.1);
                }
                prop_assert_eq!(got, naive(&samples, from_ns, to_ns));
                let is_on_edges = [from_ns, to_ns].iter().all(|time| time.rem_euclid(width_ns) == 0);
                prop_assert!(!is_on_edges || split.parts == [None, None], "whole bins need no events");
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_a_timeline_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            samples in 0..9_u64,
        ) {
            let _read_or_not = Timeline::read(&bytes, WINDOW, samples, samples.into());
        }
    }

    #[test]
    fn a_damaged_timeline_is_refused_or_has_the_same_totals() {
        let start_ns = Tier::Raw.window_start_ns(WINDOW);
        let values: [fn(i64) -> i64; 3] = [|_| 7, |i| i % 5 - 2, |i| i % 5 * 10];
        for value in values {
            let rows: Vec<(i64, i64)> = (0..3000).map(|i| (1 + i * SECOND_NS / 5, value(i))).collect();
            let (count, total) = naive(&samples(&rows), i64::MIN, i64::MAX);
            let bytes = Bins::of(&samples(&rows), start_ns, SECOND_NS).unwrap().encode(1);
            let mut read = 0;
            let mut refused = 0;
            for at in 0..bytes.len() {
                for flip in [1, 2, 0x10, 0x80, 0xff] {
                    let mut bad = bytes.clone();
                    bad[at] ^= flip;
                    let Some(timeline) = Timeline::read(&bad, WINDOW, count, total) else {
                        refused += 1;
                        continue;
                    };
                    read += 1;
                    let whole = timeline.split(i64::MIN, i64::MAX);
                    assert_eq!((whole.samples, whole.sum, whole.parts), (count, total, [None, None]));
                    let split = timeline.split(start_ns + SECOND_NS * 3 / 2, start_ns + SECOND_NS * 500);
                    assert!(split.samples <= count);
                }
            }
            assert!(refused > read, "{read} read, {refused} refused");
        }
    }

    #[test]
    fn a_timeline_does_not_match_changed_samples() {
        let rows: Vec<(i64, i64)> = (0..6000).map(|i| (1 + i * SECOND_NS / 10, 7)).collect();
        let bytes = Bins::of(&samples(&rows), Tier::Raw.window_start_ns(WINDOW), SECOND_NS).unwrap().encode(1);
        let timeline = Timeline::read(&bytes, WINDOW, 6000, 42_000).unwrap();
        assert!(timeline.is_of(&samples(&rows)));
        for (row, time, value) in [(70, SECOND_NS, 0), (70, 0, 1), (5999, -SECOND_NS, 0), (0, SECOND_NS, 0)] {
            let mut changed = rows.clone();
            changed[row] = (changed[row].0 + time, changed[row].1 + value);
            assert!(!timeline.is_of(&samples(&changed)), "{row} {time} {value}");
        }
        assert!(!timeline.is_of(&samples(&rows[1..])) && !timeline.is_of(&samples(&rows[..5999])));
    }

    #[test]
    fn the_finest_timeline_that_is_small_enough_is_stored() {
        // Bins of 100 ms have 1 to 8 samples, so that their counts take bits.
        let jitter_ns = |i: i64| i * i * 7919 % 97 * 1_000_000;
        let dense: Vec<(i64, i64)> = (0..23_990).map(|i| (1 + i * SECOND_NS / 40 + jitter_ns(i), 7)).collect();
        let width = |chunk_bytes| timeline_of(&samples(&dense), WINDOW, chunk_bytes).map(|bytes| bytes[0]);
        let widths = [1_000_000, 100_000, 10_000, 1000].map(width);
        assert!(widths.is_sorted_by_key(|width| width.unwrap_or(9)) && widths[3].is_none(), "{widths:?}");
        assert_eq!((widths[0], widths[2].is_some()), (Some(0), true), "{widths:?}");
        for chunk_bytes in [1000, 3000, 10_000, 30_000, 100_000, 1_000_000] {
            let Some(bytes) = timeline_of(&samples(&dense), WINDOW, chunk_bytes) else { continue };
            let bytes_max = chunk_bytes / PARTS_MAX[usize::from(bytes[0])];
            assert!(bytes.len() <= bytes_max, "{} of {chunk_bytes}", bytes.len());
        }
    }
}
