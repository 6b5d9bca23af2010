//! Reads the series of a partition as planned: sums of windows, and raw samples at the edges.

use std::cell::RefCell;
use std::ops::Range;

use proto::{Samples, Tier};

use crate::database::Snapshot;
use crate::database::cursor::Cursor;
use crate::database::frame;
use crate::database::key::{PartitionKey, Section, two_numbers};
use crate::encoding::chunk::Chunk;
use crate::encoding::sums::Sums;
use crate::encoding::windows::{self, StoredWindow};
use crate::engine::upkeep::flush::events_key;
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::integrity::quarantine::area::{Area, area_of};
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::damaged_keys::DamagedKeys;
use crate::memory::run::Run;
use crate::select::gather::{PartView, SeriesView, View};
use crate::select::plan::Interval;

/// Part of a chunk that a visitor needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    /// Its sums suffice.
    Sums,
    /// Its samples, one by one.
    Samples,
}

/// Consumer of the samples and sums of a series.
pub(crate) trait Visitor {
    /// Returns what the visitor needs of a chunk with these first and last times, in nanoseconds. All samples of the
    /// chunk belong to one bucket.
    fn needs(&mut self, first_ns: i64, last_ns: i64) -> Need;

    /// Returns whether the visitor needs only the sample count and total of each bucket, for all stacks and
    /// attributes together.
    fn takes_totals(&self) -> bool {
        false
    }

    /// Returns whether the visitor needs no more data.
    fn is_done(&self) -> bool {
        false
    }

    /// Visits the sums of a chunk or a window. Returns `None` if the sums cannot be decoded.
    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<Option<()>, SelectError>;

    /// Visits samples in order of time. Returns `None` if they refer to undefined stacks or attribute sets.
    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<Option<()>, SelectError>;
}

/// Sums of a chunk or a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSums<'a> {
    pub(crate) samples: u64,
    pub(crate) total: i128,
    /// Time of the point in a gauge's window, in nanoseconds.
    pub(crate) last_ns: Option<i64>,
    pub(crate) sums: Sums<'a>,
}

/// Reads one series of a partition after another. Ascending series numbers are cheapest.
pub(crate) struct PartReader<'a> {
    snapshot: &'a Snapshot<'a>,
    part: &'a PartView,
    windows: Cursor<'a>,
    chunks: Cursor<'a>,
    is_wanted: &'a dyn Fn() -> bool,
    found: &'a RefCell<Vec<NewDamage>>,
}

impl<'a> PartReader<'a> {
    pub(crate) fn new(view: &'a View<'a>, part: &'a PartView) -> Self {
        let snapshot = &view.snapshot;
        let raw = part.key.in_tier(Tier::Raw);
        Self {
            snapshot,
            part,
            windows: Cursor::new(snapshot, part.key.section(Section::Windows)),
            chunks: Cursor::new(snapshot, raw.section(Section::Chunks)),
            is_wanted: view.is_wanted,
            found: &view.found,
        }
    }

    /// Records damage. Reading continues after it.
    fn meet(&self, section: Section, area: Area, damage: EngineError) {
        let is_raw = section == Section::Chunks;
        let key = if is_raw { self.part.key.in_tier(Tier::Raw) } else { self.part.key };
        let skipped = match &damage {
            EngineError::Corruption(Corruption { key, check: CorruptionCheck::Content }) => Some(key.clone()),
            _ => None,
        };
        if skipped.is_some() || !self.part.damage.knows(is_raw, area) {
            self.found.borrow_mut().push(NewDamage { key, area, what: damage.to_string(), skipped });
        }
    }

    fn meet_damaged_keys(&self, section: Section, keys: Option<DamagedKeys>) {
        let Some(keys) = keys else { return };
        let key = if section == Section::Chunks { self.part.key.in_tier(Tier::Raw) } else { self.part.key };
        self.meet(section, area_of(key, section, &keys), keys.error.into());
    }

    /// Reads all planned data of a series, unless the query was cancelled.
    pub(crate) fn read(&mut self, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
        if !(self.is_wanted)() {
            return Err(SelectError::Cancelled);
        }
        for run in &series.head {
            let broken = || corrupt(&self.part.key.in_tier(Tier::Raw).section(Section::Head));
            visit_run(&self.part.plan.raw, run, visitor)?.ok_or_else(broken)?;
        }
        if !visitor.is_done() {
            self.read_windows(series, visitor)?;
        }
        if !visitor.is_done() {
            self.read_chunks(series, visitor)?;
        }
        Ok(())
    }

    fn read_windows(&mut self, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
        // Minutes are stored by the window of their chunk.
        let PartView { key: part, plan, .. } = self.part;
        let values = if part.tier == Tier::Minute { Tier::Raw } else { part.tier };
        let per_value = part.tier.windows_in(values);
        let key_of = |window: u32| part.series_window(Section::Windows, series.number, window / per_value);
        let mut runs = plan.windows.as_slice();
        let Some(first) = runs.first() else { return Ok(()) };
        self.windows.seek(&key_of(first.first));
        loop {
            let (key, value) = match self.windows.item() {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(error) if error.is_damage() => {
                    let keys = self.windows.skip_damaged_keys()?;
                    self.meet_damaged_keys(Section::Windows, keys);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let (number, value_window) = numbers_of(key)?;
            let window = value_window.saturating_mul(per_value);
            runs = &runs[runs.partition_point(|run| run.end <= window)..];
            let Some(run) = runs.first().filter(|_| number == series.number) else { return Ok(()) };
            if run.first >= window.saturating_add(per_value) {
                let next = key_of(run.first);
                self.windows.seek(&next);
                continue;
            }
            let area = Area::value(number, value_window);
            let is_skipped = self.part.damage.skips(key);
            let stored = frame::open(key, value)
                .and_then(|value| windows::decode(value, values, value_window).ok_or_else(|| corrupt(key)));
            let stored = match stored {
                Ok(stored) if !is_skipped => stored,
                damaged => {
                    if let Some(damage) = damaged.err().filter(|_| !is_skipped) {
                        self.meet(Section::Windows, area, damage.into());
                    }
                    self.windows.next();
                    continue;
                }
            };
            let run_of = |stored: &StoredWindow<'_>| {
                let window = window.saturating_add(stored.slot.into());
                let run = runs.get(runs.partition_point(|run| run.end <= window)).filter(|run| run.first <= window);
                run.map(|run| run.bucket)
            };
            for of_bucket in stored.chunk_by(|a, b| run_of(a) == run_of(b)) {
                let Some(bucket) = of_bucket.first().and_then(run_of) else { continue };
                for StoredWindow { samples, total, last_ns, sums, .. } in windows::joined(of_bucket) {
                    let read = ReadSums { samples, total, last_ns, sums };
                    if visitor.sums(bucket, &read)?.is_none() {
                        self.meet(Section::Windows, area, corrupt(key).into());
                    }
                    if visitor.is_done() {
                        return Ok(());
                    }
                }
            }
            self.windows.next();
        }
        Ok(())
    }

    fn read_chunks(&mut self, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
        let raw = self.part.key.in_tier(Tier::Raw);
        let window_of = |interval: &Interval| Tier::Raw.window_of(interval.start_ns.saturating_add(1));
        let key_of = |interval: &Interval| raw.series_window(Section::Chunks, series.number, window_of(interval));
        let mut intervals = self.part.plan.raw.as_slice();
        let Some(first) = intervals.first() else { return Ok(()) };
        self.chunks.seek(&key_of(first));
        loop {
            let (key, value) = match self.chunks.item() {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(error) if error.is_damage() => {
                    let keys = self.chunks.skip_damaged_keys()?;
                    self.meet_damaged_keys(Section::Chunks, keys);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let (number, window) = numbers_of(key)?;
            let start_ns = Tier::Raw.window_start_ns(window);
            intervals = &intervals[intervals.partition_point(|interval| interval.end_ns <= start_ns)..];
            let Some(next) = intervals.first().filter(|_| number == series.number) else { return Ok(()) };
            if next.start_ns >= Tier::Raw.window_end_ns(window) {
                let next = key_of(next);
                self.chunks.seek(&next);
                continue;
            }
            let area = Area::value(number, window);
            let is_skipped = self.part.damage.skips(key);
            let chunk =
                frame::open(key, value).and_then(|value| Chunk::read(value, window).ok_or_else(|| corrupt(key)));
            let chunk = match chunk {
                Ok(chunk) if !is_skipped => chunk,
                damaged => {
                    if let Some(damage) = damaged.err().filter(|_| !is_skipped) {
                        self.meet(Section::Chunks, area, damage.into());
                    }
                    self.chunks.next();
                    continue;
                }
            };
            let wanted = &intervals[intervals.partition_point(|interval| interval.end_ns < chunk.first_ns)..];
            if let Some(first) = wanted.first().filter(|first| first.start_ns < chunk.last_ns) {
                let is_inside = first.start_ns < chunk.first_ns && chunk.last_ns <= first.end_ns;
                match if is_inside { visitor.needs(chunk.first_ns, chunk.last_ns) } else { Need::Samples } {
                    Need::Nothing => {}
                    Need::Sums => {
                        let read =
                            ReadSums { samples: chunk.samples, total: chunk.total, last_ns: None, sums: chunk.sums };
                        if visitor.sums(first.bucket, &read)?.is_none() {
                            self.meet(Section::Chunks, area, corrupt(key).into());
                        }
                    }
                    Need::Samples => {
                        match read_samples(self.snapshot, wanted, StoredChunk { key, chunk: &chunk }, visitor) {
                            Err(SelectError::Engine(damage)) if damage.is_damage() => {
                                // Some of its samples may have been counted already, so it must not be read again.
                                let damage = if damage.is_content() { corrupt(key).into() } else { damage };
                                self.meet(Section::Chunks, area, damage);
                            }
                            read => read?,
                        }
                    }
                }
            }
            if visitor.is_done() {
                return Ok(());
            }
            self.chunks.next();
        }
        Ok(())
    }
}

/// Same as [`visit_sorted`], but passes totals where the samples themselves are not needed.
fn visit_run(intervals: &[Interval], run: &Run, visitor: &mut impl Visitor) -> Result<Option<()>, SelectError> {
    let Some(value) = run.value().filter(|_| visitor.takes_totals()) else {
        return visit_sorted(intervals, run, 0..run.len(), visitor);
    };
    let (first_ns, last_ns) = run.times_ns();
    let from = intervals.partition_point(|interval| interval.end_ns < first_ns);
    // Most intervals begin at the end of the previous one.
    let mut last_end_ns = i64::MIN;
    let mut last_end = 0;
    for &Interval { start_ns, end_ns, bucket } in intervals[from..].iter().take_while(|next| next.start_ns < last_ns) {
        let start = match start_ns {
            _ if start_ns < first_ns => 0,
            _ if start_ns == last_end_ns => last_end,
            _ => count_up_to(&run.times_ns, start_ns),
        };
        let end = if last_ns <= end_ns { run.len() } else { count_up_to(&run.times_ns, end_ns) };
        last_end_ns = end_ns;
        last_end = end;
        if start < end {
            let samples = (end - start) as u64;
            let total = i128::from(samples) * i128::from(value);
            let read = ReadSums { samples, total, last_ns: None, sums: Sums::default() };
            if visitor.sums(bucket, &read)?.is_none() {
                return Ok(None);
            }
        }
    }
    Ok(Some(()))
}

/// Passes samples, sorted by time, to the visitor with their buckets.
fn visit_sorted(
    intervals: &[Interval],
    samples: &Samples,
    rows: Range<usize>,
    visitor: &mut impl Visitor,
) -> Result<Option<()>, SelectError> {
    let times = &samples.times_ns[rows.clone()];
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return Ok(Some(())) };
    let from = intervals.partition_point(|interval| interval.end_ns < first);
    let mut start = 0;
    for interval in intervals[from..].iter().take_while(|interval| interval.start_ns < last) {
        // Most runs are inside one interval.
        if first <= interval.start_ns {
            start += count_up_to(&times[start..], interval.start_ns);
        }
        let end =
            if last <= interval.end_ns { times.len() } else { start + count_up_to(&times[start..], interval.end_ns) };
        if start < end {
            let rows = rows.start + start..rows.start + end;
            if visitor.samples(interval.bucket, samples, rows)?.is_none() {
                return Ok(None);
            }
        }
        start = end;
    }
    Ok(Some(()))
}

/// Returns how many of the ascending times are not after `time_ns`.
///
/// Samples are spread about evenly, so the search starts where the time would then be. A binary search would wait for
/// memory at each step.
fn count_up_to(times: &[i64], time_ns: i64) -> usize {
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return 0 };
    if time_ns < first {
        return 0;
    }
    if last <= time_ns {
        return times.len();
    }
    let part = (i128::from(time_ns) - i128::from(first)) * times.len() as i128 / (i128::from(last) - i128::from(first));
    let guess = usize::try_from(part).unwrap_or_default().min(times.len() - 1);
    // The count is in `low..=high`.
    let mut low = 1;
    let mut high = times.len() - 1;
    let mut step = 4;
    if times[guess] <= time_ns {
        low = guess + 1;
        while low + step < high && times[low + step] <= time_ns {
            low += step + 1;
            step *= 2;
        }
        high = high.min(low + step);
    } else {
        high = guess;
        while low + step < high && time_ns < times[high - step] {
            high -= step;
            step *= 2;
        }
        low = low.max(high.saturating_sub(step));
    }
    low + times[low..high].partition_point(|&time| time <= time_ns)
}

/// A chunk and its key.
#[derive(Clone, Copy)]
struct StoredChunk<'a> {
    key: &'a [u8],
    chunk: &'a Chunk<'a>,
}

/// Passes the totals of whole bins to the visitor. Returns the parts of intervals whose events must be read.
fn read_timeline(
    intervals: &[Interval],
    stored: StoredChunk<'_>,
    visitor: &mut impl Visitor,
) -> Result<Vec<Interval>, SelectError> {
    let StoredChunk { key, chunk } = stored;
    let timeline = chunk.timeline().ok_or_else(|| corrupt(key))?;
    let mut parts = Vec::new();
    for &Interval { start_ns, end_ns, bucket } in intervals.iter().take_while(|next| next.start_ns < chunk.last_ns) {
        // No bin needs to be divided outside the first and the last sample.
        let start_ns = if start_ns < chunk.first_ns { i64::MIN } else { start_ns };
        let end_ns = if chunk.last_ns <= end_ns { i64::MAX } else { end_ns };
        let split = timeline.split(start_ns, end_ns);
        if split.samples > 0 {
            let read = ReadSums { samples: split.samples, total: split.sum, last_ns: None, sums: Sums::default() };
            visitor.sums(bucket, &read)?.ok_or_else(|| corrupt(key))?;
        }
        let part = |(start_ns, end_ns)| Interval { start_ns, end_ns, bucket };
        parts.extend(split.parts.into_iter().flatten().map(part));
    }
    Ok(parts)
}

/// Passes the samples of a chunk to the visitor, or totals from its timeline if those suffice.
fn read_samples(
    snapshot: &Snapshot<'_>,
    intervals: &[Interval],
    stored: StoredChunk<'_>,
    visitor: &mut impl Visitor,
) -> Result<(), SelectError> {
    if !visitor.takes_totals() || !stored.chunk.has_timeline() {
        return read_events(snapshot, intervals, stored, visitor);
    }
    let parts = read_timeline(intervals, stored, visitor)?;
    if parts.is_empty() { Ok(()) } else { read_events(snapshot, &parts, stored, visitor) }
}

fn read_events(
    snapshot: &Snapshot<'_>,
    intervals: &[Interval],
    stored: StoredChunk<'_>,
    visitor: &mut impl Visitor,
) -> Result<(), SelectError> {
    let StoredChunk { key, chunk } = stored;
    let own_key = events_key(key);
    let own = if chunk.has_own_events() { snapshot.get_pinned(&own_key)? } else { None };
    let own = own.as_deref().map(|value| frame::open(&own_key, value)).transpose()?;
    let stacks = if visitor.takes_totals() { None } else { Some(chunk.stacks().ok_or_else(|| corrupt(key))?) };
    let mut events = chunk.events(own).ok_or_else(|| corrupt(&own_key))?;
    let wanted = |start_ns: i64, end_ns: i64| {
        let from = intervals.partition_point(|interval| interval.end_ns <= start_ns);
        intervals.get(from).is_some_and(|interval| interval.start_ns < end_ns)
    };
    let mut result = Ok(Some(()));
    let read = events.for_each_minute(stacks.as_deref(), wanted, |minute| {
        let mut start = 0;
        for &end in &minute.set_ends {
            if matches!(result, Ok(Some(()))) {
                result = visit_sorted(intervals, &minute.samples, start..end, visitor);
            }
            start = end;
        }
    });
    read.ok_or_else(|| corrupt(&own_key))?;
    result?.ok_or_else(|| corrupt(key))?;
    Ok(())
}

/// Returns the series and window numbers in the key of a chunk or of windows.
fn numbers_of(key: &[u8]) -> Result<(u32, u32), EngineError> {
    let numbers = PartitionKey::section_of(key).and_then(|(_, rest)| two_numbers(rest));
    let (series, window, _) = numbers.ok_or_else(|| corrupt(key))?;
    Ok((series, window))
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counting_times_matches_a_binary_search(
            gaps in prop::collection::vec(prop_oneof![8 => 0..100_i64, 1 => 0..1_000_000_i64], 0..300),
            from in prop_oneof![Just(i64::MIN / 2), Just(0)],
            offset in -10..40_000_i64,
        ) {
            let times: Vec<i64> = gaps.iter().scan(from, |time, gap| { *time += gap; Some(*time) }).collect();
            let near = times.iter().flat_map(|&time| [time - 1, time, time + 1]);
            for time in near.chain([from + offset, i64::MIN, i64::MAX]) {
                prop_assert_eq!(count_up_to(&times, time), times.partition_point(|&at| at <= time));
            }
        }
    }
}
