//! Deletes samples by selector and time, when the entry is applied.
//!
//! Raw samples are deleted exactly. If they were dropped before, coarser windows that overlap the time are deleted
//! entirely, so that no data of a deletion remains. Windows with deleted samples are stale until they are summed up
//! again. Series are selected by their labels. If a tier dropped a label that decides whether a series matches, nothing
//! is deleted, and the outcome gives the reason.
//!
//! The deletion is written in pieces of bounded size, and the position is written last. A piece holds whole windows
//! and their stale marks. An interrupted deletion is applied again, with the same result.

use proto::entry::Deletion;
use proto::{Samples, Tier, Window};
use rocksdb::WriteBatch;

use crate::database::frame;
use crate::database::key::{self, PartitionKey, Section, StaleKey, events_key, stale_key, two_numbers};
use crate::database::stored_rows::read_rows;
use crate::database::{self, Snapshot, unlogged};
use crate::encoding::chunk::Scratch;
use crate::encoding::windows::{self, Minutes, WindowRows};
use crate::engine::Engine;
use crate::engine::upkeep::seal::{Sealing, SeriesWindow, StoredChunk, StoredChunks, write_chunk, write_minutes};
use crate::engine::write_lock::Writing;
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::integrity::quarantine::area::{Area, area_of};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::memory::dropped_name::DroppedName;
use crate::memory::matcher::{ReadyMatcher, on_series};
use crate::{Outcome, Position};

/// Size of a piece, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Series to delete from.
#[derive(Clone, Copy)]
pub(crate) struct Selected {
    /// Partition that is deleted from.
    pub(crate) key: PartitionKey,
    pub(crate) series: u32,
    is_gauge: bool,
}

/// Progress of a deletion, and the piece to write next.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) batch: WriteBatch,
    pub(crate) stale: Vec<StaleKey>,
    /// Values that are deleted entirely, together with their damage: partition, series and window.
    gone: Vec<(PartitionKey, u32, u32)>,
    samples: u64,
    windows: u64,
    scratch: Scratch,
}

/// Checks whether a deletion can be proposed: it has matchers, and they are valid.
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
        let writing = self.writing.lock();
        // Invalid matchers were refused when the deletion was proposed. A check here would differ between versions.
        let matchers =
            deletion.matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>().unwrap_or_default();
        let mut selected = Vec::new();
        if !matchers.is_empty() {
            self.complete_coarser(&writing, deletion)?;
            for key in self.partitions_of(deletion) {
                match self.selected(key, &matchers)? {
                    Ok(of_partition) => selected.extend(of_partition),
                    Err(matcher) => {
                        return Ok(self.pass(position, now_ns, Outcome::Undecidable { tier: key.tier, matcher }));
                    }
                }
            }
        }
        if !matchers.is_empty() {
            self.delete_damaged_partitions(deletion, &matchers)?;
        }
        if selected.is_empty() {
            return Ok(self.pass(position, now_ns, Outcome::Deleted { samples: 0, windows: 0 }));
        }
        // After this write, no head has samples of the time.
        let sealed_ns = deletion.window.end_ns.saturating_add(Tier::Raw.window_ns());
        self.write_all(&writing, WriteBatch::default(), Sealing::Before(sealed_ns))?;
        let mut changes = Changes::default();
        for selected in selected {
            match selected.key.tier {
                Tier::Raw => self.delete_raw(selected, deletion.window, &mut changes)?,
                _ => self.delete_windows(selected, deletion.window, &mut changes)?,
            }
        }
        let clock_ns = self.state.read().clock.entries_ns().max(now_ns);
        database::put(&mut changes.batch, key::CLOCK, &clock_ns.to_be_bytes());
        database::put_position(&mut changes.batch, &position);
        self.write_piece(&mut changes)?;
        let Changes { samples, windows, .. } = changes;
        Ok(self.pass(position, now_ns, Outcome::Deleted { samples, windows }))
    }

    fn pass(&self, position: Position, now_ns: i64, outcome: Outcome) -> Outcome {
        self.state.write().apply(position, now_ns);
        outcome
    }

    /// Writes the current piece.
    fn write_piece(&self, changes: &mut Changes) -> Result<(), EngineError> {
        let mut batch = std::mem::take(&mut changes.batch);
        changes.stale.iter().for_each(|stale| database::put(&mut batch, &stale.bytes(), &[]));
        let damage = {
            let mut state = self.state.write();
            // Windows are marked stale first, so that a query planned from now on reads their finer windows.
            state.stale.extend(changes.stale.drain(..));
            changes.gone.drain(..).for_each(|(key, series, window)| state.damage.restored(key, series, window));
            state.damage.unwritten()
        };
        damage.write(&mut batch);
        self.database.write_opt(batch, &unlogged())?;
        self.state.write().damage.wrote(&damage);
        Ok(())
    }

    fn write_if_large(&self, changes: &mut Changes) -> Result<(), EngineError> {
        if changes.batch.size_in_bytes() >= PIECE_BYTES { self.write_piece(changes) } else { Ok(()) }
    }

    /// Seals and rolls up everything on which the verdict depends, so that the verdict follows from the log alone. A
    /// partition of hours or days gets its series and its dropped names when windows are rolled up, and replicas do
    /// that at different times.
    fn complete_coarser(&self, writing: &Writing<'_>, deletion: &Deletion) -> Result<(), EngineError> {
        let Window { start_ns, end_ns } = deletion.window;
        let complete_ns = {
            let state = self.state.read();
            let ends_ns = |(finer, class): (Tier, u8)| {
                let coarser = finer.coarser().filter(|&coarser| coarser != Tier::Minute)?;
                let gone_ns = state.horizons.horizon_ns(finer, class).min(end_ns);
                (start_ns < gone_ns).then(|| PartitionKey::of(coarser, class, 0, gone_ns).end_ns())
            };
            state.horizons.expired().filter_map(ends_ns).max()
        };
        let Some(complete_ns) = complete_ns else { return Ok(()) };
        self.write_all(writing, WriteBatch::default(), Sealing::Before(complete_ns))?;
        self.roll_up(writing, complete_ns)
    }

    /// Returns the partitions to delete from: raw samples, and coarser tiers if the finer one was dropped. Other
    /// windows are summed up again.
    fn partitions_of(&self, deletion: &Deletion) -> Vec<PartitionKey> {
        let state = self.state.read();
        let tenant = state.tenants.number(&deletion.tenant);
        let Window { start_ns, end_ns } = deletion.window;
        let is_touched = |key: &&PartitionKey| {
            let finer = Tier::from_number(key.tier.number().wrapping_sub(1));
            let gone_ns = finer.map_or(i64::MAX, |finer| state.horizons.horizon_ns(finer, key.class));
            Some(key.tenant) == tenant
                && key.overlaps(start_ns, end_ns)
                && start_ns < gone_ns
                && key.start_ns() < gone_ns
        };
        state.partitions.existing().iter().filter(is_touched).copied().collect()
    }

    /// Returns the matching series, or as the inner error the index of the first undecided matcher. A matcher is
    /// undecided if the tier dropped its label, or if samples have it as an attribute.
    pub(crate) fn selected(
        &self,
        key: PartitionKey,
        matchers: &[ReadyMatcher],
    ) -> Result<Result<Vec<Selected>, usize>, EngineError> {
        let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
        let partition = match self.partition(named) {
            Ok(Some(partition)) => partition,
            Ok(None) => return Ok(Ok(Vec::new())),
            // The partition is dropped as a whole, because its series cannot be matched.
            Err(error) if error.is_damage() => return Ok(Ok(Vec::new())),
            Err(error) => return Err(error),
        };
        let partition = partition.read();
        let is_undecided = |name: &str| {
            partition.is_attribute(name)
                || partition.dropped_names().any(|left_out| match left_out {
                    DroppedName::Label(of) | DroppedName::Attribute(of) => of == name,
                })
        };
        let mut selected = Vec::new();
        let mut undecided = None;
        for series in partition.index.matching(matchers, is_undecided) {
            let labels = partition.series.get_index(series as usize);
            let Some(absent) = labels.and_then(|(_, labels)| on_series(matchers, labels)) else { continue };
            if let Some(undecided_by) = absent.iter().find(|matcher| is_undecided(&matcher.name)) {
                // The first matcher over all series: their order depends on when this replica rolled them up.
                let index =
                    matchers.iter().position(|matcher| std::ptr::eq(matcher, *undecided_by)).unwrap_or_default();
                undecided = Some(undecided.map_or(index, |first: usize| first.min(index)));
            } else if absent.iter().all(|matcher| matcher.accepts("")) {
                selected.push(Selected { key, series, is_gauge: partition.is_gauge(series) });
            }
        }
        Ok(undecided.map_or(Ok(selected), Err))
    }

    /// Walks the values of a series in a section whose windows overlap a time.
    fn stored<'a>(snapshot: &'a Snapshot<'_>, selected: Selected, section: Section, time: Window) -> Walk<'a> {
        let Selected { key, series, .. } = selected;
        let values = values_of(key.tier);
        let first = values.window_of(time.start_ns.max(key.start_ns()).saturating_add(1));
        let last = values.window_of(time.end_ns.min(key.end_ns()));
        let end = key.series_window(section, series, last.saturating_add(1));
        Walk::between(snapshot, key.series_window(section, series, first), end, true)
    }

    fn delete_raw(&self, selected: Selected, deleted: Window, changes: &mut Changes) -> Result<(), EngineError> {
        let Selected { key: raw, series, .. } = selected;
        self.delete_lost_chunks(selected, deleted, changes);
        let mut before = None;
        let snapshot = self.database.snapshot();
        let mut walk = Self::stored(&snapshot, selected, Section::Chunks, deleted);
        while let Some(item) = walk.next()? {
            let (at, value) = match item {
                Ok(item) => item,
                Err(keys) => {
                    let windows = area_of(raw, Section::Chunks, &keys).windows;
                    for section in [Section::Chunks, Section::Events] {
                        let from = raw.series_window(section, series, windows.0);
                        changes
                            .batch
                            .delete_range(from, raw.series_window(section, series, windows.1.saturating_add(1)));
                    }
                    self.delete_damaged_chunks(selected, windows, keys.error.as_ref(), changes);
                    continue;
                }
            };
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
                    self.delete_in_window(selected, window, deleted, changes)?;
                }
                continue;
            }
            // Its events are deleted unread. The number of samples of a damaged chunk is unknown.
            changes.samples += Self::count_of(&at, &value, window).unwrap_or_default();
            changes.batch.delete(&at);
            changes.batch.delete(events_key(&at));
            let minutes = raw.in_tier(Tier::Minute);
            changes.batch.delete(minutes.series_window(Section::Windows, series, window));
            changes.gone.extend([(raw, series, window), (minutes, series, window)]);
        }
        self.write_if_large(changes)
    }

    /// Deletes part of a window at an edge of the time, and rebuilds its minutes. A damaged chunk is deleted.
    fn delete_in_window(
        &self,
        Selected { key: raw, series, is_gauge }: Selected,
        window: u32,
        deleted: Window,
        changes: &mut Changes,
    ) -> Result<(), EngineError> {
        let mut minutes = Minutes::default();
        let Changes { batch, scratch, .. } = changes;
        let at = SeriesWindow { raw, window, series, is_gauge };
        let StoredChunks { chunks, mut damage } = self.chunks_of(raw, window, series)?;
        let mut kept = Vec::new();
        for StoredChunk { key, samples: before } in chunks {
            let mut left = Samples::default();
            match self.samples_of(&key, window) {
                Ok(samples) => keep_outside(&samples, deleted, &mut left),
                Err(error) if error.is_damage() => {
                    damage = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            batch.delete(&key);
            batch.delete(events_key(&key));
            changes.samples += before - left.len() as u64;
            if !left.is_empty() {
                kept.push((key.last_chunk().map_or(0, |index| u64::from_be_bytes(*index)), left));
            }
        }
        if damage.is_some() {
            for section in [Section::Chunks, Section::Events] {
                let from = raw.series_window(section, series, window);
                batch.delete_range(from, raw.series_window(section, series, window.saturating_add(1)));
            }
        }
        for (log_index, left) in kept {
            write_chunk(at, log_index, &left, scratch, batch)?;
            minutes.add(windows::minutes_of(&left, window, is_gauge, scratch), is_gauge);
        }
        let of_minutes = raw.in_tier(Tier::Minute);
        if let Some(damage) = damage {
            let area = Area::value(series, window);
            self.state.write().quarantine_in_all_tiers(of_minutes, area, &damage.to_string());
        }
        let minutes = minutes.into_windows();
        if minutes.is_empty() {
            batch.delete(of_minutes.series_window(Section::Windows, series, window));
        } else {
            write_minutes(at, &minutes, batch);
        }
        Ok(())
    }

    /// Deletes windows of a coarser tier that overlap the time, if the finer tier was dropped.
    fn delete_windows(&self, selected: Selected, deleted: Window, changes: &mut Changes) -> Result<(), EngineError> {
        let Selected { key, series, is_gauge } = selected;
        let tier = key.tier;
        let values = values_of(tier);
        let finer = Tier::from_number(tier.number().wrapping_sub(1));
        let gone_ns = finer.map_or(i64::MIN, |finer| self.state.read().horizons.horizon_ns(finer, key.class));
        let snapshot = self.database.snapshot();
        let mut walk = Self::stored(&snapshot, selected, Section::Windows, deleted);
        while let Some(item) = walk.next()? {
            let (at, value) = match item {
                Ok(item) => item,
                Err(keys) => {
                    // Values that cannot be read are deleted too. Their area stays.
                    self.quarantine_keys(key, Section::Windows, &keys);
                    changes.batch.delete_range(&keys.from, &keys.to);
                    continue;
                }
            };
            let window = window_of(&at)?;
            let start_ns = values.window_start_ns(window);
            let end_ns = values.window_end_ns(window);
            // If the finer tier still has the window, it is summed up again.
            if end_ns > gone_ns {
                continue;
            }
            let stored = read_rows(&at, &value, values, window).unwrap_or_else(|damage| {
                self.quarantine_value(key, series, window, &damage.into());
                Vec::new()
            });
            let count = stored.len();
            let is_left = |stored: &WindowRows| {
                let inner_ns =
                    if tier == Tier::Minute { start_ns + i64::from(stored.slot) * tier.window_ns() } else { start_ns };
                inner_ns + tier.window_ns() <= deleted.start_ns || deleted.end_ns <= inner_ns
            };
            let left: Vec<WindowRows> = stored.into_iter().filter(is_left).collect();
            changes.windows += (count - left.len()) as u64;
            if left.is_empty() {
                changes.batch.delete(&at);
            } else {
                changes.batch.put(&at, frame::seal(&at, &windows::encode(&left, is_gauge, start_ns)));
            }
            if deleted.start_ns <= start_ns && end_ns <= deleted.end_ns {
                changes.gone.push((key, series, window));
            }
            if let Some(coarser) = tier.coarser() {
                changes.stale.push(stale_key(key, coarser, coarser.window_of(end_ns), series));
            }
            self.write_if_large(changes)?;
        }
        Ok(())
    }
}

/// Returns the tier that numbers the values of a tier: minutes are stored by the window of their chunk.
fn values_of(tier: Tier) -> Tier {
    if tier == Tier::Minute { Tier::Raw } else { tier }
}

/// Returns the window number in a key that holds series and window.
fn window_of(key: &[u8]) -> Result<u32, Corruption> {
    let numbers = PartitionKey::section_of(key).and_then(|(_, rest)| two_numbers(rest));
    let wrong = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
    numbers.map(|(_, window, _)| window).ok_or_else(wrong)
}

/// Returns the stale key of the hour of a chunk's window.
pub(crate) fn hour_of(raw: PartitionKey, series: u32, window: u32) -> StaleKey {
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
