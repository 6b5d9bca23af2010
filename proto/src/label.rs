//! Labels of a series. Label names match `[a-zA-Z_][a-zA-Z0-9_]*`, as in Prometheus.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use arcstr::ArcStr;
use xxhash_rust::xxh3::Xxh3;

use crate::tenant::TenantId;

/// Name of the label whose value is the full ID of the profile type.
pub const PROFILE_TYPE_LABEL: &str = "__profile_type__";
/// Name of the label `service_name`, which every series has.
pub const SERVICE_NAME_LABEL: &str = "service_name";

/// A label. Two labels are equal if their names and values are equal. The original name is for display only.
///
/// Most labels of a fleet have the same few names and values. So a clone shares the texts, and series that are kept in
/// memory share equal texts ([`LabelSet::share_texts`]).
#[derive(Clone, Debug)]
pub struct Label {
    /// Name of the label in queries.
    pub name: ArcStr,
    /// Value of the label, which can be any text.
    pub value: ArcStr,
    /// Name of the label as it was pushed; `None` if it equals `name`.
    pub original_name: Option<ArcStr>,
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.value == other.value
    }
}

impl Eq for Label {}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Label {
    fn cmp(&self, other: &Self) -> Ordering {
        // Shared texts are equal, and need not be read.
        let order = |a: &ArcStr, b: &ArcStr| if ArcStr::ptr_eq(a, b) { Ordering::Equal } else { a.cmp(b) };
        order(&self.name, &other.name).then_with(|| order(&self.value, &other.value))
    }
}

impl Hash for Label {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.value).hash(state);
    }
}

/// The labels of one series, sorted by name. Names are unique, and values are not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSet(Vec<Label>);

impl LabelSet {
    /// Makes a sorted set. Among labels with equal names, keeps the first. Drops empty values: PromQL treats them as
    /// absent.
    #[must_use]
    pub fn new(mut labels: Vec<Label>) -> Self {
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        labels.dedup_by(|later, first| later.name == first.name);
        labels.retain(|label| !label.value.is_empty());
        Self(labels)
    }

    /// Returns the labels that `is_kept` accepts, without their original names.
    #[must_use]
    pub fn some_of(&self, is_kept: impl Fn(&Label) -> bool) -> Self {
        let kept = || self.0.iter().filter(|label| is_kept(label));
        let mut labels = Vec::with_capacity(kept().count());
        labels.extend(kept().map(|label| Label {
            name: label.name.clone(),
            value: label.value.clone(),
            original_name: None,
        }));
        Self(labels)
    }

    /// Returns the label of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Label> {
        self.0.binary_search_by(|label| label.name.as_str().cmp(name)).ok().map(|at| &self.0[at])
    }

    /// Value of a label, or "" if it is absent.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.find(name).map_or("", |label| &label.value)
    }

    /// Iterates over the labels, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Label> {
        self.0.iter()
    }

    /// Number of labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set has no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Approximate size in memory, in bytes, if no text is shared.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.0.len() * size_of::<Label>() + self.texts().map(text_bytes).sum::<usize>()
    }

    /// Iterates over all names, values and original names.
    pub fn texts(&self) -> impl Iterator<Item = &ArcStr> {
        self.0.iter().flat_map(Label::texts)
    }

    /// Replaces each text by an equal one that `share` returns.
    pub fn share_texts(&mut self, mut share: impl FnMut(&ArcStr) -> ArcStr) {
        for label in &mut self.0 {
            for text in [&mut label.name, &mut label.value].into_iter().chain(&mut label.original_name) {
                *text = share(text);
            }
        }
    }

    /// Identity of the series with these labels.
    #[must_use]
    pub fn fingerprint(&self, tenant: &TenantId) -> Fingerprint {
        let mut hash = Xxh3::new();
        let mut part = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        part(tenant.as_str());
        for label in &self.0 {
            part(&label.name);
            part(&label.value);
        }
        Fingerprint(hash.digest128())
    }
}

/// ID of a series: the xxh3-128 of the tenant, the label names and the label values. Each of them is preceded by its
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u128);

impl Label {
    /// Makes a label from any text. Rewrites the name to a valid one. Keeps the original name if it differs.
    #[must_use]
    pub fn new(name: &str, value: impl Into<ArcStr>) -> Self {
        let sanitized = sanitize_label_name(name);
        let original_name = (sanitized != name).then(|| name.into());
        Self { name: sanitized.into(), value: value.into(), original_name }
    }

    /// Returns whether the name is one of these.
    #[must_use]
    pub fn is_one_of(&self, names: &[String]) -> bool {
        names.iter().any(|name| *name == self.name)
    }

    fn texts(&self) -> impl Iterator<Item = &ArcStr> {
        [&self.name, &self.value].into_iter().chain(&self.original_name)
    }
}

/// Approximate size of a text in memory, in bytes, with its counts and the header of the allocator.
#[must_use]
pub fn text_bytes(text: &ArcStr) -> usize {
    text.len() + 4 * size_of::<usize>()
}

/// Rewrites any text to a valid label name. Other characters become `_`, and `_` is put before a leading digit.
#[must_use]
pub fn sanitize_label_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 1);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        out.push('_');
    }
    out.extend(name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_label_names_are_rewritten_and_the_original_is_kept() {
        assert_eq!(Label::new("service.name", "x").name, "service_name");
        assert_eq!(Label::new("service.name", "x").original_name.as_deref(), Some("service.name"));
        assert_eq!(Label::new("region", "x").original_name, None);
        assert_eq!(sanitize_label_name("9é-a"), "_9__a");
        assert_eq!(sanitize_label_name(""), "_");
    }

    #[test]
    fn a_label_set_is_sorted_and_unique_and_has_no_empty_value() {
        let set =
            LabelSet::new(vec![Label::new("b", "2"), Label::new("a", "1"), Label::new("b", "3"), Label::new("c", "")]);
        let pairs: Vec<_> = set.iter().map(|l| (l.name.as_str(), l.value.as_str())).collect();
        assert_eq!(pairs, [("a", "1"), ("b", "2")]);
        assert_eq!((set.get("b"), set.get("c"), set.get("zz")), ("2", "", ""));
    }

    #[test]
    fn the_original_name_of_a_label_does_not_change_the_series() {
        let [dots, underscores] = ["host.name", "host_name"].map(|name| LabelSet::new(vec![Label::new(name, "h")]));
        assert_eq!(dots, underscores);
        assert_eq!(std::collections::HashSet::from([dots, underscores]).len(), 1);
    }

    #[test]
    fn moving_a_byte_between_name_and_value_changes_the_fingerprint() {
        let of = |name, value| LabelSet::new(vec![Label::new(name, value)]).fingerprint(&TenantId::default_tenant());
        assert_ne!(of("ab", "c"), of("a", "bc"));
    }
}
