//! Reads the series of a partition as planned: sums of windows, and raw samples at the edges.

pub(crate) mod known_samples;
pub(crate) mod threads;
pub(crate) mod visitor;

mod samples;
mod stored_chunk;

use parking_lot::Mutex;
use proto::Tier;

use crate::database::Snapshot;
use crate::database::cursor::Cursor;
use crate::database::frame;
use crate::database::key::{PartitionKey, Section, two_numbers};
use crate::encoding::chunk::Chunk;
use crate::encoding::events::MinuteColumns;
use crate::encoding::windows::{self, StoredWindow};
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::integrity::quarantine::area::{Area, area_of};
use crate::integrity::quarantine::damage::NewDamage;
use crate::select::plan::{Interval, WindowRun, covers};
use crate::select::read::samples::visit_run;
use crate::select::read::stored_chunk::StoredChunk;
use crate::select::read::visitor::{AnySample, Need, ReadSums, VisitError, Visitor};
use crate::select::view::{PartView, SeriesView, View};

/// Largest number of samples whose memory a reader keeps for the next series. They take about 2 MB.
const SAMPLES_KEPT_MAX: usize = 1 << 16;

/// Section, area and key of a value, for reports of damage.
#[derive(Clone, Copy)]
struct Place<'a> {
    section: Section,
    area: Area,
    key: &'a [u8],
}

/// Reads the series of a partition one after another. Reads are cheapest if series numbers ascend.
pub(crate) struct PartReader<'a> {
    snapshot: &'a Snapshot<'a>,
    part: &'a PartView,
    windows: Cursor<'a>,
    chunks: Cursor<'a>,
    /// Memory for the samples of a chunk.
    minute: MinuteColumns,
    is_wanted: &'a (dyn Fn() -> bool + Sync),
    found: &'a Mutex<Vec<NewDamage>>,
    /// Series with samples in chunks, and the times of the first and of the last sample of such a chunk.
    pub(crate) sample_times: Vec<(u32, (i64, i64))>,
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
            minute: MinuteColumns::default(),
            is_wanted: view.is_wanted,
            found: &view.found,
            sample_times: Vec::new(),
        }
    }

    /// Returns the partition whose keys have a section: chunks are in the partition of raw samples.
    fn partition_of(&self, section: Section) -> PartitionKey {
        if section == Section::Chunks { self.part.key.in_tier(Tier::Raw) } else { self.part.key }
    }

    /// Records damage of a section. Reading continues after the damage.
    fn meet(&self, section: Section, area: Area, damage: EngineError) {
        let is_raw = section == Section::Chunks;
        let skipped = match &damage {
            EngineError::Corruption(Corruption { key, check: CorruptionCheck::Content }) => Some(key.clone()),
            _ => None,
        };
        if skipped.is_some() || !self.part.damage.knows(is_raw, area) {
            let key = self.partition_of(section);
            self.found.lock().push(NewDamage { key, area, what: damage.to_string(), skipped });
        }
    }

    /// Skips the keys that a cursor failed to read, and records their damage. An error other than damage ends the
    /// query.
    fn skip_damage(&mut self, section: Section, error: EngineError) -> Result<(), SelectError> {
        if !error.is_damage() {
            return Err(error.into());
        }
        let cursor = if section == Section::Chunks { &mut self.chunks } else { &mut self.windows };
        let Some(keys) = cursor.skip_damaged_keys()? else { return Ok(()) };
        let area = area_of(self.partition_of(section), section, &keys);
        self.meet(section, area, keys.error.into());
        Ok(())
    }

    /// Returns a value that was read; `None` if it is damaged or must be skipped. Records new damage.
    fn readable<T>(&self, place: Place<'_>, read: Result<T, Corruption>) -> Option<T> {
        if self.part.damage.skips(place.key) {
            return None;
        }
        read.map_err(|damage| self.meet(place.section, place.area, damage.into())).ok()
    }

    /// Records the damage that a visit found. An error other than damage ends the query.
    fn visited(&self, place: Place<'_>, visited: Result<(), VisitError>) -> Result<(), SelectError> {
        let Err(error) = visited else { return Ok(()) };
        match error.of_value(place.key) {
            SelectError::Engine(damage) if damage.is_damage() => {
                // Some samples of the value may have been counted already, so the value must not be read again.
                let damage = if damage.is_content() { corrupt(place.key).into() } else { damage };
                self.meet(place.section, place.area, damage);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Reads all planned data of a series. Fails if the query was cancelled.
    pub(crate) fn read(&mut self, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
        if !(self.is_wanted)() {
            return Err(SelectError::Cancelled);
        }
        self.read_planned(series, visitor)
    }

    fn read_planned(&mut self, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
        for run in self.part.runs_of(series) {
            let head = || self.part.key.in_tier(Tier::Raw).section(Section::Head);
            visit_run(&self.part.plan.raw, run, visitor).map_err(|error| error.of_value(&head()))?;
        }
        if !visitor.is_done() {
            self.read_windows(series, visitor)?;
        }
        if !visitor.is_done() {
            let mut minute = std::mem::take(&mut self.minute);
            let read = self.read_chunks(series, &mut minute, visitor);
            if minute.samples.times_ns.capacity() <= SAMPLES_KEPT_MAX {
                self.minute = minute;
            }
            read?;
        }
        Ok(())
    }

    /// Returns whether any planned data of a series has a sample. Fails if the query was cancelled.
    pub(crate) fn has_samples(&mut self, series: &SeriesView) -> Result<bool, SelectError> {
        if !(self.is_wanted)() {
            return Err(SelectError::Cancelled);
        }
        if series.has_samples {
            return Ok(true);
        }
        let raw = &self.part.plan.raw;
        // The first and the last time of a run are known without its samples.
        for run in self.part.runs_of(series) {
            let (first_ns, last_ns) = run.times_ns();
            if covers(raw, first_ns) || covers(raw, last_ns) {
                return Ok(true);
            }
        }
        let mut any = AnySample::default();
        self.read_planned(series, &mut any)?;
        self.sample_times.extend(any.chunk_ns.map(|times_ns| (series.number, times_ns)));
        Ok(any.is_found)
    }

    fn read_windows(&mut self, series: &SeriesView, visitor: &mut impl Visitor) -> Result<(), SelectError> {
        // Minutes are stored under the window number of their chunk.
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
                Err(error) => {
                    self.skip_damage(Section::Windows, error)?;
                    continue;
                }
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
            let place = Place { section: Section::Windows, area: Area::value(number, value_window), key };
            let stored = frame::open(key, value)
                .and_then(|value| windows::decode(value, values, value_window).ok_or_else(|| corrupt(key)));
            if let Some(stored) = self.readable(place, stored) {
                self.visit_windows(place, &stored, window, runs, visitor)?;
            }
            if visitor.is_done() {
                break;
            }
            self.windows.next();
        }
        Ok(())
    }

    /// Visits the planned windows of a stored value. The first window of the value has the number `first`.
    fn visit_windows(
        &self,
        place: Place<'_>,
        stored: &[StoredWindow<'_>],
        first: u32,
        runs: &[WindowRun],
        visitor: &mut impl Visitor,
    ) -> Result<(), SelectError> {
        let run_of = |stored: &StoredWindow<'_>| {
            let window = first.saturating_add(stored.slot.into());
            let run = runs.get(runs.partition_point(|run| run.end <= window)).filter(|run| run.first <= window);
            run.map(|run| run.bucket)
        };
        for of_bucket in stored.chunk_by(|a, b| run_of(a) == run_of(b)) {
            let Some(bucket) = of_bucket.first().and_then(run_of) else { continue };
            for StoredWindow { samples, total, last_ns, sums, .. } in windows::joined(of_bucket) {
                let read = ReadSums { samples, total, last_ns, sums };
                self.visited(place, visitor.sums(bucket, &read))?;
                if visitor.is_done() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn read_chunks(
        &mut self,
        series: &SeriesView,
        minute: &mut MinuteColumns,
        visitor: &mut impl Visitor,
    ) -> Result<(), SelectError> {
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
                Err(error) => {
                    self.skip_damage(Section::Chunks, error)?;
                    continue;
                }
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
            let place = Place { section: Section::Chunks, area: Area::value(number, window), key };
            let chunk =
                frame::open(key, value).and_then(|value| Chunk::read(value, window).ok_or_else(|| corrupt(key)));
            if let Some(chunk) = self.readable(place, chunk) {
                let visited = self.visit_chunk(StoredChunk { key, chunk: &chunk }, intervals, minute, visitor);
                self.visited(place, visited)?;
            }
            if visitor.is_done() {
                break;
            }
            self.chunks.next();
        }
        Ok(())
    }

    /// Visits the planned part of a chunk. The first of `intervals` is the first interval that ends after the chunk's
    /// window begins.
    fn visit_chunk(
        &self,
        stored: StoredChunk<'_>,
        intervals: &[Interval],
        minute: &mut MinuteColumns,
        visitor: &mut impl Visitor,
    ) -> Result<(), VisitError> {
        let chunk = stored.chunk;
        let wanted = &intervals[intervals.partition_point(|interval| interval.end_ns < chunk.first_ns)..];
        let Some(first) = wanted.first().filter(|first| first.start_ns < chunk.last_ns) else { return Ok(()) };
        let is_inside = first.start_ns < chunk.first_ns && chunk.last_ns <= first.end_ns;
        // The times of the first and the last sample are known without the events.
        let has_sample = || covers(wanted, chunk.first_ns) || covers(wanted, chunk.last_ns);
        let is_known = is_inside || visitor.takes_any() && has_sample();
        match if is_known { visitor.needs(chunk.first_ns, chunk.last_ns) } else { Need::Samples } {
            Need::Nothing => Ok(()),
            Need::Sums => {
                let read = ReadSums { samples: chunk.samples, total: chunk.total, last_ns: None, sums: chunk.sums };
                visitor.sums(first.bucket, &read)
            }
            Need::Samples => stored.read_samples(self.snapshot, wanted, minute, visitor),
        }
    }
}

/// Returns the series and window numbers in the key of a chunk or of a value of windows.
fn numbers_of(key: &[u8]) -> Result<(u32, u32), EngineError> {
    let numbers = PartitionKey::section_of(key).and_then(|(_, rest)| two_numbers(rest));
    let (series, window, _) = numbers.ok_or_else(|| corrupt(key))?;
    Ok((series, window))
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}
