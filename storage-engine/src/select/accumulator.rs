//! Adds up the sums of one selection over all partitions, and makes the response from them.
//!
//! Each partition is summed by its own pair numbers, without locks. Then the stacks of the sums get nodes of one stack
//! tree, under the tenant dictionary's lock.

pub(in crate::select) mod fingerprints;
pub(crate) mod sum_visitors;
pub(crate) mod totals;
mod whole_groups;

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use indexmap::IndexMap;
use proto::answer::{Cell, Node, Unpassed};
use proto::{Answer, Fold, LabelSet, Selection, StackDetail, limits};

use crate::database::key::Section;
use crate::error::{Corruption, CorruptionCheck, SelectError};
use crate::memory::matcher::ReadyMatcher;
use crate::memory::tenant_dictionary::Pair;
use crate::select::accumulator::fingerprints::Fingerprints;
use crate::select::accumulator::sum_visitors::{Added, AttributeAdder, LastTime, Slots, Sparse, UNPASSED, check_size};
use crate::select::accumulator::totals::{Total, Totals};
use crate::select::accumulator::whole_groups::Tables;
use crate::select::gather::{Collector, Progress, ReadSummary};
use crate::select::grouping::{Grouping, Groups, SeriesGroups};
use crate::select::read::PartReader;
use crate::select::selected_stacks::SelectedStacks;
use crate::select::stack_filter::{Passing, StackFiltering};
use crate::select::view::{PartView, SeriesView, View};

/// Number of stacks that get nodes while the lock of the tenant dictionary is held without a break. For the deepest
/// stacks, this takes some milliseconds.
const STACKS_PER_LOCK: usize = 4096;
/// Number of slots, one for each group and bucket or pair, that are summed into at the same time. Their tables fit in
/// the caches of a CPU.
const SLOTS_MAX: usize = 1 << 20;

/// A sum of one partition, before its stack has a node in the response's tree.
struct PartSum {
    group: u32,
    /// Number of the bucket. Unless the fold is `Fold::Sum`, the time of the point in nanoseconds since 1970.
    bucket: i64,
    /// Number of the pair; [`UNPASSED`] if the sum only records that there are samples.
    pair: u32,
    /// Index of the series in [`Accumulator::last`] if the fold is `Fold::Last`, and otherwise 0.
    series: u32,
    sum: i128,
}

/// Partition to add, and the pairs whose stacks pass the filters.
#[derive(Clone, Copy)]
struct Input<'a> {
    view: &'a View<'a>,
    part: &'a PartView,
    /// Pairs whose stacks pass the filters; `None` if all stacks pass.
    passing: Option<&'a Passing>,
}

/// Newest point of a series, among the points that were read so far.
struct LastPoint {
    time_ns: i64,
    /// Number of matching samples at this time.
    samples: u64,
}

/// Sums of one selection over all partitions.
pub(crate) struct Accumulator<'a> {
    selection: &'a Selection,
    matchers: &'a [ReadyMatcher],
    groups: Groups,
    /// Evaluation of the stack filters; `None` if all stacks pass.
    filtering: Option<StackFiltering<'a>>,
    /// Number of slots that are summed into at the same time: [`SLOTS_MAX`], except in tests.
    slots_max: usize,
    /// Tables of each thread that reads series. They are reused for each partition.
    tables: Vec<Tables>,
    tree: SelectedStacks,
    totals: Totals,
    added: Added,
    /// Series that had any of the selected samples.
    series: Fingerprints,
    /// Numbers of the series of the present partition that had any of the selected samples.
    with_samples: Vec<u32>,
    /// Newest point of each series so far, if the fold is `Fold::Last`. A partition of another class or tier may still
    /// have a newer point.
    last: IndexMap<Arc<LabelSet>, LastPoint, FixedState>,
}

impl Collector for Accumulator<'_> {
    fn add(&mut self, view: &View<'_>, part: &PartView) -> Result<Progress, SelectError> {
        let passing = match &mut self.filtering {
            Some(filtering) if !part.series.is_empty() => {
                // Once a stack has a location that the router does not know, the response will be empty. The remaining
                // partitions are read only to load their locations.
                let passing =
                    if filtering.has_unknown() { Some(Passing::default()) } else { filtering.passing(view, part) };
                let Some(passing) = passing else { return Ok(Progress::Dropped) };
                if filtering.has_unknown() {
                    return Ok(Progress::Done);
                }
                Some(passing)
            }
            _ => None,
        };
        let input = Input { view, part, passing: passing.as_ref() };
        let sums =
            if matches!(self.selection.fold, Fold::Last(_)) { self.last_points(input)? } else { self.sums(input)? };
        let named = self.name(view, part, &sums)?;
        if self.totals.len() > limits::QUERY_CELLS_MAX {
            self.totals.join();
            check_size(self.totals.len(), &self.groups)?;
        }
        Ok(named)
    }

    fn is_affected(&self, labels: &LabelSet, end_ns: i64) -> bool {
        let is_last = matches!(self.selection.fold, Fold::Last(_));
        !is_last || self.last.get(labels).is_none_or(|point| point.time_ns <= end_ns)
    }
}

impl<'a> Accumulator<'a> {
    pub(crate) fn new(selection: &'a Selection, matchers: &'a [ReadyMatcher]) -> Self {
        Self {
            selection,
            matchers,
            groups: Groups::default(),
            filtering: StackFiltering::new(&selection.locations),
            slots_max: SLOTS_MAX,
            tables: Vec::new(),
            tree: SelectedStacks::new(selection.stacks, selection.locations.known),
            totals: Totals::new(selection),
            added: Added::default(),
            series: Fingerprints::default(),
            with_samples: Vec::new(),
            last: IndexMap::default(),
        }
    }

    /// Returns the sums of the samples of a partition.
    fn sums(&mut self, input: Input<'_>) -> Result<Vec<PartSum>, SelectError> {
        let Input { view, part, .. } = input;
        let mut sums = Vec::new();
        let mut readers = Vec::new();
        let by_attributes = match self.slots(part) {
            Some(slots) => {
                let SeriesGroups { mut whole, codes, by_attributes } =
                    SeriesGroups::resolve(self.selection, self.matchers, part);
                // Reading series in the order of their numbers is several times faster than reading them group by
                // group, because they are in this order in memory and in the database.
                let per_block = (self.slots_max / slots.count().max(1)).max(1);
                if codes > per_block {
                    whole.sort_unstable_by_key(|(code, at)| (*code as usize / per_block, *at));
                }
                for of_block in whole.chunk_by(|a, b| a.0 as usize / per_block == b.0 as usize / per_block) {
                    self.add_whole(input, &mut readers, of_block, slots, per_block.min(codes), &mut sums)?;
                }
                by_attributes
            }
            None => (0..part.series.len()).collect(),
        };
        let mut sparse = Sparse::default();
        let mut reader = readers.pop().unwrap_or_else(|| PartReader::new(view, part));
        for series in by_attributes.into_iter().map(|at| &part.series[at]) {
            let mut grouping = Grouping::new(self.selection, self.matchers, &part.labels(series));
            if grouping.simplify(|name| part.partition.read().is_attribute(name)) {
                let added = self.add_by_attributes(input, series, None, &mut reader, &mut grouping, &mut sparse)?;
                self.count(added, series);
            }
        }
        self.count_series(part);
        let part_sum = |((group, bucket, pair), sum)| PartSum { group, bucket, pair, series: 0, sum };
        sums.extend(sparse.into_iter().map(part_sum));
        check_size(sums.len(), &self.groups)?;
        Ok(sums)
    }

    /// Returns the last points of a partition's series. Skips series with a newer point in a partition that was read
    /// before.
    fn last_points(&mut self, input: Input<'_>) -> Result<Vec<PartSum>, SelectError> {
        let Input { view, part, .. } = input;
        let mut reader = PartReader::new(view, part);
        let mut sums = Vec::new();
        let part_end_ns = part.plan.end_ns(part.key.tier);
        for series in &part.series {
            let labels = part.labels(series);
            let known_ns = self.last.get(&labels).map(|point| point.time_ns);
            if known_ns > Some(part_end_ns) {
                continue;
            }
            let mut last = LastTime(None);
            reader.read(series, &mut last)?;
            let Some(time_ns) = last.0.filter(|_| known_ns <= last.0) else { continue };
            let mut grouping = Grouping::new(self.selection, self.matchers, &labels);
            let mut sparse = Sparse::default();
            let added =
                self.add_by_attributes(input, series, Some(time_ns), &mut reader, &mut grouping, &mut sparse)?;
            self.added.rows += added.rows;
            let entry = self.last.entry(labels);
            let number = crate::memory::interner::saturating_u32(entry.index());
            let point = entry.or_insert(LastPoint { time_ns, samples: 0 });
            if point.time_ns < time_ns {
                *point = LastPoint { time_ns, samples: 0 };
            }
            point.samples += added.samples;
            let part_sum = |((group, bucket, pair), sum)| PartSum { group, bucket, pair, series: number, sum };
            sums.extend(sparse.into_iter().map(part_sum));
            check_size(sums.len(), &self.groups)?;
        }
        Ok(sums)
    }

    /// Returns the kind of slots to sum into: one for each stack if there is one bucket, or one for each bucket if
    /// stacks are not distinguished; otherwise `None`.
    fn slots(&self, part: &PartView) -> Option<Slots> {
        match (&self.selection.fold, self.selection.stacks) {
            (Fold::Sum(windows), StackDetail::None) => Some(Slots::Buckets(windows.len())),
            (Fold::Sum(windows), _) if windows.len() == 1 => Some(Slots::Pairs(part.known.pairs)),
            _ => None,
        }
    }

    /// Adds the samples of a series by their attributes or times. With `last_ns`, adds only samples of this time.
    fn add_by_attributes(
        &mut self,
        input: Input<'_>,
        series: &SeriesView,
        last_ns: Option<i64>,
        reader: &mut PartReader<'_>,
        grouping: &mut Grouping<'_>,
        sparse: &mut Sparse,
    ) -> Result<Added, SelectError> {
        let Input { view, part, passing } = input;
        let mut adder = AttributeAdder {
            view,
            part,
            grouping,
            groups: &mut self.groups,
            sparse,
            by_time: !matches!(self.selection.fold, Fold::Sum(_)),
            keeps_stacks: self.selection.stacks != StackDetail::None,
            passing,
            last_ns,
            added: Added::default(),
        };
        reader.read(series, &mut adder)?;
        Ok(adder.added)
    }

    fn count(&mut self, added: Added, series: &SeriesView) {
        self.added.samples += added.samples;
        self.added.rows += added.rows;
        if added.samples > 0 {
            self.with_samples.push(series.number);
        }
    }

    /// Counts the series of a partition that had selected samples.
    fn count_series(&mut self, part: &PartView) {
        let partition = part.partition.read();
        let fingerprint =
            |number: u32| partition.series.get_index(number as usize).map(|(fingerprint, _)| *fingerprint);
        self.series.add_partition(self.with_samples.drain(..).filter_map(fingerprint));
    }

    /// Replaces the pairs of a partition's sums by nodes of the stack tree, and adds the sums to the totals. Returns
    /// [`Progress::Dropped`] if the partition was dropped meanwhile and the tenant dictionary was rebuilt without it.
    fn name(&mut self, view: &View<'_>, part: &PartView, sums: &[PartSum]) -> Result<Progress, SelectError> {
        let total =
            |&PartSum { group, bucket, series, sum, .. }: &PartSum, node| Total { group, bucket, node, series, sum };
        let is_passed = |sum: &PartSum| sum.pair != UNPASSED;
        let Some(shared) = view.shared.as_ref().filter(|_| self.selection.stacks != StackDetail::None) else {
            sums.iter().for_each(|sum| self.totals.add(total(sum, if is_passed(sum) { 0 } else { UNPASSED })));
            return Ok(Progress::Done);
        };
        let mut pairs = Vec::new();
        let mut nodes = Vec::new();
        for sums in sums.chunks(STACKS_PER_LOCK) {
            // The locks are released between pieces, because `apply` waits for them.
            let shared = shared.read();
            let partition = part.partition.read();
            if partition.generation != shared.generation() {
                return Ok(Progress::Dropped);
            }
            pairs.clear();
            for sum in sums {
                // Stacks that did not pass need no node.
                let pair = if is_passed(sum) { partition.pairs.get(sum.pair) } else { Some(Pair::default()) };
                let corrupt =
                    || Corruption { key: part.key.section(Section::Windows), check: CorruptionCheck::Content };
                pairs.push(pair.ok_or_else(corrupt)?);
            }
            drop(partition);
            let mut naming = self.tree.resume(&shared);
            nodes.clear();
            naming.name(&pairs, &mut nodes)?;
            naming.stop();
            self.totals.reserve_nodes(self.tree.nodes());
            for (sum, &node) in sums.iter().zip(&nodes) {
                self.totals.add(total(sum, if is_passed(sum) { node } else { UNPASSED }));
            }
        }
        Ok(Progress::Done)
    }

    /// Returns the response. Engines that hold the same data in the same form give equal responses.
    pub(crate) fn finish(mut self, summary: ReadSummary) -> Answer {
        let mut samples = self.added.samples;
        let mut series = self.series.len() as u64;
        if let (Fold::Last(_), Totals::List(totals)) = (&self.selection.fold, &mut self.totals) {
            let last = &self.last;
            totals.retain(|total| {
                last.get_index(total.series as usize).is_some_and(|(_, point)| point.time_ns == total.bucket)
            });
            // Points of different series at the same time add up.
            totals.iter_mut().for_each(|total| total.series = 0);
            samples = last.values().map(|point| point.samples).sum();
            series = last.values().filter(|point| point.samples > 0).count() as u64;
        }
        if self.filtering.as_ref().is_some_and(StackFiltering::has_unknown) {
            let nodes = vec![Node { parent: 0, location: 0 }];
            return Answer { nodes, lacks_locations: true, ..Answer::default() };
        }
        let totals = self.totals.into_joined();
        let mut times: BTreeMap<i64, u32> = BTreeMap::new();
        let by_time = !matches!(self.selection.fold, Fold::Sum(_));
        if by_time {
            times.extend(totals.iter().map(|total| (total.bucket, 0)));
            times.values_mut().zip(0..).for_each(|(bucket, i)| *bucket = i);
        }
        let cell = |&Total { group, bucket, node, sum, .. }: &Total| {
            let known = if by_time { times.get(&bucket).copied() } else { u32::try_from(bucket).ok() };
            Cell { group, bucket: known.unwrap_or(u32::MAX), node, sum }
        };
        let mut cells: Vec<Cell> = totals.iter().map(cell).collect();
        let groups = self.groups.with_cells(&mut cells);
        let unpassed = without_unpassed(&mut cells);
        let (nodes, dictionary) = self.tree.into_parts();
        Answer {
            dictionary,
            groups,
            nodes,
            cells,
            bucket_times_ns: times.into_keys().collect(),
            samples,
            series,
            rows: self.added.rows,
            windows_read: summary.windows_read,
            missing: summary.missing,
            unpassed,
            lacks_locations: false,
        }
    }
}

/// Removes cells that only record that there are samples. Returns the groups and buckets that have no other cell.
fn without_unpassed(cells: &mut Vec<Cell>) -> Vec<Unpassed> {
    let mut unpassed = Vec::new();
    let mut before = None;
    cells.retain(|&Cell { group, bucket, node, .. }| {
        if node == UNPASSED && before != Some((group, bucket)) {
            unpassed.push(Unpassed { group, bucket });
        }
        before = Some((group, bucket));
        node != UNPASSED
    });
    unpassed
}

#[cfg(test)]
mod tests;
