//! Merging of the shards' responses into the series of one leaf (a selector with its function): exact sums by labels
//! and time.
//!
//! Sums are i128 in this module; `range_function` converts them to floats.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use proto::answer::Cell;
use proto::label::PROFILE_TYPE_LABEL;
use proto::{Answer, ArcStr, Fold, LabelSet, ProfileType};

use crate::query::error::QueryError;
use crate::query::naming::frame::FrameTable;
use crate::query::naming::named_answers::{Named, NamedAnswer};
use crate::query::naming::stack_label::StackLabel;
use crate::query::naming::stack_values::{Combinations, NodeValues, StackGrouping};
use crate::query::promql::expr::Group;
use crate::query::run::Cancelled;
use crate::query::selection::labels::{Labels, NAME_LABEL};

/// Number of cells between two checks for cancellation.
const CELLS_BETWEEN_CHECKS: usize = 1 << 16;

/// Pairs of a time and the sum at this time.
pub(crate) type TimeSums = Vec<(i64, i128)>;

/// Sums of one series of a leaf.
#[derive(Debug)]
pub(crate) struct Sums {
    /// Labels of the leaf's group, without the metric name.
    pub(crate) labels: Labels,
    /// Index of the profile type in [`Folded::types`].
    pub(crate) profile_type: usize,
    /// Index of the stored series in [`Folded::times`]. It has no meaning if the leaf's group is `By`.
    pub(crate) times: usize,
    /// Sums, ascending by time, each time once. The time of a bucket is its end.
    pub(crate) sums: TimeSums,
}

/// All series of a leaf, with their profile types and times.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    pub(crate) series: Vec<Sums>,
    pub(crate) types: Vec<ProfileType>,
    /// For each stored series, the times at which it has samples, ascending. A [`Sums`] may have sums at only some of
    /// these times.
    pub(crate) times: Vec<Vec<i64>>,
}

/// The groups into which responses are merged.
#[derive(Debug)]
pub(crate) struct Folding<'a> {
    pub(crate) group: &'a Group,
    pub(crate) stacks: StackGrouping<'a>,
    /// Labels of the group that are sample attributes. They are not part of a stored series' identity.
    pub(crate) attributes: Vec<String>,
}

impl<'a> Folding<'a> {
    /// Returns the labels that shards group by.
    pub(crate) fn shard_labels(group: &Group) -> Vec<String> {
        let (Group::Series(labels) | Group::By(labels)) = group;
        let in_shards = |name: &&String| StackLabel::named(name).is_none() && *name != NAME_LABEL;
        let mut labels: Vec<String> = labels.iter().filter(in_shards).cloned().collect();
        labels.push(PROFILE_TYPE_LABEL.to_owned());
        labels.sort_unstable();
        labels.dedup();
        labels
    }

    /// Merges the responses to one selection.
    pub(crate) fn fold(&self, named: &Named<'_>, fold: &Fold, cancelled: &Cancelled) -> Result<Folded, QueryError> {
        let mut series = SeriesBuilder::default();
        let mut leaf = Combinations::default();
        let mut any = Combinations::default();
        let table = named.frames().table;
        for NamedAnswer { answer, locations, .. } in named.answers() {
            let values = self.stacks.values_of(answer, locations, table, &mut leaf, &mut any);
            self.add(answer, fold, &values, any.len(), &mut series, cancelled)?;
        }
        Ok(series.finish([(&self.stacks.leaf_labels, &leaf), (&self.stacks.any_labels, &any)], table))
    }

    /// Adds one response. Sorts its cells (each is the sum of one group, bucket and stack) by group, bucket and
    /// `leaf_*` values. Cells of one series and bucket are then adjacent, and one small table adds up their sums by
    /// `stack_*` values.
    fn add(
        &self,
        answer: &Answer,
        fold: &Fold,
        values: &NodeValues,
        combinations: usize,
        series: &mut SeriesBuilder,
        cancelled: &Cancelled,
    ) -> Result<(), QueryError> {
        let groups: Vec<Option<Grouped>> = answer.groups.iter().map(|labels| self.grouped(labels, series)).collect();
        let leaf_of = |cell: &Cell| values.leaf.get(cell.node as usize).copied().unwrap_or(0);
        let mut cells: Vec<&Cell> = answer.cells.iter().collect();
        cells.sort_unstable_by_key(|cell| (cell.group, cell.bucket, leaf_of(cell), cell.node));
        let mut counted = Counted::new(combinations);
        for (i, run) in
            cells.chunk_by(|a, b| (a.group, a.bucket, leaf_of(a)) == (b.group, b.bucket, leaf_of(b))).enumerate()
        {
            if i % CELLS_BETWEEN_CHECKS == 0 {
                cancelled.check()?;
            }
            let Some(first) = run.first() else { continue };
            let Some(grouped) = groups.get(first.group as usize).copied().flatten() else { continue };
            let Some(time) = time_of(answer, fold, first.bucket) else { continue };
            series.saw(grouped, time);
            if self.stacks.any_labels.is_empty() {
                series.add(grouped, [leaf_of(first), 0], time, run.iter().map(|cell| cell.sum).sum())?;
            } else {
                for cell in run {
                    counted.count(answer, values, cell);
                }
                counted.drain(|combination, sum| series.add(grouped, [leaf_of(first), combination], time, sum))?;
            }
        }
        for unpassed in &answer.unpassed {
            let grouped = groups.get(unpassed.group as usize).copied().flatten();
            if let (Some(grouped), Some(time)) = (grouped, time_of(answer, fold, unpassed.bucket)) {
                series.saw(grouped, time);
            }
        }
        Ok(())
    }

    /// Returns the indices of a group of a response; `None` if it has no profile type, which every stored series has.
    fn grouped(&self, labels: &LabelSet, series: &mut SeriesBuilder) -> Option<Grouped> {
        let profile_type = series.profile_type(labels.get(PROFILE_TYPE_LABEL))?;
        let (kept, stored) = match self.group {
            Group::Series(_) => {
                let stored = Labels::some_of(labels, |name| !self.attributes.iter().any(|attribute| attribute == name));
                (Labels::from(labels), Some(intern(&mut series.stored, stored)))
            }
            Group::By(names) => (Labels::some_of(labels, |name| names.iter().any(|kept| kept == name)), None),
        };
        Some(Grouped { labels: intern(&mut series.labels, kept), profile_type, stored })
    }
}

/// Returns the time of a bucket: the end of its window, or the time of its point.
fn time_of(answer: &Answer, fold: &Fold, bucket: u32) -> Option<i64> {
    match fold {
        Fold::Sum(windows) => windows.get(bucket as usize).map(|window| window.end_ns),
        Fold::Points(_) | Fold::Last(_) => answer.bucket_times_ns.get(bucket as usize).copied(),
    }
}

/// Indices of a group's labels, profile type and stored series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grouped {
    labels: usize,
    profile_type: usize,
    /// Index of the stored series; `None` if the leaf's group is `By`, for which stored series do not matter.
    stored: Option<usize>,
}

/// Sums of one series and bucket: one sum for each combination of `stack_*` values.
struct Counted {
    sums: Vec<i128>,
    /// Number of the last stack that was added to each combination. A stack is added once, even if several of its
    /// frames have the combination.
    last_stack: Vec<u64>,
    stacks: u64,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
}

impl Counted {
    fn new(combinations: usize) -> Self {
        Self {
            sums: vec![0; combinations],
            last_stack: vec![0; combinations],
            stacks: 0,
            touched: Vec::new(),
            is_touched: vec![false; combinations],
        }
    }

    /// Adds a cell's sum to every combination that the frames from the cell's node to the root have.
    fn count(&mut self, answer: &Answer, values: &NodeValues, cell: &Cell) {
        self.stacks += 1;
        let mut at = cell.node;
        if at == 0 {
            self.count_under(&values.any_of_empty, cell.sum);
        }
        while at != 0 {
            let Some(node) = answer.nodes.get(at as usize) else { return };
            self.count_under(values.any(node.location), cell.sum);
            at = node.parent;
        }
    }

    fn count_under(&mut self, combinations: &[u32], sum: i128) {
        for &combination in combinations {
            let i = combination as usize;
            let (Some(last), Some(total), Some(touched)) =
                (self.last_stack.get_mut(i), self.sums.get_mut(i), self.is_touched.get_mut(i))
            else {
                continue;
            };
            if *last != self.stacks {
                *last = self.stacks;
                *total += sum;
                if !*touched {
                    *touched = true;
                    self.touched.push(combination);
                }
            }
        }
    }

    /// Calls `to` with every combination and its sum, and resets the sums.
    fn drain(&mut self, mut to: impl FnMut(u32, i128) -> Result<(), QueryError>) -> Result<(), QueryError> {
        for combination in self.touched.drain(..) {
            let i = combination as usize;
            if let (Some(sum), Some(touched)) = (self.sums.get_mut(i), self.is_touched.get_mut(i)) {
                to(combination, std::mem::take(sum))?;
                *touched = false;
            }
        }
        Ok(())
    }
}

/// Distinct values, each with an index.
type Interned<T> = IndexSet<T, RandomState>;

fn intern<T: std::hash::Hash + Eq>(interned: &mut Interned<T>, thing: T) -> usize {
    interned.insert_full(thing).0
}

/// Key of a series: its group, the combination of its `leaf_*` values, and that of its `stack_*` values.
type Key = (Grouped, [u32; 2]);

/// Series of a leaf while responses are added.
#[derive(Default)]
struct SeriesBuilder {
    labels: Interned<Labels>,
    types: Interned<ProfileType>,
    /// Index in `types` of each full ID; `None` if the text is not a full ID.
    type_of_id: HashMap<String, Option<usize>, RandomState>,
    stored: Interned<Labels>,
    times: Vec<Vec<i64>>,
    /// For each key, the index of its series in `sums`.
    known: HashMap<Key, usize, RandomState>,
    sums: Vec<(Key, TimeSums)>,
    /// Index of the sums that were used last. Cells arrive sorted by group, so the next cell often has the same key.
    last: usize,
    entries: usize,
}

impl SeriesBuilder {
    /// Returns the index of a profile type, given its full ID.
    fn profile_type(&mut self, id: &str) -> Option<usize> {
        if let Some(known) = self.type_of_id.get(id) {
            return *known;
        }
        let index = ProfileType::parse(id).map(|profile_type| intern(&mut self.types, profile_type));
        self.type_of_id.insert(id.to_owned(), index);
        index
    }

    fn saw(&mut self, grouped: Grouped, time: i64) {
        let Some(times) = grouped.stored else { return };
        if self.times.len() <= times {
            self.times.resize(times + 1, Vec::new());
        }
        if let Some(times) = self.times.get_mut(times)
            && times.last() != Some(&time)
        {
            times.push(time);
        }
    }

    fn add(&mut self, grouped: Grouped, combinations: [u32; 2], time: i64, sum: i128) -> Result<(), QueryError> {
        self.entries += 1;
        if self.entries > proto::limits::QUERY_CELLS_MAX {
            return Err(QueryError::too_many_cells(proto::limits::QUERY_CELLS_MAX));
        }
        let key = (grouped, combinations);
        if self.sums.get(self.last).is_none_or(|(known, _)| *known != key) {
            self.last = *self.known.entry(key).or_insert_with(|| {
                // Most series of a wide chart have a single sum.
                self.sums.push((key, Vec::with_capacity(1)));
                self.sums.len() - 1
            });
        }
        if let Some((_, sums)) = self.sums.get_mut(self.last) {
            sums.push((time, sum));
        }
        Ok(())
    }

    /// Returns the series, each once, sorted by labels.
    fn finish(mut self, named: [(&Vec<StackLabel>, &Combinations); 2], table: &FrameTable) -> Folded {
        let labels: Vec<Labels> = self.labels.into_iter().collect();
        let types: Vec<ProfileType> = self.types.into_iter().collect();
        let stored: Vec<Labels> = self.stored.into_iter().collect();
        let mut merged: HashMap<(Labels, usize, usize), TimeSums, RandomState> = HashMap::default();
        let mut series: Vec<Sums> = Vec::with_capacity(self.sums.len());
        let has_stack_labels = named.iter().any(|(labels, _)| !labels.is_empty());
        for ((grouped, combinations), sums) in self.sums {
            let Grouped { profile_type, stored, .. } = grouped;
            let times = stored.unwrap_or_default();
            let Some(labels) = labels.get(grouped.labels) else { continue };
            if !has_stack_labels {
                // Each group is a series of its own.
                series.push(Sums { labels: labels.clone(), profile_type, times, sums: add_up(sums) });
                continue;
            }
            let mut all: Vec<(ArcStr, ArcStr)> = Vec::new();
            for ((labels, known), combination) in named.iter().zip(combinations) {
                all.extend(known.texts(combination, labels, table));
            }
            all.extend(labels.texts().iter().cloned());
            // Combinations with equal labels become one series.
            merged.entry((Labels::new(all), profile_type, times)).or_default().extend(sums);
        }
        let of_merged =
            |((labels, profile_type, times), sums)| Sums { labels, profile_type, times, sums: add_up(sums) };
        series.extend(merged.into_iter().map(of_merged));
        for times in &mut self.times {
            times.sort_unstable();
            times.dedup();
        }
        // The order must not depend on indices, which follow the order of the responses. Values of equal labels are
        // added as floats in this order.
        let key = |sums: &Sums| (types.get(sums.profile_type), stored.get(sums.times));
        series.sort_by(|a, b| a.labels.cmp(&b.labels).then_with(|| key(a).cmp(&key(b))));
        Folded { series, types, times: self.times }
    }
}

/// Adds up the sums of the same time, and sorts by time.
fn add_up(mut sums: TimeSums) -> TimeSums {
    if sums.len() < 2 {
        return sums;
    }
    sums.sort_unstable_by_key(|&(time, _)| time);
    let mut out: TimeSums = Vec::with_capacity(sums.len());
    for (time, sum) in sums {
        match out.last_mut() {
            Some((last, total)) if *last == time => *total += sum,
            _ => out.push((time, sum)),
        }
    }
    out
}
