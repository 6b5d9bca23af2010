//! Reading one series of a partition, as planned: sums of windows, and raw samples at the edges.

use std::ops::Range;

use proto::{Samples, Tier};
use rocksdb::ReadOptions;

use crate::chunk::Chunk;
use crate::database::Snapshot;
use crate::encoding::frame;
use crate::encoding::sums::Sums;
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::flush::events_key;
use crate::gather::{PartView, SeriesView};
use crate::key::{PartitionKey, Section, two_numbers};
use crate::plan::{Interval, WindowRun};
use crate::windows::{self, StoredWindow};

/// Who reads.
pub(crate) trait Visitor {
    /// Whether chunks that lie in one bucket are read as sums, or sample by sample.
    fn takes_sums(&self) -> bool;

    /// Nothing more is needed.
    fn is_done(&self) -> bool {
        false
    }

    /// All samples of a chunk or a window; `None` if the sums cannot be read.
    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<Option<()>, SelectError>;

    /// Some samples, in the order of time; `None` if they refer to what is not there.
    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<Option<()>, SelectError>;
}

/// Sums of a chunk or a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSums<'a> {
    pub(crate) samples: u64,
    pub(crate) total: i128,
    /// Of a gauge's window, the time of its point.
    pub(crate) last_ns: Option<i64>,
    pub(crate) sums: Sums<'a>,
}

/// Reads everything that is planned of a series.
pub(crate) fn read_series(
    snapshot: &Snapshot<'_>,
    part: &PartView,
    series: &SeriesView,
    visitor: &mut impl Visitor,
) -> Result<(), SelectError> {
    read_head(part, series, visitor)?;
    if !part.plan.windows.is_empty() && !visitor.is_done() {
        read_windows(snapshot, part, series, visitor)?;
    }
    if !part.plan.raw.is_empty() && !visitor.is_done() {
        read_chunks(snapshot, part, series, visitor)?;
    }
    Ok(())
}

fn read_head(part: &PartView, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
    for run in &series.head {
        let broken = || corrupt(&part.key.in_tier(Tier::Raw).section(Section::Head));
        visit_sorted(&part.plan.raw, run, 0..run.len(), visitor)?.ok_or_else(broken)?;
    }
    Ok(())
}

/// Gives samples that are sorted by time to the buckets that they are in.
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
        // Most runs lie in one interval.
        if first <= interval.start_ns {
            start += times[start..].partition_point(|&time| time <= interval.start_ns);
        }
        let end = if last <= interval.end_ns {
            times.len()
        } else {
            start + times[start..].partition_point(|&time| time <= interval.end_ns)
        };
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

fn cursor<'a>(
    snapshot: &'a Snapshot<'_>,
    from: &[u8],
    to: Vec<u8>,
) -> rocksdb::DBRawIteratorWithThreadMode<'a, rocksdb::DB> {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(to);
    let mut cursor = snapshot.raw_iterator_opt(options);
    cursor.seek(from);
    cursor
}

fn read_chunks(
    snapshot: &Snapshot<'_>,
    part: &PartView,
    series: &SeriesView,
    visitor: &mut impl Visitor,
) -> Result<(), SelectError> {
    let raw = part.key.in_tier(Tier::Raw);
    let intervals = &part.plan.raw;
    let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else { return Ok(()) };
    let (from, to) = (Tier::Raw.window_of(first.start_ns.saturating_add(1)), Tier::Raw.window_of(last.end_ns));
    let from = raw.series_window(Section::Chunks, series.number, from);
    let to = raw.series_window(Section::Chunks, series.number, to.saturating_add(1));
    let mut cursor = cursor(snapshot, &from, to);
    while let Some((key, value)) = cursor.item() {
        let window = window_of(key)?;
        let chunk = Chunk::read(frame::open(key, value)?, window).ok_or_else(|| corrupt(key))?;
        let inside = |interval: &&Interval| interval.start_ns < chunk.first_ns && chunk.last_ns <= interval.end_ns;
        if let (true, Some(interval)) = (visitor.takes_sums(), intervals.iter().find(inside)) {
            let Chunk { samples, total, sums, .. } = chunk;
            let read = ReadSums { samples, total, last_ns: None, sums };
            visitor.sums(interval.bucket, &read)?.ok_or_else(|| corrupt(key))?;
        } else if intervals
            .iter()
            .any(|interval| interval.start_ns < chunk.last_ns && chunk.first_ns <= interval.end_ns)
        {
            read_events(snapshot, part, (key, &chunk), visitor)?;
        }
        if visitor.is_done() {
            return Ok(());
        }
        cursor.next();
    }
    Ok(cursor.status()?)
}

fn read_events(
    snapshot: &Snapshot<'_>,
    part: &PartView,
    (key, chunk): (&[u8], &Chunk<'_>),
    visitor: &mut impl Visitor,
) -> Result<(), SelectError> {
    let own_key = events_key(key);
    let own = if chunk.has_own_events() { snapshot.get_pinned(&own_key)? } else { None };
    let own = own.as_deref().map(|value| frame::open(&own_key, value)).transpose()?;
    let stacks = chunk.stacks().ok_or_else(|| corrupt(key))?;
    let mut events = chunk.events(own).ok_or_else(|| corrupt(&own_key))?;
    let intervals = &part.plan.raw;
    let wanted = |start_ns: i64, end_ns: i64| {
        intervals.iter().any(|interval| interval.start_ns < end_ns && start_ns < interval.end_ns)
    };
    let mut result = Ok(Some(()));
    let read = events.for_each_minute(&stacks, wanted, |minute| {
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

fn read_windows(
    snapshot: &Snapshot<'_>,
    part: &PartView,
    series: &SeriesView,
    visitor: &mut impl Visitor,
) -> Result<(), SelectError> {
    // Minutes are stored by the window of their chunk.
    let tier = part.key.tier;
    let values = if tier == Tier::Minute { Tier::Raw } else { tier };
    let per_value = tier.windows_in(values);
    let key_of = |window: u32| part.key.series_window(Section::Windows, series.number, window);
    let runs = &part.plan.windows;
    let mut next = 0;
    while next < runs.len() {
        // One cursor for runs that are close together.
        let mut behind = next + 1;
        while behind < runs.len() && runs[behind].first <= runs[behind - 1].end.saturating_add(per_value * RUNS_APART) {
            behind += 1;
        }
        let together = &runs[next..behind];
        next = behind;
        let (Some(first), Some(last)) = (together.first(), together.last()) else { continue };
        let to = key_of(last.end.div_ceil(per_value));
        let mut cursor = cursor(snapshot, &key_of(first.first / per_value), to);
        while let Some((key, value)) = cursor.item() {
            let window = window_of(key)?;
            let stored = windows::decode(frame::open(key, value)?, values, window);
            for stored in stored.ok_or_else(|| corrupt(key))? {
                let number = window.saturating_mul(per_value).saturating_add(stored.place.into());
                if let Some(run) = run_of(together, number) {
                    let StoredWindow { samples, total, last_ns, sums, .. } = stored;
                    let read = ReadSums { samples, total, last_ns, sums };
                    visitor.sums(run.bucket, &read)?.ok_or_else(|| corrupt(key))?;
                    if visitor.is_done() {
                        return Ok(());
                    }
                }
            }
            cursor.next();
        }
        cursor.status()?;
    }
    Ok(())
}

/// Values between two runs that are read over rather than sought over.
const RUNS_APART: u32 = 8;

fn run_of(runs: &[WindowRun], window: u32) -> Option<&WindowRun> {
    let place = runs.partition_point(|run| run.end <= window);
    runs.get(place).filter(|run| run.first <= window)
}

fn window_of(key: &[u8]) -> Result<u32, EngineError> {
    let numbers = PartitionKey::section_of(key).and_then(|(_, rest)| two_numbers(rest));
    Ok(numbers.ok_or_else(|| corrupt(key))?.1)
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}
