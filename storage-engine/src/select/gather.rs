//! Reads all partitions that a query needs, as of one moment.
//!
//! Planning holds the state's lock only while it copies references. Runs of the head never change, so a long query
//! never delays `apply`. Partitions are read one after another, those with the newest times first. A query holds only
//! the partition that it is reading, and others may be evicted from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use proto::answer::{Missing, WindowsRead};
use proto::{LabelSet, TenantId, Tier, Window};

use crate::database::key::PartitionKey;
use crate::engine::store::Store;
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::found_damage::quarantine;
use crate::integrity::quarantine::part_damage::PartDamage;
use crate::memory::dropped_name::DroppedName;
use crate::memory::interner::saturating_u32;
use crate::memory::matcher::ReadyMatcher;
use crate::memory::partition::Partition;
use crate::memory::run::Run;
use crate::select::missing::missing_times;
use crate::select::plan::conflict::{Conflict, refuse};
use crate::select::plan::{PartPlan, Plan, Tiers, covers, plan, sort_missing};
use crate::select::read::known_samples::KnownSince;
use crate::select::view::{PartView, SeriesView, View};

/// Number of passes in which a query may find new damage and mark exactly the damaged areas. If it still finds more,
/// the partitions with this damage are quarantined as a whole.
const PASSES_MAX: usize = 8;

/// Query of one tenant's data.
pub(crate) struct Query<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) matchers: &'a [ReadyMatcher],
    /// Time windows of the buckets, one for each bucket, ascending.
    pub(crate) buckets: &'a [Window],
    /// Names of the labels and attributes that samples are grouped by.
    pub(crate) group_by: &'a [String],
    /// Label whose values are listed. A tier that dropped the label conflicts, but an attribute of the same name is no
    /// value of it.
    pub(crate) listed_label: Option<&'a String>,
    /// True if series are distinguished by all their labels.
    pub(crate) by_series: bool,
    /// Result that the query computes from the samples of a series.
    pub(crate) aggregate: Aggregate,
    pub(crate) tiers: Tiers,
    /// True if the query distinguishes stacks. If false, partitions that are not in memory are read without their
    /// dictionaries.
    pub(crate) needs_stacks: bool,
    /// Function that returns false if the caller no longer waits for the response. The query calls it before each
    /// partition and each series that it reads.
    pub(crate) is_wanted: &'a (dyn Fn() -> bool + Sync),
}

impl Query<'_> {
    /// Returns whether the query needs to know only which series of a partition have samples. Attributes of the samples
    /// must not decide whether they match.
    fn is_about_presence(&self, partition: &Partition) -> bool {
        let is_attribute = |matcher: &ReadyMatcher| partition.is_attribute(&matcher.name);
        self.aggregate == Aggregate::Any && !self.matchers.iter().any(is_attribute)
    }

    fn check_wanted(&self) -> Result<(), SelectError> {
        if (self.is_wanted)() { Ok(()) } else { Err(SelectError::Cancelled) }
    }
}

/// Result that a query computes from the samples of a series. The aggregate decides which windows can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aggregate {
    /// Presence of samples: true if there is any sample.
    Any,
    /// Sums of values. The windows of gauges hold no sums.
    Sums,
    /// Last points. Only the windows of gauges hold them. The last point of a series may be in a partition in which
    /// none of its samples match.
    Last,
}

/// Plan of a query, and the data that it reads, as of one moment.
pub(crate) struct PlannedQuery<'a> {
    pub(crate) plan: Plan,
    /// Partitions that have a head. The samples of the heads are of the same moment.
    with_heads: BTreeMap<PartitionKey, PartView>,
    /// Damage of the planned partitions.
    damage: BTreeMap<PartitionKey, PartDamage>,
    /// Times of damage in the partitions that were read.
    damaged: Vec<Missing>,
    since: KnownSince,
    pub(crate) view: View<'a>,
}

/// Consumer of the partitions that a query reads.
pub(crate) trait Collector {
    /// Adds a partition. Returns [`Progress::Dropped`] if the partition was dropped meanwhile, so that its numbers are
    /// invalid.
    fn add(&mut self, view: &View<'_>, part: &PartView) -> Result<Progress, SelectError>;

    /// Returns whether unread samples of this series, at times up to `end_ns`, would change the response.
    fn is_affected(&self, labels: &LabelSet, end_ns: i64) -> bool;
}

/// Windows that a query read, and times that it could not read.
#[derive(Debug, Default)]
pub(crate) struct ReadSummary {
    pub(crate) windows_read: WindowsRead,
    /// Times that the query could not read, ascending.
    pub(crate) missing: Vec<Missing>,
}

/// Result of reading partitions.
pub(crate) enum Progress {
    Done,
    Conflict(Conflict),
    /// A partition was dropped meanwhile or found to be damaged. No snapshot keeps the files of a dropped partition,
    /// so some values may not have been read. The query must run again.
    Dropped,
}

/// Runs a query on the tiers that give an exact result. Returns the collector, and a summary of what was read.
pub(crate) fn read<C: Collector>(
    store: &Store,
    query: &Query<'_>,
    new: impl Fn() -> C,
) -> Result<(C, ReadSummary), SelectError> {
    let mut tiers = query.tiers.clone();
    let mut refused = None;
    let mut met = BTreeSet::new();
    let mut damaged_passes = 0;
    loop {
        let mut planned = plan_query(store, query, &tiers)?;
        // A query for last points is checked only after reading, because times before the found points do not matter to
        // it.
        if query.aggregate != Aggregate::Last
            && let Some(conflict) = &refused
        {
            let missing = missing_times(store, query, &planned, |_, _| true)?;
            refuse(conflict, &missing)?;
        }
        let mut collector = new();
        let read = read_parts(store, query, &mut planned, &mut collector);
        planned.since.keep(store, std::mem::take(planned.view.sample_times.get_mut()));
        // Values of a partition that was dropped meanwhile may be missing, which is no damage.
        let is_dropped = matches!(read, Ok(Progress::Dropped));
        if is_dropped || quarantine_found(store, &mut planned, &mut met, &mut damaged_passes) {
            continue;
        }
        match read? {
            Progress::Dropped => continue,
            Progress::Conflict(conflict) => {
                tiers = match &conflict {
                    Conflict::DroppedLabel(_, name) => tiers.with_label(name.clone()),
                    Conflict::DroppedAttribute(tier, _) => tiers.without(*tier),
                    Conflict::Gauge | Conflict::NotGauge => Tiers::RAW,
                };
                refused = Some(conflict);
                continue;
            }
            Progress::Done => {}
        }
        let mut missing =
            missing_times(store, query, &planned, |labels, end_ns| collector.is_affected(labels, end_ns))?;
        if let Some(conflict) = &refused {
            refuse(conflict, &missing)?;
        }
        if quarantine_found(store, &mut planned, &mut met, &mut damaged_passes) {
            continue;
        }
        missing.append(&mut planned.damaged);
        sort_missing(&mut missing);
        return Ok((collector, ReadSummary { windows_read: planned.plan.windows_read, missing }));
    }
}

/// Quarantines the damage that the query found. Returns true if any was new to the plan, so that the query must be
/// planned again. `met` holds what earlier passes found, which the plan knew. Other damage was new to the plan, even if
/// another query has quarantined it meanwhile.
fn quarantine_found(
    store: &Store,
    planned: &mut PlannedQuery<'_>,
    met: &mut BTreeSet<(PartitionKey, Area)>,
    damaged_passes: &mut usize,
) -> bool {
    let mut is_new = false;
    for mut found in std::mem::take(planned.view.found.get_mut()) {
        if *damaged_passes > PASSES_MAX {
            // Each of these passes has found more damage.
            found.area = Area::whole(found.key, found.key.end_ns());
        }
        let is_first = met.insert((found.key, found.area));
        is_new |= quarantine(store, &found) || is_first;
    }
    *damaged_passes += usize::from(is_new);
    is_new
}

fn plan_query<'a>(store: &'a Store, query: &Query<'a>, tiers: &Tiers) -> Result<PlannedQuery<'a>, SelectError> {
    let state = store.state();
    let tenant = state.tenants.number(query.tenant);
    let plan = tenant.map(|tenant| plan(&state, tenant, query.buckets, tiers)).unwrap_or_default();
    let mut with_heads = BTreeMap::new();
    for (key, part) in plan.parts.iter().filter(|(_, part)| !part.raw.is_empty()) {
        if !state.partitions.exists(key) {
            // Without this error, the query would be planned again without end.
            let key = key.in_tier(Tier::Raw).prefix();
            return Err(Corruption { key, check: CorruptionCheck::Content }.into());
        }
        let loaded = state.partitions.loaded(key);
        if let Some(partition) = loaded.filter(|partition| !partition.read().head.is_empty()) {
            with_heads.insert(*key, gather(*key, Arc::clone(partition), part.clone(), query));
        }
    }
    let damaged = plan.parts.keys().filter(|_| !state.damage.is_empty());
    let damage = damaged.map(|key| (*key, PartDamage::of(&state.damage, *key))).collect();
    let shared = tenant.and_then(|tenant| state.partitions.loaded_dictionary(tenant).map(Arc::clone));
    let view = View::new(shared, store.database().snapshot(), query.is_wanted);
    let since = KnownSince::now(&state);
    Ok(PlannedQuery { plan, with_heads, damage, damaged: Vec::new(), since, view })
}

fn read_parts(
    store: &Store,
    query: &Query<'_>,
    planned: &mut PlannedQuery<'_>,
    collector: &mut impl Collector,
) -> Result<Progress, SelectError> {
    let mut newest_first: Vec<PartitionKey> = planned.plan.parts.keys().copied().collect();
    newest_first.sort_by_key(|key| std::cmp::Reverse(planned.plan.parts[key].end_ns(key.tier)));
    let result = read_each(store, query, planned, collector, &newest_first);
    let state = store.state();
    let exists = |key: &PartitionKey| {
        let has_raw = planned.plan.parts.get(key).is_some_and(|part| !part.raw.is_empty());
        state.partitions.exists(key) && (!has_raw || state.partitions.exists(&key.in_tier(Tier::Raw)))
    };
    if newest_first.iter().all(exists) { result } else { Ok(Progress::Dropped) }
}

fn read_each(
    store: &Store,
    query: &Query<'_>,
    planned: &mut PlannedQuery<'_>,
    collector: &mut impl Collector,
    keys: &[PartitionKey],
) -> Result<Progress, SelectError> {
    for key in keys {
        query.check_wanted()?;
        let damage = planned.damage.remove(key).unwrap_or_default();
        let mut part = match planned.with_heads.remove(key) {
            Some(part) => part,
            None => {
                let plan = planned.plan.parts.get(key).cloned().unwrap_or_default();
                if damage.has_damaged_definitions {
                    // Without definitions, it is unknown whether the partition has series that match.
                    planned.damaged.extend(damage.missing(*key, &plan, |_, _| true));
                    continue;
                }
                let partition = match partition_for(store, query, *key) {
                    Ok(Some(partition)) => partition,
                    Ok(None) => return Ok(Progress::Dropped),
                    // The partition has just been quarantined, so the query is planned again.
                    Err(error) if error.is_damage() => return Ok(Progress::Dropped),
                    Err(error) => return Err(error.into()),
                };
                planned.view.shared = Some(store.tenant_dictionary(key.tenant));
                // The partition was not in memory when the query was planned, so it had no head then. Later samples are
                // left out.
                let mut part = gather(*key, partition, plan, query);
                part.series.iter_mut().for_each(|series| *series = SeriesView::without_head(series.number));
                part
            }
        };
        part.damage = damage;
        if query.is_about_presence(&part.partition.read()) {
            planned.since.mark_known(&mut part);
        }
        if let Some(conflict) = part.conflict(query) {
            return Ok(Progress::Conflict(conflict));
        }
        match collector.add(&planned.view, &part)? {
            Progress::Done => {}
            progress => return Ok(progress),
        }
        let concerns = |(first, last): (u32, u32), end_ns: i64| {
            // The area covers all series, even those without definitions, so one of them may have matched.
            (first, last) == (0, u32::MAX)
                || part.series.iter().any(|series| {
                    (first..=last).contains(&series.number) && collector.is_affected(&part.labels(series), end_ns)
                })
        };
        planned.damaged.extend(part.damage.missing(*key, &part.plan, concerns));
    }
    Ok(Progress::Done)
}

/// Returns a partition for a query. Reads it without its dictionary if the query does not need the dictionary.
fn partition_for(
    store: &Store,
    query: &Query<'_>,
    key: PartitionKey,
) -> Result<Option<Arc<RwLock<Partition>>>, EngineError> {
    if query.needs_stacks {
        return store.partition(key);
    }
    let Some(outline) = store.outline(key)? else { return Ok(None) };
    let mut names = query.matchers.iter().map(|matcher| &matcher.name).chain(query.group_by);
    if names.any(|name| outline.read().is_attribute(name)) { store.partition(key) } else { Ok(Some(outline)) }
}

/// Collects the parts of a partition that a query needs: the matching series, and the planned runs of the head.
pub(crate) fn gather(
    key: PartitionKey,
    partition: Arc<RwLock<Partition>>,
    plan: PartPlan,
    query: &Query<'_>,
) -> PartView {
    let inner = partition.read();
    let is_attribute = |name: &str| {
        query.aggregate == Aggregate::Last
            || inner.is_attribute(name)
            || inner.dropped_names().any(|dropped| matches!(dropped, DroppedName::Attribute(of) if of == name))
    };
    let matching = inner.index.matching(query.matchers, is_attribute);
    let mut series: Vec<SeriesView> = matching.iter().map(SeriesView::without_head).collect();
    let mut runs: Vec<(u32, Arc<Run>)> = Vec::new();
    if let (Some(first), Some(last)) = (plan.raw.first(), plan.raw.last()) {
        let windows = Tier::Raw.window_of(first.start_ns.saturating_add(1))..=Tier::Raw.window_of(last.end_ns);
        let interval_of = |time_ns: i64| plan.raw.get(plan.raw.partition_point(|interval| interval.end_ns < time_ns));
        let is_planned = |(from, to): (i64, i64)| interval_of(from).is_some_and(|interval| interval.start_ns < to);
        // A query for the presence of samples does not need the runs if an end of the chunk is planned.
        let needs_runs = !query.is_about_presence(&inner);
        let has_planned = |(from, to): (i64, i64)| covers(&plan.raw, from) || covers(&plan.raw, to);
        let mut before = None;
        let mut at = 0;
        for (window, number, chunk) in inner.head.in_windows(windows) {
            // In each window, the series ascend, as they do in the list.
            if before.replace(window) != Some(window) {
                at = 0;
            }
            while series.get(at).is_some_and(|series| series.number < number) {
                at += 1;
            }
            let Some(series) = series.get_mut(at).filter(|series| series.number == number) else { continue };
            if !is_planned(chunk.times_ns()) {
                continue;
            }
            if !needs_runs && (series.has_samples || has_planned(chunk.times_ns())) {
                series.has_samples = true;
                continue;
            }
            let planned = chunk.runs().iter().filter(|run| is_planned(run.times_ns()));
            runs.extend(planned.map(|run| (saturating_u32(at), Arc::clone(run))));
        }
    }
    // The sort is stable, and the runs of one window are sorted already.
    runs.sort_by_key(|(at, _)| *at);
    for (end, (at, _)) in (1..).zip(&runs) {
        let Some(SeriesView { runs: of_series, .. }) = series.get_mut(*at as usize) else { continue };
        let start = if of_series.start == of_series.end { end - 1 } else { of_series.start };
        *of_series = start..end;
    }
    let runs = runs.into_iter().map(|(_, run)| run).collect();
    let known = inner.lengths();
    drop(inner);
    PartView { key, partition, plan, matching, series, runs, known, damage: PartDamage::default() }
}
