//! Gathering: what a question needs of each partition, and of the database, as of one moment.
//!
//! Planning and gathering take the state's lock for as long as it takes to copy references; samples of heads come in runs that
//! never change. So a long question never holds up `apply`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use proto::{LabelSet, Samples, TenantId, Tier};

use crate::database::Snapshot;
use crate::engine::Engine;
use crate::error::SelectError;
use crate::key::PartitionKey;
use crate::matcher::ReadyMatcher;
use crate::partition::{LeftOut, Lengths, Partition};
use crate::plan::{PartPlan, Plan, Tiers, plan};
use crate::state::State;
use crate::vocabulary::Vocabulary;

/// What is asked of a tenant's data.
pub(crate) struct Question<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) matchers: &'a [ReadyMatcher],
    /// Bucket `i` is `(edges[i], edges[i + 1]]`.
    pub(crate) edges: &'a [i64],
    /// Labels and attributes that samples are told apart by.
    pub(crate) group_by: &'a [String],
    /// Series are told apart by all labels.
    pub(crate) by_series: bool,
    /// Gauges are summed, which their windows cannot answer.
    pub(crate) adds: bool,
    /// A series that cannot match in one partition still says that its last point is there.
    pub(crate) needs_last: bool,
    pub(crate) tiers: Tiers,
}

/// Everything as of one moment, oldest partition first.
pub(crate) struct View<'a> {
    pub(crate) plan: Plan,
    pub(crate) parts: Vec<PartView>,
    pub(crate) vocabulary: Option<Arc<RwLock<Vocabulary>>>,
    pub(crate) snapshot: Snapshot<'a>,
}

/// What was gathered of one partition.
pub(crate) struct PartView {
    pub(crate) key: PartitionKey,
    pub(crate) partition: Arc<RwLock<Partition>>,
    pub(crate) plan: PartPlan,
    pub(crate) series: Vec<SeriesView>,
    /// How many numbers there are: what was written by then refers to no others.
    pub(crate) known: Lengths,
}

/// A series that matches.
pub(crate) struct SeriesView {
    pub(crate) number: u32,
    pub(crate) labels: Arc<LabelSet>,
    pub(crate) is_gauge: bool,
    /// Its runs in the head, by window.
    pub(crate) head: Vec<Arc<Samples>>,
}

/// Why tiers cannot answer.
enum Conflict {
    /// One lacks a label or attribute.
    LeftOut(Tier, String),
    Gauge,
}

impl Engine {
    /// What `work` makes of the view that answers a question exactly.
    pub(crate) fn read<T>(
        &self,
        question: &Question<'_>,
        work: impl Fn(&View<'_>) -> Result<T, SelectError>,
    ) -> Result<T, SelectError> {
        let (mut tiers, mut refused) = (question.tiers, None);
        loop {
            let view = self.view(question, tiers)?;
            if let Some(conflict) = view.conflict(question) {
                tiers = match &conflict {
                    Conflict::LeftOut(tier, _) => tiers.without(*tier),
                    Conflict::Gauge => Tiers::RAW,
                };
                refused = Some(conflict);
                continue;
            }
            if let (Some(conflict), Some(missing)) = (&refused, view.plan.missing.last()) {
                let horizon_ns = missing.window.end_ns;
                return Err(match conflict {
                    Conflict::LeftOut(tier, name) => {
                        SelectError::LeftOut { tier: *tier, name: name.clone(), horizon_ns }
                    }
                    Conflict::Gauge => SelectError::GaugeSummed { horizon_ns },
                });
            }
            let result = work(&view);
            let state = self.state.read();
            if view.parts.iter().all(|part| part.exists(&state)) {
                return result;
            }
            // One was dropped meanwhile, and its files, which no snapshot keeps, may have gone before all was read.
        }
    }

    fn view(&self, question: &Question<'_>, tiers: Tiers) -> Result<View<'_>, SelectError> {
        let mut held = BTreeMap::new();
        loop {
            let mut unloaded = Vec::new();
            {
                let state = self.state.read();
                let tenant = state.tenants.get(question.tenant).copied();
                let plan = tenant.map(|tenant| plan(&state, tenant, question.edges, tiers)).unwrap_or_default();
                let missing = plan.parts.keys().filter(|key| !state.loaded.contains_key(key));
                unloaded.extend(missing.copied());
                if unloaded.is_empty() {
                    let part = |(key, plan): (&PartitionKey, &PartPlan)| {
                        let partition = Arc::clone(state.loaded.get(key)?);
                        Some(gather(*key, partition, plan.clone(), question))
                    };
                    let parts = plan.parts.iter().filter_map(part).collect();
                    let vocabulary = tenant.and_then(|tenant| state.vocabularies.get(&tenant).map(Arc::clone));
                    return Ok(View { parts, plan, vocabulary, snapshot: self.database.snapshot() });
                }
            }
            // Loading reads the disk, so it is done without the lock; what is held is not let go.
            for key in unloaded {
                held.insert(key, self.partition(key)?);
            }
        }
    }
}

impl View<'_> {
    fn conflict(&self, question: &Question<'_>) -> Option<Conflict> {
        let names = || question.matchers.iter().map(|matcher| &matcher.name).chain(question.group_by);
        for part in self.parts.iter().filter(|part| !part.plan.windows.is_empty() && !part.series.is_empty()) {
            if question.adds && part.series.iter().any(|series| series.is_gauge) {
                return Some(Conflict::Gauge);
            }
            let lacks = |name: &str| part.series.iter().any(|series| series.labels.get(name).is_empty());
            let partition = part.partition.read();
            let tier = part.key.tier;
            let attribute = |name: &&String| partition.is_attribute(name) && lacks(name);
            if let Some(name) = names().find(attribute) {
                return Some(Conflict::LeftOut(tier, name.clone()));
            }
            for left_out in partition.left_out() {
                let conflicting = match left_out {
                    LeftOut::Label(name) if question.by_series => Some(name),
                    LeftOut::Label(name) => names().find(|asked| *asked == name),
                    LeftOut::Attribute(name) => names().find(|asked| *asked == name && lacks(name)),
                };
                if let Some(name) = conflicting {
                    return Some(Conflict::LeftOut(tier, name.clone()));
                }
            }
        }
        // Where no series is left because of the label that a tier has not, it has to be said, too.
        for part in self.parts.iter().filter(|part| !part.plan.windows.is_empty() && part.series.is_empty()) {
            let partition = part.partition.read();
            let asked = |name: &String| question.matchers.iter().any(|matcher| &matcher.name == name);
            for left_out in partition.left_out() {
                if let LeftOut::Label(name) = left_out
                    && asked(name)
                {
                    return Some(Conflict::LeftOut(part.key.tier, name.clone()));
                }
            }
        }
        None
    }
}

impl PartView {
    fn exists(&self, state: &State) -> bool {
        let raw_exists = self.plan.raw.is_empty() || state.existing.contains(&self.key.in_tier(Tier::Raw));
        raw_exists && state.existing.contains(&self.key)
    }
}

fn gather(key: PartitionKey, partition: Arc<RwLock<Partition>>, plan: PartPlan, question: &Question<'_>) -> PartView {
    let inner = partition.read();
    let is_attribute = |name: &str| {
        question.needs_last
            || inner.is_attribute(name)
            || inner.left_out().any(|left_out| matches!(left_out, LeftOut::Attribute(of) if of == name))
    };
    let mut series: Vec<SeriesView> = Vec::new();
    for number in inner.index.matching(question.matchers, is_attribute) {
        let Some((_, labels)) = inner.series.get_index(number as usize) else { continue };
        series.push(SeriesView {
            number,
            labels: Arc::clone(labels),
            is_gauge: inner.is_gauge(number),
            head: Vec::new(),
        });
    }
    if let (Some(first), Some(last)) = (plan.raw.first(), plan.raw.last()) {
        let windows = Tier::Raw.window_of(first.start_ns.saturating_add(1))..=Tier::Raw.window_of(last.end_ns);
        for (_, number, runs) in inner.head.in_windows(windows) {
            // Series are in the order of their numbers.
            let Ok(place) = series.binary_search_by_key(&number, |series| series.number) else { continue };
            let asked = |run: &&Arc<Samples>| {
                let (Some(&from), Some(&to)) = (run.times_ns.first(), run.times_ns.last()) else { return false };
                plan.raw.iter().any(|interval| interval.start_ns < to && from <= interval.end_ns)
            };
            series[place].head.extend(runs.iter().filter(asked).map(Arc::clone));
        }
    }
    let known = inner.lengths();
    drop(inner);
    PartView { key, partition, plan, series, known }
}
