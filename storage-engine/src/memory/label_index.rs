//! Index of a partition's series by labels: a roaring bitmap of series for each name and value. Matchers combine
//! bitmaps. A regular expression runs once for each value of its label, not for each series.
//!
//! The index is only in memory. It is built from the series when a partition is read.

use std::collections::BTreeMap;

use proto::LabelSet;
use roaring::RoaringBitmap;

use crate::memory::matcher::ReadyMatcher;

/// Bitmaps of series by label name and value.
#[derive(Debug, Default)]
pub(crate) struct LabelIndex {
    names: BTreeMap<String, BTreeMap<String, RoaringBitmap>>,
    series: RoaringBitmap,
    bytes: usize,
}

impl LabelIndex {
    pub(crate) fn insert(&mut self, series: u32, labels: &LabelSet) {
        self.series.insert(series);
        for label in labels.iter() {
            // A known label costs two lookups, and its text is not copied.
            let values = match self.names.get_mut(&label.name) {
                Some(values) => values,
                None => self.names.entry(label.name.clone()).or_default(),
            };
            match values.get_mut(&label.value) {
                Some(bitmap) => {
                    bitmap.insert(series);
                }
                None => {
                    self.bytes += 128 + label.value.len();
                    values.insert(label.value.clone(), RoaringBitmap::from_iter([series]));
                }
            }
            self.bytes += 2;
        }
    }

    /// Returns the series that the matchers do not exclude by label. A series without the label of a matcher is not
    /// excluded if its samples may have an attribute of that name. `is_attribute` returns whether any sample has an
    /// attribute of a name.
    pub(crate) fn matching(&self, matchers: &[ReadyMatcher], is_attribute: impl Fn(&str) -> bool) -> RoaringBitmap {
        let mut matching = self.series.clone();
        for matcher in matchers {
            let values = self.names.get(&matcher.name);
            let mut accepted = match (values, matcher.only_value()) {
                (None, _) => RoaringBitmap::new(),
                (Some(values), Some(only)) => values.get(only).cloned().unwrap_or_default(),
                (Some(values), None) => {
                    let accepted = values.iter().filter(|(value, _)| matcher.accepts(value));
                    accepted.fold(RoaringBitmap::new(), |all, (_, series)| all | series)
                }
            };
            if matcher.accepts("") || is_attribute(&matcher.name) {
                let with = values.into_iter().flat_map(BTreeMap::values);
                accepted |= with.fold(self.series.clone(), |without, series| without - series);
            }
            matching &= accepted;
        }
        matching
    }

    /// Returns the label with the most values, and the number of its values.
    pub(crate) fn widest(&self) -> Option<(&str, usize)> {
        let counts = self.names.iter().map(|(name, values)| (name.as_str(), values.len()));
        counts.max_by_key(|&(_, count)| count)
    }

    /// Returns the name of each label, and the number of its values.
    pub(crate) fn cardinalities(&self) -> impl Iterator<Item = (&str, usize)> {
        self.names.iter().map(|(name, values)| (name.as_str(), values.len()))
    }

    /// Returns the approximate memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }
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
                labels.iter().map(|(name, value)| Label::new(&format!("n{name}"), &format!("v{value}"))).collect(),
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
    }
}
