//! Times that are missing from a response, because no tier holds them in the resolution that the query needs.
//!
//! Coarser windows show whether a matching series has samples in such a time. Only then is the time reported, so a
//! response without reported times is complete.

use std::collections::{BTreeMap, BTreeSet};

use proto::answer::Missing;
use proto::{LabelSet, Tier, Window};

use crate::database::key::PartitionKey;
use crate::engine::store::Store;
use crate::error::SelectError;
use crate::integrity::quarantine::part_damage::PartDamage;
use crate::memory::dropped_name::DroppedName;
use crate::select::gather::{PlannedQuery, Query, gather};
use crate::select::plan::{MissingRange, Tiers, plan, sort_missing};
use crate::select::read::PartReader;

/// Maximum number of missing times that are checked one by one. If there are more, those that the same tier holds for
/// the same class are checked together: if their whole span has a matching sample, all of them are reported.
const CHECKED_ONE_BY_ONE_MAX: usize = 64;

/// Returns the times that are missing from the response, ascending. `is_affected` returns whether samples of a series
/// up to a time would change the response.
pub(crate) fn missing_times(
    store: &Store,
    query: &Query<'_>,
    planned: &PlannedQuery<'_>,
    is_affected: impl Fn(&LabelSet, i64) -> bool,
) -> Result<Vec<Missing>, SelectError> {
    let ranges = &planned.plan.missing;
    let mut missing: Vec<Missing> = Vec::new();
    if ranges.len() <= CHECKED_ONE_BY_ONE_MAX {
        for range in ranges {
            if has_samples(store, query, planned, range, &is_affected)? {
                missing.push(range.missing);
            }
        }
    } else {
        for span in spans(ranges) {
            if has_samples(store, query, planned, &span, &is_affected)? {
                let of_span = ranges.iter().filter(|range| range.is_held_like(&span));
                missing.extend(of_span.map(|range| range.missing));
            }
        }
    }
    sort_missing(&mut missing);
    Ok(missing)
}

/// Returns whether a matching series may have samples in a missing time.
fn has_samples(
    store: &Store,
    query: &Query<'_>,
    planned: &PlannedQuery<'_>,
    range: &MissingRange,
    is_affected: &impl Fn(&LabelSet, i64) -> bool,
) -> Result<bool, SelectError> {
    let mut tiers = Tiers::ALL;
    loop {
        match check(store, query, planned, range, &tiers, is_affected)? {
            Checked::HasSamples(has_samples) => return Ok(has_samples),
            Checked::Lacks(tier) => tiers = tiers.without(tier),
        }
    }
}

/// Result of a check for samples.
enum Checked {
    HasSamples(bool),
    /// This tier lacks a name that decides which series match, and a finer tier may have it. Which of the two has been
    /// sealed must not change the response.
    Lacks(Tier),
}

/// Checks for samples in windows of these tiers that overlap a missing time. The tier that holds the time is among
/// them.
fn check(
    store: &Store,
    query: &Query<'_>,
    planned: &PlannedQuery<'_>,
    range: &MissingRange,
    tiers: &Tiers,
    is_affected: &impl Fn(&LabelSet, i64) -> bool,
) -> Result<Checked, SelectError> {
    let MissingRange { class, holder, missing } = *range;
    let end_ns = missing.window.end_ns;
    let (windows, mut damage) = {
        let state = store.state();
        let Some(tenant) = state.tenants.number(query.tenant) else { return Ok(Checked::HasSamples(false)) };
        let windows = plan(&state, tenant, &[touched(missing.window, holder)], tiers);
        let damage = windows.parts.keys().map(|key| (*key, PartDamage::of(&state.damage, *key)));
        let damage: BTreeMap<PartitionKey, PartDamage> = damage.collect();
        (windows, damage)
    };
    if windows.missing.iter().any(|range| range.class == class) {
        return Ok(Checked::HasSamples(true));
    }
    for (key, part) in windows.parts.into_iter().filter(|(key, _)| key.class == class) {
        // A partition that was dropped meanwhile has no samples.
        let partition = match store.outline(key) {
            Ok(Some(partition)) => partition,
            Ok(None) => continue,
            // Without definitions, it is unknown whether a series matches.
            Err(error) if error.is_damage() => return Ok(Checked::HasSamples(true)),
            Err(error) => return Err(error.into()),
        };
        // If a tier dropped a label, the series may have had any value of it, so a matcher on the label is
        // ignored.
        let matchers = {
            let partition = partition.read();
            let lacks =
                |dropped: &&DroppedName| dropped.label().is_none_or(|label| part.dropped_labels.contains(label));
            let is_matched = |name: &DroppedName| query.matchers.iter().any(|matcher| matcher.name == name.text());
            if key.tier.number() > holder.number() && partition.dropped_names().filter(lacks).any(is_matched) {
                return Ok(Checked::Lacks(key.tier));
            }
            let labels: BTreeSet<&String> =
                partition.dropped_names().filter(lacks).filter_map(DroppedName::label).collect();
            let has = |name: &String| !labels.contains(name);
            query.matchers.iter().filter(|matcher| has(&matcher.name)).cloned().collect::<Vec<_>>()
        };
        let mut part =
            gather(key, partition, part, &Query { matchers: &matchers, tiers: query.tiers.clone(), ..*query });
        part.damage = damage.remove(&key).unwrap_or_default();
        // What cannot be read may have been a sample.
        let concerns = |(first, last): (u32, u32), end_ns: i64| {
            let mut numbered = part.series.iter().filter(|series| (first..=last).contains(&series.number));
            (first, last) == (0, u32::MAX) || numbered.any(|series| is_affected(&part.labels(series), end_ns))
        };
        if !part.damage.missing(key, &part.plan, concerns).is_empty() {
            return Ok(Checked::HasSamples(true));
        }
        let mut reader = PartReader::new(&planned.view, &part);
        for series in part.series.iter().filter(|series| is_affected(&part.labels(series), end_ns)) {
            if reader.has_samples(series)? {
                return Ok(Checked::HasSamples(true));
            }
        }
    }
    Ok(Checked::HasSamples(false))
}

/// Returns the time of those windows of a tier that overlap `window`.
fn touched(window: Window, tier: Tier) -> Window {
    let width_ns = tier.window_ns();
    let up = |time: i64| time.div_euclid(width_ns).saturating_add(i64::from(time.rem_euclid(width_ns) > 0));
    let start_ns = window.start_ns.div_euclid(width_ns).saturating_mul(width_ns);
    Window { start_ns, end_ns: up(window.end_ns).saturating_mul(width_ns) }
}

/// Returns one range for each pair of a class and the tier that holds the times. The range reaches from the first to
/// the last missing time.
fn spans(ranges: &[MissingRange]) -> Vec<MissingRange> {
    let mut spans: Vec<MissingRange> = Vec::new();
    for range in ranges {
        match spans.iter_mut().find(|span| span.is_held_like(range)) {
            Some(MissingRange { missing: Missing { window, .. }, .. }) => {
                window.start_ns = window.start_ns.min(range.missing.window.start_ns);
                window.end_ns = window.end_ns.max(range.missing.window.end_ns);
            }
            None => spans.push(*range),
        }
    }
    spans
}
