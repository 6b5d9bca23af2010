//! Gathering: what a question needs of each partition, and of the database, as of one moment.
//!
//! Planning and gathering take the state's lock for as long as it takes to copy references; samples of heads come in runs that
//! never change. So a long question never holds up `apply`. Partitions are read one after another, those of the newest times
//! first, and may be let go in between: a question holds one of them, however many it reaches.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use proto::answer::{Missing, WindowsRead};
use proto::{LabelSet, TenantId, Tier, Window};

use crate::database::Snapshot;
use crate::database::key::PartitionKey;
use crate::engine::Engine;
use crate::error::{Corruption, CorruptionCheck, EngineError, SelectError};
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::part_damage::PartDamage;
use crate::memory::matcher::ReadyMatcher;
use crate::memory::partition::{DroppedName, Lengths, Partition};
use crate::memory::run::Run;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::select::missing::sort;
use crate::select::plan::{PartPlan, Plan, Tiers, plan};

/// Passes of a query, each of which found new damage, after which partitions with more damage are quarantined as a whole.
const PASSES_MAX: usize = 8;

/// What is asked of a tenant's data.
pub(crate) struct Question<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) matchers: &'a [ReadyMatcher],
    /// Each is a window, ascending.
    pub(crate) buckets: &'a [Window],
    /// Labels and attributes that samples are told apart by.
    pub(crate) group_by: &'a [String],
    /// Series are told apart by all labels.
    pub(crate) by_series: bool,
    /// What is made of the samples of a series.
    pub(crate) asks: Asks,
    pub(crate) tiers: Tiers,
    /// Whether stacks are told apart; without, partitions are read without their dictionaries, where those are not in memory.
    pub(crate) needs_stacks: bool,
    /// Whether anybody still waits for the answer: looked at before each partition and each series.
    pub(crate) is_wanted: &'a dyn Fn() -> bool,
}

impl Question<'_> {
    fn check_wanted(&self) -> Result<(), SelectError> {
        if (self.is_wanted)() { Ok(()) } else { Err(SelectError::Cancelled) }
    }
}

/// What a question makes of the samples of a series, which decides which windows can answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Whether there are any.
    Any,
    /// Their sums: windows of gauges have none.
    Sums,
    /// The last ones: of windows, only those of gauges have them. A series that cannot match in one partition still says that
    /// its last point is there.
    Last,
}

/// What is read of, beside the partitions.
pub(crate) struct View<'a> {
    pub(crate) vocabulary: Option<Arc<RwLock<TenantDictionary>>>,
    pub(crate) snapshot: Snapshot<'a>,
    /// Of the question.
    pub(crate) is_wanted: &'a dyn Fn() -> bool,
    /// Damage that was unknown before. A query that finds any is planned again.
    pub(crate) found: RefCell<Vec<NewDamage>>,
}

/// Everything as of one moment.
pub(crate) struct Moment<'a> {
    pub(crate) plan: Plan,
    /// Those with a head: the samples in it are of this moment, too.
    with_heads: BTreeMap<PartitionKey, PartView>,
    /// Damage of the planned partitions.
    damage: BTreeMap<PartitionKey, PartDamage>,
    /// Damaged times of the partitions that were read.
    damaged: Vec<Missing>,
    pub(crate) view: View<'a>,
}

/// What was gathered of one partition.
pub(crate) struct PartView {
    pub(crate) key: PartitionKey,
    pub(crate) partition: Arc<RwLock<Partition>>,
    pub(crate) plan: PartPlan,
    pub(crate) series: Vec<SeriesView>,
    /// How many numbers there are: what was written by then refers to no others.
    pub(crate) known: Lengths,
    pub(crate) damage: PartDamage,
}

/// A series that matches.
pub(crate) struct SeriesView {
    pub(crate) number: u32,
    pub(crate) labels: Arc<LabelSet>,
    pub(crate) is_gauge: bool,
    /// Its runs in the head, by window.
    pub(crate) head: Vec<Arc<Run>>,
}

/// What answers a question, partition by partition.
pub(crate) trait Work {
    /// `None` if the partition was dropped meanwhile, so that its numbers mean nothing any more.
    fn add(&mut self, view: &View<'_>, part: &PartView) -> Result<Option<()>, SelectError>;

    /// Whether the answer lacks samples of this series of times up to `end_ns`, should there be any that were not read.
    fn lacks(&self, labels: &LabelSet, end_ns: i64) -> bool;
}

/// What was read for an answer, and what could not be.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) windows_read: WindowsRead,
    /// Ascending.
    pub(crate) missing: Vec<Missing>,
}

/// Why tiers cannot answer.
pub(crate) enum Conflict {
    /// One lacks a label or attribute.
    LeftOut(Tier, String),
    /// Windows of a gauge are no sums.
    Gauge,
    /// Windows of anything else know no last point.
    NoGauge,
}

/// How far partitions were read.
enum Progress {
    All,
    Conflict(Conflict),
    /// One was dropped meanwhile, and its files, which no snapshot keeps, may have gone before all was read; or it was found to be damaged.
    Dropped,
}

impl Engine {
    /// What answers a question exactly, and what it lacks.
    pub(crate) fn read<W: Work>(
        &self,
        question: &Question<'_>,
        new: impl Fn() -> W,
    ) -> Result<(W, Found), SelectError> {
        let (mut tiers, mut refused) = (question.tiers, None);
        for pass in 0_usize.. {
            let mut moment = self.moment(question, tiers)?;
            // Only what is looked for before may be elsewhere in what was read.
            if question.asks != Asks::Last
                && let Some(conflict) = &refused
            {
                let missing = self.lacking(question, &moment, |_, _| true)?;
                refuse(conflict, &missing)?;
            }
            let mut work = new();
            let read = self.read_parts(question, &mut moment, &mut work);
            // Values of a partition that was dropped meanwhile may be missing, which is no damage.
            let is_dropped = matches!(read, Ok(Progress::Dropped));
            if is_dropped || self.quarantine_found(&mut moment, pass) {
                continue;
            }
            match read? {
                Progress::Dropped => continue,
                Progress::Conflict(conflict) => {
                    tiers = match &conflict {
                        Conflict::LeftOut(tier, _) => tiers.without(*tier),
                        Conflict::Gauge | Conflict::NoGauge => Tiers::RAW,
                    };
                    refused = Some(conflict);
                    continue;
                }
                Progress::All => {}
            }
            let mut missing = self.lacking(question, &moment, |labels, end_ns| work.lacks(labels, end_ns))?;
            if let Some(conflict) = &refused {
                refuse(conflict, &missing)?;
            }
            if self.quarantine_found(&mut moment, pass) {
                continue;
            }
            missing.append(&mut moment.damaged);
            sort(&mut missing);
            return Ok((work, Found { windows_read: moment.plan.windows_read, missing }));
        }
        Err(SelectError::Cancelled)
    }

    /// Quarantines damage that was found. Returns whether there was any, so that the query must be planned again.
    fn quarantine_found(&self, moment: &mut Moment<'_>, pass: usize) -> bool {
        let found = moment.view.found.take();
        let mut is_new = false;
        for mut found in found {
            if pass > PASSES_MAX {
                // Each pass found more.
                found.area = Area::whole(found.key, found.key.end_ns());
            }
            is_new |= self.quarantine(&found);
        }
        is_new
    }

    fn moment<'a>(&'a self, question: &Question<'a>, tiers: Tiers) -> Result<Moment<'a>, SelectError> {
        let state = self.state.read();
        let tenant = state.tenants.get(question.tenant).copied();
        let plan = tenant.map(|tenant| plan(&state, tenant, question.buckets, tiers)).unwrap_or_default();
        let mut with_heads = BTreeMap::new();
        for (key, part) in plan.parts.iter().filter(|(_, part)| !part.raw.is_empty()) {
            if !state.existing.contains(key) {
                // It would be looked for again and again.
                let key = key.in_tier(Tier::Raw).prefix();
                return Err(Corruption { key, check: CorruptionCheck::Content }.into());
            }
            if let Some(partition) = state.loaded.get(key).filter(|partition| !partition.read().head.is_empty()) {
                with_heads.insert(*key, gather(*key, Arc::clone(partition), part.clone(), question));
            }
        }
        let damaged = plan.parts.keys().filter(|_| !state.damage.is_empty());
        let damage = damaged.map(|key| (*key, PartDamage::of(&state.damage, *key))).collect();
        let vocabulary = tenant.and_then(|tenant| state.vocabularies.get(&tenant).map(Arc::clone));
        let found = RefCell::default();
        let view = View { vocabulary, snapshot: self.database.snapshot(), is_wanted: question.is_wanted, found };
        Ok(Moment { plan, with_heads, damage, damaged: Vec::new(), view })
    }

    fn read_parts(
        &self,
        question: &Question<'_>,
        moment: &mut Moment<'_>,
        work: &mut impl Work,
    ) -> Result<Progress, SelectError> {
        let mut newest_first: Vec<PartitionKey> = moment.plan.parts.keys().copied().collect();
        newest_first.sort_by_key(|key| std::cmp::Reverse(moment.plan.parts[key].end_ns(key.tier)));
        let result = self.read_each(question, moment, work, &newest_first);
        let state = self.state.read();
        let exists = |key: &PartitionKey| {
            let has_raw = moment.plan.parts.get(key).is_some_and(|part| !part.raw.is_empty());
            state.existing.contains(key) && (!has_raw || state.existing.contains(&key.in_tier(Tier::Raw)))
        };
        if newest_first.iter().all(exists) { result } else { Ok(Progress::Dropped) }
    }

    fn read_each(
        &self,
        question: &Question<'_>,
        moment: &mut Moment<'_>,
        work: &mut impl Work,
        keys: &[PartitionKey],
    ) -> Result<Progress, SelectError> {
        for key in keys {
            question.check_wanted()?;
            let damage = moment.damage.remove(key).unwrap_or_default();
            let mut part = match moment.with_heads.remove(key) {
                Some(part) => part,
                None => {
                    let plan = moment.plan.parts.get(key).cloned().unwrap_or_default();
                    if damage.has_damaged_definitions {
                        // Nobody can tell whether its series match.
                        moment.damaged.extend(damage.missing(*key, &plan, |_, _| true));
                        continue;
                    }
                    let partition = match self.partition_for(question, *key, &moment.view.snapshot) {
                        Ok(Some(partition)) => partition,
                        Ok(None) => return Ok(Progress::Dropped),
                        // It has been quarantined.
                        Err(error) if error.is_damage() => return Ok(Progress::Dropped),
                        Err(error) => return Err(error.into()),
                    };
                    moment.view.vocabulary = Some(self.vocabulary(key.tenant));
                    // What was in the head at that moment was not loaded, so there was none.
                    let mut part = gather(*key, partition, plan, question);
                    part.series.iter_mut().for_each(|series| series.head.clear());
                    part
                }
            };
            part.damage = damage;
            if let Some(conflict) = part.conflict(question) {
                return Ok(Progress::Conflict(conflict));
            }
            if work.add(&moment.view, &part)?.is_none() {
                return Ok(Progress::Dropped);
            }
            let concerns = |(first, last): (u32, u32), end_ns: i64| {
                // Any of the series may have matched.
                (first, last) == (0, u32::MAX)
                    || part
                        .series
                        .iter()
                        .any(|series| (first..=last).contains(&series.number) && work.lacks(&series.labels, end_ns))
            };
            moment.damaged.extend(part.damage.missing(*key, &part.plan, concerns));
        }
        Ok(Progress::All)
    }
}

impl Engine {
    /// What a question needs of a partition.
    fn partition_for(
        &self,
        question: &Question<'_>,
        key: PartitionKey,
        snapshot: &Snapshot<'_>,
    ) -> Result<Option<Arc<RwLock<Partition>>>, EngineError> {
        if question.needs_stacks {
            return self.partition(key);
        }
        let Some(outline) = self.outline(key, snapshot)? else { return Ok(None) };
        let mut names = question.matchers.iter().map(|matcher| &matcher.name).chain(question.group_by);
        if names.any(|name| outline.read().is_attribute(name)) { self.partition(key) } else { Ok(Some(outline)) }
    }
}

fn refuse(conflict: &Conflict, missing: &[Missing]) -> Result<(), SelectError> {
    let Some(horizon_ns) = missing.iter().map(|missing| missing.window.end_ns).max() else { return Ok(()) };
    match conflict {
        Conflict::LeftOut(tier, name) => Err(SelectError::DroppedName { tier: *tier, name: name.clone(), horizon_ns }),
        Conflict::Gauge => Err(SelectError::GaugeSummed { horizon_ns }),
        // What is missing is told.
        Conflict::NoGauge => Ok(()),
    }
}

impl PartView {
    fn conflict(&self, question: &Question<'_>) -> Option<Conflict> {
        if self.plan.windows.is_empty() {
            return None;
        }
        let partition = self.partition.read();
        let tier = self.key.tier;
        if self.series.is_empty() {
            // Where no series is left because of the label that a tier has not, it has to be said, too.
            let asked = |name: &&String| question.matchers.iter().any(|matcher| matcher.name == **name);
            let mut labels = partition.dropped_names().filter_map(DroppedName::label);
            return labels.find(asked).map(|name| Conflict::LeftOut(tier, name.clone()));
        }
        match question.asks {
            Asks::Sums if self.series.iter().any(|series| series.is_gauge) => return Some(Conflict::Gauge),
            Asks::Last if self.series.iter().any(|series| !series.is_gauge) => return Some(Conflict::NoGauge),
            _ => {}
        }
        let names = || question.matchers.iter().map(|matcher| &matcher.name).chain(question.group_by);
        let lacks = |name: &str| self.series.iter().any(|series| series.labels.get(name).is_empty());
        let attribute = |name: &&String| partition.is_attribute(name) && lacks(name);
        if let Some(name) = names().find(attribute) {
            return Some(Conflict::LeftOut(tier, name.clone()));
        }
        let conflicting = |left_out: &DroppedName| match left_out {
            DroppedName::Label(name) if question.by_series => Some(name.clone()),
            DroppedName::Label(name) => names().find(|asked| *asked == name).cloned(),
            DroppedName::Attribute(name) => names().find(|asked| *asked == name && lacks(name)).cloned(),
        };
        partition.dropped_names().find_map(conflicting).map(|name| Conflict::LeftOut(tier, name))
    }
}

/// What a question needs of a partition.
pub(crate) fn gather(
    key: PartitionKey,
    partition: Arc<RwLock<Partition>>,
    plan: PartPlan,
    question: &Question<'_>,
) -> PartView {
    let inner = partition.read();
    let is_attribute = |name: &str| {
        question.asks == Asks::Last
            || inner.is_attribute(name)
            || inner.dropped_names().any(|left_out| matches!(left_out, DroppedName::Attribute(of) if of == name))
    };
    let mut series: Vec<SeriesView> = Vec::new();
    for number in inner.index.matching(question.matchers, is_attribute) {
        let Some((_, labels)) = inner.series.get_index(number as usize) else { continue };
        let is_gauge = inner.is_gauge(number);
        series.push(SeriesView { number, labels: Arc::clone(labels), is_gauge, head: Vec::new() });
    }
    if let (Some(first), Some(last)) = (plan.raw.first(), plan.raw.last()) {
        let windows = Tier::Raw.window_of(first.start_ns.saturating_add(1))..=Tier::Raw.window_of(last.end_ns);
        for (_, number, runs) in inner.head.in_windows(windows) {
            // Series are in the order of their numbers.
            let Ok(place) = series.binary_search_by_key(&number, |series| series.number) else { continue };
            let asked = |run: &&Arc<Run>| {
                let (from, to) = run.times_ns();
                let interval = plan.raw.get(plan.raw.partition_point(|interval| interval.end_ns < from));
                interval.is_some_and(|interval| interval.start_ns < to)
            };
            series[place].head.extend(runs.iter().filter(asked).map(Arc::clone));
        }
    }
    let known = inner.lengths();
    drop(inner);
    PartView { key, partition, plan, series, known, damage: PartDamage::default() }
}
