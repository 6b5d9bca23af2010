//! Selection: sums of samples by group, bucket and stack.
//!
//! Three steps: gather (see there), sum (without locks: add up by dense numbers of each partition), and name (under the
//! vocabulary's lock: from numbers to one tree of locations).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use indexmap::IndexSet;
use proto::selection::Cell;
use proto::{Answer, Fold, LabelSet, Samples, Selection, StackDetail, limits};

use crate::dense::Dense;
use crate::engine::Engine;
use crate::error::SelectError;
use crate::gather::{PartView, Question, SeriesView, View};
use crate::grouping::{Grouping, Groups};
use crate::matcher::ReadyMatcher;
use crate::plan::Tiers;
use crate::read::{ReadSums, Visitor, read_series};
use crate::tree::StackTree;

/// Stacks that are named under one hold of the vocabulary's lock: about a millisecond of the deepest ones.
const NAMED_AT_ONCE: usize = 1024;

impl Engine {
    /// Sums of samples; consistent: all of an entry or nothing of it.
    ///
    /// # Errors
    /// [`SelectError`]: the question is wrong, its answer too large or not kept any more, or the state cannot be read.
    pub fn select(&self, selection: &Selection) -> Result<Answer, SelectError> {
        let matchers = selection.matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>()?;
        let window = selection.fold.window();
        let ends = [window.start_ns, window.end_ns];
        let (edges, tiers) = match &selection.fold {
            Fold::Sum(edges) => (edges.as_slice(), Tiers::ALL),
            Fold::Points(_) | Fold::Last(_) => (ends.as_slice(), Tiers::RAW),
        };
        let question = Question {
            tenant: &selection.tenant,
            matchers: &matchers,
            edges,
            group_by: &selection.group_by,
            by_series: selection.group_by_series,
            adds: true,
            needs_last: matches!(selection.fold, Fold::Last(_)),
            tiers,
        };
        self.read(&question, |view| {
            let mut accumulator = Accumulator::new(selection, &matchers);
            // The newest first: the last point of a series that ended there is not looked for in older ones.
            for (number, part) in view.parts.iter().enumerate().rev() {
                accumulator.add(view, number, part)?;
            }
            accumulator.finish(view)
        })
    }
}

/// A sum, before its stack is named.
struct PartSum {
    part: usize,
    group: u32,
    /// Of the buckets, or a time.
    bucket: i64,
    pair: u32,
    sum: i128,
}

/// (group, bucket or time, pair) to sum.
type Sparse = HashMap<(u32, i64, u32), i128, FixedState>;

/// Sums of one selection over all partitions.
struct Accumulator<'a> {
    selection: &'a Selection,
    matchers: &'a [ReadyMatcher],
    groups: Groups,
    dense: Dense,
    sums: Vec<PartSum>,
    samples: u64,
    /// Series that had any of the samples.
    series: HashSet<Arc<LabelSet>, FixedState>,
    /// `Fold::Last`: series whose last time was in a newer partition.
    ended: HashSet<Arc<LabelSet>, FixedState>,
}

impl<'a> Accumulator<'a> {
    fn new(selection: &'a Selection, matchers: &'a [ReadyMatcher]) -> Self {
        Self {
            selection,
            matchers,
            groups: IndexSet::default(),
            dense: Dense::default(),
            sums: Vec::new(),
            samples: 0,
            series: HashSet::default(),
            ended: HashSet::default(),
        }
    }

    /// Adds a partition's samples; newer partitions come first.
    fn add(&mut self, view: &View<'_>, number: usize, part: &PartView) -> Result<(), SelectError> {
        let slots = self.slots(part);
        let (mut whole, mut by_attributes) = (Vec::new(), Vec::new());
        for series in &part.series {
            let mut grouping = Grouping::new(self.selection, self.matchers, &series.labels);
            // The last point of a series ends it, whether it matches or not.
            if matches!(self.selection.fold, Fold::Sum(_))
                && !grouping.settle(|name| part.partition.read().is_attribute(name))
            {
                continue;
            }
            match slots {
                Some(_) if !grouping.reads_attributes() => {
                    if let Some(group) = grouping.group(&mut self.groups, None, 0) {
                        whole.push((group, series));
                    }
                }
                _ => by_attributes.push((grouping, series)),
            }
        }
        // One group after another in the same slots.
        whole.sort_by_key(|(group, _)| *group);
        if let Some(slots) = slots.filter(|_| !whole.is_empty()) {
            self.dense.resize(slots.count());
            for of_group in whole.chunk_by(|a, b| a.0 == b.0) {
                for (_, series) in of_group {
                    self.add_whole(view, part, series, slots)?;
                }
                let group = of_group.first().map_or(0, |first| first.0);
                let sums = &mut self.sums;
                self.dense.drain(|slot, sum| {
                    let (bucket, pair) = match slots {
                        Slots::Pairs(_) => (0, slot),
                        Slots::Buckets(_) => (i64::from(slot), 0),
                    };
                    sums.push(PartSum { part: number, group, bucket, pair, sum });
                });
                check_size(self.sums.len())?;
            }
        }
        let mut sparse = Sparse::default();
        for (mut grouping, series) in by_attributes {
            self.add_by_attributes(view, part, series, &mut grouping, &mut sparse)?;
        }
        let sums =
            sparse.into_iter().map(|((group, bucket, pair), sum)| PartSum { part: number, group, bucket, pair, sum });
        self.sums.extend(sums);
        check_size(self.sums.len())
    }

    /// Where sums have a slot each: by stack where there is one bucket, by bucket where there are no stacks.
    fn slots(&self, part: &PartView) -> Option<Slots> {
        match (&self.selection.fold, self.selection.stacks) {
            (Fold::Sum(edges), StackDetail::None) => Some(Slots::Buckets(edges.len().saturating_sub(1))),
            (Fold::Sum(edges), _) if edges.len() == 2 => Some(Slots::Pairs(part.known.pairs)),
            _ => None,
        }
    }

    fn add_whole(
        &mut self,
        view: &View<'_>,
        part: &PartView,
        series: &SeriesView,
        slots: Slots,
    ) -> Result<(), SelectError> {
        let mut adder = WholeAdder { dense: &mut self.dense, slots, samples: 0 };
        read_series(&view.snapshot, part, series, &mut adder)?;
        let samples = adder.samples;
        self.count(samples, series);
        Ok(())
    }

    fn add_by_attributes(
        &mut self,
        view: &View<'_>,
        part: &PartView,
        series: &SeriesView,
        grouping: &mut Grouping<'_>,
        sparse: &mut Sparse,
    ) -> Result<(), SelectError> {
        let last_ns = match self.selection.fold {
            Fold::Last(_) if self.ended.contains(&series.labels) => return Ok(()),
            Fold::Last(_) => {
                let mut last = LastTime(None);
                read_series(&view.snapshot, part, series, &mut last)?;
                if last.0.is_some() {
                    self.ended.insert(Arc::clone(&series.labels));
                }
                last.0
            }
            Fold::Sum(_) | Fold::Points(_) => None,
        };
        let mut adder = AttributeAdder {
            view,
            part,
            grouping,
            groups: &mut self.groups,
            sparse,
            by_time: !matches!(self.selection.fold, Fold::Sum(_)),
            keeps_stacks: self.selection.stacks != StackDetail::None,
            last_ns,
            samples: 0,
        };
        read_series(&view.snapshot, part, series, &mut adder)?;
        let samples = adder.samples;
        self.count(samples, series);
        Ok(())
    }

    fn count(&mut self, samples: u64, series: &SeriesView) {
        self.samples += samples;
        if samples > 0 && !self.series.contains(&series.labels) {
            self.series.insert(Arc::clone(&series.labels));
        }
    }

    /// The answer, in an order that depends on nothing but its content.
    fn finish(self, view: &View<'_>) -> Result<Answer, SelectError> {
        let by_time = !matches!(self.selection.fold, Fold::Sum(_));
        let mut times: BTreeMap<i64, u32> = BTreeMap::new();
        if by_time {
            times.extend(self.sums.iter().map(|sum| (sum.bucket, 0)));
            times.values_mut().zip(0..).for_each(|(bucket, i)| *bucket = i);
        }
        let (tree, ends) = self.name(view)?;
        let mut cells: Vec<Cell> = Vec::with_capacity(self.sums.len());
        for (sum, &node) in self.sums.iter().zip(&ends) {
            let bucket = if by_time { times[&sum.bucket] } else { u32::try_from(sum.bucket).unwrap_or(u32::MAX) };
            cells.push(Cell { group: sum.group, bucket, node, sum: sum.sum });
        }
        let groups = with_cells(self.groups, &mut cells);
        cells.sort_unstable_by_key(|cell| (cell.group, cell.bucket, cell.node));
        cells.dedup_by(|later, first| {
            let same = (later.group, later.bucket, later.node) == (first.group, first.bucket, first.node);
            if same {
                first.sum += later.sum;
            }
            same
        });
        let (nodes, dictionary) = tree.into_parts();
        Ok(Answer {
            dictionary,
            groups,
            nodes,
            cells,
            bucket_times_ns: times.into_keys().collect(),
            samples: self.samples,
            series: self.series.len() as u64,
            windows_read: view.plan.windows_read,
            missing: view.plan.missing.clone(),
        })
    }

    /// The tree of all stacks, and the node of each sum.
    fn name(&self, view: &View<'_>) -> Result<(StackTree, Vec<u32>), SelectError> {
        let Some(vocabulary) = view.vocabulary.as_ref().filter(|_| self.selection.stacks != StackDetail::None) else {
            return Ok((StackTree::new(self.selection.stacks), vec![0; self.sums.len()]));
        };
        'again: loop {
            let mut tree = StackTree::new(self.selection.stacks);
            let mut ends = Vec::with_capacity(self.sums.len());
            for of_part in self.sums.chunk_by(|a, b| a.part == b.part) {
                let Some(part) = of_part.first().and_then(|first| view.parts.get(first.part)) else { continue };
                for sums in of_part.chunks(NAMED_AT_ONCE) {
                    // The locks are let go in between: `apply` waits for them.
                    let vocabulary = vocabulary.read();
                    let partition = part.partition.read();
                    let Some(mut naming) = tree.resume(&vocabulary) else { continue 'again };
                    // It was dropped, and the vocabulary renewed without it: whoever asked is answered again.
                    if partition.generation != vocabulary.generation() {
                        ends.resize(ends.len() + sums.len(), 0);
                        naming.stop();
                        continue;
                    }
                    for sum in sums {
                        ends.push(naming.node(partition.pairs[sum.pair as usize])?);
                    }
                    naming.stop();
                }
            }
            return Ok((tree, ends));
        }
    }
}

/// The groups that have a cell: one that only its labels made is none.
fn with_cells(groups: Groups, cells: &mut [Cell]) -> Vec<LabelSet> {
    let mut numbers = vec![None; groups.len()];
    cells.iter().for_each(|cell| numbers[cell.group as usize] = Some(0));
    numbers.iter_mut().flatten().zip(0..).for_each(|(number, next)| *number = next);
    for cell in cells {
        cell.group = numbers[cell.group as usize].unwrap_or_default();
    }
    groups.into_iter().zip(&numbers).filter(|(_, number)| number.is_some()).map(|(group, _)| group).collect()
}

fn check_size(cells: usize) -> Result<(), SelectError> {
    let cells_max = limits::QUERY_CELLS_MAX;
    if cells > cells_max { Err(SelectError::TooLarge { cells_max }) } else { Ok(()) }
}

/// What the slots of a dense table are, and how many.
#[derive(Clone, Copy, Debug)]
enum Slots {
    Pairs(usize),
    Buckets(usize),
}

impl Slots {
    fn count(self) -> usize {
        let (Self::Pairs(count) | Self::Buckets(count)) = self;
        count
    }
}

/// Adds all samples of a series, whatever their attributes.
struct WholeAdder<'a> {
    dense: &'a mut Dense,
    slots: Slots,
    samples: u64,
}

impl Visitor for WholeAdder<'_> {
    fn takes_sums(&self) -> bool {
        true
    }

    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<Option<()>, SelectError> {
        self.samples += read.samples;
        Ok(match self.slots {
            Slots::Pairs(_) => read.sums.add_to(self.dense, read.total),
            Slots::Buckets(_) => self.dense.add(bucket, read.total),
        })
    }

    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<Option<()>, SelectError> {
        self.samples += rows.len() as u64;
        if let Slots::Buckets(_) = self.slots {
            let total = samples.values[rows].iter().map(|&value| i128::from(value)).sum();
            return Ok(self.dense.add(bucket, total));
        }
        for row in rows {
            if self.dense.add(samples.pairs[row], i128::from(samples.values[row])).is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }
}

/// Adds samples by their attributes or their times.
struct AttributeAdder<'a, 'q> {
    view: &'a View<'a>,
    part: &'a PartView,
    grouping: &'a mut Grouping<'q>,
    groups: &'a mut Groups,
    sparse: &'a mut Sparse,
    by_time: bool,
    keeps_stacks: bool,
    last_ns: Option<i64>,
    samples: u64,
}

impl AttributeAdder<'_, '_> {
    fn add(&mut self, group: u32, bucket: i64, pair: u32, sum: i128) {
        let pair = if self.keeps_stacks { pair } else { 0 };
        *self.sparse.entry((group, bucket, pair)).or_default() += sum;
    }
}

impl Visitor for AttributeAdder<'_, '_> {
    fn takes_sums(&self) -> bool {
        !self.by_time && !self.grouping.reads_attributes()
    }

    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<Option<()>, SelectError> {
        let Some(group) = self.grouping.group(self.groups, None, 0) else { return Ok(Some(())) };
        self.samples += read.samples;
        let read = read.sums.for_each(|pair, sum| {
            let known = (pair as usize) < self.part.known.pairs;
            known.then(|| self.add(group, bucket.into(), pair, sum))
        });
        check_size(self.sparse.len())?;
        Ok(read)
    }

    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<Option<()>, SelectError> {
        for row in rows {
            let (time_ns, set, pair) = (samples.times_ns[row], samples.attribute_sets[row], samples.pairs[row]);
            if set as usize >= self.part.known.attribute_sets || pair as usize >= self.part.known.pairs {
                return Ok(None);
            }
            if self.last_ns.is_some_and(|last_ns| last_ns != time_ns) {
                continue;
            }
            let names = self.view.vocabulary.as_ref().map(|vocabulary| (vocabulary, &self.part.partition));
            let Some(group) = self.grouping.group(self.groups, names, set) else { continue };
            let bucket = if self.by_time { time_ns } else { bucket.into() };
            self.add(group, bucket, pair, samples.values[row].into());
            self.samples += 1;
        }
        check_size(self.sparse.len())?;
        Ok(Some(()))
    }
}

/// The last time at which a series has a sample.
struct LastTime(Option<i64>);

impl Visitor for LastTime {
    fn takes_sums(&self) -> bool {
        false
    }

    fn sums(&mut self, _bucket: u32, read: &ReadSums<'_>) -> Result<Option<()>, SelectError> {
        self.0 = self.0.max(read.last_ns);
        Ok(Some(()))
    }

    fn samples(&mut self, _bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<Option<()>, SelectError> {
        self.0 = self.0.max(rows.last().map(|row| samples.times_ns[row]));
        Ok(Some(()))
    }
}
