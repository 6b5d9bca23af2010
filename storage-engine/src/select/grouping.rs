//! Assigns series and their samples to groups. The group of each label value, and of each attribute set of a series, is
//! computed once.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use indexmap::IndexSet;
use parking_lot::RwLock;
use proto::answer::Cell;
use proto::{ArcStr, Label, LabelSet, Selection};
use roaring::RoaringBitmap;

use crate::memory::interner::saturating_u32;
use crate::memory::matcher::{ReadyMatcher, attribute, on_series};
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::select::codes::Codes;
use crate::select::view::PartView;

/// Divisor of the number of a partition's series. If fewer series match, the labels of the matching series are read.
/// Otherwise the index of the label is read, which visits all series of the partition. Reading and sorting labels costs
/// about 200 times as much for a series as visiting the series in the index.
const INDEXED_PART: usize = 256;
/// Number of label values that are read from the index while the lock of the partition is held without a break. This
/// takes a few milliseconds.
const VALUES_PER_LOCK: usize = 4096;

/// Label set of each group of a response, by number of the group.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    sets: IndexSet<LabelSet, FixedState>,
    bytes: usize,
}

impl Groups {
    fn number(&mut self, labels: LabelSet) -> u32 {
        // Besides the labels, a group takes a slot of the hash table.
        let bytes = labels.memory_bytes() + 64;
        let (number, is_new) = self.sets.insert_full(labels);
        if is_new {
            self.bytes += bytes;
        }
        saturating_u32(number)
    }

    /// Returns the number of the group of a series whose samples are all in one group. Adds a new group.
    pub(crate) fn number_of_series(&mut self, selection: &Selection, labels: &LabelSet) -> u32 {
        let in_group = |label: &Label| selection.group_by_series || label.is_one_of(&selection.group_by);
        self.number(labels.some_of(in_group))
    }

    /// Returns the approximate memory of the groups, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the label sets of the groups that have a cell (a sum of the response), in sorted order. Renumbers the
    /// groups of the cells by this order, and sorts the cells by group.
    pub(crate) fn with_cells(self, cells: &mut [Cell]) -> Vec<LabelSet> {
        let mut has_cell = vec![false; self.sets.len()];
        cells.iter().for_each(|cell| has_cell[cell.group as usize] = true);
        let mut kept: Vec<(LabelSet, usize)> =
            self.sets.into_iter().zip(0..).filter(|(_, number): &(_, usize)| has_cell[*number]).collect();
        kept.sort_unstable();
        let mut numbers = vec![0; has_cell.len()];
        for (new, (_, old)) in (0..).zip(&kept) {
            numbers[*old] = new;
        }
        cells.iter_mut().for_each(|cell| cell.group = numbers[cell.group as usize]);
        cells.sort_by_key(|cell| cell.group);
        kept.into_iter().map(|(set, _)| set).collect()
    }
}

/// The series of one partition, by group.
pub(crate) struct SeriesGroups {
    /// Code and index of each series whose samples are all in one group, ordered by series. Series of one group have
    /// the same code.
    pub(crate) whole: Vec<(u32, u32)>,
    /// Number of codes. All codes are below.
    pub(crate) codes: usize,
    /// Indexes of the series whose samples must be assigned to groups by their attributes, ascending.
    pub(crate) by_attributes: Vec<usize>,
}

impl SeriesGroups {
    /// Assigns the matching series of a partition to groups. Makes no label sets, because most series of a long
    /// partition may have no samples in a short window.
    pub(crate) fn resolve(selection: &Selection, matchers: &[ReadyMatcher], part: &PartView) -> Self {
        let mut reads_attributes = RoaringBitmap::new();
        let mut excluded = RoaringBitmap::new();
        {
            let partition = part.partition.read();
            let matched = matchers.iter().map(|matcher| (&matcher.name, matcher.accepts("")));
            for (name, accepts_none) in matched.chain(selection.group_by.iter().map(|name| (name, true))) {
                if partition.is_attribute(name) {
                    reads_attributes |= partition.index.without(name);
                } else if !accepts_none {
                    excluded |= partition.index.without(name);
                }
            }
        }
        let codes = if selection.group_by_series {
            Codes::distinct(part.series.len())
        } else {
            codes(part, &selection.group_by)
        };
        let mut whole = Vec::with_capacity(part.series.len());
        let mut by_attributes = Vec::new();
        for ((at, series), code) in (0..).zip(&part.series).zip(&codes.codes) {
            match series.number {
                number if excluded.contains(number) => {}
                number if reads_attributes.contains(number) => by_attributes.push(at as usize),
                _ => whole.push((*code, at)),
            }
        }
        Self { whole, codes: codes.count, by_attributes }
    }
}

/// Returns a code for each matching series. Series have the same code if they agree in all labels `names`. Codes are
/// ordered by the values of the first label, then of the next.
fn codes(part: &PartView, names: &[String]) -> Codes {
    let mut codes = Codes::same(part.series.len());
    names.iter().for_each(|name| codes.refine(&value_numbers(part, name)));
    codes
}

/// Returns the indexes of the matching series, in the order of their label sets.
pub(crate) fn in_order_of_labels(part: &PartView) -> Vec<u32> {
    // For each name, the series that have a label of a later name.
    let mut names: Vec<(String, RoaringBitmap)> = Vec::new();
    let mut later = RoaringBitmap::new();
    for (name, with_label) in part.partition.read().index.names().rev() {
        names.push((name.to_owned(), later.clone()));
        later |= with_label;
    }
    let mut codes = Codes::same(part.series.len());
    for (name, later) in names.into_iter().rev() {
        if codes.count == part.series.len() {
            break;
        }
        let mut numbers = value_numbers(part, &name);
        let absent = numbers.iter().max().map_or(0, |max| max.saturating_add(1));
        // A set that has ended is before all sets that go on, and a set that goes on with a later name is after them.
        let without = numbers.iter_mut().zip(&part.series).filter(|(number, _)| **number == 0);
        without.filter(|(_, series)| later.contains(series.number)).for_each(|(number, _)| *number = absent);
        codes.refine(&numbers);
    }
    let mut order: Vec<u32> = (0..saturating_u32(part.series.len())).collect();
    order.sort_unstable_by_key(|at| codes.codes.get(*at as usize));
    order
}

/// Returns a number for each matching series of a partition: 0 if the series lacks the label. Other numbers are from 1
/// on and ordered by the value.
pub(crate) fn value_numbers(part: &PartView, name: &str) -> Vec<u32> {
    let mut numbers = vec![0; part.series.len()];
    let mut count = 0;
    for_each_value(part, name, false, |_value, series| {
        count += 1;
        for at in series {
            if let Some(number) = numbers.get_mut(*at as usize) {
                *number = count;
            }
        }
    });
    numbers
}

/// Calls `visit` with each value that a label has among the matching series of a partition, ascending. Each comes with
/// the indexes of the matching series that have it. Reads the label index, or the labels of each series if few match.
/// `reads_texts` tells whether `visit` reads most values.
pub(crate) fn for_each_value(part: &PartView, name: &str, reads_texts: bool, visit: impl FnMut(&ArcStr, &[u32])) {
    if part.series.len() < part.known.series / INDEXED_PART {
        values_by_series(part, name, visit);
    } else {
        values_by_index(part, name, reads_texts, visit);
    }
}

fn values_by_series(part: &PartView, name: &str, mut visit: impl FnMut(&ArcStr, &[u32])) {
    let labels: Vec<Arc<LabelSet>> = part.series.iter().map(|series| part.labels(series)).collect();
    let values = labels.iter().zip(0..).filter_map(|(labels, at)| Some((&labels.find(name)?.value, at)));
    let mut values: Vec<(&ArcStr, u32)> = values.collect();
    values.sort_unstable();
    for of_value in values.chunk_by(|a, b| a.0 == b.0) {
        let series: Vec<u32> = of_value.iter().map(|(_, at)| *at).collect();
        of_value.first().iter().for_each(|(value, _)| visit(value, &series));
    }
}

fn values_by_index(part: &PartView, name: &str, reads_texts: bool, mut visit: impl FnMut(&ArcStr, &[u32])) {
    // Index in `part.series` of each series of the partition.
    let mut position = vec![u32::MAX; part.known.series];
    for (at, series) in (0..).zip(&part.series) {
        if let Some(position) = position.get_mut(series.number as usize) {
            *position = at;
        }
    }
    let mut series = Vec::new();
    let mut last: Option<ArcStr> = None;
    loop {
        // The lock is released between pieces, because `apply` waits for it. New values between two pieces belong to
        // series that do not match.
        let partition = part.partition.read();
        let Some(of_name) = partition.index.of_name(name) else { return };
        let piece: Vec<_> = of_name.values_after(last.as_ref()).take(VALUES_PER_LOCK).collect();
        let Some((newest, _)) = piece.last().copied() else { return };
        if reads_texts {
            // Texts may be far from each other in memory. Loads that do not depend on each other overlap, so the CPU
            // waits much less for all texts here than for each of them below.
            std::hint::black_box(piece.iter().map(|(value, _)| value.len()).sum::<usize>());
        }
        for (value, postings) in piece {
            series.clear();
            let at = |number: u32| position.get(number as usize).copied().filter(|at| *at != u32::MAX);
            series.extend(postings.iter().filter_map(at));
            if !series.is_empty() {
                visit(value, &series);
            }
        }
        last = Some(newest.clone());
    }
}

/// Tenant dictionary and partition, from which the names of an attribute set are looked up.
pub(crate) type Names<'a> = (&'a Arc<RwLock<TenantDictionary>>, &'a Arc<RwLock<Partition>>);

/// Returns the value of an attribute in a set; "" if the set does not have the attribute.
pub(crate) fn value_in((shared, partition): Names<'_>, attribute_set: u32, name: &str) -> String {
    let shared = shared.read();
    let partition = partition.read();
    // The partition was dropped and the tenant dictionary rebuilt without it. The query runs again.
    if partition.generation != shared.generation() {
        return String::new();
    }
    let set = partition.attribute_sets.get(attribute_set).unwrap_or_default();
    attribute(&shared.dictionary, set, name)
}

/// Groups of one series by attribute set, and the matchers that depend on attributes.
pub(crate) struct Grouping<'a> {
    on_samples: Vec<&'a ReadyMatcher>,
    from_samples: Vec<&'a str>,
    from_series: Vec<Label>,
    known: HashMap<u32, Option<u32>, FixedState>,
}

impl<'a> Grouping<'a> {
    pub(crate) fn new(selection: &'a Selection, matchers: &'a [ReadyMatcher], labels: &LabelSet) -> Self {
        let has = |name: &str| !labels.get(name).is_empty();
        let in_group = |label: &&Label| selection.group_by_series || label.is_one_of(&selection.group_by);
        Self {
            on_samples: on_series(matchers, labels).unwrap_or_default(),
            from_samples: selection.group_by.iter().map(String::as_str).filter(|name| !has(name)).collect(),
            from_series: labels.iter().filter(in_group).cloned().collect(),
            known: HashMap::default(),
        }
    }

    /// Removes matchers and group names that no sample has as an attribute. Returns false if one of these matchers
    /// excludes all samples.
    pub(crate) fn simplify(&mut self, is_attribute: impl Fn(&str) -> bool) -> bool {
        let absent = |matcher: &&ReadyMatcher| !is_attribute(&matcher.name);
        if self.on_samples.iter().any(|matcher| absent(matcher) && !matcher.accepts("")) {
            return false;
        }
        self.on_samples.retain(|matcher| !absent(matcher));
        self.from_samples.retain(|name| is_attribute(name));
        true
    }

    pub(crate) fn reads_attributes(&self) -> bool {
        !self.on_samples.is_empty() || !self.from_samples.is_empty()
    }

    /// Returns the group of samples with these attributes; `None` if the samples do not match.
    pub(crate) fn group(&mut self, groups: &mut Groups, names: Option<Names<'_>>, attribute_set: u32) -> Option<u32> {
        // Without conditions on attributes, all sets belong to one group.
        let attribute_set = if self.reads_attributes() { attribute_set } else { 0 };
        if let Some(&known) = self.known.get(&attribute_set) {
            return known;
        }
        let value = |name: &str| names.map_or_else(String::new, |names| value_in(names, attribute_set, name));
        let matches = self.on_samples.iter().all(|matcher| matcher.accepts(&value(&matcher.name)));
        let group = matches.then(|| {
            let from_samples = self.from_samples.iter().map(|&name| Label::new(name, value(name)));
            let labels = LabelSet::new(self.from_series.iter().cloned().chain(from_samples).collect());
            groups.number(labels)
        });
        self.known.insert(attribute_set, group);
        group
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::{TenantId, Tier};

    use super::*;
    use crate::database::key::PartitionKey;
    use crate::select::gather::{Aggregate, Query, gather};
    use crate::select::plan::{PartPlan, Tiers};

    /// Returns a partition with these series, all of which match.
    fn part_of(sets: &[LabelSet]) -> PartView {
        let tenant = TenantId::default_tenant();
        let mut partition = Partition::new(PartitionKey::of(Tier::Minute, 0, 0, Tier::Minute.partition_ns()), 0);
        for set in sets {
            partition.add_series(set.fingerprint(&tenant), || Arc::new(set.clone()));
        }
        let query = Query {
            tenant: &tenant,
            matchers: &[],
            buckets: &[],
            group_by: &[],
            listed_label: None,
            by_series: false,
            aggregate: Aggregate::Any,
            tiers: Tiers::ALL,
            needs_stacks: false,
            is_wanted: &|| true,
        };
        gather(partition.key, Arc::new(RwLock::new(partition)), PartPlan::default(), &query)
    }

    proptest! {
        #[test]
        fn the_index_and_the_labels_of_each_series_give_the_same_groups(
            sets in prop::collection::hash_set(prop::array::uniform3(0..7_u8), 1..120),
            matching in prop::collection::vec(any::<bool>(), 120),
        ) {
            // Value 0 stands for a series without the label.
            let label = |(name, value): (&str, u8)| (value > 0).then(|| Label::new(name, format!("v{value}")));
            let set = |values: &[u8; 3]| {
                LabelSet::new(["a", "b", "c"].into_iter().zip(*values).filter_map(label).collect())
            };
            let sets: Vec<LabelSet> = sets.iter().map(set).collect();
            let mut part = part_of(&sets);
            part.series.retain(|series| matching[series.number as usize]);
            let values = |name: &str| -> Vec<&str> {
                part.series.iter().map(|series| sets[series.number as usize].get(name)).collect()
            };
            for name in ["a", "b", "c", "none"] {
                let values = values(name);
                let mut lists = [Vec::new(), Vec::new()];
                values_by_index(&part, name, true, |value, series| lists[0].push((value.to_owned(), series.to_vec())));
                values_by_series(&part, name, |value, series| lists[1].push((value.to_owned(), series.to_vec())));
                prop_assert_eq!(&lists[0], &lists[1]);
                let numbers = value_numbers(&part, name);
                for ((value, number), at) in values.iter().zip(&numbers).zip(0..) {
                    prop_assert_eq!(value.is_empty(), *number == 0);
                    let order = |of: &usize| (values[*of].cmp(value), numbers[*of].cmp(number));
                    prop_assert!((0..at).map(|of| order(&of)).all(|(by_value, by_number)| by_value == by_number));
                }
            }
            let names = ["a", "none", "c"].map(str::to_owned);
            let wanted: Vec<(&str, &str)> = values("a").into_iter().zip(values("c")).collect();
            let mut distinct = wanted.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let wanted = wanted.iter().map(|pair| distinct.partition_point(|known| known < pair) as u32);
            prop_assert_eq!(codes(&part, &names).codes, wanted.collect::<Vec<u32>>());
            let set_of = |at: &u32| &sets[part.series[*at as usize].number as usize];
            let order = in_order_of_labels(&part);
            prop_assert_eq!(order.len(), part.series.len());
            prop_assert!(order.windows(2).all(|pair| set_of(&pair[0]) < set_of(&pair[1])));
        }
    }

    #[test]
    fn a_label_with_more_values_than_one_lock_reads_has_all_of_them() {
        let count = VALUES_PER_LOCK * 2 + 1;
        let sets: Vec<LabelSet> =
            (0..count).map(|pod| LabelSet::new(vec![Label::new("pod", format!("{pod:06}"))])).collect();
        let mut part = part_of(&sets);
        assert_eq!(value_numbers(&part, "pod"), (1..=count as u32).collect::<Vec<u32>>());
        // Few series match, so their labels are read.
        part.series.retain(|series| series.number % 1000 == 0);
        assert_eq!(value_numbers(&part, "pod"), (1..=9).collect::<Vec<u32>>());
    }
}
