//! Assigns series and their samples to groups. The group of each label value, and of each attribute set of a series, is
//! computed once.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use indexmap::IndexSet;
use parking_lot::RwLock;
use proto::answer::Cell;
use proto::{Label, LabelSet, Selection};
use roaring::RoaringBitmap;

use crate::memory::interner::saturating_u32;
use crate::memory::matcher::{ReadyMatcher, attribute, on_series};
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::select::view::{PartView, SeriesView};

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
    /// Group and index of each series whose samples are all in one group, ordered by group, then by series.
    pub(crate) whole: Vec<(u32, usize)>,
    /// Indexes of the series whose samples must be assigned to groups by their attributes, ascending.
    pub(crate) by_attributes: Vec<usize>,
}

impl SeriesGroups {
    /// Assigns the matching series of a partition to groups. Each label that forms the groups is read from the label
    /// index, once for each value and not once for each series.
    pub(crate) fn resolve(
        groups: &mut Groups,
        selection: &Selection,
        matchers: &[ReadyMatcher],
        part: &PartView,
    ) -> Self {
        let mut whole = Vec::with_capacity(part.series.len());
        let mut by_attributes = Vec::new();
        // Labels of the first series with each code. The label sets of groups are made without the lock.
        let mut first_labels: Vec<Option<Arc<LabelSet>>> = Vec::new();
        {
            let partition = part.partition.read();
            let mut reads_attributes = RoaringBitmap::new();
            let mut excluded = RoaringBitmap::new();
            let matched = matchers.iter().map(|matcher| (&matcher.name, matcher.accepts("")));
            for (name, accepts_none) in matched.chain(selection.group_by.iter().map(|name| (name, true))) {
                if partition.is_attribute(name) {
                    reads_attributes |= partition.index.without(name);
                } else if !accepts_none {
                    excluded |= partition.index.without(name);
                }
            }
            let codes = if selection.group_by_series {
                (0..saturating_u32(part.series.len())).collect()
            } else {
                codes(&partition, &selection.group_by, &part.series)
            };
            for (at, (series, code)) in part.series.iter().zip(codes).enumerate() {
                if excluded.contains(series.number) {
                    continue;
                }
                if reads_attributes.contains(series.number) {
                    by_attributes.push(at);
                    continue;
                }
                if first_labels.len() <= code as usize {
                    first_labels.resize(code as usize + 1, None);
                }
                let labels =
                    || partition.series.get_index(series.number as usize).map(|(_, labels)| Arc::clone(labels));
                let first = &mut first_labels[code as usize];
                *first = first.take().or_else(labels);
                whole.push((code, at));
            }
        }
        let in_group = |label: &&Label| selection.group_by_series || selection.group_by.contains(&label.name);
        let mut group_of_code = Vec::with_capacity(first_labels.len());
        for labels in first_labels {
            let labels = labels.unwrap_or_default();
            // Responses need no original names.
            let label =
                |from: &Label| Label { name: from.name.clone(), value: from.value.clone(), original_name: None };
            group_of_code.push(groups.number(LabelSet::new(labels.iter().filter(in_group).map(label).collect())));
        }
        whole.iter_mut().for_each(|(code, _)| *code = group_of_code[*code as usize]);
        whole.sort_unstable();
        Self { whole, by_attributes }
    }
}

/// Returns a number for each series, dense and from 0 on. Series have the same number if they agree in all labels
/// `names`. Numbers are ordered by the values of the first label, then of the next.
fn codes(partition: &Partition, names: &[String], series: &[SeriesView]) -> Vec<u32> {
    let mut codes = vec![0; series.len()];
    let indexed: Vec<_> = names.iter().filter_map(|name| partition.index.of_name(name)).collect();
    if indexed.is_empty() {
        return codes;
    }
    // Index in `series` of each series of the partition.
    let mut position = vec![u32::MAX; partition.series.len()];
    for (at, series) in (0..).zip(series) {
        position[series.number as usize] = at;
    }
    for of_name in indexed {
        // The code so far in the upper half, and the number of the value in the lower half.
        let mut joined: Vec<u64> = codes.iter().map(|code| u64::from(*code) << 32).collect();
        for (value, (_, with_value)) in (1..).zip(of_name.values()) {
            for number in with_value {
                if let Some(joined) = joined.get_mut(position[number as usize] as usize) {
                    *joined |= value;
                }
            }
        }
        let mut distinct = joined.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for (code, joined) in codes.iter_mut().zip(joined) {
            *code = saturating_u32(distinct.partition_point(|known| *known < joined));
        }
    }
    codes
}

/// Tenant dictionary and partition, from which the names of an attribute set are looked up.
pub(crate) type Names<'a> = (&'a Arc<RwLock<TenantDictionary>>, &'a Arc<RwLock<Partition>>);

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
        let in_group = |label: &&Label| selection.group_by_series || selection.group_by.contains(&label.name);
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
        let value = |name: &str| {
            let Some((shared, partition)) = names else { return String::new() };
            let shared = shared.read();
            let partition = partition.read();
            // The partition was dropped and the tenant dictionary rebuilt without it. The query runs again.
            if partition.generation != shared.generation() {
                return String::new();
            }
            let set = partition.attribute_sets.get(attribute_set).unwrap_or_default();
            attribute(&shared.dictionary, set, name)
        };
        let matches = self.on_samples.iter().all(|matcher| matcher.accepts(&value(&matcher.name)));
        let group = matches.then(|| {
            let from_samples = self.from_samples.iter().map(|&name| Label::new(name, &value(name)));
            let labels = LabelSet::new(self.from_series.iter().cloned().chain(from_samples).collect());
            groups.number(labels)
        });
        self.known.insert(attribute_set, group);
        group
    }
}
