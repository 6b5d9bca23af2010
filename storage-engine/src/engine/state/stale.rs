//! Stale windows: windows whose value is not, or not yet, the sum of their finer windows.

use std::collections::BTreeSet;

use proto::Tier;

use crate::database::key::StaleKey;

/// Set of stale windows.
#[derive(Debug, Default)]
pub(crate) struct StaleWindows(BTreeSet<StaleKey>);

impl StaleWindows {
    /// Creates the set from the stale windows in the database.
    pub(crate) fn stored(windows: BTreeSet<StaleKey>) -> Self {
        Self(windows)
    }

    pub(crate) fn contains(&self, key: &StaleKey) -> bool {
        self.0.contains(key)
    }

    /// Returns all stale windows, ascending by key, so finer tiers come first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &StaleKey> {
        self.0.iter()
    }

    /// Adds a window. Returns true if it was not stale before.
    pub(crate) fn insert(&mut self, key: StaleKey) -> bool {
        self.0.insert(key)
    }

    pub(crate) fn extend(&mut self, keys: impl IntoIterator<Item = StaleKey>) {
        self.0.extend(keys);
    }

    /// Removes windows that were summed up.
    pub(crate) fn remove(&mut self, keys: &[StaleKey]) {
        for key in keys {
            self.0.remove(key);
        }
    }

    /// Keeps only the windows for which the predicate is true.
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&StaleKey) -> bool) {
        self.0.retain(is_kept);
    }

    /// Returns whether any stale window of hours or days ends at or before a time, so that it must be summed up.
    pub(crate) fn is_due(&self, before_ns: i64) -> bool {
        [Tier::Hour, Tier::Day].into_iter().any(|tier| {
            let mut from = StaleKey { tier, class: 0, window: 0, tenant: 0, series: 0 };
            while let Some(oldest) = self.0.range(from..).next().filter(|key| key.tier == tier) {
                if tier.window_end_ns(oldest.window) <= before_ns {
                    return true;
                }
                let Some(class) = oldest.class.checked_add(1) else { return false };
                from = StaleKey { class, ..from };
            }
            false
        })
    }

    /// Returns the stale windows of a tier that end at or before a time.
    pub(crate) fn due(&self, tier: Tier, before_ns: i64) -> impl Iterator<Item = &StaleKey> {
        self.0.iter().filter(move |key| key.tier == tier && tier.window_end_ns(key.window) <= before_ns)
    }

    /// Returns the numbers of a tenant's stale windows, each once. Seeks from window to window, because a window may be
    /// stale for a large number of series.
    pub(crate) fn windows_of(&self, tier: Tier, class: u8, tenant: u32) -> BTreeSet<u32> {
        let mut windows = BTreeSet::new();
        let mut from = StaleKey { tier, class, window: 0, tenant, series: 0 };
        while let Some(key) = self.0.range(from..).next().filter(|key| (key.tier, key.class) == (tier, class)) {
            if key.tenant == tenant {
                windows.insert(key.window);
            }
            from = match (key.tenant < tenant, key.window.checked_add(1)) {
                (true, _) => StaleKey { window: key.window, ..from },
                (false, Some(window)) => StaleKey { window, ..from },
                (false, None) => break,
            };
        }
        windows
    }
}
