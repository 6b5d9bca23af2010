//! Windows that a plan cannot use, because they are not exact.

use std::collections::BTreeSet;

use proto::Tier;

use crate::database::key::numbered;
use crate::engine::state::State;

/// For each tier, the windows that are not exact or that are damaged.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// Windows of chunks whose minutes are not exact.
    chunks: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    days: BTreeSet<u32>,
    /// Damaged windows whose finer tier still exists, by tier: minutes (numbered by the windows of chunks), hours,
    /// days. Coarser windows than the damaged ones remain exact.
    damaged: [BTreeSet<u32>; 3],
}

impl Stale {
    pub(super) fn of(state: &State, tenant: u32, class: u8) -> Self {
        let mut stale = Self::default();
        for (key, partition) in
            state.partitions.all_loaded().filter(|(key, _)| key.tenant == tenant && key.class == class)
        {
            if key.tier == Tier::Minute {
                stale.chunks.extend(partition.read().head.windows());
            }
        }
        for (tier, windows) in
            [(Tier::Minute, &mut stale.chunks), (Tier::Hour, &mut stale.hours), (Tier::Day, &mut stale.days)]
        {
            windows.extend(state.stale.windows_of(tier, class, tenant));
        }
        for (key, area, _) in state.damage.iter().filter(|(key, ..)| (key.tenant, key.class) == (tenant, class)) {
            let numbered = numbered(key.tier);
            let Some(finer) = Tier::from_number(key.tier.number().wrapping_sub(1)) else { continue };
            let horizon_ns = state.horizons.horizon_ns(finer, class);
            let windows =
                (area.windows.0..=area.windows.1).filter(|&window| numbered.window_start_ns(window) >= horizon_ns);
            stale.damaged[usize::from(finer.number())].extend(windows);
        }
        stale.hours.extend(stale.chunks.iter().map(|window| window / Tier::Raw.windows_in(Tier::Hour)));
        stale.days.extend(stale.hours.iter().map(|window| window / Tier::Hour.windows_in(Tier::Day)));
        stale
    }

    /// Returns the first window at or after `from` that cannot be used, and the number after it. The minutes of a
    /// chunk's window cannot be used together, so the second number is then that of the first minute after them.
    pub(super) fn next(&self, tier: Tier, from: i64) -> Option<(i64, i64)> {
        let [chunks, hours, days] = &self.damaged;
        let (windows, of_tier) = match tier {
            Tier::Raw => return None,
            Tier::Minute => ([&self.chunks, chunks], i64::from(Tier::Minute.windows_in(Tier::Raw))),
            Tier::Hour => ([&self.hours, hours], 1),
            Tier::Day => ([&self.days, days], 1),
        };
        let first = u32::try_from(from.div_euclid(of_tier).max(0)).ok()?;
        let stale = i64::from(*windows.iter().filter_map(|windows| windows.range(first..).next()).min()?);
        Some(((stale * of_tier).max(from), (stale + 1) * of_tier))
    }
}
