//! A chunk: the sealed samples of one series in one window of ten minutes.
//!
//! ```text
//! | flags u8, bit 0: has events, bit 1: has a timeline | samples varint | total | first time zigzag |
//! | last time zigzag | unit varint | sums, with length | timeline, with length | events |
//! ```
//!
//! Times count from the start of the window.
//!
//! All but the smallest chunks have their events in a separate value: `| events |`. A query that covers the whole
//! window therefore reads sums but no times, and a query for totals reads only the fields before the sums. A query for
//! totals of a part of the window reads the timeline, see `encoding::timeline`.

use proto::{Samples, Tier};

use crate::encoding::events::sorted::put_events;
use crate::encoding::events::{Events, MinuteColumns};
use crate::encoding::slot_sums::SlotSums;
use crate::encoding::sums::{Row, Sums, put_rows, unit_of};
use crate::encoding::timeline::{Timeline, timeline_of};
use crate::encoding::varint::{put, put_bytes, put_sum, take, take_bytes, take_sum, unzigzag, zigzag};
use crate::error::EngineError;

const HAS_EVENTS: u8 = 1;
const HAS_TIMELINE: u8 = 2;
/// Minimum length of events that get a separate value, in bytes.
const SEPARATE_EVENTS_BYTES_MIN: usize = 512;

/// Values of a sealed window: the chunk, and its events if they are separate.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) chunk: Vec<u8>,
    /// Value of the events; `None` if the chunk holds the events itself.
    pub(crate) events: Option<Vec<u8>>,
}

/// Tables with one slot for each pair (the user part and the kernel part of a stack). Each sealing fills and empties
/// the tables, so their memory is reused.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) dense: SlotSums,
    row_of_pair: Vec<u32>,
}

impl Scratch {
    /// Returns the sums of a range of the samples, ascending by pair.
    pub(crate) fn sums(&mut self, samples: &Samples, rows: std::ops::Range<usize>) -> Vec<Row> {
        let pairs = rows.clone().map(|row| samples.pairs[row]).max().map_or(0, |pair| pair as usize + 1);
        self.dense.resize(pairs);
        for row in rows {
            // The table was resized to hold every pair.
            let _has_slot: Option<()> = self.dense.add(samples.pairs[row], i128::from(samples.values[row]));
        }
        let mut out = Vec::new();
        self.dense.drain(|pair, sum| out.push((pair, sum)));
        out
    }
}

/// Seals the samples of one window. There must be at least one sample, and samples must be sorted by time. A gauge's
/// chunk has no timeline, because a gauge does not add up over time.
pub(crate) fn seal(
    samples: &Samples,
    window: u32,
    is_gauge: bool,
    scratch: &mut Scratch,
) -> Result<Sealed, EngineError> {
    let rows = scratch.sums(samples, 0..samples.len());
    let slots = rows.last().map_or(0, |row| row.0 as usize + 1);
    if scratch.row_of_pair.len() < slots {
        scratch.row_of_pair.resize(slots, 0);
    }
    (0..).zip(&rows).for_each(|(index, row)| scratch.row_of_pair[row.0 as usize] = index);
    let mut events = Vec::new();
    put_events(&mut events, samples, window, &scratch.row_of_pair).map_err(EngineError::Columns)?;
    let are_separate = events.len() >= SEPARATE_EVENTS_BYTES_MIN;
    let start_ns = Tier::Raw.window_start_ns(window);
    let since_start = |time: Option<&i64>| zigzag(time.copied().unwrap_or_default().wrapping_sub(start_ns));
    let mut chunk = vec![if are_separate { 0 } else { HAS_EVENTS }];
    put(&mut chunk, samples.len() as u64);
    put_sum(&mut chunk, rows.iter().map(|row| row.1).sum());
    put(&mut chunk, since_start(samples.times_ns.first()));
    put(&mut chunk, since_start(samples.times_ns.last()));
    let unit = unit_of(rows.iter().map(|row| row.1));
    put(&mut chunk, unit);
    let mut sums = Vec::new();
    put_rows(&mut sums, &rows, unit, true);
    put_bytes(&mut chunk, &sums);
    let bytes = chunk.len() + events.len();
    let timeline = if is_gauge { None } else { timeline_of(samples, window, bytes) };
    if let Some(timeline) = timeline {
        chunk[0] |= HAS_TIMELINE;
        put_bytes(&mut chunk, &timeline);
    }
    if !are_separate {
        chunk.extend_from_slice(&events);
    }
    Ok(Sealed { chunk, events: are_separate.then_some(events) })
}

/// A chunk in its stored form. Sums, timeline and events are decoded when they are needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) samples: u64,
    pub(crate) total: i128,
    pub(crate) first_ns: i64,
    pub(crate) last_ns: i64,
    pub(crate) sums: Sums<'a>,
    timeline: Option<&'a [u8]>,
    /// Bytes of the events; `None` if the events have a separate value.
    events: Option<&'a [u8]>,
    window: u32,
}

impl<'a> Chunk<'a> {
    /// Reads a chunk of this window; `None` if the chunk fails a check.
    pub(crate) fn read(mut bytes: &'a [u8], window: u32) -> Option<Self> {
        let (&flags, rest) = bytes.split_first()?;
        bytes = rest;
        let samples = take(&mut bytes)?;
        let total = take_sum(&mut bytes)?;
        let start_ns = Tier::Raw.window_start_ns(window);
        let first_ns = start_ns.wrapping_add(unzigzag(take(&mut bytes)?));
        let last_ns = start_ns.wrapping_add(unzigzag(take(&mut bytes)?));
        let unit = take(&mut bytes)?;
        let sums = Sums::read(take_bytes(&mut bytes)?, unit)?;
        let timeline = if flags & HAS_TIMELINE != 0 { Some(take_bytes(&mut bytes)?) } else { None };
        let events = (flags & HAS_EVENTS != 0).then_some(bytes);
        let is_inside = start_ns < first_ns && first_ns <= last_ns && last_ns <= Tier::Raw.window_end_ns(window);
        let is_whole = flags <= HAS_EVENTS | HAS_TIMELINE && (events.is_some() || bytes.is_empty()) && is_inside;
        (is_whole && samples > 0).then_some(Self { samples, total, first_ns, last_ns, sums, timeline, events, window })
    }

    pub(crate) fn has_own_events(&self) -> bool {
        self.events.is_none()
    }

    pub(crate) fn has_timeline(&self) -> bool {
        self.timeline.is_some()
    }

    /// Returns the timeline; `None` if the chunk has none, or if the timeline's sample count or total differs from the
    /// chunk's.
    pub(crate) fn timeline(&self) -> Option<Timeline> {
        Timeline::read(self.timeline?, self.window, self.samples, self.total)
    }

    /// Returns the stacks of the chunk, in the order in which events refer to them.
    pub(crate) fn stacks(&self) -> Option<Vec<u32>> {
        let mut stacks = Vec::with_capacity(self.sums.rows());
        self.sums.for_each(|stack, _| {
            stacks.push(stack);
            Some(())
        })?;
        Some(stacks)
    }

    /// Returns a reader of the events; `None` if they fail a check. `separate` is the separate value of the events, if
    /// they have one.
    pub(crate) fn events<'b>(&'b self, separate: Option<&'b [u8]>) -> Option<Events<'b>> {
        Events::read(self.events.or(separate)?, self.window, self.samples)
    }

    /// Returns all samples of the chunk, sorted by time.
    pub(crate) fn samples(&self, separate: Option<&[u8]>) -> Option<Samples> {
        let stacks = self.stacks()?;
        let mut all = Samples::default();
        self.events(separate)?.for_each_minute(
            Some(&stacks),
            &mut MinuteColumns::default(),
            |_, _| true,
            |minute| all.append(minute.samples.clone()),
        )?;
        all.sort_by_time();
        let ends = (all.times_ns.first(), all.times_ns.last());
        (ends == (Some(&self.first_ns), Some(&self.last_ns))).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chunk_decodes_to_the_sealed_samples_and_sums(
            rows in prop::collection::vec((1..600_000_000_000_i64, 0..30_u32, any::<i64>(), 0..4_u32), 1..400),
        ) {
            let window = 2_983_333;
            let mut samples = Samples::default();
            for &(time, pair, value, set) in &rows {
                samples.push(Tier::Raw.window_start_ns(window) + time, pair, value, set);
            }
            samples.sort_by_time();
            let mut scratch = Scratch::default();
            let sealed = seal(&samples, window, false, &mut scratch).unwrap();
            let chunk = Chunk::read(&sealed.chunk, window).unwrap();
            prop_assert_eq!(chunk.has_own_events(), sealed.events.is_some());
            prop_assert_eq!(chunk.total, rows.iter().map(|row| i128::from(row.2)).sum::<i128>());
            prop_assert_eq!((chunk.first_ns, chunk.last_ns), (samples.times_ns[0], samples.times_ns[rows.len() - 1]));
            let got = chunk.samples(sealed.events.as_deref()).unwrap();
            let sorted = |s: &Samples| {
                let row = |i: usize| (s.times_ns[i], s.pairs[i], s.values[i], s.attribute_sets[i]);
                let mut rows: Vec<_> = (0..s.len()).map(row).collect();
                rows.sort_unstable();
                rows
            };
            prop_assert_eq!(sorted(&got), sorted(&samples));
            let mut sums = Vec::new();
            chunk.sums.for_each(|stack, sum| { sums.push((stack, sum)); Some(()) }).unwrap();
            prop_assert_eq!(sums, scratch.sums(&samples, 0..samples.len()));
        }
    }
}
