//! Deletes samples by selector and time when a deletion entry is applied.
//!
//! Raw samples are deleted exactly. Where raw samples have expired already, coarser windows that overlap the time are
//! deleted entirely, so that nothing remains of the samples to delete.
//! Windows with deleted samples are stale until they are summed up again. Series are selected by their labels. If a
//! tier dropped a label that decides whether a series matches, nothing is deleted, and the outcome names the tier and
//! the matcher.
//!
//! The deletion is written in pieces of bounded size, and the log position is written last. A piece holds whole windows
//! and their stale marks. After an interruption, the deletion is applied again, with the same result.

use std::collections::BTreeSet;

use proto::entry::Deletion;
use proto::{Samples, Tier, Window};
use rocksdb::WriteBatch;

use crate::database::frame;
use crate::database::key::{self, PartitionKey, Section, StaleKey, events_key, numbered, stale_key, two_numbers};
use crate::database::stored_rows::read_rows;
use crate::database::{self, Snapshot};
use crate::encoding::chunk::Scratch;
use crate::encoding::windows::{self, Minutes, WindowRows};
use crate::engine::apply::selected::{Selected, partitions_of, selected_in};
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::write_all;
use crate::engine::upkeep::roll_up::roll_up;
use crate::engine::upkeep::seal::{Sealing, SeriesWindow, write_chunk, write_minutes};
use crate::engine::upkeep::stored_chunks::{WindowChunk, WindowChunks, chunks_of, count_of, samples_of};
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::integrity::quarantine::area::{Area, area_of};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::quarantine::deletion::{delete_damaged_chunks, delete_damaged_partitions, delete_lost_chunks};
use crate::integrity::quarantine::found_damage::{quarantine_keys, quarantine_value};
use crate::memory::matcher::ReadyMatcher;
use crate::{Outcome, Position};

/// Size, in bytes, at which a piece of a deletion is written.
const PIECE_BYTES: usize = 1 << 20;

/// Progress of a deletion, and the piece to write next.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) batch: WriteBatch,
    pub(crate) stale: Vec<StaleKey>,
    /// Partitions of minutes of which samples are deleted.
    minutes: BTreeSet<PartitionKey>,
    /// Partition, series and window of each value that is deleted entirely. Its damage record is deleted, too.
    gone: Vec<(PartitionKey, u32, u32)>,
    samples: u64,
    windows: u64,
    scratch: Scratch,
}

/// Checks that a deletion can be proposed: it must have matchers, and they must be valid.
///
/// # Errors
/// [`SelectError::BadRegex`], [`SelectError::TooManyRegexes`], [`SelectError::SelectsEverything`].
pub fn check_deletion(deletion: &Deletion) -> Result<(), SelectError> {
    if deletion.matchers.is_empty() {
        return Err(SelectError::SelectsEverything);
    }
    ReadyMatcher::all(&deletion.matchers).map(drop)
}

pub(crate) fn delete(
    writing: &Writing<'_>,
    position: Position,
    now_ns: i64,
    deletion: &Deletion,
) -> Result<Outcome, EngineError> {
    // Invalid matchers were refused when the deletion was proposed. If there is one nevertheless, nothing is deleted.
    let matchers = deletion.matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    let mut selected = Vec::new();
    if !matchers.is_empty() {
        complete_coarser(writing, deletion)?;
        for (key, window) in partitions_of(writing, deletion) {
            match selected_in(writing, key, window, &matchers)? {
                Ok(of_partition) => selected.extend(of_partition),
                Err(matcher) => {
                    return Ok(pass(writing, position, now_ns, Outcome::Undecidable { tier: key.tier, matcher }));
                }
            }
        }
    }
    if !matchers.is_empty() {
        delete_damaged_partitions(writing, deletion, &matchers)?;
    }
    if selected.is_empty() {
        return Ok(pass(writing, position, now_ns, Outcome::Deleted { samples: 0, windows: 0 }));
    }
    // After this write, no samples of the deleted time are only in a head.
    let sealed_ns = deletion.window.end_ns.saturating_add(Tier::Raw.window_ns());
    write_all(writing, WriteBatch::default(), Sealing::Before(sealed_ns))?;
    let minutes = selected.iter().map(|selected| selected.key).filter(|key| key.tier <= Tier::Minute);
    let minutes = minutes.map(|key| key.in_tier(Tier::Minute)).collect();
    let mut changes = Changes { minutes, ..Changes::default() };
    for selected in selected {
        match selected.key.tier {
            Tier::Raw => delete_raw(writing, selected, deletion.window, &mut changes)?,
            _ => delete_windows(writing, selected, deletion.window, &mut changes)?,
        }
    }
    let clock_ns = writing.state().clock.entries_ns().max(now_ns);
    database::put(&mut changes.batch, key::CLOCK, &clock_ns.to_be_bytes());
    database::put_position(&mut changes.batch, &position);
    write_piece(writing, &mut changes)?;
    let Changes { samples, windows, .. } = changes;
    Ok(pass(writing, position, now_ns, Outcome::Deleted { samples, windows }))
}

fn pass(store: &Store, position: Position, now_ns: i64, outcome: Outcome) -> Outcome {
    store.state_mut().apply(position, now_ns);
    outcome
}

/// Writes the current piece of a deletion.
fn write_piece(writing: &Writing<'_>, changes: &mut Changes) -> Result<(), EngineError> {
    let mut batch = std::mem::take(&mut changes.batch);
    changes.stale.iter().for_each(|stale| database::put(&mut batch, &stale.bytes(), &[]));
    // The lock is exclusive, so that no query knows a sample that the database has no longer.
    let mut state = writing.state_mut();
    // Windows are marked stale, so that a query planned from now on reads their finer windows.
    state.stale.extend(changes.stale.drain(..));
    changes.gone.drain(..).for_each(|(key, series, window)| state.damage.restored(key, series, window));
    let damage = state.damage.unwritten();
    damage.write(&mut batch);
    state.partitions.forget_samples(&changes.minutes);
    writing.write(batch)?;
    state.damage.wrote(&damage);
    Ok(())
}

fn write_if_large(writing: &Writing<'_>, changes: &mut Changes) -> Result<(), EngineError> {
    if changes.batch.size_in_bytes() >= PIECE_BYTES { write_piece(writing, changes) } else { Ok(()) }
}

/// Seals and rolls up all windows on which the outcome of a deletion depends, so that the outcome follows from the log
/// alone. Otherwise replicas could differ: a partition of hours or days gets its series and dropped names at rollup,
/// and each replica rolls up at its own time.
fn complete_coarser(writing: &Writing<'_>, deletion: &Deletion) -> Result<(), EngineError> {
    let Window { start_ns, end_ns } = deletion.window;
    let complete_ns = {
        let state = writing.state();
        let ends_ns = |(finer, class): (Tier, u8)| {
            let coarser = finer.coarser().filter(|&coarser| coarser != Tier::Minute)?;
            let gone_ns = state.horizons.horizon_ns(finer, class).min(end_ns);
            (start_ns < gone_ns).then(|| PartitionKey::of(coarser, class, 0, gone_ns).end_ns())
        };
        state.horizons.expired().filter_map(ends_ns).max()
    };
    let Some(complete_ns) = complete_ns else { return Ok(()) };
    write_all(writing, WriteBatch::default(), Sealing::Before(complete_ns))?;
    roll_up(writing, complete_ns)
}

/// Walks the values of a series in a section, limited to the windows that overlap the time.
fn stored<'a>(snapshot: &'a Snapshot<'_>, selected: Selected, section: Section, time: Window) -> Walk<'a> {
    let Selected { key, series, .. } = selected;
    let values = numbered(key.tier);
    let first = values.window_of(time.start_ns.max(key.start_ns()).saturating_add(1));
    let last = values.window_of(time.end_ns.min(key.end_ns()));
    let end = key.series_window(section, series, last.saturating_add(1));
    Walk::between(snapshot, key.series_window(section, series, first), end, true)
}

fn delete_raw(
    writing: &Writing<'_>,
    selected: Selected,
    deleted: Window,
    changes: &mut Changes,
) -> Result<(), EngineError> {
    let Selected { key: raw, series, .. } = selected;
    delete_lost_chunks(writing, selected, deleted, changes);
    let mut before = None;
    let snapshot = writing.database().snapshot();
    let mut walk = stored(&snapshot, selected, Section::Chunks, deleted);
    while let Some(item) = walk.next()? {
        let (at, value) = match item {
            Ok(item) => item,
            Err(keys) => {
                let windows = area_of(raw, Section::Chunks, &keys).windows;
                for section in [Section::Chunks, Section::Events] {
                    let from = raw.series_window(section, series, windows.0);
                    changes.batch.delete_range(from, raw.series_window(section, series, windows.1.saturating_add(1)));
                }
                delete_damaged_chunks(writing, selected, windows, keys.error.as_ref(), changes);
                continue;
            }
        };
        let window = window_of(&at)?;
        let is_first = before.replace(window) != Some(window);
        if is_first {
            write_if_large(writing, changes)?;
            changes.stale.push(hour_of(raw, series, window));
        }
        let is_inside =
            deleted.start_ns <= Tier::Raw.window_start_ns(window) && Tier::Raw.window_end_ns(window) <= deleted.end_ns;
        if !is_inside {
            if is_first {
                delete_in_window(writing, selected, window, deleted, changes)?;
            }
            continue;
        }
        // The chunk's events are deleted without being read. The samples of a damaged chunk are not counted, because
        // their number is unknown.
        changes.samples += count_of(&at, &value, window).unwrap_or_default();
        changes.batch.delete(&at);
        changes.batch.delete(events_key(&at));
        let minutes = raw.in_tier(Tier::Minute);
        changes.batch.delete(minutes.series_window(Section::Windows, series, window));
        changes.gone.extend([(raw, series, window), (minutes, series, window)]);
    }
    write_if_large(writing, changes)
}

/// Deletes the samples of a window that is only partly in the deleted time, and rebuilds the window's minutes. Damaged
/// chunks of the window are deleted entirely.
fn delete_in_window(
    writing: &Writing<'_>,
    Selected { key: raw, series, is_gauge }: Selected,
    window: u32,
    deleted: Window,
    changes: &mut Changes,
) -> Result<(), EngineError> {
    let mut minutes = Minutes::default();
    let Changes { batch, scratch, .. } = changes;
    let at = SeriesWindow { raw, window, series, is_gauge };
    let WindowChunks { chunks, mut damage } = chunks_of(writing, raw, window, series)?;
    let mut kept = Vec::new();
    for WindowChunk { key, samples: before } in chunks {
        let mut left = Samples::default();
        match samples_of(writing, &key, window) {
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
        writing.state_mut().quarantine_in_all_tiers(of_minutes, area, &damage.to_string());
    }
    let minutes = minutes.into_windows();
    if minutes.is_empty() {
        batch.delete(of_minutes.series_window(Section::Windows, series, window));
    } else {
        write_minutes(at, &minutes, batch);
    }
    Ok(())
}

/// Deletes windows of a coarser tier that overlap the deleted time, where the finer tier was dropped.
fn delete_windows(
    writing: &Writing<'_>,
    selected: Selected,
    deleted: Window,
    changes: &mut Changes,
) -> Result<(), EngineError> {
    let Selected { key, series, is_gauge } = selected;
    let tier = key.tier;
    let values = numbered(tier);
    let finer = Tier::from_number(tier.number().wrapping_sub(1));
    let gone_ns = finer.map_or(i64::MIN, |finer| writing.state().horizons.horizon_ns(finer, key.class));
    let snapshot = writing.database().snapshot();
    let mut walk = stored(&snapshot, selected, Section::Windows, deleted);
    while let Some(item) = walk.next()? {
        let (at, value) = match item {
            Ok(item) => item,
            Err(keys) => {
                // Values that cannot be read are deleted too. Their area stays marked as damaged.
                quarantine_keys(writing, key, Section::Windows, &keys);
                changes.batch.delete_range(&keys.from, &keys.to);
                continue;
            }
        };
        let window = window_of(&at)?;
        let start_ns = values.window_start_ns(window);
        let end_ns = values.window_end_ns(window);
        // A window that the finer tier still has is summed up again instead.
        if end_ns > gone_ns {
            continue;
        }
        let stored = read_rows(&at, &value, values, window).unwrap_or_else(|damage| {
            quarantine_value(writing, key, series, window, &damage.into());
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
        write_if_large(writing, changes)?;
    }
    Ok(())
}

/// Returns the window number of a key that holds a series and a window.
fn window_of(key: &[u8]) -> Result<u32, Corruption> {
    let numbers = PartitionKey::section_of(key).and_then(|(_, rest)| two_numbers(rest));
    let wrong = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
    numbers.map(|(_, window, _)| window).ok_or_else(wrong)
}

/// Returns the stale key of the hour that contains a chunk's window.
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
