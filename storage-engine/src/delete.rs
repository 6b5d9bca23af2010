//! Deleting samples by selector and time: an entry, done when it is applied.
//!
//! Raw samples go exactly. Where they were dropped already, windows of coarser tiers that hold any of the time go whole: what is
//! to be deleted never stays. Windows made of what changed are stale until they are summed up again. Series are selected by their
//! labels; where those of a tier do not say whether a series matches, nothing is deleted at all, and the outcome says why.
//!
//! It is written in pieces of bounded size, the position last. A piece is whole windows and what becomes stale of them; a deletion
//! that was cut short is applied again, and comes to the same.

use proto::entry::Deletion;
use proto::{Samples, Tier, Window};
use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};

use crate::chunk::{Chunk, Scratch};
use crate::database::{self, unlogged};
use crate::encoding::frame;
use crate::engine::Engine;
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::flush::{events_key, stale_key};
use crate::key::{self, PartitionKey, Section, StaleKey, two_numbers};
use crate::matcher::{ReadyMatcher, on_series};
use crate::partition::LeftOut;
use crate::seal::{Place, Sealing, write_chunk, write_minutes};
use crate::windows::{self, Minutes, WindowRows};
use crate::{Outcome, Position};

/// What is written at once.
const PIECE_BYTES: usize = 1 << 20;

/// A series to delete from.
#[derive(Clone, Copy)]
struct Selected {
    /// Of the partition in which it is deleted.
    key: PartitionKey,
    series: u32,
    is_gauge: bool,
}

/// What a deletion has come to so far, and the piece that is to be written.
#[derive(Default)]
struct Changes {
    batch: WriteBatch,
    stale: Vec<StaleKey>,
    samples: u64,
    windows: u64,
    scratch: Scratch,
}

/// Whether a deletion can be proposed: it has matchers, and they can be used.
///
/// # Errors
/// [`SelectError::BadRegex`], [`SelectError::TooManyRegexes`], [`SelectError::SelectsEverything`].
pub fn check_deletion(deletion: &Deletion) -> Result<(), SelectError> {
    if deletion.matchers.is_empty() {
        return Err(SelectError::SelectsEverything);
    }
    ReadyMatcher::all(&deletion.matchers).map(drop)
}

impl Engine {
    pub(crate) fn delete(&self, position: Position, now_ns: i64, deletion: &Deletion) -> Result<Outcome, EngineError> {
        let _writing = self.writing.lock();
        // A matcher that is none was refused when the deletion was proposed; here it would differ between versions.
        let matchers =
            deletion.matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>().unwrap_or_default();
        let mut selected = Vec::new();
        if !matchers.is_empty() {
            self.complete_coarser(deletion)?;
            for key in self.partitions_of(deletion) {
                match self.selected(key, &matchers)? {
                    Ok(of_partition) => selected.extend(of_partition),
                    Err(matcher) => {
                        return Ok(self.pass(position, now_ns, Outcome::Undecidable { tier: key.tier, matcher }));
                    }
                }
            }
        }
        if selected.is_empty() {
            return Ok(self.pass(position, now_ns, Outcome::Deleted { samples: 0, windows: 0 }));
        }
        // No sample of the time is in a head then.
        let behind_ns = deletion.window.end_ns.saturating_add(Tier::Raw.window_ns());
        self.write_all(WriteBatch::default(), Sealing::Before(behind_ns))?;
        let mut changes = Changes::default();
        for selected in selected {
            match selected.key.tier {
                Tier::Raw => self.delete_raw(selected, deletion.window, &mut changes)?,
                _ => self.delete_windows(selected, deletion.window, &mut changes)?,
            }
        }
        let clock_ns = self.state.read().clock_ns.max(now_ns);
        database::put(&mut changes.batch, key::CLOCK, &clock_ns.to_be_bytes());
        database::put_position(&mut changes.batch, &position);
        self.write_piece(&mut changes)?;
        let Changes { samples, windows, .. } = changes;
        Ok(self.pass(position, now_ns, Outcome::Deleted { samples, windows }))
    }

    fn pass(&self, position: Position, now_ns: i64, outcome: Outcome) -> Outcome {
        let mut state = self.state.write();
        state.applied = Some(position);
        state.clock_ns = state.clock_ns.max(now_ns);
        outcome
    }

    /// What of a deletion is ready to be written.
    fn write_piece(&self, changes: &mut Changes) -> Result<(), EngineError> {
        let mut batch = std::mem::take(&mut changes.batch);
        changes.stale.iter().for_each(|stale| database::put(&mut batch, &stale.bytes(), &[]));
        // Stale first: whoever plans from now on asks the windows that they are made of.
        self.state.write().stale.extend(changes.stale.drain(..));
        Ok(self.database.write_opt(batch, &unlogged())?)
    }

    fn write_if_large(&self, changes: &mut Changes) -> Result<(), EngineError> {
        if changes.batch.size_in_bytes() >= PIECE_BYTES { self.write_piece(changes) } else { Ok(()) }
    }

    /// Seals and rolls up everything that the verdict depends on, so that the verdict follows from the log alone: a partition of
    /// hours or days learns its series, and the names that it skips, when windows are rolled up, and each replica does that by
    /// itself. The caller holds `writing`.
    fn complete_coarser(&self, deletion: &Deletion) -> Result<(), EngineError> {
        let Window { start_ns, end_ns } = deletion.window;
        let complete_ns = {
            let state = self.state.read();
            let ends_ns = |&(finer, class): &(Tier, u8)| {
                let coarser = finer.coarser().filter(|&coarser| coarser != Tier::Minute)?;
                let gone_ns = state.horizon_ns(finer, class).min(end_ns);
                (start_ns < gone_ns).then(|| PartitionKey::of(coarser, class, 0, gone_ns).end_ns())
            };
            state.expired.keys().filter_map(ends_ns).max()
        };
        let Some(complete_ns) = complete_ns else { return Ok(()) };
        self.write_all(WriteBatch::default(), Sealing::Before(complete_ns))?;
        self.roll_up(complete_ns)
    }

    /// Partitions with samples of the time, raw ones by that of their minutes, in which something goes: of coarser tiers those where
    /// what they were made of is gone. The others are summed up again.
    fn partitions_of(&self, deletion: &Deletion) -> Vec<PartitionKey> {
        let state = self.state.read();
        let tenant = state.tenants.get(&deletion.tenant).copied();
        let Window { start_ns, end_ns } = deletion.window;
        let is_touched = |key: &&PartitionKey| {
            let finer = Tier::from_number(key.tier.number().wrapping_sub(1));
            let gone_ns = finer.map_or(i64::MAX, |finer| state.horizon_ns(finer, key.class));
            Some(key.tenant) == tenant
                && key.overlaps(start_ns, end_ns)
                && start_ns < gone_ns
                && key.start_ns() < gone_ns
        };
        state.existing.iter().filter(is_touched).copied().collect()
    }

    /// The series that match; or, as the error, the matcher of which the partition's series do not say whether they do: its label
    /// was left out of the tier, or samples have it as an attribute.
    fn selected(
        &self,
        key: PartitionKey,
        matchers: &[ReadyMatcher],
    ) -> Result<Result<Vec<Selected>, usize>, EngineError> {
        let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
        let Some(partition) = self.partition(named)? else { return Ok(Ok(Vec::new())) };
        let partition = partition.read();
        let is_unsaid = |name: &str| {
            partition.is_attribute(name)
                || partition.left_out().any(|left_out| match left_out {
                    LeftOut::Label(of) | LeftOut::Attribute(of) => of == name,
                })
        };
        let (mut selected, mut undecided) = (Vec::new(), None);
        for series in partition.index.matching(matchers, is_unsaid) {
            let labels = partition.series.get_index(series as usize);
            let Some(absent) = labels.and_then(|(_, labels)| on_series(matchers, labels)) else { continue };
            if let Some(unsaid) = absent.iter().find(|matcher| is_unsaid(&matcher.name)) {
                // The first one of all series: their order is that in which this replica rolled them up.
                let place = matchers.iter().position(|matcher| std::ptr::eq(matcher, *unsaid)).unwrap_or_default();
                undecided = Some(undecided.map_or(place, |first: usize| first.min(place)));
            } else if absent.iter().all(|matcher| matcher.accepts("")) {
                selected.push(Selected { key, series, is_gauge: partition.is_gauge(series) });
            }
        }
        Ok(undecided.map_or(Ok(selected), Err))
    }

    /// What a section has of a series in the windows that hold any of a time.
    fn stored(
        &self,
        Selected { key, series, .. }: Selected,
        section: Section,
        time: Window,
    ) -> impl Iterator<Item = Result<database::Item, rocksdb::Error>> + '_ {
        // Minutes are stored by the window of their chunk.
        let values = if key.tier == Tier::Minute { Tier::Raw } else { key.tier };
        let first = values.window_of(time.start_ns.max(key.start_ns()).saturating_add(1));
        let last = values.window_of(time.end_ns.min(key.end_ns()));
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key.series_window(section, series, last.saturating_add(1)));
        let from = key.series_window(section, series, first);
        self.database.iterator_opt(IteratorMode::From(&from, Direction::Forward), options)
    }

    fn delete_raw(&self, selected: Selected, deleted: Window, changes: &mut Changes) -> Result<(), EngineError> {
        let Selected { key: raw, series, .. } = selected;
        let mut before = None;
        for item in self.stored(selected, Section::Chunks, deleted) {
            let (at, value) = item?;
            let window = window_of(&at)?;
            let is_first = before.replace(window) != Some(window);
            if is_first {
                self.write_if_large(changes)?;
                changes.stale.push(hour_of(raw, series, window));
            }
            let is_inside = deleted.start_ns <= Tier::Raw.window_start_ns(window)
                && Tier::Raw.window_end_ns(window) <= deleted.end_ns;
            if !is_inside {
                if is_first {
                    self.cut_window(selected, window, deleted, changes)?;
                }
                continue;
            }
            // Its events need not be read to go.
            let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
            let chunk = Chunk::read(frame::open(&at, &value)?, window).ok_or_else(corrupt)?;
            changes.samples += chunk.samples;
            changes.batch.delete(&at);
            if chunk.has_own_events() {
                changes.batch.delete(events_key(&at));
            }
            changes.batch.delete(raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window));
        }
        self.write_if_large(changes)
    }

    /// A window on an edge of the time: what lies outside stays, with its minutes.
    fn cut_window(
        &self,
        Selected { key: raw, series, is_gauge }: Selected,
        window: u32,
        deleted: Window,
        changes: &mut Changes,
    ) -> Result<(), EngineError> {
        let mut minutes = Minutes::default();
        let Changes { batch, scratch, .. } = changes;
        for (key, before) in self.chunks_of(raw, window, series)? {
            let mut left = Samples::default();
            keep_outside(&self.samples_of(&key, window)?, deleted, &mut left);
            batch.delete(&key);
            batch.delete(events_key(&key));
            changes.samples += before - left.len() as u64;
            if !left.is_empty() {
                let log_index = key.last_chunk().map_or(0, |index| u64::from_be_bytes(*index));
                write_chunk(Place { raw, window, series, is_gauge }, log_index, &left, scratch, batch)?;
                minutes.add(windows::minutes_of(&left, window, is_gauge, scratch), is_gauge);
            }
        }
        let minutes = minutes.into_windows();
        if minutes.is_empty() {
            batch.delete(raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window));
        } else {
            write_minutes(raw, (window, series), is_gauge, &minutes, batch);
        }
        Ok(())
    }

    /// Windows of a coarser tier, where what they were made of is gone: all that hold any of the time.
    fn delete_windows(&self, selected: Selected, deleted: Window, changes: &mut Changes) -> Result<(), EngineError> {
        let Selected { key, series, is_gauge } = selected;
        let tier = key.tier;
        let values = if tier == Tier::Minute { Tier::Raw } else { tier };
        let finer = Tier::from_number(tier.number().wrapping_sub(1));
        let gone_ns = finer.map_or(i64::MIN, |finer| self.state.read().horizon_ns(finer, key.class));
        for item in self.stored(selected, Section::Windows, deleted) {
            let (at, value) = item?;
            let window = window_of(&at)?;
            let (start_ns, end_ns) = (values.window_start_ns(window), values.window_end_ns(window));
            // Where the finer tier has it still, it is summed up again.
            if end_ns > gone_ns {
                continue;
            }
            let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
            let stored = windows::decode(frame::open(&at, &value)?, values, window).ok_or_else(corrupt)?;
            let (count, mut left) = (stored.len(), Vec::new());
            for stored in stored {
                let inner_ns =
                    if tier == Tier::Minute { start_ns + i64::from(stored.place) * tier.window_ns() } else { start_ns };
                if inner_ns + tier.window_ns() <= deleted.start_ns || deleted.end_ns <= inner_ns {
                    let mut rows = Vec::new();
                    let read = stored.sums.for_each(|pair, sum| {
                        rows.push((pair, sum));
                        Some(())
                    });
                    read.ok_or_else(corrupt)?;
                    rows.sort_unstable_by_key(|row| row.0);
                    let last_ns = stored.last_ns.unwrap_or_default();
                    left.push(WindowRows { place: stored.place, samples: stored.samples, last_ns, rows });
                }
            }
            changes.windows += (count - left.len()) as u64;
            if left.is_empty() {
                changes.batch.delete(&at);
            } else {
                changes.batch.put(&at, frame::seal(&at, &windows::encode(&left, is_gauge, start_ns)));
            }
            if let Some(coarser) = tier.coarser() {
                changes.stale.push(stale_key(key, coarser, coarser.window_of(end_ns), series));
            }
            self.write_if_large(changes)?;
        }
        Ok(())
    }
}

/// The window in a key of a partition whose numbers are series and window.
fn window_of(key: &[u8]) -> Result<u32, Corruption> {
    let numbers = PartitionKey::section_of(key).and_then(|(_, rest)| two_numbers(rest));
    let wrong = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
    numbers.map(|(_, window, _)| window).ok_or_else(wrong)
}

/// The hour of a chunk's window.
fn hour_of(raw: PartitionKey, series: u32, window: u32) -> StaleKey {
    stale_key(raw, Tier::Hour, window / Tier::Raw.windows_in(Tier::Hour), series)
}

fn keep_outside(samples: &Samples, deleted: Window, to: &mut Samples) {
    for i in 0..samples.len() {
        let time = samples.times_ns[i];
        if time <= deleted.start_ns || deleted.end_ns < time {
            to.push(time, samples.pairs[i], samples.values[i], samples.attribute_sets[i]);
        }
    }
}
