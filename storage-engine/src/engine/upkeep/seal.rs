//! Sealing: writes the samples of one series in one window as one chunk, with the sums of its minutes.
//!
//! A window is sealed when its time is over. If the head is over its budget, windows are evicted earlier: each is
//! written as one or more chunks without minutes. An evicted window is stale until its time is over. Its chunks are
//! then merged into one, unless they are too large to hold at once. Neither eviction nor sealing changes a response.

use proto::{Samples, Tier};
use rocksdb::WriteBatch;

use crate::database;
use crate::database::frame;
use crate::database::key::{PartitionKey, Section, StaleKey, events_key, stale_key};
use crate::database::stored_rows::read_rows;
use crate::encoding::chunk::{self, Scratch};
use crate::encoding::windows::{self, Minutes, WindowRows};
use crate::engine::state::State;
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::stored_chunks::{WindowChunk, WindowChunks, chunks_of, samples_of};
use crate::error::{Corruption, CorruptionCheck, EngineError, is_corruption};
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::found_damage::quarantine_value;
use crate::memory::head::Frozen;
use crate::memory::run::joined;

/// Time after a window's end until it is sealed, by the state's clock. Late samples arrive in this time: agents send
/// every 5 s and retry.
pub(crate) const GRACE_NS: i64 = 60 * 1_000_000_000;
/// Time for which late samples of a sealed window are collected before the window is sealed again.
const LATE_NS: i64 = 600 * 1_000_000_000;
/// Longest time, by the state's clock, for which samples of a window that is not over are collected: three windows.
/// Only windows in the future are collected for so long. Without this limit, samples of senders whose clocks are ahead
/// would stay in memory until the state's clock catches up.
const AHEAD_NS: i64 = 1800 * 1_000_000_000;

/// Divisor of an engine's equal part of the budget of heads. A window whose samples exceed this fraction is not merged
/// into one chunk, because sorting and encoding take a multiple of the samples' memory. It is a fraction of the equal
/// part, because windows of all engines end at the same time.
const SEALED_PART: usize = 4;

/// Windows that a flush seals in addition to those that are over. Evictions do not depend on this choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealing {
    /// No additional windows.
    Due,
    /// Windows that end at or before this time, in nanoseconds.
    Before(i64),
}

impl Sealing {
    pub(crate) fn takes(self, window: u32) -> bool {
        matches!(self, Self::Before(end_ns) if Tier::Raw.window_end_ns(window) <= end_ns)
    }
}

/// Bytes of writes after which a piece of the evicted windows is written.
const PIECE_BYTES: usize = 1 << 20;

/// One window of one series of raw samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeriesWindow {
    pub(crate) raw: PartitionKey,
    pub(crate) window: u32,
    pub(crate) series: u32,
    pub(crate) is_gauge: bool,
}

/// Changes to the stale windows that accompany a write of values.
#[derive(Debug, Default)]
pub(crate) struct StaleChanges {
    stale: Vec<StaleKey>,
    no_longer_stale: Vec<StaleKey>,
    /// Partition, series and window of minutes that were rebuilt from all their samples.
    restored: Vec<(PartitionKey, u32, u32)>,
}

impl StaleChanges {
    /// Adds the deletion of the marks of windows that are no longer stale. Must be called after everything else was
    /// added, because damage may have put the same marks.
    pub(crate) fn delete_marks(&self, batch: &mut WriteBatch) {
        self.no_longer_stale.iter().for_each(|key| batch.delete(key.bytes()));
    }

    /// Applies the changes to the state, after the values were written.
    pub(crate) fn apply(self, state: &mut State) {
        state.stale.extend(self.stale);
        state.stale.remove(&self.no_longer_stale);
        state.damage.no_longer_stale(&self.no_longer_stale);
        for (key, series, window) in self.restored {
            // Samples that were lost in the head are still missing, so the window stays damaged.
            if !state.damage.touches(key.in_tier(Tier::Raw), series, (window, window)) {
                state.damage.restored(key, series, window);
            }
        }
    }
}

/// Chunks and minutes to write.
#[derive(Default)]
pub(crate) struct SealBatch {
    pub(crate) batch: WriteBatch,
    pub(crate) marks: StaleChanges,
    scratch: Scratch,
}

impl SealBatch {
    /// Creates a batch that begins with the changes of `batch`.
    pub(crate) fn after(batch: WriteBatch) -> Self {
        Self { batch, ..Self::default() }
    }

    /// Adds a chunk with the head's samples of a window. The window may have other chunks.
    pub(crate) fn evict(&mut self, at: SeriesWindow, chunk: &Frozen, log_index: u64) -> Result<(), EngineError> {
        let SeriesWindow { raw, window, series, .. } = at;
        let samples = joined(&chunk.runs);
        write_chunk(at, log_index, &samples, &mut self.scratch, &mut self.batch)?;
        delete_head(at, chunk, &mut self.batch);
        let stale = stale_key(raw, Tier::Minute, window, series);
        database::put(&mut self.batch, &stale.bytes(), &[]);
        self.marks.stale.push(stale);
        Ok(())
    }
}

impl State {
    /// Returns the evicted windows that are over or that `sealing` includes, and that have no samples in the head now.
    pub(crate) fn evicted(&self, sealing: Sealing) -> impl Iterator<Item = StaleKey> + '_ {
        let clock_ns = self.clock.sealing_ns();
        let is_due = move |key: &StaleKey| {
            let over_ns = Tier::Raw.window_end_ns(key.window).saturating_add(GRACE_NS);
            over_ns <= clock_ns || sealing.takes(key.window)
        };
        let is_in_head = |key: &StaleKey| {
            let partition = self.partitions.loaded(&minutes_of(key));
            partition.is_some_and(|partition| partition.read().head.holds(key.window, key.series))
        };
        let evicted = self.stale.iter().take_while(|key| key.tier == Tier::Minute).copied();
        evicted.filter(is_due).filter(move |key| !is_in_head(key))
    }
}

/// Merges the chunks of each evicted window that is over or that `sealing` includes.
pub(crate) fn seal_evicted(writing: &Writing<'_>, sealing: Sealing, log_index: u64) -> Result<(), EngineError> {
    let evicted: Vec<StaleKey> = writing.state().evicted(sealing).collect();
    let mut sealed = SealBatch::default();
    for key in evicted {
        let minutes = minutes_of(&key);
        let partition = match writing.partition(minutes) {
            Ok(Some(partition)) => partition,
            // The window expired before its mark was restored.
            Ok(None) => {
                sealed.marks.no_longer_stale.push(key);
                continue;
            }
            // The partition is quarantined. The other windows are sealed.
            Err(error) if error.is_damage() => continue,
            Err(error) => return Err(error),
        };
        let is_gauge = partition.read().is_gauge(key.series);
        let at = SeriesWindow { raw: minutes.in_tier(Tier::Raw), window: key.window, series: key.series, is_gauge };
        seal(writing, at, None, log_index, &mut sealed)?;
        if sealed.batch.size_in_bytes() >= PIECE_BYTES {
            write_sealed(writing, &mut sealed)?;
        }
    }
    write_sealed(writing, &mut sealed)
}

fn write_sealed(writing: &Writing<'_>, sealed: &mut SealBatch) -> Result<(), EngineError> {
    let SealBatch { batch, marks, .. } = sealed;
    // Until the state changes, the window is stale and queries read its chunks. Old and new chunks hold the same
    // samples.
    let damage = writing.state().damage.unwritten();
    damage.write(batch);
    marks.delete_marks(batch);
    writing.write(std::mem::take(batch))?;
    let mut state = writing.state_mut();
    state.damage.wrote(&damage);
    std::mem::take(marks).apply(&mut state);
    Ok(())
}

/// Merges all samples of a series in a window into one chunk, unless the chunk would be too large. Also writes the
/// window's minutes, and marks the hour of the window as stale.
pub(crate) fn seal(
    store: &Store,
    at: SeriesWindow,
    head: Option<&Frozen>,
    log_index: u64,
    out: &mut SealBatch,
) -> Result<(), EngineError> {
    let SeriesWindow { raw, window, series, is_gauge } = at;
    let SealBatch { batch, marks, scratch } = out;
    let mut samples = head.map(|chunk| joined(&chunk.runs)).unwrap_or_default();
    let WindowChunks { chunks, mut damage } = chunks_left(store, at)?;
    let stale = stale_key(raw, Tier::Minute, window, series);
    marks.no_longer_stale.push(stale);
    let count = samples.len() as u64 + chunks.iter().map(|chunk| chunk.samples).sum::<u64>();
    if count == 0 && damage.is_none() {
        return Ok(());
    }
    let heads = &store.shares().heads;
    let merged_bytes_max = heads.equal_part(heads.bytes_max()) / SEALED_PART;
    let stays = count > (merged_bytes_max / crate::memory::head::SAMPLE_BYTES) as u64;
    let mut minutes = Minutes::default();
    for WindowChunk { key, .. } in chunks {
        let of_chunk = match samples_of(store, &key, window) {
            Ok(of_chunk) => of_chunk,
            Err(error) if error.is_damage() => {
                damage = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        if stays {
            minutes.add(windows::minutes_of(&of_chunk, window, is_gauge, scratch), is_gauge);
        } else {
            samples.append(of_chunk);
            batch.delete(&key);
            batch.delete(events_key(&key));
        }
    }
    if !samples.is_empty() {
        samples.sort_by_time();
        write_chunk(at, log_index, &samples, scratch, batch)?;
        minutes.add(windows::minutes_of(&samples, window, is_gauge, scratch), is_gauge);
    }
    let mut minutes = minutes.into_windows();
    match &damage {
        Some(damage) => {
            let kept = minutes_with_damage(store, at, head, damage, scratch)?;
            minutes = kept.unwrap_or(minutes);
        }
        None => marks.restored.push((raw.in_tier(Tier::Minute), series, window)),
    }
    write_minutes(at, &minutes, batch);
    if let Some(head) = head {
        delete_head(at, head, batch);
    }
    let hour = window / Tier::Raw.windows_in(Tier::Hour);
    let stale = stale_key(raw, Tier::Hour, hour, series);
    database::put(batch, &stale.bytes(), &[]);
    marks.stale.push(stale);
    Ok(())
}

/// Returns the readable chunks of a window, and the error if a chunk is damaged or a repair lost one.
fn chunks_left(
    store: &Store,
    SeriesWindow { raw, window, series, .. }: SeriesWindow,
) -> Result<WindowChunks, EngineError> {
    let mut stored = chunks_of(store, raw, window, series)?;
    if stored.damage.is_none() && store.state().damage.is_partly_damaged(raw, series, window) {
        let key = raw.series_window(Section::Chunks, series, window);
        stored.damage = Some(Corruption { key, check: CorruptionCheck::Missing }.into());
    }
    Ok(stored)
}

/// Deletes the head values of a window whose samples are now in a chunk.
fn delete_head(SeriesWindow { raw, window, series, .. }: SeriesWindow, head: &Frozen, batch: &mut WriteBatch) {
    head.written_at.iter().for_each(|&at| batch.delete(raw.head(window, series, at)));
}

/// Returns the minutes of a window with a damaged chunk: the stored minutes plus those of the head, if the stored
/// minutes were made from all chunks. Otherwise, the samples of the damaged chunk are lost: quarantines the window in
/// every tier, and returns `None`.
fn minutes_with_damage(
    store: &Store,
    SeriesWindow { raw, window, series, is_gauge }: SeriesWindow,
    head: Option<&Frozen>,
    damage: &EngineError,
    scratch: &mut Scratch,
) -> Result<Option<Vec<WindowRows>>, EngineError> {
    let key = raw.in_tier(Tier::Minute);
    quarantine_value(store, raw, series, window, damage);
    let are_exact = {
        let state = store.state();
        !state.stale.contains(&stale_key(raw, Tier::Minute, window, series))
            && !state.damage.touches(key, series, (window, window))
    };
    let at = key.series_window(Section::Windows, series, window);
    let stored = if are_exact { store.database().get(&at) } else { Ok(None) };
    let stored = match stored {
        Ok(stored) => stored,
        Err(error) if is_corruption(&error) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(stored) = stored.and_then(|value| read_rows(&at, &value, Tier::Raw, window).ok()) else {
        store.state_mut().quarantine_in_all_tiers(key, Area::value(series, window), &damage.to_string());
        return Ok(None);
    };
    let mut minutes = Minutes::default();
    minutes.add(stored, is_gauge);
    if let Some(head) = head {
        minutes.add(windows::minutes_of(&joined(&head.runs), window, is_gauge, scratch), is_gauge);
    }
    Ok(Some(minutes.into_windows()))
}

/// Returns whether a window is due for sealing: it is over, or its samples were collected for long enough. `since_ns`
/// is the arrival of its first unsealed sample.
pub(crate) fn is_due(window: u32, since_ns: i64, clock_ns: i64) -> bool {
    let over_ns = Tier::Raw.window_end_ns(window).saturating_add(GRACE_NS);
    let is_late = since_ns > over_ns;
    let due_ns = if is_late { since_ns.saturating_add(LATE_NS) } else { over_ns };
    clock_ns >= due_ns.min(since_ns.saturating_add(AHEAD_NS))
}

/// Returns the partition of minutes that holds the minutes of a chunk's window.
fn minutes_of(key: &StaleKey) -> PartitionKey {
    PartitionKey::of(Tier::Minute, key.class, key.tenant, Tier::Raw.window_end_ns(key.window))
}

/// Writes a chunk and its events.
pub(crate) fn write_chunk(
    SeriesWindow { raw, window, series, is_gauge }: SeriesWindow,
    log_index: u64,
    samples: &Samples,
    scratch: &mut Scratch,
    batch: &mut WriteBatch,
) -> Result<(), EngineError> {
    let sealed = chunk::seal(samples, window, is_gauge, scratch)?;
    let key = raw.chunk(Section::Chunks, series, window, log_index);
    batch.put(&key, frame::seal(&key, &sealed.chunk));
    if let Some(events) = sealed.events {
        let key = raw.chunk(Section::Events, series, window, log_index);
        batch.put(&key, frame::seal(&key, &events));
    }
    Ok(())
}

/// Writes the minutes of one window of a series.
pub(crate) fn write_minutes(at: SeriesWindow, minutes: &[WindowRows], batch: &mut WriteBatch) {
    let SeriesWindow { raw, window, series, is_gauge } = at;
    let key = raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window);
    let value = windows::encode(minutes, is_gauge, Tier::Raw.window_start_ns(window));
    batch.put(&key, frame::seal(&key, &value));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: i64 = 60 * 1_000_000_000;

    #[test]
    fn a_window_is_sealed_a_minute_after_it_ends() {
        let start_ns = Tier::Raw.window_start_ns(1000);
        let end_ns = Tier::Raw.window_end_ns(1000);
        assert!(!is_due(1000, start_ns, end_ns + GRACE_NS - 1));
        assert!(is_due(1000, start_ns, end_ns + GRACE_NS));
    }

    #[test]
    fn late_samples_are_collected_for_ten_minutes() {
        let late_ns = Tier::Raw.window_end_ns(1000) + GRACE_NS + 1;
        assert!(!is_due(1000, late_ns, late_ns + LATE_NS - 1));
        assert!(is_due(1000, late_ns, late_ns + LATE_NS));
    }

    #[test]
    fn a_window_of_the_future_is_sealed_half_an_hour_after_its_first_sample() {
        let year_before_ns = Tier::Raw.window_start_ns(60_000) - 365 * 24 * 60 * MINUTE_NS;
        assert!(!is_due(60_000, year_before_ns, year_before_ns + 29 * MINUTE_NS));
        assert!(is_due(60_000, year_before_ns, year_before_ns + 30 * MINUTE_NS));
    }
}
