//! Adds damage to the state, with the areas that follow from it in other tiers.

use std::collections::BTreeSet;

use proto::Tier;

use crate::database::key::{PartitionKey, StaleKey, numbered};
use crate::engine::state::State;
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::damage::NewDamage;

/// Times of a partition's stored values.
pub(crate) struct StoredTimes {
    /// Time up to which the partition may have values, in nanoseconds since 1970.
    pub(crate) until_ns: i64,
    /// Windows of chunks that may have samples in the stored head of the partition.
    pub(crate) in_head: BTreeSet<u32>,
}

impl State {
    /// Adds damage. Returns true if the damage was unknown. Minutes whose raw samples are readable are not quarantined.
    /// They become stale instead, and are made again from the raw samples.
    pub(crate) fn quarantine(&mut self, found: &NewDamage) -> bool {
        let NewDamage { key, area, what, skipped } = found;
        if !self.partitions.exists(key) {
            // The partition was dropped after the damage was found.
            return false;
        }
        let is_skipped = skipped.as_ref().is_some_and(|key| self.damage.skip(key));
        let is_kept = || self.horizons.horizon_ns(Tier::Raw, key.class) < key.end_ns();
        if key.tier == Tier::Minute && area.is_value() && !self.damage.has_damaged_definitions(*key) && is_kept() {
            let series = area.series.0;
            let window = area.windows.0;
            let stale = StaleKey { tier: Tier::Minute, class: key.class, window, tenant: key.tenant, series };
            let raw = self.damage.touches(key.in_tier(Tier::Raw), series, area.windows);
            if !raw && self.stale.insert(stale) {
                self.damage.count_read();
                self.damage.make_stale(stale);
                return true;
            }
        }
        self.add_damage(*key, *area, what) || is_skipped
    }

    /// Adds an area. The partition counts as existing from then on, even without any other data, so that queries report
    /// the damage.
    pub(crate) fn add_damage(&mut self, key: PartitionKey, area: Area, what: &str) -> bool {
        if key.end_ns() <= self.horizons.horizon_ns(key.tier, key.class) {
            return false;
        }
        self.partitions.add(key);
        if key.tier == Tier::Raw {
            self.partitions.add(key.in_tier(Tier::Minute));
        }
        self.damage.add(key, area, what)
    }

    /// Quarantines a whole partition because its definitions are damaged. Also quarantines the coarser windows that
    /// were not yet summed from this partition.
    pub(crate) fn quarantine_partition(&mut self, key: PartitionKey, what: &str, stored: &StoredTimes) -> bool {
        if self.partitions.loaded(&key).is_some() {
            // The partition is in memory, and so are its definitions.
            return false;
        }
        let is_new = self.damage.mark_definitions_damaged(key);
        let StoredTimes { until_ns, in_head } = stored;
        let until_ns = *until_ns;
        self.add_damage(key, Area::whole(key, until_ns), what);
        if key.tier == Tier::Minute {
            self.add_damage(key.in_tier(Tier::Raw), Area::whole(key.in_tier(Tier::Raw), until_ns), what);
        }
        let mut lost_ns: BTreeSet<i64> = in_head.iter().map(|&window| Tier::Raw.window_end_ns(window)).collect();
        let stale: Vec<StaleKey> = self.stale.iter().filter(|stale| stale.is_made_of(key)).copied().collect();
        lost_ns.extend(stale.iter().map(|stale| numbered(stale.tier).window_end_ns(stale.window)));
        // These windows cannot be summed, because their source cannot be read. Each rollup would try it again.
        self.stale.remove(&stale);
        let coarser = std::iter::successors(key.tier.coarser(), |tier| tier.coarser());
        for tier in coarser {
            for &end_ns in &lost_ns {
                let window = tier.window_of(end_ns);
                let of = PartitionKey::of_window(tier, key.class, key.tenant, window);
                self.add_damage(of, Area::of_windows(window, window), what);
            }
        }
        is_new
    }

    /// Quarantines a window of the next coarser tier of a partition, and the still coarser windows that are summed from
    /// it.
    pub(crate) fn add_damage_from(&mut self, source: PartitionKey, window: u32, what: &str) {
        let Some(tier) = source.tier.coarser() else { return };
        let end_ns = numbered(tier).window_end_ns(window);
        for tier in std::iter::successors(Some(tier), |tier| tier.coarser()) {
            let window = numbered(tier).window_of(end_ns);
            let of = PartitionKey::of(tier, source.class, source.tenant, end_ns);
            self.add_damage(of, Area::of_windows(window, window), what);
        }
    }

    /// Quarantines windows of minutes in all tiers, because they have lost samples that no tier holds.
    pub(crate) fn quarantine_in_all_tiers(&mut self, key: PartitionKey, area: Area, what: &str) {
        self.add_damage(key.in_tier(Tier::Raw), area, what);
        self.add_damage(key, area, what);
        for window in area.windows.0..=area.windows.1 {
            for tier in [Tier::Hour, Tier::Day] {
                let window = tier.window_of(Tier::Raw.window_end_ns(window));
                let of = PartitionKey::of_window(tier, key.class, key.tenant, window);
                // Series have other numbers in other tiers.
                self.add_damage(of, Area::of_windows(window, window), what);
            }
        }
    }
}
