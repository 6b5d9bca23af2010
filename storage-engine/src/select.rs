//! Selection: sums of samples by group, bucket and stack.
//!
//! Three steps: gather (under the state's lock: which series, a copy of their heads, a snapshot of the database), sum
//! (without locks: decode chunks, add up by dense ids of the partition), and name (under the partition's lock, whose ids only
//! grow: from ids to labels and to one tree of locations). So a long selection never holds up `apply`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use indexmap::IndexSet;
use parking_lot::RwLock;
use proto::{Answer, Dictionary, Fold, Label, LabelSet, Samples, Selection, StackDetail, Window, limits};
use rocksdb::ReadOptions;

use crate::chunk;
use crate::engine::Snapshot;
use crate::error::{Corruption, CorruptionCheck, SelectError};
use crate::key::{PartitionKey, WINDOW_NS, window_of};
use crate::matcher::{ReadyMatcher, attribute, on_series};
use crate::partition::Partition;
use crate::tree::{PartitionNames, StackTree};

/// What was gathered of one partition.
pub(crate) struct Gathered {
    pub(crate) partition: Arc<RwLock<Partition>>,
    pub(crate) key: PartitionKey,
    pub(crate) series: Vec<GatheredSeries>,
    /// How many ids there are: what was sealed by then refers to no others.
    known: Known,
}

/// Lengths of a partition's tables.
#[derive(Clone, Copy)]
struct Known {
    pairs: usize,
    attribute_sets: usize,
}

/// A series that matches, and a copy of its head.
pub(crate) struct GatheredSeries {
    id: u32,
    pub(crate) labels: LabelSet,
    head: Samples,
}

/// Copies what matches of a partition; the caller holds the state's lock.
pub(crate) fn gather(partition: &Arc<RwLock<Partition>>, matchers: &[ReadyMatcher], window: Window) -> Gathered {
    let inner = partition.read();
    let matching = inner.series.values().enumerate().filter(|(_, labels)| on_series(matchers, labels).is_some());
    let series = matching
        .map(|(id, labels)| {
            let id = u32::try_from(id).unwrap_or(u32::MAX);
            let head = inner.head.get(&id).map_or_else(Samples::default, |samples| inside(samples, window));
            GatheredSeries { id, labels: labels.clone(), head }
        })
        .collect();
    let known = Known { pairs: inner.dictionary.pairs.len(), attribute_sets: inner.dictionary.attribute_sets.len() };
    Gathered { partition: Arc::clone(partition), key: inner.key, series, known }
}

/// The samples in `(start, end]`.
fn inside(samples: &Samples, window: Window) -> Samples {
    let mut out = Samples::default();
    for i in 0..samples.len() {
        if window.start_ns < samples.times_ns[i] && samples.times_ns[i] <= window.end_ns {
            out.push(samples.times_ns[i], samples.pairs[i], samples.values[i], samples.attribute_sets[i]);
        }
    }
    out
}

/// All samples of a series in the window, sealed or not, one piece after another, until `visit` has seen enough.
pub(crate) fn pieces(
    snapshot: &Snapshot<'_>,
    gathered: &Gathered,
    series: &GatheredSeries,
    window: Window,
    mut visit: impl FnMut(&Samples) -> Result<ControlFlow<()>, SelectError>,
) -> Result<(), SelectError> {
    if !series.head.is_empty() && visit(&series.head)?.is_break() {
        return Ok(());
    }
    let Gathered { key, known, .. } = gathered;
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(key.chunks_from(series.id, window_of(window.end_ns).saturating_add(WINDOW_NS)));
    let mut cursor = snapshot.raw_iterator_opt(options);
    cursor.seek(key.chunks_from(series.id, window_of(window.start_ns)));
    while let Some((at, value)) = cursor.item() {
        let samples = chunk::decode(at, value)?;
        let dangles = samples.pairs.iter().any(|&pair| pair as usize >= known.pairs)
            || samples.attribute_sets.iter().any(|&set| set as usize >= known.attribute_sets);
        if dangles {
            return Err(Corruption { key: at.to_vec(), check: CorruptionCheck::Content }.into());
        }
        let samples = inside(&samples, window);
        if !samples.is_empty() && visit(&samples)?.is_break() {
            return Ok(());
        }
        cursor.next();
    }
    Ok(cursor.status()?)
}

/// Sums of one selection over all partitions.
pub(crate) struct Accumulator<'a> {
    selection: &'a Selection,
    matchers: &'a [ReadyMatcher],
    groups: IndexSet<LabelSet, FixedState>,
    tree: StackTree,
    /// (group, bucket edge or time, node) to sum.
    sums: HashMap<(u32, i64, u32), i128, FixedState>,
    samples: u64,
    /// Series that had any of the samples.
    series: HashSet<LabelSet, FixedState>,
    /// `Fold::Last`: series whose last time was in a newer partition.
    ended: HashSet<LabelSet, FixedState>,
}

/// Stacks that are named under one hold of the partition's lock: some milliseconds of the deepest ones.
const NAMED_AT_ONCE: usize = 256;

/// Sums of one partition: (group, bucket edge or time, pair) to sum.
type PartitionSums = HashMap<(u32, i64, u32), i128, FixedState>;

impl<'a> Accumulator<'a> {
    pub(crate) fn new(selection: &'a Selection, matchers: &'a [ReadyMatcher]) -> Self {
        Self {
            selection,
            matchers,
            groups: IndexSet::default(),
            tree: StackTree::new(selection.stacks),
            sums: HashMap::default(),
            samples: 0,
            series: HashSet::default(),
            ended: HashSet::default(),
        }
    }

    /// Adds a partition's samples; newer partitions come first.
    pub(crate) fn add(&mut self, snapshot: &Snapshot<'_>, gathered: &Gathered) -> Result<(), SelectError> {
        let mut sums = PartitionSums::default();
        for series in &gathered.series {
            self.add_series(snapshot, gathered, series, &mut sums)?;
        }
        let mut names = PartitionNames::default();
        let mut sums = sums.into_iter();
        while sums.len() > 0 {
            // The lock is let go in between: `apply` waits for it.
            let partition = gathered.partition.read();
            let mut naming = names.resume(&partition.dictionary);
            for ((group, bucket, pair), sum) in sums.by_ref().take(NAMED_AT_ONCE) {
                let node = naming.node(&mut self.tree, pair)?;
                *self.sums.entry((group, bucket, node)).or_default() += sum;
            }
            names = naming.stop();
        }
        check_size(self.sums.len())
    }

    fn add_series(
        &mut self,
        snapshot: &Snapshot<'_>,
        gathered: &Gathered,
        series: &GatheredSeries,
        sums: &mut PartitionSums,
    ) -> Result<(), SelectError> {
        let window = self.selection.fold.window();
        let mut grouping = Grouping::new(self.selection, self.matchers, &series.labels);
        let keeps_stacks = self.selection.stacks != StackDetail::None;
        let last = match self.selection.fold {
            Fold::Last(_) if self.ended.contains(&series.labels) => return Ok(()),
            Fold::Last(_) => last_time(snapshot, gathered, series, window)?,
            Fold::Sum(_) | Fold::Points(_) => None,
        };
        if last.is_some() {
            self.ended.insert(series.labels.clone());
        }
        let mut any = false;
        pieces(snapshot, gathered, series, window, |samples| {
            let partition = grouping.reads_attributes().then(|| gathered.partition.read());
            let dictionary = partition.as_ref().map(|partition| &partition.dictionary);
            for i in 0..samples.len() {
                let time = samples.times_ns[i];
                if last.is_some_and(|last| last != time) {
                    continue;
                }
                let Some(group) = grouping.group(&mut self.groups, dictionary, samples.attribute_sets[i]) else {
                    continue;
                };
                let bucket = match &self.selection.fold {
                    Fold::Sum(edges) => bucket_of(edges, time),
                    Fold::Points(_) | Fold::Last(_) => time,
                };
                let pair = if keeps_stacks { samples.pairs[i] } else { 0 };
                *sums.entry((group, bucket, pair)).or_default() += i128::from(samples.values[i]);
                self.samples += 1;
                any = true;
            }
            check_size(sums.len())?;
            Ok(ControlFlow::Continue(()))
        })?;
        if any {
            self.series.insert(series.labels.clone());
        }
        Ok(())
    }

    /// The answer, in an order that depends on nothing but its content.
    pub(crate) fn finish(self) -> Answer {
        let mut times: BTreeMap<i64, u32> = BTreeMap::new();
        let by_time = !matches!(self.selection.fold, Fold::Sum(_));
        if by_time {
            times.extend(self.sums.keys().map(|&(_, time, _)| (time, 0)));
            times.values_mut().zip(0..).for_each(|(bucket, i)| *bucket = i);
        }
        let mut cells: Vec<_> = self
            .sums
            .into_iter()
            .map(|((group, bucket, node), sum)| {
                let bucket = if by_time { times[&bucket] } else { u32::try_from(bucket).unwrap_or(u32::MAX) };
                proto::selection::Cell { group, bucket, node, sum }
            })
            .collect();
        cells.sort_unstable_by_key(|cell| (cell.group, cell.bucket, cell.node));
        let (nodes, dictionary) = self.tree.into_parts();
        Answer {
            dictionary,
            groups: self.groups.into_iter().collect(),
            nodes,
            cells,
            bucket_times_ns: times.into_keys().collect(),
            samples: self.samples,
            series: self.series.len() as u64,
        }
    }
}

fn check_size(cells: usize) -> Result<(), SelectError> {
    let cells_max = limits::QUERY_CELLS_MAX;
    if cells > cells_max { Err(SelectError::TooLarge { cells_max }) } else { Ok(()) }
}

/// The index of the bucket `(edges[i], edges[i + 1]]` that a time of the window is in.
fn bucket_of(edges: &[i64], time: i64) -> i64 {
    let behind = edges.partition_point(|&edge| edge < time);
    i64::try_from(behind).unwrap_or(i64::MAX) - 1
}

/// The last time in the window at which a series has a sample in this partition.
fn last_time(
    snapshot: &Snapshot<'_>,
    gathered: &Gathered,
    series: &GatheredSeries,
    window: Window,
) -> Result<Option<i64>, SelectError> {
    let mut last = None;
    pieces(snapshot, gathered, series, window, |samples| {
        last = last.max(samples.times_ns.iter().copied().max());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(last)
}

/// To which group the samples of one series go, decided once per attribute set.
struct Grouping<'a> {
    on_samples: Vec<&'a ReadyMatcher>,
    from_samples: Vec<&'a str>,
    from_series: Vec<Label>,
    known: HashMap<u32, Option<u32>, FixedState>,
}

impl<'a> Grouping<'a> {
    fn new(selection: &'a Selection, matchers: &'a [ReadyMatcher], labels: &LabelSet) -> Self {
        let has = |name: &str| !labels.get(name).is_empty();
        let in_group = |label: &&Label| selection.group_by_series || selection.group_by.contains(&label.name);
        Self {
            on_samples: on_series(matchers, labels).unwrap_or_default(),
            from_samples: selection.group_by.iter().map(String::as_str).filter(|name| !has(name)).collect(),
            from_series: labels.iter().filter(in_group).cloned().collect(),
            known: HashMap::default(),
        }
    }

    fn reads_attributes(&self) -> bool {
        !self.on_samples.is_empty() || !self.from_samples.is_empty()
    }

    /// The group of samples with these attributes; `None` if they do not match.
    fn group(
        &mut self,
        groups: &mut IndexSet<LabelSet, FixedState>,
        dictionary: Option<&Dictionary>,
        attribute_set: u32,
    ) -> Option<u32> {
        // Where nothing depends on attributes, all sets are one.
        let attribute_set = if self.reads_attributes() { attribute_set } else { 0 };
        if let Some(&known) = self.known.get(&attribute_set) {
            return known;
        }
        let value = |name: &str| dictionary.map_or_else(String::new, |d| attribute(d, attribute_set, name));
        let matches = self.on_samples.iter().all(|matcher| matcher.accepts(&value(&matcher.name)));
        let group = matches.then(|| {
            let from_samples = self.from_samples.iter().map(|&name| Label::new(name, &value(name)));
            let labels = LabelSet::new(self.from_series.iter().cloned().chain(from_samples).collect());
            u32::try_from(groups.insert_full(labels).0).unwrap_or(u32::MAX)
        });
        self.known.insert(attribute_set, group);
        group
    }
}
