//! A flame graph, from the request to the bytes of the response: all stacks of a selector in a window, as one tree.
//!
//! Equal requests over equal data produce equal bytes, in every format.

use proto::label::PROFILE_TYPE_LABEL;
use proto::selection::Operation;
use proto::{Fold, LocationSets, Matcher, Selection, StackDetail, TenantId, Window};

use crate::query::error::QueryError;
use crate::query::flamegraph::prune::prune;
use crate::query::flamegraph::stack_tree::{LocationKeys, StackTree, StackTreeBuilder};
use crate::query::flamegraph::summary::Summary;
use crate::query::flamegraph::symbolization::Symbolization;
use crate::query::flamegraph::{folded, json, pprof};
use crate::query::naming::frame::NamedLocations;
use crate::query::naming::named_answers::{Named, NamedAnswer};
use crate::query::promql::parse::parse_selector;
use crate::query::reader::Reader;
use crate::query::run::{Cancelled, ReadOptions, Run, Timings};
use crate::query::selection::fetch::Fetched;
use crate::query::selection::resolve::Want;
use crate::query::selection::selector::Selector;

/// Format of a flame graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Folded,
    Pprof,
}

/// Treatment of the native frames that run the functions of a language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interpreter {
    Show,
    Fold,
}

/// Parameters of a flame graph.
#[derive(Clone, Debug)]
pub(crate) struct FlamegraphRequest {
    /// Vector selector of the samples, in PromQL.
    pub(crate) query: String,
    pub(crate) window: Window,
    pub(crate) format: Format,
    /// Largest number of nodes, including the root and `(other)` nodes. It is at least one.
    pub(crate) nodes_max: usize,
    pub(crate) interpreter: Interpreter,
    pub(crate) options: ReadOptions,
}

impl Reader {
    /// Returns the bytes of a flame graph in the requested format.
    pub(crate) async fn flamegraph(
        &self,
        tenant: &TenantId,
        request: FlamegraphRequest,
    ) -> Result<(Vec<u8>, Timings), QueryError> {
        let mut run = self.start(tenant, request.options).await?;
        let text = request.query.clone();
        let selector = run.blocking(move |_, timings| timings.measure("parse", || parse_selector(&text))).await?;
        let (fetched, summary) = loop {
            match self.fetch_stacks(tenant, &request, &selector, &mut run).await {
                Err(error) => run.place_again(error)?,
                Ok(done) => break done,
            }
        };
        run.check()?;
        let mut summary = Summary { coverage: run.coverage(), ..summary };
        let namer = self.namer(tenant, &run);
        let cache = self.names.clone();
        let tenant = tenant.clone();
        let written = run.blocking(move |cancelled, timings| {
            let Fetched { answers, names, .. } = fetched;
            let mut named = timings.measure("name", || names.name(answers, &namer));
            if request.interpreter == Interpreter::Fold {
                timings.measure("fold", || named.fold_interpreters());
            }
            cache.set_size(&tenant, &names, named.memory_bytes());
            summary.missing.names(named.frames().missing_names());
            Writing { named, summary, request }.write(cancelled, timings)
        });
        Ok((written.await?, run.timings()))
    }

    /// Fetches the stacks of a selector, and the facts about them.
    async fn fetch_stacks(
        &self,
        tenant: &TenantId,
        request: &FlamegraphRequest,
        selector: &Selector,
        run: &mut Run,
    ) -> Result<(Fetched, Summary), QueryError> {
        let window = request.window;
        let mut matchers = selector.matchers.clone();
        let resolved = self.resolve(tenant, selector, window, Want::Types, run).await?;
        let types = resolved.resolved.and_then(|resolved| resolved.types).unwrap_or_default();
        let mut summary = Summary::of(window);
        summary.missing.times(&resolved.missing);
        summary.has_stack_matchers = !selector.stack_matchers.is_empty();
        let mut fetched = Fetched::default();
        match types.as_slice() {
            [] => {}
            [only] => {
                let is_type = Matcher {
                    name: PROFILE_TYPE_LABEL.to_owned(),
                    operation: Operation::Equal,
                    value: only.to_string(),
                };
                matchers.push(is_type);
                let fold = if only.is_gauge() { Fold::Last(window) } else { Fold::Sum(vec![window]) };
                let tenant = tenant.clone();
                let stacks = StackDetail::Full;
                let group_by = Vec::new();
                let locations = LocationSets::default();
                let selection =
                    Selection { tenant, matchers, fold, group_by, group_by_series: false, stacks, locations };
                if request.format == Format::Pprof {
                    let labelled = self.select_labelled(&selection, selector, run).await?;
                    (fetched, summary.label_notes) = (labelled.fetched, labelled.notes);
                } else {
                    fetched = self.fetch_newest(&selection, &[], &selector.stack_matchers, run).await?;
                }
                summary.profile_type = Some(only.clone());
                summary.take(&fetched);
            }
            _ => return Err(QueryError::SeveralTypes { types }),
        }
        Ok((fetched, summary))
    }
}

/// A flame graph that is ready to be merged and written.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    pub(crate) named: Named<'a>,
    pub(crate) summary: Summary,
    pub(crate) request: FlamegraphRequest,
}

impl Writing<'_> {
    /// Merges the stacks, prunes the tree, and writes the flame graph.
    pub(crate) fn write(&self, cancelled: &Cancelled, timings: &mut Timings) -> Result<Vec<u8>, QueryError> {
        let Self { named, summary, request } = self;
        let frames = named.frames();
        let table = frames.table;
        // In folded stacks and pprof, the root is neither a line nor a location. So at least two nodes are kept: the
        // root, and the `(other)` below it, which shows that stacks were pruned.
        let nodes_max = request.nodes_max.max(2);
        match request.format {
            Format::Json => {
                let keys = |answer: &NamedAnswer<'_>| frame_keys(answer.locations);
                let tree = timings.measure("merge", || self.tree(keys, cancelled))?;
                let symbolization = timings.measure("count", || Symbolization::of(&tree, frames));
                let order = |a, b| table.order(a, b);
                let pruned = timings.measure("prune", || prune(&tree, request.nodes_max, order));
                Ok(timings.measure("write", || json::write(&pruned, frames, summary, &symbolization)))
            }
            Format::Folded => {
                let mut names = folded::Names::default();
                let keys = |answer: &NamedAnswer<'_>| names.keys(answer.locations, table);
                let tree = timings.measure("merge", || self.tree(keys, cancelled))?;
                let pruned = timings.measure("prune", || prune(&tree, nodes_max, |a, b| names.order(a, b)));
                timings.measure("write", || folded::write(&pruned, &names))
            }
            Format::Pprof => {
                let mut keys = pprof::Keys::default();
                let mut comments = summary.warnings();
                comments.extend(summary.label_notes.iter().cloned());
                let (tree, has_labels) = timings.measure("merge", || self.labelled(&mut keys, nodes_max, cancelled))?;
                if !has_labels {
                    comments.push(format!("no labels: with them there are more than {nodes_max} nodes"));
                }
                let order = |a, b| keys.order(a, b, table);
                let pruned = timings.measure("prune", || prune(&tree, nodes_max, order));
                timings.measure("write", || pprof::write(&pruned, &keys, frames, summary, &comments))
            }
        }
    }

    /// Merges the stacks of all responses into a tree that has a node for each label set of each stack. If these nodes
    /// do not all fit, merges the stacks without label sets, and returns `false` beside the tree.
    fn labelled(
        &self,
        keys: &mut pprof::Keys,
        nodes_max: usize,
        cancelled: &Cancelled,
    ) -> Result<(StackTree, bool), QueryError> {
        let frames = self.named.frames();
        let mut builder = StackTreeBuilder::new();
        let mut add_all = || {
            self.named.answers().try_for_each(|answer| {
                let groups = keys.groups(answer.answer);
                builder.add(answer.answer, &keys.locations(&answer, frames), &groups, cancelled)
            })
        };
        match add_all() {
            Ok(()) => {
                let tree = builder.finish();
                // A pruned node would lose its labels, and no note would say so.
                if tree.weighing() < nodes_max || !keys.has_labels() {
                    return Ok((tree, true));
                }
            }
            Err(QueryError::TooLarge { .. }) if keys.has_labels() => {}
            Err(error) => return Err(error),
        }
        Ok((self.tree(|answer| keys.locations(answer, frames), cancelled)?, false))
    }

    /// Merges the stacks of all responses into a tree.
    fn tree(
        &self,
        mut keys: impl FnMut(&NamedAnswer<'_>) -> LocationKeys,
        cancelled: &Cancelled,
    ) -> Result<StackTree, QueryError> {
        let mut builder = StackTreeBuilder::new();
        for answer in self.named.answers() {
            builder.add(answer.answer, &keys(&answer), &[], cancelled)?;
        }
        Ok(builder.finish())
    }
}

/// Returns the frames of each location as keys of the tree, including inlined frames.
fn frame_keys(named: &NamedLocations) -> LocationKeys {
    let mut keys = LocationKeys::default();
    for location in 0..named.len() {
        keys.push(named.lines(location).iter().rev().map(|line| line.frame));
    }
    keys
}
