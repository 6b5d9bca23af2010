//! Index of a partition's series by labels: the series of each name and value. Matchers combine roaring bitmaps. A
//! regular expression runs once for each value of its label, not for each series.
//!
//! Values such as the name of a pod have a single series each, and there may be hundreds of thousands of them. Such a
//! value has the number of its series in place of a bitmap, which would take several allocations.
//!
//! The index is only in memory. It is built from the series when a partition is read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use proto::label::text_bytes;
use proto::{ArcStr, LabelSet};
use roaring::{MultiOps as _, RoaringBitmap};

use crate::memory::matcher::ReadyMatcher;

/// Approximate memory of a value with one series, in addition to its text, in bytes: its entry in a tree whose nodes
/// are two thirds full. The text is counted here, too: the index of a partition that was loaded has its own copy if the
/// tenant had the text already.
const VALUE_BYTES: usize = size_of::<(ArcStr, Postings)>() * 3 / 2;
/// Approximate memory of a bitmap without its numbers, in bytes.
const BITMAP_BYTES: usize = 192;

/// Series that have one value of a label; at least one.
#[derive(Debug)]
pub(crate) enum Postings {
    One(u32),
    Many(RoaringBitmap),
}

impl Postings {
    /// Adds a series. Returns the memory that a new bitmap takes, in bytes.
    fn insert(&mut self, series: u32) -> usize {
        match self {
            Self::One(only) if *only == series => 0,
            Self::One(only) => {
                *self = Self::Many([*only, series].into_iter().collect());
                BITMAP_BYTES
            }
            Self::Many(bitmap) => {
                bitmap.insert(series);
                0
            }
        }
    }

    fn to_bitmap(&self) -> RoaringBitmap {
        match self {
            Self::One(series) => RoaringBitmap::from_iter([*series]),
            Self::Many(bitmap) => bitmap.clone(),
        }
    }

    /// Iterates over the series, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (one, many) = match self {
            Self::One(series) => (Some(*series), None),
            Self::Many(bitmap) => (None, Some(bitmap.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// The series that have one label name.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    /// Series that have the label, with any value.
    all: RoaringBitmap,
    values: BTreeMap<ArcStr, Postings>,
}

impl NameIndex {
    /// Returns the values of the label after `last`, or all of them, in order. Each comes with the series that have it.
    pub(crate) fn values_after(&self, last: Option<&ArcStr>) -> impl Iterator<Item = (&ArcStr, &Postings)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.values.range::<ArcStr, _>((from, Bound::Unbounded))
    }
}

/// Series by label name and value.
#[derive(Debug, Default)]
pub(crate) struct LabelIndex {
    names: BTreeMap<ArcStr, NameIndex>,
    series: RoaringBitmap,
    bytes: usize,
}

impl LabelIndex {
    pub(crate) fn insert(&mut self, series: u32, labels: &LabelSet) {
        self.series.insert(series);
        for label in labels.iter() {
            let of_name = self.names.entry(label.name.clone()).or_default();
            of_name.all.insert(series);
            match of_name.values.entry(label.value.clone()) {
                Entry::Occupied(known) => self.bytes += known.into_mut().insert(series),
                Entry::Vacant(new) => {
                    self.bytes += VALUE_BYTES + text_bytes(&label.value);
                    new.insert(Postings::One(series));
                }
            }
            self.bytes += 4;
        }
    }

    /// Returns the series that the matchers do not exclude by label. A series without the label of a matcher is not
    /// excluded if its samples may have an attribute of that name. `is_attribute` returns whether any sample has an
    /// attribute of a name.
    pub(crate) fn matching(&self, matchers: &[ReadyMatcher], is_attribute: impl Fn(&str) -> bool) -> RoaringBitmap {
        let mut matching = self.series.clone();
        for matcher in matchers {
            let of_name = self.names.get(matcher.name.as_str());
            let mut accepted = match (of_name, matcher.only_value()) {
                (None, _) => RoaringBitmap::new(),
                (Some(of_name), Some(only)) => of_name.values.get(only).map(Postings::to_bitmap).unwrap_or_default(),
                (Some(of_name), None) => {
                    let accepted = of_name.values.iter().filter(|(value, _)| matcher.accepts(value));
                    union(accepted.map(|(_, postings)| postings))
                }
            };
            if matcher.accepts("") || is_attribute(&matcher.name) {
                accepted |= self.without(&matcher.name);
            }
            matching &= accepted;
        }
        matching
    }

    /// Returns the names of all labels, ascending. Each comes with the series that have it.
    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = (&str, &RoaringBitmap)> {
        self.names.iter().map(|(name, of_name)| (name.as_str(), &of_name.all))
    }

    /// Returns the index of a label name; `None` if no series has the label.
    pub(crate) fn of_name(&self, name: &str) -> Option<&NameIndex> {
        self.names.get(name)
    }

    /// Returns the series that do not have a label.
    pub(crate) fn without(&self, name: &str) -> RoaringBitmap {
        match self.names.get(name) {
            Some(of_name) => &self.series - &of_name.all,
            None => self.series.clone(),
        }
    }

    /// Returns the label with the most values, and the number of its values.
    pub(crate) fn widest(&self) -> Option<(&str, usize)> {
        let counts = self.names.iter().map(|(name, of_name)| (name.as_str(), of_name.values.len()));
        counts.max_by_key(|&(_, count)| count)
    }

    /// Returns the name of each label, and the number of its values.
    pub(crate) fn cardinalities(&self) -> impl Iterator<Item = (&str, usize)> {
        self.names.iter().map(|(name, of_name)| (name.as_str(), of_name.values.len()))
    }

    /// Returns the approximate memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns all series of several values.
fn union<'a>(of_values: impl Iterator<Item = &'a Postings>) -> RoaringBitmap {
    let mut ones = RoaringBitmap::new();
    let many = of_values.filter_map(|postings| match postings {
        Postings::One(series) => {
            ones.insert(*series);
            None
        }
        Postings::Many(bitmap) => Some(bitmap),
    });
    let many = many.union();
    ones | many
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::selection::Operation;
    use proto::{Label, Matcher};

    use super::*;
    use crate::memory::matcher::on_series;

    fn label_set() -> impl Strategy<Value = LabelSet> {
        prop::collection::vec((0..3_u8, 0..4_u8), 0..4).prop_map(|labels| {
            LabelSet::new(
                labels.iter().map(|(name, value)| Label::new(&format!("n{name}"), format!("v{value}"))).collect(),
            )
        })
    }

    fn matcher() -> impl Strategy<Value = Matcher> {
        (0..4_u8, 0..4_u8, 0..5_u8).prop_map(|(name, operation, value)| Matcher {
            name: format!("n{name}"),
            operation: [Operation::Equal, Operation::NotEqual, Operation::Match, Operation::NotMatch]
                [usize::from(operation)],
            value: ["v0", "v1", "", "v1|v2", "v.*|"][usize::from(value)].to_owned(),
        })
    }

    proptest! {
        #[test]
        fn the_index_finds_the_same_series_as_a_full_scan(
            sets in prop::collection::vec(label_set(), 0..20),
            matchers in prop::collection::vec(matcher(), 0..4),
            attribute in 0..5_u8,
        ) {
            let ready: Vec<_> = matchers.iter().map(|matcher| ReadyMatcher::new(matcher).unwrap()).collect();
            let mut index = LabelIndex::default();
            (0..).zip(&sets).for_each(|(id, set)| index.insert(id, set));
            let attribute = format!("n{attribute}");
            let got = index.matching(&ready, |name| name == attribute);
            // A series without the label is excluded, unless the matcher accepts "" or a sample may have the attribute.
            let wanted = (0..).zip(&sets).filter(|(_, set)| {
                on_series(&ready, set).is_some_and(|rest| rest.iter().all(|m| m.accepts("") || m.name == attribute))
            });
            prop_assert_eq!(got, wanted.map(|(id, _)| id).collect::<RoaringBitmap>());
        }

        #[test]
        fn every_value_has_exactly_its_series(sets in prop::collection::vec(label_set(), 0..20)) {
            let mut index = LabelIndex::default();
            // Inserting a series twice changes nothing.
            (0..).zip(&sets).for_each(|(id, set)| (0..2).for_each(|_| index.insert(id, set)));
            for name in ["n0", "n1", "n2"] {
                let mut wanted: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
                let values = (0..).zip(&sets).map(|(id, set)| (id, set.get(name)));
                for (id, value) in values.filter(|(_, value)| !value.is_empty()) {
                    wanted.entry(value).or_default().push(id);
                }
                let of_name = index.of_name(name);
                let got: BTreeMap<&str, Vec<u32>> = of_name.into_iter().flat_map(|of_name| of_name.values_after(None))
                    .map(|(value, postings)| (value.as_str(), postings.iter().collect()))
                    .collect();
                prop_assert_eq!(got, wanted);
            }
        }
    }

    #[test]
    fn the_index_shares_the_values_of_its_first_series() {
        let [first, second] = ["eu", "eu"].map(|region| LabelSet::new(vec![Label::new("region", region)]));
        let mut index = LabelIndex::default();
        index.insert(0, &first);
        index.insert(1, &second);
        let values: Vec<&ArcStr> =
            index.of_name("region").unwrap().values_after(None).map(|(value, _)| value).collect();
        assert_eq!(values.len(), 1);
        assert!(ArcStr::ptr_eq(values[0], &first.find("region").unwrap().value));
    }
}
