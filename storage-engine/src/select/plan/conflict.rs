//! Conflicts: windows of a tier that cannot answer a query exactly, because the tier dropped what the query needs.

use proto::Tier;
use proto::answer::Missing;

use crate::error::SelectError;
use crate::memory::dropped_name::DroppedName;
use crate::select::gather::{Aggregate, Query};
use crate::select::view::PartView;

/// Reason why the windows of a tier cannot be used for a query.
pub(crate) enum Conflict {
    /// The tier dropped this label or attribute, which the query needs.
    DroppedName(Tier, String),
    /// The query needs sums, and windows of a gauge hold none.
    Gauge,
    /// The query needs last points, and only windows of gauges hold them.
    NotGauge,
}

/// Refuses a query that has a conflict, if finer tiers do not hold all of its times.
pub(crate) fn refuse(conflict: &Conflict, missing: &[Missing]) -> Result<(), SelectError> {
    let Some(horizon_ns) = missing.iter().map(|missing| missing.window.end_ns).max() else { return Ok(()) };
    match conflict {
        Conflict::DroppedName(tier, name) => {
            Err(SelectError::DroppedName { tier: *tier, name: name.clone(), horizon_ns })
        }
        Conflict::Gauge => Err(SelectError::GaugeSummed { horizon_ns }),
        // The response lists the missing times.
        Conflict::NotGauge => Ok(()),
    }
}

impl PartView {
    /// Returns a reason why the planned windows of this partition cannot be used.
    pub(crate) fn conflict(&self, query: &Query<'_>) -> Option<Conflict> {
        if self.plan.windows.is_empty() {
            return None;
        }
        let partition = self.partition.read();
        let tier = self.key.tier;
        if self.series.is_empty() {
            // The tier dropped a label of a matcher, and this may be the reason why no series matches.
            let is_matched = |name: &&String| query.matchers.iter().any(|matcher| matcher.name == **name);
            let labels = partition.dropped_names().filter_map(DroppedName::label);
            let labels = labels.filter(|name| self.plan.dropped_labels.contains(*name)).filter(is_matched);
            return labels.min().map(|name| Conflict::DroppedName(tier, name.clone()));
        }
        match query.aggregate {
            Aggregate::Sums if !partition.gauges().is_disjoint(&self.matching) => return Some(Conflict::Gauge),
            Aggregate::Last if !self.matching.is_subset(partition.gauges()) => return Some(Conflict::NotGauge),
            _ => {}
        }
        let names = || query.matchers.iter().map(|matcher| &matcher.name).chain(query.group_by);
        let is_missing = |name: &str| !partition.index.without(name).is_disjoint(&self.matching);
        let attribute = |name: &&String| partition.is_attribute(name) && is_missing(name);
        if let Some(name) = names().find(attribute) {
            return Some(Conflict::DroppedName(tier, name.clone()));
        }
        let conflicting = |dropped: &DroppedName| match dropped {
            // Other windows of the partition lack the label.
            DroppedName::Label(name) if !self.plan.dropped_labels.contains(name) => None,
            DroppedName::Label(name) if query.by_series => Some(name.clone()),
            DroppedName::Label(name) => names().chain(query.listed_label).find(|used| *used == name).cloned(),
            DroppedName::Attribute(name) => names().find(|used| *used == name && is_missing(name)).cloned(),
        };
        // Replicas dropped the names in different orders, and must refuse the query for the same one.
        partition.dropped_names().filter_map(conflicting).min().map(|name| Conflict::DroppedName(tier, name))
    }
}
