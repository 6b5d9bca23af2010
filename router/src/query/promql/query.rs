//! Execution of a query. Parses and plans the text, loads every leaf (a selector with its function) from the shards,
//! and evaluates the operators.
//!
//! To load a leaf, the router names the frames of its stacks, merges the responses into series, and applies the leaf's
//! function to each window.

use std::sync::Arc;

use proto::label::PROFILE_TYPE_LABEL;
use proto::selection::Operation;
use proto::{Fold, LocationSets, Matcher, ProfileType, Selection, TenantId, Window};

use crate::query::error::QueryError;
use crate::query::naming::stack_values::StackGrouping;
use crate::query::promql::budget::Budget;
use crate::query::promql::evaluate::Evaluation;
use crate::query::promql::expr::{Aggregation, Expr, Group, Leaf, Query};
use crate::query::promql::fold::Folding;
use crate::query::promql::parse::parse;
use crate::query::promql::plan::plan;
use crate::query::promql::range_function;
use crate::query::promql::value::{Series, Steps, Value};
use crate::query::reader::Reader;
use crate::query::run::{ReadOptions, Run, Timings};
use crate::query::selection::coverage::Coverage;
use crate::query::selection::missing::MissingData;
use crate::query::selection::resolve::{Resolved, Want};

/// The result of a query.
#[derive(Debug)]
pub(crate) struct Evaluated {
    pub(crate) value: Value,
    pub(crate) steps: Steps,
    /// Aggregation at the root of the query, if it determines the order of the series.
    pub(crate) order: Option<Aggregation>,
    /// Data that the result is missing.
    pub(crate) missing: MissingData,
    pub(crate) coverage: Coverage,
}

/// Values of a leaf, loaded from the shards.
#[derive(Debug, Default)]
struct Loaded {
    series: Vec<Series>,
    missing: MissingData,
}

impl Reader {
    /// Evaluates a query at each step, and writes the response.
    pub(crate) async fn query(
        &self,
        tenant: &TenantId,
        text: &str,
        steps: Steps,
        options: ReadOptions,
        write: impl FnOnce(Evaluated) -> Vec<u8> + Send + 'static,
    ) -> Result<(Vec<u8>, Timings), QueryError> {
        let mut run = self.start(tenant, options).await?;
        let text = text.to_owned();
        let query = run.blocking(move |_, timings| {
            let mut query = timings.measure("parse", || parse(&text))?;
            plan(&mut query);
            Ok(Arc::new(query))
        });
        let query = query.await?;
        let count = steps.0.len();
        let (budget, leaves, missing) = loop {
            match self.load_all(tenant, &query, &steps, &mut run).await {
                Err(error) => run.place_again(error)?,
                Ok(loaded) => break loaded,
            }
        };
        run.check()?;
        let coverage = run.coverage();
        let order = match &query.root {
            Expr::Aggregate { operator, .. } if operator.selects() => Some(*operator),
            _ => None,
        };
        let written = run.blocking(move |cancelled, timings| {
            let mut evaluation = Evaluation { leaves, steps: count, budget, cancelled };
            let value = timings.measure("evaluate", || evaluation.of(&query.root))?;
            Ok(timings.measure("write", || write(Evaluated { value, steps, order, missing, coverage })))
        });
        Ok((written.await?, run.timings()))
    }

    /// Loads the values of all leaves. Also returns the rest of the budget.
    async fn load_all(
        &self,
        tenant: &TenantId,
        query: &Arc<Query>,
        steps: &Steps,
        run: &mut Run,
    ) -> Result<(Budget, Vec<Vec<Series>>, MissingData), QueryError> {
        let mut budget = Budget::new(steps.0.len());
        let mut leaves = Vec::with_capacity(query.leaves.len());
        let mut missing = MissingData::default();
        for i in 0..query.leaves.len() {
            let loaded = self.load(tenant, query, i, steps, &mut budget, run).await?;
            leaves.push(loaded.series);
            missing.extend(loaded.missing);
        }
        Ok((budget, leaves, missing))
    }

    /// Loads the values of one leaf, and takes their memory from the budget.
    async fn load(
        &self,
        tenant: &TenantId,
        query: &Arc<Query>,
        leaf: usize,
        steps: &Steps,
        budget: &mut Budget,
        run: &mut Run,
    ) -> Result<Loaded, QueryError> {
        let Some(this) = query.leaves.get(leaf) else { return Ok(Loaded::default()) };
        let windows = Arc::new(range_function::windows(this, steps)?);
        let span = range_function::span(&windows);
        let shard_labels = Folding::shard_labels(&this.group);
        let want = match (this.function.is_linear(), shard_labels.len()) {
            (true, _) => Want::Matchers,
            (false, 0 | 1) => Want::Types,
            (false, _) => Want::Series,
        };
        let resolved = self.resolve(tenant, &this.selector, span, want, run).await?;
        let mut loaded = Loaded::default();
        loaded.missing.times(&resolved.missing);
        let Some(resolved) = resolved.resolved else { return Ok(loaded) };
        let attributes = attributes(&resolved, &shard_labels);
        for (fold, matchers) in folds(this, &windows, &resolved)? {
            let stacks = StackGrouping::new(&this.selector.stack_matchers, group_labels(&this.group));
            let selection = Selection {
                tenant: tenant.clone(),
                matchers,
                fold,
                group_by: shard_labels.clone(),
                group_by_series: matches!(this.group, Group::Series(_)),
                stacks: stacks.detail(),
                locations: LocationSets::default(),
            };
            let fetched = self.fetch(&selection, &this.selector.stack_matchers, run).await?;
            loaded.missing.of_answers(fetched.plain());
            loaded.missing.names(fetched.missing_names.clone());
            let query = Arc::clone(query);
            let windows = Arc::clone(&windows);
            let namer = self.namer(&selection.tenant, run);
            let attributes = attributes.clone();
            let budget_left = *budget;
            let cache = self.names.clone();
            let folded = run.blocking(move |cancelled, timings| {
                let Some(leaf) = query.leaves.get(leaf) else { return Ok(Default::default()) };
                let stacks = StackGrouping::new(&leaf.selector.stack_matchers, group_labels(&leaf.group));
                let folding = Folding { group: &leaf.group, stacks, attributes };
                let named = timings.measure("name", || fetched.names.name(fetched.answers, &namer));
                cache.set_size(&selection.tenant, &fetched.names, named.memory_bytes());
                let folded = timings.measure("fold", || folding.fold(&named, &selection.fold, cancelled))?;
                let names = named.frames().missing_names();
                drop(named);
                let evaluate = || range_function::evaluate(&folded, leaf, &windows, budget_left, cancelled);
                Ok((timings.measure("windows", evaluate)?, names))
            });
            let (series, names) = folded.await?;
            budget.take(series.len())?;
            loaded.series.extend(series);
            loaded.missing.names(names);
        }
        Ok(loaded)
    }
}

/// Returns the labels that are listed in a group.
fn group_labels(group: &Group) -> &[String] {
    let (Group::Series(labels) | Group::By(labels)) = group;
    labels
}

/// Returns the labels that shards group by and that no series has. These are sample attributes.
fn attributes(resolved: &Resolved, shard_labels: &[String]) -> Vec<String> {
    let Some(answer) = &resolved.series else { return Vec::new() };
    let on_series = |name: &&String| answer.series.iter().any(|labels| !labels.get(name).is_empty());
    shard_labels.iter().filter(|name| !on_series(name) && *name != PROFILE_TYPE_LABEL).cloned().collect()
}

/// Returns the folds that one leaf requests from shards. A fold tells how samples are added up over time. There are two
/// folds if the leaf has both gauges and other types, which have different points; otherwise one.
fn folds(leaf: &Leaf, windows: &[Window], resolved: &Resolved) -> Result<Vec<(Fold, Vec<Matcher>)>, QueryError> {
    let types = resolved.types.as_deref().unwrap_or_default();
    let (gauges, others): (Vec<&ProfileType>, Vec<&ProfileType>) = types.iter().partition(|kind| kind.is_gauge());
    if leaf.function.is_linear() {
        if let Some(&gauge) = gauges.first() {
            let function = leaf.function.name();
            return Err(QueryError::GaugeSummed { function, profile_type: Box::new(gauge.clone()) });
        }
        return Ok(vec![(range_function::fold_of_sums(windows), resolved.matchers.clone())]);
    }
    // The shorter list becomes a matcher. The negated matcher selects the other types.
    let list = if gauges.len() <= others.len() { &gauges } else { &others };
    let only_one_kind = gauges.is_empty() || others.is_empty();
    let listed: Vec<String> = list.iter().map(|kind| regex::escape(&kind.to_string())).collect();
    let matchers = |operation| {
        let matcher = Matcher { name: PROFILE_TYPE_LABEL.to_owned(), operation, value: listed.join("|") };
        resolved.matchers.iter().cloned().chain((!only_one_kind).then_some(matcher)).collect::<Vec<_>>()
    };
    let (gauge_operation, other_operation) = if gauges.len() <= others.len() {
        (Operation::Match, Operation::NotMatch)
    } else {
        (Operation::NotMatch, Operation::Match)
    };
    let mut folds = Vec::new();
    if !gauges.is_empty() {
        folds.push((range_function::fold_of_gauges(leaf.function, windows), matchers(gauge_operation)));
    }
    if !others.is_empty()
        && let Some(fold) = range_function::fold_of_points(windows)?
    {
        folds.push((fold, matchers(other_operation)));
    }
    Ok(folds)
}
