//! Verification of one partition: its definitions, its windows, and, for minutes, the raw samples of the same time.

use std::collections::BTreeSet;

use proto::{Samples, TenantId, Tier};

use crate::database::Snapshot;
use crate::database::frame;
use crate::database::key::{PartitionKey, Section, StaleKey, events_key, two_numbers};
use crate::encoding::chunk::{Chunk, Scratch};
use crate::encoding::head_block;
use crate::encoding::slot_sums::SlotSums;
use crate::encoding::sums::Row;
use crate::encoding::windows::{self, Minutes, StoredWindow, WindowRows};
use crate::error::EngineError;
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::verify::signature::Weights;
use crate::integrity::verify::{Signatures, Verified};
use crate::memory::partition::{Lengths, Partition};
use crate::memory::tenant_dictionary::TenantDictionary;

/// Check of one partition of minutes, hours or days.
pub(crate) struct PartitionCheck<'a> {
    snapshot: &'a Snapshot<'a>,
    key: PartitionKey,
    /// Partition whose definitions are checked against; empty if its definitions cannot be read.
    partition: Partition,
    weights: Weights,
    dense: SlotSums,
    scratch: Scratch,
    /// Number of stored values of minutes that are not stale and have chunks.
    current_values: u64,
}

impl<'a> PartitionCheck<'a> {
    /// Reads the definitions of a partition. `dropped` holds the labels that the next coarser tier drops.
    pub(crate) fn new(
        snapshot: &'a Snapshot<'a>,
        key: PartitionKey,
        tenant: &TenantId,
        dropped: &[String],
        verified: &mut Verified,
    ) -> Self {
        let mut shared = TenantDictionary::new(0);
        let partition = match Partition::load(snapshot, key, &mut shared, 0) {
            Ok(partition) => {
                verified.values += u64::from(partition.dictionary_blocks());
                partition
            }
            Err(error) => {
                verified.note(&key.section(Section::Dictionary), Err(error.to_string()));
                Partition::new(key, 0)
            }
        };
        let weights = Weights::new(&partition, &shared, tenant, dropped);
        Self {
            snapshot,
            key,
            partition,
            weights,
            dense: SlotSums::default(),
            scratch: Scratch::default(),
            current_values: 0,
        }
    }

    fn lengths(&self) -> Lengths {
        self.partition.lengths()
    }

    /// Checks the windows of the partition, and adds their signatures to `signatures`.
    pub(crate) fn windows(&mut self, signatures: &mut Signatures, verified: &mut Verified) -> Result<(), EngineError> {
        let mut walk = Walk::once(self.snapshot, self.key.section(Section::Windows));
        while let Some(item) = walk.next()? {
            let (at, value) = match item {
                Ok(item) => item,
                Err(keys) => {
                    verified.note_damaged_keys(&keys);
                    continue;
                }
            };
            let result = self.value(&at, &value, signatures);
            verified.signature = verified.signature.wrapping_add(*result.as_ref().unwrap_or(&0));
            verified.note(&at, result.map(drop));
        }
        Ok(())
    }

    /// Checks one value that holds windows. Returns the sum of the windows' signatures.
    fn value(&mut self, key: &[u8], value: &[u8], signatures: &mut Signatures) -> Result<u128, String> {
        let ValueNumbers { series, window: number } = numbers_of(key)?;
        let read = self.read_windows(key, value, series, number)?;
        let mut sum = 0_u128;
        if self.partition.is_gauge(series) {
            return Ok(sum);
        }
        for window in read {
            let signature = self.weights.sign(series, window.samples, &window.rows);
            let signature = signature.ok_or("a stack or the series is not defined")?;
            sum = sum.wrapping_add(signature.here);
            if self.key.tier != Tier::Minute {
                signatures.store(self.key, number, signature.here);
            }
            if let Some(coarser) = self.key.tier.coarser() {
                let window = number / self.values().windows_in(coarser);
                let key = PartitionKey::of_window(coarser, self.key.class, self.key.tenant, window);
                signatures.add_finer(key, window, signature.coarser);
            }
        }
        Ok(sum)
    }

    /// Returns the tier whose windows are counted by the window numbers in the partition's keys. Values of minutes have
    /// the window number of their chunk.
    fn values(&self) -> Tier {
        if self.key.tier == Tier::Minute { Tier::Raw } else { self.key.tier }
    }

    fn read_windows(&mut self, key: &[u8], value: &[u8], series: u32, number: u32) -> Result<Vec<WindowRows>, String> {
        let payload = frame::open(key, value).map_err(|error| error.to_string())?;
        let stored = windows::decode(payload, self.values(), number).ok_or("the windows cannot be read")?;
        let lengths = self.lengths();
        if series as usize >= lengths.series {
            return Err("the series is not defined".to_owned());
        }
        let mut read = Vec::new();
        for StoredWindow { slot, samples, total, last_ns, sums, .. } in stored {
            if last_ns.is_some() != self.partition.is_gauge(series) {
                return Err("sums for a gauge, or last points for another type".to_owned());
            }
            self.dense.resize(lengths.pairs);
            let mut rows: Vec<Row> = Vec::new();
            let added = sums.add_to(&mut self.dense, total);
            self.dense.drain(|pair, sum| rows.push((pair, sum)));
            added.ok_or("a stack is not defined")?;
            if rows.iter().map(|row| row.1).sum::<i128>() != total {
                return Err("the total differs from that of the sums".to_owned());
            }
            read.push(WindowRows { slot, samples, last_ns: last_ns.unwrap_or_default(), rows });
        }
        Ok(read)
    }

    /// Checks the raw samples of the same time. Also checks that the minutes are the sums of these samples.
    pub(crate) fn raw(&mut self, stale: &BTreeSet<StaleKey>, verified: &mut Verified) -> Result<(), EngineError> {
        let raw = self.key.in_tier(Tier::Raw);
        let mut window = WindowMinutes::default();
        for section in [Section::Head, Section::BatchIds, Section::Chunks, Section::Events] {
            let mut walk = Walk::once(self.snapshot, raw.section(section));
            while let Some(item) = walk.next()? {
                let (at, value) = match item {
                    Ok(item) => item,
                    Err(keys) => {
                        verified.note_damaged_keys(&keys);
                        continue;
                    }
                };
                let result = match section {
                    Section::Head => head_block::decode(&at, &value).map(drop).map_err(|error| error.to_string()),
                    Section::Chunks => numbers_of(&at).and_then(|of| {
                        if window.of != Some(of) {
                            let before = std::mem::replace(&mut window, WindowMinutes::new(of));
                            self.minutes(before, stale, verified)?;
                        }
                        self.chunk(&at, &value, &mut window, verified)
                    }),
                    _ => frame::open(&at, &value).map(drop).map_err(|error| error.to_string()),
                };
                verified.note(&at, result);
            }
        }
        if let Err(what) = self.minutes(window, stale, verified) {
            verified.note(&raw.section(Section::Chunks), Err(what));
        }
        self.count_minutes(stale, verified)
    }

    fn chunk(
        &mut self,
        key: &[u8],
        value: &[u8],
        of_window: &mut WindowMinutes,
        verified: &mut Verified,
    ) -> Result<(), String> {
        let ValueNumbers { series, window: number } = numbers_of(key)?;
        let payload = frame::open(key, value).map_err(|error| error.to_string())?;
        let chunk = Chunk::read(payload, number).ok_or("the chunk cannot be read")?;
        let own_key = events_key(key);
        let own = if chunk.has_own_events() { self.snapshot.get(&own_key) } else { Ok(None) };
        let own = own.map_err(|error| error.to_string())?;
        let own = own.as_deref().map(|own| frame::open(&own_key, own)).transpose();
        let own = own.map_err(|error| error.to_string())?;
        let samples =
            chunk.samples(own).ok_or("the events cannot be read, or their number differs from the chunk's")?;
        if series as usize >= self.lengths().series {
            return Err("the series is not defined".to_owned());
        }
        check_samples(&samples, number, &self.lengths())?;
        let mut rows = Vec::new();
        let read = chunk.sums.for_each(|pair, sum| {
            rows.push((pair, sum));
            Some(())
        });
        read.ok_or("the sums cannot be read")?;
        let total = rows.iter().map(|row| row.1).sum::<i128>();
        if rows != self.scratch.sums(&samples, 0..samples.len()) || chunk.total != total {
            return Err("the sums differ from those of the events".to_owned());
        }
        if chunk.has_timeline() && !chunk.timeline().is_some_and(|timeline| timeline.is_of(&samples)) {
            return Err("the timeline differs from that of the events".to_owned());
        }
        verified.samples += samples.len() as u64;
        let is_gauge = self.partition.is_gauge(series);
        of_window.minutes.add(windows::minutes_of(&samples, number, is_gauge, &mut self.scratch), is_gauge);
        Ok(())
    }

    /// Checks that the stored minutes of a window equal the minutes of its chunks.
    fn minutes(
        &mut self,
        window: WindowMinutes,
        stale: &BTreeSet<StaleKey>,
        verified: &mut Verified,
    ) -> Result<(), String> {
        let current = window.of.filter(|of| !stale.contains(&self.stale_key(*of)));
        let Some(ValueNumbers { series, window: number }) = current else {
            return Ok(());
        };
        let key = self.key.series_window(Section::Windows, series, number);
        let stored = self.snapshot.get(&key).map_err(|error| error.to_string())?;
        self.current_values += u64::from(stored.is_some());
        // A value that cannot be read has been counted already.
        let stored = stored.map(|value| self.read_windows(&key, &value, series, number).unwrap_or_default());
        // A point's time is stored only for gauges, so only then is it compared.
        let is_gauge = self.partition.is_gauge(series);
        let stored_parts =
            |window: WindowRows| (window.slot, window.samples, if is_gauge { window.last_ns } else { 0 }, window.rows);
        let wanted = window.minutes.into_windows().into_iter().map(stored_parts);
        if !stored.unwrap_or_default().into_iter().map(stored_parts).eq(wanted) {
            verified.note(&key, Err("the minutes differ from those of the samples".to_owned()));
        }
        Ok(())
    }

    /// Checks that no window without chunks has minutes.
    fn count_minutes(&self, stale: &BTreeSet<StaleKey>, verified: &mut Verified) -> Result<(), EngineError> {
        let mut count = 0;
        let mut walk = Walk::once(self.snapshot, self.key.section(Section::Windows));
        while let Some(item) = walk.next()? {
            let Ok((at, _)) = item else { continue };
            count += u64::from(numbers_of(&at).is_ok_and(|of| !stale.contains(&self.stale_key(of))));
        }
        if count != self.current_values {
            let what = format!("{count} windows have minutes, but {} have samples", self.current_values);
            verified.note(&self.key.section(Section::Windows), Err(what));
        }
        Ok(())
    }

    fn stale_key(&self, ValueNumbers { series, window }: ValueNumbers) -> StaleKey {
        StaleKey { tier: Tier::Minute, class: self.key.class, window, tenant: self.key.tenant, series }
    }
}

/// Series and window numbers in the key of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ValueNumbers {
    series: u32,
    window: u32,
}

/// Minutes computed from the chunks of one window of a series.
#[derive(Default)]
struct WindowMinutes {
    /// Series and window of these minutes; `None` before the first chunk is read.
    of: Option<ValueNumbers>,
    minutes: Minutes,
}

impl WindowMinutes {
    fn new(of: ValueNumbers) -> Self {
        Self { of: Some(of), minutes: Minutes::default() }
    }
}

/// Returns the series and window numbers of a key.
fn numbers_of(key: &[u8]) -> Result<ValueNumbers, String> {
    let (_, rest) = PartitionKey::section_of(key).ok_or("the section is unknown")?;
    let (series, window, _) = two_numbers(rest).ok_or("the key is too short")?;
    Ok(ValueNumbers { series, window })
}

fn check_samples(samples: &Samples, window: u32, lengths: &Lengths) -> Result<(), String> {
    let dangles = samples.pairs.iter().any(|&pair| pair as usize >= lengths.pairs)
        || samples.attribute_sets.iter().any(|&set| set as usize >= lengths.attribute_sets);
    if dangles {
        return Err("a stack or an attribute is not defined".to_owned());
    }
    let inside = |&time: &i64| Tier::Raw.window_of(time) == window;
    if samples.times_ns.iter().all(inside) { Ok(()) } else { Err("a sample is of another window".to_owned()) }
}
