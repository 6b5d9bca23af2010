//! Verification: reads and checks everything on disk, and checks that the tiers agree.
//!
//! Sums must equal those of their events, minutes the sums of their chunks, hours the sums of their minutes, and days
//! the sums of their hours. Every reference must exist. Hours and days of gauges do not add up, so each of them is
//! checked alone.
//!
//! Partitions and their values are read one after another. To compare tiers, a signature of 16 bytes is kept for each
//! window (`signature`).

pub(crate) mod content;
pub(crate) mod partition;
pub(crate) mod signature;

use std::collections::{BTreeMap, BTreeSet};

use proto::Tier;
use proto::build_id::to_hex;

use crate::database::frame;
use crate::database::key::{self, PartitionKey, Section, StaleKey};
use crate::database::{self, Snapshot};
use crate::engine::store::Store;
use crate::error::EngineError;
use crate::integrity::quarantine::damaged_keys::{self, DamagedKeys, Walk};
use crate::integrity::quarantine::report::{damaged_windows, describe_key, lost_batch_ids};
use crate::integrity::verify::partition::PartitionCheck;

/// Maximum number of faults that are described. Further faults are only counted.
const DESCRIBED_MAX: usize = 100;

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of valid values.
    pub values: u64,
    /// Number of raw samples in the valid values.
    pub samples: u64,
    /// Number of invalid values and quarantined windows.
    pub faults: u64,
    /// Descriptions of the first hundred faults, and then of the first hundred partitions that lost batch IDs. That of
    /// a fault names the value and the failed check.
    pub described: Vec<String>,
    /// Sum, modulo 2^128, of the signatures of all windows of minutes, hours and days, except those of gauges. The sum
    /// is equal on replicas that applied the same entries and have sealed and rolled up everything.
    pub signature: u128,
    /// Keys of the first hundred faulty values, each with the description of the fault.
    pub(crate) noted: Vec<(Vec<u8>, String)>,
}

impl Verified {
    pub(crate) fn note(&mut self, key: &[u8], result: Result<(), String>) {
        match result {
            Ok(()) => self.values += 1,
            Err(what) => {
                self.faults += 1;
                if self.noted.len() < DESCRIBED_MAX {
                    self.noted.push((key.to_vec(), what));
                }
            }
        }
    }

    /// Counts the keys that the database cannot read as one fault.
    pub(crate) fn note_damaged_keys(&mut self, keys: &DamagedKeys) {
        self.note(&keys.from, Err(format!("unreadable up to key {}: {}", to_hex(&keys.to), keys.error)));
    }

    fn extend(&mut self, other: Self) {
        let Self { values, samples, faults, noted, signature, .. } = other;
        self.values += values;
        self.samples += samples;
        self.faults += faults;
        self.signature = self.signature.wrapping_add(signature);
        let more = DESCRIBED_MAX.saturating_sub(self.noted.len());
        self.noted.extend(noted.into_iter().take(more));
    }
}

/// For each window of hours and days, two signatures (`signature`): of its own value, and of its finer windows.
#[derive(Debug, Default)]
pub(crate) struct Signatures(BTreeMap<(PartitionKey, u32), Compared>);

#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    stored: u128,
    finer: u128,
}

impl Signatures {
    /// Adds the signature of a window's own value.
    pub(crate) fn store(&mut self, key: PartitionKey, window: u32, signature: u128) {
        let compared = self.0.entry((key, window)).or_default();
        compared.stored = compared.stored.wrapping_add(signature);
    }

    /// Adds the signature of one of the window's finer windows.
    pub(crate) fn add_finer(&mut self, key: PartitionKey, window: u32, signature: u128) {
        let compared = self.0.entry((key, window)).or_default();
        compared.finer = compared.finer.wrapping_add(signature);
    }
}

/// Reads and checks everything on disk, but no data that is only in memory. Takes as long as reading and
/// unpacking all files.
pub(crate) fn verify(store: &Store) -> Result<Verified, EngineError> {
    // Writes continue during the check, so it reads a snapshot.
    let snapshot = store.database().snapshot();
    let mut verified = Verified::default();
    let keys = partitions(&snapshot, &mut verified)?;
    let stale = database::read_stale(&snapshot)?;
    let mut signatures = Signatures::default();
    for key in keys.iter().filter(|key| key.tier != Tier::Raw) {
        let tenant = store.tenant_name(key.tenant);
        // A partition of minutes or hours is in one period, so the next coarser tier drops the same labels from all its
        // windows.
        let dropped = |coarser| store.state().label_drops.of(key.tenant, coarser, key.end_ns());
        let dropped = key.tier.coarser().map(dropped).unwrap_or_default();
        let mut of_partition = Verified::default();
        let mut check = PartitionCheck::new(&snapshot, *key, &tenant, &dropped, &mut of_partition);
        check.windows(&mut signatures, &mut of_partition)?;
        keep_if_there(store, *key, of_partition, &mut verified);
        let raw = key.in_tier(Tier::Raw);
        if key.tier == Tier::Minute && keys.contains(&raw) {
            let mut of_raw = Verified::default();
            check.raw(&stale, &mut of_raw)?;
            keep_if_there(store, raw, of_raw, &mut verified);
        }
    }
    for raw in keys.iter().filter(|key| key.tier == Tier::Raw && !keys.contains(&key.in_tier(Tier::Minute))) {
        let mut alone = Verified::default();
        alone.note(&raw.prefix(), Err("raw samples have no dictionary".to_owned()));
        keep_if_there(store, *raw, alone, &mut verified);
    }
    compare(store, &signatures, &stale, &mut verified);
    describe(store, &mut verified);
    Ok(verified)
}

/// Describes the faults by tier, tenant, series and time. Adds the quarantined windows, which are faults too. Lost
/// batch IDs do not count as faults, because no response is wrong.
fn describe(store: &Store, verified: &mut Verified) {
    for (key, what) in std::mem::take(&mut verified.noted) {
        let location = describe_key(store, &key).map(|location| format!("{location}: ")).unwrap_or_default();
        verified.described.push(format!("{location}key {}: {what}", to_hex(&key)));
    }
    let windows = damaged_windows(store);
    verified.faults += windows.len() as u64;
    let windows = windows.into_iter().map(|damaged| damaged.to_string());
    let more = DESCRIBED_MAX.saturating_sub(verified.described.len());
    verified.described.extend(windows.take(more));
    verified.described.extend(lost_batch_ids(store).into_iter().take(DESCRIBED_MAX));
}

/// Adds the result of a partition, unless the partition was dropped meanwhile. The files of a dropped partition may be
/// gone, so faults that were found in the partition are not real.
fn keep_if_there(store: &Store, key: PartitionKey, found: Verified, verified: &mut Verified) {
    if store.state().partitions.exists(&key) {
        verified.extend(found);
    }
}

/// Compares the signature of each window with that of its finer windows, if all of the finer windows still exist.
fn compare(store: &Store, signatures: &Signatures, stale: &BTreeSet<StaleKey>, verified: &mut Verified) {
    let state = store.state();
    for (&(key, window), compared) in &signatures.0 {
        let end_ns = key.tier.window_end_ns(window);
        let finer = Tier::from_number(key.tier.number() - 1).unwrap_or(key.tier);
        let is_dropped = [finer, key.tier].into_iter().any(|tier| end_ns <= state.horizons.horizon_ns(tier, key.class));
        let first = StaleKey { tier: key.tier, class: key.class, window, tenant: key.tenant, series: 0 };
        let is_stale = stale.range(first..=StaleKey { series: u32::MAX, ..first }).next().is_some();
        if is_dropped || is_stale {
            continue;
        }
        let is_sum = compared.stored == compared.finer;
        let result = if is_sum { Ok(()) } else { Err("the sum differs from that of the finer windows".to_owned()) };
        verified.note(&key.series_window(Section::Windows, 0, window), result);
    }
}

/// Returns all partitions, ascending by key, so those of finer tiers come first. Also checks the values that belong to
/// no partition.
fn partitions(snapshot: &Snapshot<'_>, verified: &mut Verified) -> Result<BTreeSet<PartitionKey>, EngineError> {
    let mut keys = BTreeSet::new();
    let mut walk = Walk::once(snapshot, Vec::new());
    while let Some(item) = walk.next()? {
        let (key, value) = match item {
            Ok(item) => item,
            Err(damaged) => {
                verified.note_damaged_keys(&damaged);
                continue;
            }
        };
        if let Some(partition) = PartitionKey::of_key(&key) {
            keys.insert(partition);
            walk.seek(partition.end());
        } else if PartitionKey::of_quarantined(&key).is_some() {
            // No query reads quarantined values.
            walk.seek(damaged_keys::after(&key::quarantined_partitions()));
        } else {
            verified.note(&key, frame::open(&key, &value).map(drop).map_err(|error| error.to_string()));
        }
    }
    Ok(keys)
}
