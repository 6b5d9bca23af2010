//! Sealing: the samples of one series in one window become one chunk, and the sums of its minutes.
//!
//! A window is sealed when its time is over. Where there is no room for the head, its chunks are evicted before: several of one
//! window, without minutes, which are made one when its time is over, unless that is too much to hold at once. Until then the window is
//! stale. None of this changes an answer.

use proto::{Samples, Tier};
use rocksdb::WriteBatch;

use crate::database::frame;
use crate::database::key::{PartitionKey, Section, StaleKey};
use crate::database::stored_rows::read_rows;
use crate::database::{self, unlogged};
use crate::encoding::chunk::{self, Chunk, Scratch};
use crate::encoding::head_block;
use crate::encoding::windows::{self, Minutes, WindowRows};
use crate::engine::Engine;
use crate::engine::state::State;
use crate::engine::upkeep::flush::{events_key, stale_key};
use crate::error::{Corruption, CorruptionCheck, EngineError, is_corruption};
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::memory::head::Frozen;

/// How long behind a window's end samples for it are waited for, by the state's clock: agents send every 5 s and try again.
pub(crate) const GRACE_NS: i64 = 60 * 1_000_000_000;
/// How long samples for a window that is sealed already are collected, before it is sealed again.
const LATE_NS: i64 = 600 * 1_000_000_000;
/// How long samples are collected for a window that has not ended by the state's clock: three windows. Only windows of the future
/// wait that long. The clock may be slower than that of the senders, and their samples must not stay in memory until it gets there.
const AHEAD_NS: i64 = 1800 * 1_000_000_000;

/// The samples of a window that are brought together take at most this part of the head's budget: while they are sorted and encoded
/// they take that a few times.
const SEALED_PART: usize = 4;

/// What a flush seals, beside windows whose time is over, and everything, if the head is over its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealing {
    /// Nothing.
    Due,
    /// Windows that end at or before this time.
    Before(i64),
}

impl Sealing {
    pub(crate) fn takes(self, window: u32) -> bool {
        matches!(self, Self::Before(end_ns) if Tier::Raw.window_end_ns(window) <= end_ns)
    }
}

/// What of evicted windows is written at once.
const PIECE_BYTES: usize = 1 << 20;

/// A window of a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) raw: PartitionKey,
    pub(crate) window: u32,
    pub(crate) series: u32,
    pub(crate) is_gauge: bool,
}

/// Chunks by key, with their numbers of samples, and the error of a chunk that cannot be read.
pub(crate) type Chunks = (Vec<(Vec<u8>, u64)>, Option<EngineError>);

/// Which windows became stale, and which are no longer.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    stale: Vec<StaleKey>,
    no_longer_stale: Vec<StaleKey>,
    /// Minutes that were made again from all their samples: partition, series and window.
    restored: Vec<(PartitionKey, u32, u32)>,
}

impl Marks {
    /// To be called when what they are about is written.
    pub(crate) fn apply(self, state: &mut State) {
        state.stale.extend(self.stale);
        self.no_longer_stale.iter().for_each(|key| {
            state.stale.remove(key);
        });
        for (key, series, window) in self.restored {
            // Samples that were lost in the head stay lost.
            if !state.damage.touches(key.in_tier(Tier::Raw), series, (window, window)) {
                state.damage.restored(key, series, window);
            }
        }
    }
}

/// Chunks and minutes that are to be written.
#[derive(Default)]
pub(crate) struct Sealed {
    pub(crate) batch: WriteBatch,
    pub(crate) marks: Marks,
    scratch: Scratch,
}

impl Sealed {
    /// Written behind what there is to write.
    pub(crate) fn behind(batch: WriteBatch) -> Self {
        Self { batch, ..Self::default() }
    }

    /// A chunk of what is in the head, beside those that its window has already.
    pub(crate) fn evict(&mut self, at: Place, chunk: &Frozen, log_index: u64) -> Result<(), EngineError> {
        let Place { raw, window, series, .. } = at;
        let samples = head_block::joined(&chunk.runs);
        write_chunk(at, log_index, &samples, &mut self.scratch, &mut self.batch)?;
        chunk.written_at.iter().for_each(|&at| self.batch.delete(raw.head(window, series, at)));
        let stale = stale_key(raw, Tier::Minute, window, series);
        database::put(&mut self.batch, &stale.bytes(), &[]);
        self.marks.stale.push(stale);
        Ok(())
    }
}

impl State {
    /// Windows whose chunks were evicted, that have nothing in the head now, and whose time is over.
    pub(crate) fn evicted(&self, sealing: Sealing) -> impl Iterator<Item = StaleKey> + '_ {
        let clock_ns = self.sealing_clock_ns();
        let is_due = move |key: &StaleKey| {
            let over_ns = Tier::Raw.window_end_ns(key.window).saturating_add(GRACE_NS);
            over_ns <= clock_ns || sealing.takes(key.window)
        };
        let is_in_head = |key: &StaleKey| {
            let partition = self.loaded.get(&minutes_of(key));
            partition.is_some_and(|partition| partition.read().head.holds(key.window, key.series))
        };
        let evicted = self.stale.iter().take_while(|key| key.tier == Tier::Minute).copied();
        evicted.filter(is_due).filter(move |key| !is_in_head(key))
    }
}

impl Engine {
    /// Makes one chunk of those of each evicted window whose time is over; the caller holds `writing`.
    pub(crate) fn seal_evicted(&self, sealing: Sealing, log_index: u64) -> Result<(), EngineError> {
        let evicted: Vec<StaleKey> = self.state.read().evicted(sealing).collect();
        let mut sealed = Sealed::default();
        for key in evicted {
            let minutes = minutes_of(&key);
            let partition = match self.partition(minutes) {
                Ok(Some(partition)) => partition,
                Ok(None) => continue,
                // It is quarantined. The other windows are sealed.
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            };
            let is_gauge = partition.read().is_gauge(key.series);
            let at = Place { raw: minutes.in_tier(Tier::Raw), window: key.window, series: key.series, is_gauge };
            self.seal(at, None, log_index, &mut sealed)?;
            if sealed.batch.size_in_bytes() >= PIECE_BYTES {
                self.write_sealed(&mut sealed)?;
            }
        }
        self.write_sealed(&mut sealed)
    }

    fn write_sealed(&self, sealed: &mut Sealed) -> Result<(), EngineError> {
        let Sealed { batch, marks, .. } = sealed;
        // Until the state says otherwise, a window is stale, and its chunks are asked: all of it or one, of the same samples.
        let damage = self.state.read().damage.unwritten();
        damage.write(batch);
        self.database.write_opt(std::mem::take(batch), &unlogged())?;
        let mut state = self.state.write();
        state.damage.wrote(&damage);
        std::mem::take(marks).apply(&mut state);
        Ok(())
    }

    /// One chunk of everything in a window of a series, unless that is too much, and its minutes; the hour must be summed up again.
    pub(crate) fn seal(
        &self,
        at: Place,
        head: Option<&Frozen>,
        log_index: u64,
        out: &mut Sealed,
    ) -> Result<(), EngineError> {
        let Place { raw, window, series, is_gauge } = at;
        let Sealed { batch, marks, scratch } = out;
        let mut samples = head.map(|chunk| head_block::joined(&chunk.runs)).unwrap_or_default();
        let (before, mut damage) = self.chunks_of(raw, window, series)?;
        if damage.is_none() && self.state.read().damage.is_partly_damaged(raw, series, window) {
            // A repair lost a chunk of this window.
            let key = raw.series_window(Section::Chunks, series, window);
            damage = Some(Corruption { key, check: CorruptionCheck::Missing }.into());
        }
        let stale = stale_key(raw, Tier::Minute, window, series);
        batch.delete(stale.bytes());
        marks.no_longer_stale.push(stale);
        let count = samples.len() as u64 + before.iter().map(|(_, samples)| samples).sum::<u64>();
        if count == 0 && damage.is_none() {
            return Ok(());
        }
        let stays = count > (self.config.head_bytes_max / SEALED_PART / crate::memory::head::SAMPLE_BYTES) as u64;
        let mut minutes = Minutes::default();
        for (key, _) in before {
            let of_chunk = match self.samples_of(&key, window) {
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
            crate::memory::head::sort_by_time(&mut samples);
            write_chunk(at, log_index, &samples, scratch, batch)?;
            minutes.add(windows::minutes_of(&samples, window, is_gauge, scratch), is_gauge);
        }
        let mut minutes = minutes.into_windows();
        match &damage {
            Some(damage) => {
                let kept = self.minutes_with_damage(Place { raw, window, series, is_gauge }, head, damage, scratch)?;
                minutes = kept.unwrap_or(minutes);
            }
            None => marks.restored.push((raw.in_tier(Tier::Minute), series, window)),
        }
        write_minutes(raw, (window, series), is_gauge, &minutes, batch);
        for &at in head.map_or(&[][..], |chunk| &chunk.written_at) {
            batch.delete(raw.head(window, series, at));
        }
        let hour = window / Tier::Raw.windows_in(Tier::Hour);
        let stale = stale_key(raw, Tier::Hour, hour, series);
        database::put(batch, &stale.bytes(), &[]);
        marks.stale.push(stale);
        Ok(())
    }

    /// The minutes of a window with a damaged chunk: the stored ones plus the head's samples, if the stored ones were made from all
    /// chunks. `None`: the samples of the damaged chunk are lost in every tier, and the window is quarantined in all of them.
    fn minutes_with_damage(
        &self,
        Place { raw, window, series, is_gauge }: Place,
        head: Option<&Frozen>,
        damage: &EngineError,
        scratch: &mut Scratch,
    ) -> Result<Option<Vec<WindowRows>>, EngineError> {
        let key = raw.in_tier(Tier::Minute);
        self.quarantine_value(raw, series, window, damage);
        let are_exact = {
            let state = self.state.read();
            !state.stale.contains(&stale_key(raw, Tier::Minute, window, series))
                && !state.damage.touches(key, series, (window, window))
        };
        let at = key.series_window(Section::Windows, series, window);
        let stored = if are_exact { self.database.get(&at) } else { Ok(None) };
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) if is_corruption(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(stored) = stored.and_then(|value| read_rows(&at, &value, Tier::Raw, window).ok()) else {
            self.state.write().quarantine_in_all_tiers(key, Area::value(series, window), &damage.to_string());
            return Ok(None);
        };
        let mut minutes = Minutes::default();
        minutes.add(stored, is_gauge);
        if let Some(head) = head {
            minutes.add(windows::minutes_of(&head_block::joined(&head.runs), window, is_gauge, scratch), is_gauge);
        }
        Ok(Some(minutes.into_windows()))
    }

    /// The readable chunks of a window of a series, and the error of one that cannot be read.
    pub(crate) fn chunks_of(&self, raw: PartitionKey, window: u32, series: u32) -> Result<Chunks, EngineError> {
        let (mut chunks, mut damage) = (Vec::new(), None);
        let snapshot = self.database.snapshot();
        let mut walk = Walk::new(&snapshot, raw.series_window(Section::Chunks, series, window));
        while let Some(item) = walk.next()? {
            match item {
                Ok((key, value)) => match Self::count_of(&key, &value, window) {
                    Ok(samples) => chunks.push((key.to_vec(), samples)),
                    Err(wrong) => damage = Some(wrong.into()),
                },
                Err(keys) => damage = Some(keys.error.into()),
            }
        }
        Ok((chunks, damage))
    }

    /// Number of samples of a chunk.
    pub(crate) fn count_of(key: &[u8], value: &[u8], window: u32) -> Result<u64, Corruption> {
        Ok(Chunk::read(frame::open(key, value)?, window).ok_or_else(|| corrupt(key))?.samples)
    }

    /// All samples of a chunk, sorted by time.
    pub(crate) fn samples_of(&self, key: &[u8], window: u32) -> Result<Samples, EngineError> {
        let value = self.database.get_pinned(key)?.ok_or_else(|| corrupt(key))?;
        let chunk = Chunk::read(frame::open(key, &value)?, window).ok_or_else(|| corrupt(key))?;
        let own = self.own_events(key, &chunk)?;
        Ok(chunk.samples(own.as_deref()).ok_or_else(|| corrupt(key))?)
    }

    fn own_events(&self, key: &[u8], chunk: &Chunk<'_>) -> Result<Option<Vec<u8>>, EngineError> {
        if !chunk.has_own_events() {
            return Ok(None);
        }
        let key = events_key(key);
        let missing = || Corruption { key: key.clone(), check: CorruptionCheck::Length };
        let value = self.database.get(&key)?.ok_or_else(missing)?;
        Ok(Some(frame::open(&key, &value)?.to_vec()))
    }
}

/// Whether a window is to be sealed: it has ended, or its samples have been collected for long enough.
pub(crate) fn is_due(window: u32, since_ns: i64, clock_ns: i64) -> bool {
    let over_ns = Tier::Raw.window_end_ns(window).saturating_add(GRACE_NS);
    let is_late = since_ns > over_ns;
    let due_ns = if is_late { since_ns.saturating_add(LATE_NS) } else { over_ns };
    clock_ns >= due_ns.min(since_ns.saturating_add(AHEAD_NS))
}

/// The partition of minutes that a window of chunks is in.
fn minutes_of(key: &StaleKey) -> PartitionKey {
    PartitionKey::of(Tier::Minute, key.class, key.tenant, Tier::Raw.window_end_ns(key.window))
}

pub(crate) fn write_chunk(
    Place { raw, window, series, is_gauge }: Place,
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

pub(crate) fn write_minutes(
    raw: PartitionKey,
    (window, series): (u32, u32),
    is_gauge: bool,
    minutes: &[WindowRows],
    batch: &mut WriteBatch,
) {
    let key = raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window);
    let value = windows::encode(minutes, is_gauge, Tier::Raw.window_start_ns(window));
    batch.put(&key, frame::seal(&key, &value));
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: i64 = 60 * 1_000_000_000;

    #[test]
    fn a_window_is_sealed_a_minute_after_it_ends() {
        let (start_ns, end_ns) = (Tier::Raw.window_start_ns(1000), Tier::Raw.window_end_ns(1000));
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
