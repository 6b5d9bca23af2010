//! Damage of one partition, as a query needs it.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::answer::Missing;
use proto::{Tier, Window};

use crate::database::key::PartitionKey;
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::damage::Damage;
use crate::select::plan::PartPlan;

/// Damage of one partition at the start of a query.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartDamage {
    /// Damaged areas of the partition's own tier.
    windows: Vec<Area>,
    /// Damaged areas of the raw samples of the same time.
    raw: Vec<Area>,
    pub(crate) has_damaged_definitions: bool,
    skipped: Arc<BTreeSet<Vec<u8>>>,
}

impl PartDamage {
    pub(crate) fn of(damage: &Damage, key: PartitionKey) -> Self {
        let raw = if key.tier == Tier::Minute { damage.areas_of(key.in_tier(Tier::Raw)).collect() } else { Vec::new() };
        let windows = damage.areas_of(key).collect();
        let has_damaged_definitions = damage.has_damaged_definitions(key);
        Self { windows, raw, has_damaged_definitions, skipped: Arc::clone(damage.skipped()) }
    }

    fn of_tier(&self, is_raw: bool) -> &[Area] {
        if is_raw { &self.raw } else { &self.windows }
    }

    /// Returns whether an area is known to be damaged.
    pub(crate) fn knows(&self, is_raw: bool, area: Area) -> bool {
        self.of_tier(is_raw).iter().any(|known| known.covers(area))
    }

    /// Returns whether reads must skip the value of a key.
    pub(crate) fn skips(&self, key: &[u8]) -> bool {
        !self.skipped.is_empty() && self.skipped.contains(key)
    }

    /// Returns the damaged times in a partition's plan. `concerns` returns whether the query selects any series of a
    /// range at or before a time.
    pub(crate) fn missing(
        &self,
        key: PartitionKey,
        plan: &PartPlan,
        concerns: impl Fn((u32, u32), i64) -> bool,
    ) -> Vec<Missing> {
        let runs = plan.windows.iter();
        let runs: Vec<Window> = runs
            .map(|run| Window {
                start_ns: key.tier.window_start_ns(run.first),
                end_ns: key.tier.window_start_ns(run.end),
            })
            .collect();
        let intervals = plan.raw.iter();
        let intervals: Vec<Window> =
            intervals.map(|one| Window { start_ns: one.start_ns, end_ns: one.end_ns }).collect();
        let mut missing = Vec::new();
        for (tier, areas, planned) in [(key.tier, &self.windows, runs), (Tier::Raw, &self.raw, intervals)] {
            let (Some(first), Some(last)) = (planned.first(), planned.last()) else { continue };
            for area in areas {
                let time = area.time(tier);
                let is_planned = planned.iter().any(|one| time.start_ns < one.end_ns && one.start_ns < time.end_ns);
                let start_ns = time.start_ns.max(first.start_ns);
                let end_ns = time.end_ns.min(last.end_ns);
                if is_planned && concerns(area.series, end_ns) {
                    missing.push(Missing { window: Window { start_ns, end_ns }, finest: tier, is_damaged: true });
                }
            }
        }
        missing
    }
}
