//! Verification: everything on disk is read again and checked, also against each other: sums are those of the events, minutes
//! those of the chunks, hours those of the minutes, days those of the hours, and nothing refers to what is not there.

use std::collections::{BTreeMap, BTreeSet};

use proto::{Samples, Tier};
use rocksdb::{IteratorMode, ReadOptions};

use crate::chunk::{Chunk, Scratch};
use crate::database::{self, Snapshot};
use crate::dense::Dense;
use crate::encoding::frame;
use crate::encoding::sums::Row;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::flush::events_key;
use crate::head_block;
use crate::key::{PartitionKey, Section, StaleKey, two_numbers};
use crate::partition::{Lengths, Partition};
use crate::vocabulary::Vocabulary;
use crate::windows::{self, Minutes, StoredWindow};

/// Faults that are described; more are only counted.
const DESCRIBED_MAX: usize = 100;

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Values that were read and are as they should be.
    pub values: u64,
    /// Raw samples in them.
    pub samples: u64,
    /// Values that are not.
    pub faults: u64,
    /// Which they are and what is wrong, of the first hundred.
    pub described: Vec<String>,
}

impl Verified {
    fn note(&mut self, key: &[u8], result: Result<(), String>) {
        match result {
            Ok(()) => self.values += 1,
            Err(what) => {
                self.faults += 1;
                if self.described.len() < DESCRIBED_MAX {
                    self.described.push(format!("key {}: {what}", proto::build_id::to_hex(key)));
                }
            }
        }
    }
}

/// Place, samples and sums.
type ReadWindow = (u8, u64, Vec<Row>);

/// A partition that is being read.
struct Reading {
    key: PartitionKey,
    lengths: Lengths,
    /// Minutes, hours or days, as they were read: by series and value's window.
    sums: BTreeMap<(u32, u32), Vec<ReadWindow>>,
}

impl Engine {
    /// Reads and checks everything that is on disk; what is only in memory is not looked at. Takes as long as reading all files
    /// and unpacking them.
    ///
    /// # Errors
    /// [`EngineError`] where the database itself cannot be read; faults of values are part of what is returned.
    pub fn verify(&self) -> Result<Verified, EngineError> {
        // Writing goes on; what is read is of one moment.
        let snapshot = self.database.snapshot();
        let mut verified = Verified::default();
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_verify_checksums(true);
        let mut keys = Vec::new();
        for item in snapshot.iterator_opt(IteratorMode::Start, options) {
            let (key, value) = item?;
            match PartitionKey::of_key(&key) {
                Some(partition) if keys.last() == Some(&partition) => {}
                Some(partition) => keys.push(partition),
                None => verified.note(&key, frame::open(&key, &value).map(drop).map_err(|error| error.to_string())),
            }
        }
        let stale = database::read_stale(&snapshot)?;
        // Coarser ones are compared to finer ones, which come first.
        let mut finer: BTreeMap<PartitionKey, Totals> = BTreeMap::new();
        for key in keys.iter().filter(|key| key.tier != Tier::Raw) {
            let reading = self.verify_partition(&snapshot, *key, &mut verified)?;
            let raw = key.in_tier(Tier::Raw);
            if key.tier == Tier::Minute && keys.contains(&raw) {
                self.verify_raw(&snapshot, raw, &reading, &stale, &mut verified)?;
            }
            let totals = reading.totals();
            self.compare(*key, &totals, &finer, &stale, &mut verified);
            finer.retain(|of, _| of.tier.coarser() == Some(key.tier) || of.tier == key.tier);
            finer.insert(*key, totals);
        }
        for raw in keys.iter().filter(|key| key.tier == Tier::Raw) {
            if !keys.contains(&raw.in_tier(Tier::Minute)) {
                verified.note(&raw.prefix(), Err("raw samples have no dictionary".to_owned()));
            }
        }
        Ok(verified)
    }

    /// Definitions and windows of one partition.
    fn verify_partition(
        &self,
        snapshot: &Snapshot<'_>,
        key: PartitionKey,
        verified: &mut Verified,
    ) -> Result<Reading, EngineError> {
        let mut vocabulary = Vocabulary::new(0);
        let mut reading = Reading { key, lengths: Lengths::default(), sums: BTreeMap::new() };
        match Partition::load(snapshot, key, &mut vocabulary, 0) {
            Ok(partition) => {
                reading.lengths = partition.lengths();
                verified.values += u64::from(partition.dictionary_blocks());
            }
            Err(error) => verified.note(&key.section(Section::Dictionary), Err(error.to_string())),
        }
        let values = if key.tier == Tier::Minute { Tier::Raw } else { key.tier };
        let mut dense = Dense::default();
        for item in database::scan_at(snapshot, &key.section(Section::Windows)) {
            let (at, value) = item?;
            let result = read_windows(&at, &value, values, &mut reading, &mut dense);
            if result.is_err() {
                // What was added of the faulty one is no part of the next.
                dense = Dense::default();
            }
            verified.note(&at, result);
        }
        Ok(reading)
    }

    fn verify_raw(
        &self,
        snapshot: &Snapshot<'_>,
        raw: PartitionKey,
        minutes: &Reading,
        stale: &BTreeSet<StaleKey>,
        verified: &mut Verified,
    ) -> Result<(), EngineError> {
        let mut scratch = Scratch::default();
        let mut window = OfWindow::default();
        for section in [Section::Head, Section::BatchIds, Section::Chunks, Section::Events] {
            for item in database::scan_at(snapshot, &raw.section(section)) {
                let (at, value) = item?;
                let result = match section {
                    Section::Head => {
                        head_block::decode(&at, &value).map(|_samples| ()).map_err(|error| error.to_string())
                    }
                    Section::Events | Section::BatchIds => {
                        frame::open(&at, &value).map(drop).map_err(|error| error.to_string())
                    }
                    _ => {
                        let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
                        let (series, number, _) = numbers.unwrap_or_default();
                        if window.of != (series, number) {
                            let before = std::mem::replace(&mut window, OfWindow::new(raw, series, number));
                            before.verify(minutes, stale, verified);
                        }
                        verify_chunk(snapshot, (&at, &value), minutes, &mut window, &mut scratch, verified)
                    }
                };
                verified.note(&at, result);
            }
        }
        window.verify(minutes, stale, verified);
        Ok(())
    }

    /// Windows against the finer ones that they are made of, where those are still there, all of them, and no label was dropped.
    fn compare(
        &self,
        key: PartitionKey,
        totals: &Totals,
        finer: &BTreeMap<PartitionKey, Totals>,
        stale: &BTreeSet<StaleKey>,
        verified: &mut Verified,
    ) {
        let Some(finer_tier) = Tier::from_number(key.tier.number() - 1).filter(|tier| *tier != Tier::Raw) else {
            return;
        };
        if !self.config.dropped_labels(key.tier).is_empty() {
            return;
        }
        let horizon_ns = self.state.read().horizon_ns(finer_tier, key.class);
        for (&window, &total) in &totals.by_window {
            let end_ns = key.tier.window_end_ns(window);
            let first = StaleKey { tier: key.tier, class: key.class, window, tenant: key.tenant, series: 0 };
            let is_stale = stale.range(first..=StaleKey { series: u32::MAX, ..first }).next().is_some();
            let source = finer.get(&PartitionKey::of(finer_tier, key.class, key.tenant, end_ns));
            let Some(source) = source.filter(|_| !is_stale && end_ns > horizon_ns) else { continue };
            // A gauge's windows do not add up.
            if source.has_gauges || totals.has_gauges {
                continue;
            }
            // Minutes are stored by the window of their chunk.
            let values = if finer_tier == Tier::Minute { Tier::Raw } else { finer_tier };
            let count = values.windows_in(key.tier);
            let wanted: i128 =
                source.by_window.range(window * count..(window + 1) * count).map(|(_, total)| total).sum();
            let same = wanted == total;
            let result = if same { Ok(()) } else { Err(format!("the windows hold {total}, the finer ones {wanted}")) };
            verified.note(&key.series_window(Section::Windows, 0, window), result);
        }
    }
}

fn verify_chunk(
    snapshot: &Snapshot<'_>,
    (key, value): (&[u8], &[u8]),
    minutes: &Reading,
    of_window: &mut OfWindow,
    scratch: &mut Scratch,
    verified: &mut Verified,
) -> Result<(), String> {
    let (_, rest) = PartitionKey::section_of(key).ok_or("no such section")?;
    let (series, window, _) = two_numbers(rest).ok_or("the key is too short")?;
    let payload = frame::open(key, value).map_err(|error| error.to_string())?;
    let chunk = Chunk::read(payload, window).ok_or("the chunk cannot be read")?;
    let own_key = events_key(key);
    let own = if chunk.has_own_events() { snapshot.get(&own_key).map_err(|error| error.to_string())? } else { None };
    let own = match &own {
        Some(own) => Some(frame::open(&own_key, own).map_err(|error| error.to_string())?),
        None => None,
    };
    let samples = chunk.samples(own).ok_or("the events cannot be read, or are not as many as the chunk says")?;
    if series as usize >= minutes.lengths.series {
        return Err("the series is not defined".to_owned());
    }
    check_samples(&samples, window, &minutes.lengths)?;
    let mut rows = Vec::new();
    let read = chunk.sums.for_each(|pair, sum| {
        rows.push((pair, sum));
        Some(())
    });
    read.ok_or("the sums cannot be read")?;
    if rows != scratch.sums(&samples, 0..samples.len()) || chunk.total != rows.iter().map(|row| row.1).sum::<i128>() {
        return Err("the sums are not those of the events".to_owned());
    }
    verified.samples += samples.len() as u64;
    let part = windows::minutes_of(&samples, window, minutes.is_gauge(series, window), scratch);
    of_window.minutes.add(part, minutes.is_gauge(series, window));
    Ok(())
}

/// The minutes of the chunks of one window of a series.
#[derive(Default)]
struct OfWindow {
    of: (u32, u32),
    key: Vec<u8>,
    minutes: Minutes,
}

impl OfWindow {
    fn new(raw: PartitionKey, series: u32, window: u32) -> Self {
        let key = raw.series_window(Section::Chunks, series, window);
        Self { of: (series, window), key, minutes: Minutes::default() }
    }

    /// That they are stored.
    fn verify(self, minutes: &Reading, stale: &BTreeSet<StaleKey>, verified: &mut Verified) {
        let (series, window) = self.of;
        let of = StaleKey { tier: Tier::Minute, class: minutes.key.class, window, tenant: minutes.key.tenant, series };
        if self.key.is_empty() || stale.contains(&of) {
            return;
        }
        let stored = minutes.sums.get(&self.of).map(Vec::as_slice).unwrap_or_default();
        let wanted = self.minutes.into_windows();
        let same = wanted.len() == stored.len()
            && wanted
                .iter()
                .zip(stored)
                .all(|(wanted, stored)| (wanted.place, &wanted.rows) == (stored.0 & !GAUGE, &stored.2));
        if !same {
            verified.note(&self.key, Err("the minutes are not those of the samples".to_owned()));
        }
    }
}

/// Sums of all series of a partition.
struct Totals {
    /// By the values' windows.
    by_window: BTreeMap<u32, i128>,
    has_gauges: bool,
}

impl Reading {
    fn is_gauge(&self, series: u32, window: u32) -> bool {
        self.sums.get(&(series, window)).is_some_and(|stored| stored.iter().any(|minute| minute.0 & GAUGE != 0))
    }

    fn totals(self) -> Totals {
        let has_gauges = self.sums.values().flatten().any(|window| window.0 & GAUGE != 0);
        let mut by_window: BTreeMap<u32, i128> = BTreeMap::new();
        for ((_, window), stored) in self.sums {
            let total: i128 = stored.iter().flat_map(|window| &window.2).map(|row| row.1).sum();
            *by_window.entry(window).or_default() += total;
        }
        Totals { by_window, has_gauges }
    }
}

/// Marks the place of a gauge's window while it is being read.
const GAUGE: u8 = 0x80;

fn read_windows(
    key: &[u8],
    value: &[u8],
    values: Tier,
    reading: &mut Reading,
    dense: &mut Dense,
) -> Result<(), String> {
    let (_, rest) = PartitionKey::section_of(key).ok_or("no such section")?;
    let (series, window, _) = two_numbers(rest).ok_or("the key is too short")?;
    let payload = frame::open(key, value).map_err(|error| error.to_string())?;
    let stored = windows::decode(payload, values, window).ok_or("the windows cannot be read")?;
    if series as usize >= reading.lengths.series {
        return Err("the series is not defined".to_owned());
    }
    let mut read = Vec::new();
    for StoredWindow { place, samples, total, last_ns, sums, .. } in stored {
        let mut rows: Vec<Row> = Vec::new();
        dense.resize(reading.lengths.pairs);
        sums.add_to(dense, total).ok_or("a stack is not defined")?;
        dense.drain(|pair, sum| rows.push((pair, sum)));
        if rows.iter().map(|row| row.1).sum::<i128>() != total {
            return Err("the total is not that of the sums".to_owned());
        }
        let gauge = if last_ns.is_some() { GAUGE } else { 0 };
        read.push((place | gauge, samples, rows));
    }
    reading.sums.insert((series, window), read);
    Ok(())
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
