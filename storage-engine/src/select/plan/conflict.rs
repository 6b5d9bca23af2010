//! Conflicts: windows of a tier that cannot answer a query exactly, because the tier dropped what the query needs.

use proto::Tier;
use proto::answer::Missing;

use crate::error::SelectError;
use crate::memory::dropped_name::DroppedName;
use crate::select::gather::{Aggregate, Query};
use crate::select::view::PartView;

/// Reason why the windows of a tier cannot be used for a query.
pub(crate) enum Conflict {
    /// Some of the windows lack this label, which the query needs.
    DroppedLabel(Tier, String),
    /// The tier dropped this attribute, which the query needs.
    DroppedAttribute(Tier, String),
    /// The query needs sums, and windows of a gauge hold none.
    Gauge,
    /// The query needs last points, and only windows of gauges hold them.
    NotGauge,
}

/// Refuses a query that has a conflict, if finer tiers do not hold all of its times.
pub(crate) fn refuse(conflict: &Conflict, missing: &[Missing]) -> Result<(), SelectError> {
    let Some(horizon_ns) = missing.iter().map(|missing| missing.window.end_ns).max() else { return Ok(()) };
    match conflict {
        Conflict::DroppedLabel(tier, name) | Conflict::DroppedAttribute(tier, name) => {
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
            return labels.min().map(|name| Conflict::DroppedLabel(tier, name.clone()));
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
            return Some(Conflict::DroppedAttribute(tier, name.clone()));
        }
        let is_used = |name: &String| names().any(|used| used == name);
        // Replicas dropped the names in different orders, and must refuse the query for the same one.
        let lacks_label = |name: &&String| {
            self.plan.dropped_labels.contains(*name)
                && (query.by_series || query.listed_label == Some(*name) || is_used(name))
        };
        let labels = partition.dropped_names().filter_map(DroppedName::label);
        if let Some(name) = labels.filter(lacks_label).min() {
            return Some(Conflict::DroppedLabel(tier, name.clone()));
        }
        let attributes = partition.dropped_names().filter(|dropped| dropped.label().is_none()).map(DroppedName::text);
        let attribute = attributes.filter(|name| names().any(|used| used == name) && is_missing(name)).min();
        attribute.map(|name| Conflict::DroppedAttribute(tier, name.to_owned()))
    }
}
