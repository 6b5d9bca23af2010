//! Recording damage that a query, an append or a flush finds, and keys that a repair lost.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use proto::Tier;

use crate::database::key::{PartitionKey, Section, stale_key, two_numbers};
use crate::database::that_may_exist;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::integrity::quarantine::area::{Area, area_between, area_of};
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::damaged_keys::{DamagedKeys, Walk, after};
use crate::integrity::quarantine::repair::{self, Lost};

impl Engine {
    /// Quarantines damage. Returns whether it was unknown.
    pub(crate) fn quarantine(&self, found: &NewDamage) -> bool {
        self.note_file(&found.what);
        self.state.write().quarantine(found)
    }

    /// Returns whether table files with damaged blocks were found: they are repaired when the engine is opened again.
    /// Until then nothing is compacted, because RocksDB refuses all writes after a compaction that read such a block.
    pub fn needs_repair(&self) -> bool {
        self.needs_repair.load(Ordering::Relaxed)
    }

    /// Returns whether there are table files with damaged blocks, including those that the last repair failed on. Until
    /// they are repaired nothing is compacted, so dropped partitions still take disk space.
    pub fn has_damaged_files(&self) -> bool {
        self.has_damaged_files.load(Ordering::Relaxed)
    }

    /// Lists the table file that an error of RocksDB names for repair.
    pub(crate) fn note_file(&self, what: &str) {
        let Some(number) = repair::file_named(what) else { return };
        // If this fails, the next compaction fails, and the engine is opened again after that.
        let _is_stopped = self.database.set_options(&[("disable_auto_compactions", "true")]);
        // A file that was listed before could not be repaired when the engine was opened.
        if repair::note_file(&self.config.directory, number).is_ok_and(|is_new| is_new) {
            self.has_damaged_files.store(true, Ordering::Relaxed);
            self.needs_repair.store(true, Ordering::Relaxed);
        }
    }

    /// Quarantines the keys that were lost in a repair.
    pub(crate) fn quarantine_lost(&self) -> Result<(), EngineError> {
        let lost = repair::read_lost(&self.database.snapshot())?;
        for (_, lost) in &lost {
            let is_hit = |key: &PartitionKey| lost.from < key.end() && key.prefix() < lost.to;
            // A partition that lost all of its keys is found by the times that other tiers have.
            let hit: BTreeSet<PartitionKey> = {
                let state = self.state.read();
                let tenants = state.tenants.numbers();
                that_may_exist(state.partitions.existing(), &tenants, state.clock.entries_ns()).filter(is_hit).collect()
            };
            let file = repair::file_named(&lost.what);
            for key in hit {
                if key.end_ns() <= self.state.read().horizons.horizon_ns(key.tier, key.class) {
                    continue;
                }
                // The old partition's values were lost, of which all is quarantined already.
                let named = if key.tier == Tier::Raw { key.in_tier(Tier::Minute) } else { key };
                let newest = self.state.read().damage.newest_replaced_file(named);
                if file.zip(newest).is_some_and(|(file, newest)| file <= newest) {
                    continue;
                }
                self.state.write().partitions.add(key);
                for section in Section::ALL {
                    self.quarantine_lost_section(key, section, lost)?;
                }
            }
        }
        self.state.write().damage.quarantined_lost(lost.into_iter().map(|(at, _)| at).collect());
        Ok(())
    }

    fn quarantine_lost_section(&self, key: PartitionKey, section: Section, lost: &Lost) -> Result<(), EngineError> {
        let prefix = key.section(section);
        let end = after(&prefix);
        if lost.to <= prefix || end <= lost.from {
            return Ok(());
        }
        let (from, to) = (lost.from.clone().max(prefix), lost.to.clone().min(end));
        let area = area_between(key, section, &from, &to);
        let what = lost.what.as_str();
        let is_raw = key.tier == Tier::Raw;
        match section {
            Section::Chunks | Section::Events if is_raw => {
                self.state.write().add_damage(key, area, what);
            }
            Section::Head if is_raw => {
                self.state.write().quarantine_in_all_tiers(key.in_tier(Tier::Minute), area, what)
            }
            Section::Windows if key.tier == Tier::Minute => self.quarantine_lost_minutes(key, area, what)?,
            Section::Windows if !is_raw => {
                self.state.write().add_damage(key, area, what);
            }
            Section::Series | Section::Dictionary | Section::DroppedNames if !is_raw => {
                let windows = self.head_windows(key)?;
                self.state.write().quarantine_partition(key, what, &windows);
                let _writing = self.writing.lock();
                self.replace_partition(key)?;
            }
            // A retry of a batch whose ID was lost counts twice.
            _ => {}
        }
        Ok(())
    }

    /// Quarantines the value of a series and window.
    pub(crate) fn quarantine_value(&self, key: PartitionKey, series: u32, window: u32, error: &EngineError) {
        self.quarantine(&NewDamage { key, area: Area::value(series, window), what: error.to_string(), skipped: None });
    }

    /// Quarantines keys of a section that cannot be read.
    pub(crate) fn quarantine_keys(&self, key: PartitionKey, section: Section, keys: &DamagedKeys) {
        self.quarantine(&NewDamage {
            key,
            area: area_of(key, section, keys),
            what: keys.error.to_string(),
            skipped: None,
        });
    }

    /// Quarantines an area of minutes whose keys were lost. Those that have readable chunks are made again from them.
    fn quarantine_lost_minutes(&self, key: PartitionKey, area: Area, what: &str) -> Result<(), EngineError> {
        let raw = key.in_tier(Tier::Raw);
        {
            let mut state = self.state.write();
            let is_raw_gone = raw.end_ns() <= state.horizons.horizon_ns(Tier::Raw, raw.class);
            if is_raw_gone || state.damage.areas_of(raw).any(|damaged| damaged.overlaps(area)) {
                state.add_damage(key, area, what);
            }
            if is_raw_gone {
                return Ok(());
            }
        }
        let snapshot = self.database.snapshot();
        let first = raw.series_window(Section::Chunks, area.series.0, area.windows.0);
        let mut walk = Walk::between(&snapshot, first, after(&raw.section(Section::Chunks)), false);
        while let Some(item) = walk.next()? {
            let Ok((at, _)) = item else { continue };
            let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
            let Some((series, window, _)) = numbers else { continue };
            if series > area.series.1 {
                break;
            }
            if area.holds(series, window) {
                let stale = stale_key(raw, Tier::Minute, window, series);
                let mut state = self.state.write();
                state.stale.insert(stale);
                state.damage.make_stale(stale);
            }
        }
        Ok(())
    }

    /// Quarantines a partition whose definitions are damaged. Returns the error for callers that need them.
    pub(crate) fn quarantine_partition(&self, key: PartitionKey, error: &EngineError) -> EngineError {
        self.note_file(&error.to_string());
        let quarantined = EngineError::Quarantined { tier: key.tier, end_ns: key.end_ns() };
        let in_head = match self.head_windows(key) {
            Ok(windows) => windows,
            Err(error) => return error,
        };
        self.state.write().quarantine_partition(key, &error.to_string(), &in_head);
        quarantined
    }

    /// The windows that have samples in the stored head of a partition of minutes.
    fn head_windows(&self, key: PartitionKey) -> Result<BTreeSet<u32>, EngineError> {
        let mut windows = BTreeSet::new();
        if key.tier != Tier::Minute {
            return Ok(windows);
        }
        let raw = key.in_tier(Tier::Raw);
        let snapshot = self.database.snapshot();
        let mut walk = Walk::new(&snapshot, raw.section(Section::Head));
        while let Some(item) = walk.next()? {
            match item {
                Ok((at, _)) => {
                    let numbers = PartitionKey::section_of(&at).and_then(|(_, rest)| two_numbers(rest));
                    windows.extend(numbers.map(|(window, ..)| window));
                }
                Err(keys) => {
                    let (first, last) = area_of(raw, Section::Head, &keys).windows;
                    windows.extend(first..=last);
                }
            }
        }
        Ok(windows)
    }
}
