//! Assigns the samples of one series to groups. The group of each attribute set is computed once.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use indexmap::IndexSet;
use parking_lot::RwLock;
use proto::answer::Cell;
use proto::{Label, LabelSet, Selection};

use crate::memory::interner::saturating_u32;
use crate::memory::matcher::{ReadyMatcher, attribute, on_series};
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;

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
