//! Label set of a result: sorted by name, with unique names and without empty values.

use std::fmt;
use std::sync::Arc;

use proto::{ArcStr, LabelSet};

/// Label that holds the metric name in PromQL. Its value is the full ID of a profile type.
pub(crate) const NAME_LABEL: &str = "__name__";

/// The labels of a result series. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Labels(Arc<[(ArcStr, ArcStr)]>);

impl Labels {
    /// Makes a sorted set. Among labels with equal names, keeps the first. Drops empty values, which mean "absent".
    pub(crate) fn new(mut labels: Vec<(ArcStr, ArcStr)>) -> Self {
        labels.sort_by(|a, b| a.0.cmp(&b.0));
        labels.dedup_by(|later, first| later.0 == first.0);
        labels.retain(|(_, value)| !value.is_empty());
        Self(labels.into())
    }

    /// Returns the labels of a stored series or group whose names `is_kept` accepts.
    pub(crate) fn some_of(labels: &LabelSet, is_kept: impl Fn(&str) -> bool) -> Self {
        // A `LabelSet` is already sorted, unique and without empty values.
        let kept = || labels.iter().filter(|label| is_kept(&label.name));
        let mut list = Vec::with_capacity(kept().count());
        list.extend(kept().map(|label| (label.name.clone(), label.value.clone())));
        Self(list.into())
    }

    /// Returns the value of a label, or "" if the label is absent.
    pub(crate) fn get(&self, name: &str) -> &str {
        let found = self.0.binary_search_by(|(known, _)| known.as_str().cmp(name));
        found.ok().and_then(|i| self.0.get(i)).map_or("", |(_, value)| value)
    }

    /// Returns the names and values, sorted by name.
    pub(crate) fn texts(&self) -> &[(ArcStr, ArcStr)] {
        &self.0
    }

    /// Iterates over the labels, sorted by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns a copy in which one label is set, or removed if `value` is empty.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let rest = self.0.iter().filter(|(known, _)| known != name).cloned();
        Self::new(rest.chain([(name.into(), value.into())]).collect())
    }

    /// Returns a copy without the labels of the given names.
    pub(crate) fn without(&self, names: &[String]) -> Self {
        self.filtered(|name| !names.iter().any(|removed| removed == name))
    }

    /// Returns a copy with only the labels of the given names.
    pub(crate) fn only(&self, names: &[String]) -> Self {
        if names.is_empty() { Self::default() } else { self.filtered(|name| names.iter().any(|kept| kept == name)) }
    }

    /// Returns a copy without the metric name.
    pub(crate) fn without_name(&self) -> Self {
        self.filtered(|name| name != NAME_LABEL)
    }

    /// Returns a copy with only the labels whose names `is_kept` accepts.
    fn filtered(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        // Most groups of aggregations have exactly the labels of their series.
        if self.0.iter().all(|(name, _)| is_kept(name)) {
            return self.clone();
        }
        Self(self.0.iter().filter(|(name, _)| is_kept(name)).cloned().collect())
    }
}

impl From<&LabelSet> for Labels {
    fn from(labels: &LabelSet) -> Self {
        Self::some_of(labels, |_name| true)
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}={value:?}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}
