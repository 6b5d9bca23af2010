//! Deleting samples by selector and time: an entry, done when it is applied, in one write.
//!
//! Raw samples go exactly. Where they were dropped already, windows of coarser tiers that hold any of the time go whole: what is
//! to be deleted never stays. Windows made of what changed are summed up again.

use proto::entry::Deletion;
use proto::{Samples, Tier, Window};
use rocksdb::WriteBatch;

use crate::chunk::Scratch;
use crate::database::{self, unlogged};
use crate::encoding::frame;
use crate::engine::Engine;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::flush::{Sealing, events_key, stale_key, write_chunk, write_minutes};
use crate::key::{self, PartitionKey, Section, StaleKey, two_numbers};
use crate::matcher::{ReadyMatcher, on_series};
use crate::windows::{self, Minutes, WindowRows};
use crate::{Outcome, Position};

/// What a deletion writes.
#[derive(Default)]
struct Changes {
    batch: WriteBatch,
    stale: Vec<StaleKey>,
}

impl Engine {
    pub(crate) fn delete(&self, position: Position, now_ns: i64, deletion: &Deletion) -> Result<Outcome, EngineError> {
        let _writing = self.writing.lock();
        // No sample is in a head then.
        self.write_all(WriteBatch::default(), Sealing::Before(i64::MAX))?;
        let mut changes = Changes::default();
        // A matcher that is none was refused when the deletion was proposed; here it would differ between versions.
        let matchers =
            deletion.matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>().unwrap_or_default();
        if !matchers.is_empty() {
            for key in self.partitions_of(deletion) {
                self.delete_in(key, &matchers, deletion.window, &mut changes)?;
            }
        }
        let mut state = self.state.write();
        state.applied = Some(position.clone());
        state.clock_ns = state.clock_ns.max(now_ns);
        changes.stale.iter().for_each(|stale| database::put(&mut changes.batch, &stale.bytes(), &[]));
        database::put(&mut changes.batch, key::CLOCK, &state.clock_ns.to_be_bytes());
        database::put_position(&mut changes.batch, &position);
        self.database.write_opt(changes.batch, &unlogged())?;
        state.stale.extend(changes.stale);
        drop(state);
        self.roll_up(deletion.window.end_ns.saturating_add(Tier::Day.window_ns()).min(now_ns))?;
        Ok(Outcome::Applied)
    }

    /// Partitions with samples of the time, raw ones by that of their minutes.
    fn partitions_of(&self, deletion: &Deletion) -> Vec<PartitionKey> {
        let state = self.state.read();
        let tenant = state.tenants.get(&deletion.tenant).copied();
        let Window { start_ns, end_ns } = deletion.window;
        let overlaps = |key: &&PartitionKey| Some(key.tenant) == tenant && key.overlaps(start_ns, end_ns);
        state.existing.iter().filter(overlaps).copied().collect()
    }

    fn delete_in(
        &self,
        key: PartitionKey,
        matchers: &[ReadyMatcher],
        window: Window,
        changes: &mut Changes,
    ) -> Result<(), EngineError> {
        let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
        let Some(partition) = self.partition(named)? else { return Ok(()) };
        // A label that a series has not is "": attributes of samples select no series.
        let matching: Vec<(u32, bool)> = {
            let partition = partition.read();
            let candidates = partition.index.matching(matchers, |_| false);
            let holds = |&series: &u32| {
                let labels = partition.series.get_index(series as usize);
                let rest = labels.and_then(|(_, labels)| on_series(matchers, labels));
                rest.is_some_and(|rest| rest.iter().all(|matcher| matcher.accepts("")))
            };
            candidates.iter().filter(holds).map(|series| (series, partition.is_gauge(series))).collect()
        };
        for (series, is_gauge) in matching {
            match key.tier {
                Tier::Raw => self.delete_raw(key, series, is_gauge, window, changes)?,
                tier => self.delete_windows(key, tier, series, is_gauge, window, changes)?,
            }
        }
        Ok(())
    }

    fn delete_raw(
        &self,
        raw: PartitionKey,
        series: u32,
        is_gauge: bool,
        deleted: Window,
        changes: &mut Changes,
    ) -> Result<(), EngineError> {
        let mut scratch = Scratch::default();
        for window in windows_between(Tier::Raw, raw, deleted) {
            let chunks = self.chunks_of(raw, window, series)?;
            if chunks.is_empty() {
                continue;
            }
            let at = (window, series);
            let mut minutes = Minutes::default();
            for (key, _) in &chunks {
                let mut left = Samples::default();
                keep_outside(&self.samples_of(key, window)?, deleted, &mut left);
                changes.batch.delete(key);
                changes.batch.delete(events_key(key));
                if !left.is_empty() {
                    let log_index = key.last_chunk().map_or(0, |index| u64::from_be_bytes(*index));
                    write_chunk(raw, at, log_index, &left, &mut scratch, &mut changes.batch)?;
                    minutes.add(windows::minutes_of(&left, window, is_gauge, &mut scratch), is_gauge);
                }
            }
            let minutes = minutes.into_windows();
            if minutes.is_empty() {
                changes.batch.delete(raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window));
            } else {
                write_minutes(raw, at, is_gauge, &minutes, &mut changes.batch);
            }
            let hour = window / Tier::Raw.windows_in(Tier::Hour);
            changes.stale.push(stale_key(raw, Tier::Hour, hour, series));
        }
        Ok(())
    }

    /// Windows of a coarser tier, where what they were made of is gone: all that hold any of the time.
    fn delete_windows(
        &self,
        key: PartitionKey,
        tier: Tier,
        series: u32,
        is_gauge: bool,
        deleted: Window,
        changes: &mut Changes,
    ) -> Result<(), EngineError> {
        // Minutes are stored by the window of their chunk.
        let values = if tier == Tier::Minute { Tier::Raw } else { tier };
        let horizon_ns = |tier| self.state.read().horizon_ns(tier, key.class);
        let finer = Tier::from_number(tier.number() - 1).map_or(i64::MIN, horizon_ns);
        for item in database::scan(&self.database, &key.series_prefix(Section::Windows, series)) {
            let (at, value) = item?;
            let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
            let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
            let (_, window, _) = numbers.ok_or_else(corrupt)?;
            let (start_ns, end_ns) = (values.window_start_ns(window), values.window_end_ns(window));
            // Where the finer tier has it still, it is summed up again.
            if end_ns <= deleted.start_ns || deleted.end_ns <= start_ns || end_ns > finer {
                continue;
            }
            let stored = windows::decode(frame::open(&at, &value)?, values, window).ok_or_else(corrupt)?;
            let mut left = Vec::new();
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
            if left.is_empty() {
                changes.batch.delete(&at);
            } else {
                changes.batch.put(&at, frame::seal(&at, &windows::encode(&left, is_gauge, start_ns)));
            }
            if let Some(coarser) = tier.coarser() {
                let window = coarser.window_of(end_ns);
                changes.stale.push(stale_key(key, coarser, window, series));
            }
        }
        Ok(())
    }
}

/// Windows of a partition that hold any of a time.
fn windows_between(tier: Tier, key: PartitionKey, time: Window) -> std::ops::RangeInclusive<u32> {
    let start_ns = time.start_ns.max(key.start_ns()).saturating_add(1);
    tier.window_of(start_ns)..=tier.window_of(time.end_ns.min(key.end_ns()))
}

fn keep_outside(samples: &Samples, deleted: Window, to: &mut Samples) {
    for i in 0..samples.len() {
        let time = samples.times_ns[i];
        if time <= deleted.start_ns || deleted.end_ns < time {
            to.push(time, samples.pairs[i], samples.values[i], samples.attribute_sets[i]);
        }
    }
}
