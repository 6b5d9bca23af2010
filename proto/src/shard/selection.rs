//! The request to a shard for sums of samples by group, bucket and stack.

pub use crate::formats::wire::StackDetail;
pub use crate::formats::wire::matcher::Operation;
use crate::formats::{deltas, from_deltas, wire};
use crate::limits;
use crate::shard::error::SelectionError;
use crate::shard::location_sets::LocationSets;
use crate::shard::reads::ReadAt;
use crate::tenant::TenantId;

/// A condition on a label of the series. If the series has no label of this name, the condition applies to the sample's
/// attribute that has this name.
///
/// The value of an absent label or attribute is "". Regular expressions match the whole value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matcher {
    /// Name of the label or attribute, as queries write it.
    pub name: String,
    /// Operation of the condition: `=`, `!=`, `=~` or `!~`.
    pub operation: Operation,
    /// Value, or regular expression, with which the label's value is compared.
    pub value: String,
}

/// Aggregation of samples over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Sum of the samples in each window. Bucket i belongs to the i-th window. There is at least one window, and
    /// windows are ascending and disjoint. Samples between two windows are ignored.
    Sum(Vec<Window>),
    /// Sum of the samples at each time. Each time in the window at which a series has samples is a bucket.
    Points(Window),
    /// Like `Points`, but each series contributes only its last time with samples.
    Last(Window),
}

/// A time range `(start, end]`, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Start of the window, which the window does not contain.
    pub start_ns: i64,
    /// End of the window, which the window contains.
    pub end_ns: i64,
}

impl Window {
    /// Returns the windows between each pair of neighbours in a list of ascending times.
    #[must_use]
    pub fn between(edges_ns: &[i64]) -> Vec<Self> {
        edges_ns.windows(2).map(|edges| Self { start_ns: edges[0], end_ns: edges[1] }).collect()
    }
}

impl Fold {
    /// Time range from the start of the first window to the end of the last.
    #[must_use]
    pub fn window(&self) -> Window {
        match self {
            Self::Sum(windows) => Window {
                start_ns: windows.first().map_or(0, |first| first.start_ns),
                end_ns: windows.last().map_or(0, |last| last.end_ns),
            },
            Self::Points(window) | Self::Last(window) => *window,
        }
    }
}

/// A request to a shard for sums of samples.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Owner of the samples.
    pub tenant: TenantId,
    /// Conditions on labels and attributes. All must hold.
    pub matchers: Vec<Matcher>,
    /// Time ranges, and the way in which the samples in them are aggregated.
    pub fold: Fold,
    /// Names of the labels and sample attributes whose distinct values form the groups.
    pub group_by: Vec<String>,
    /// True if the samples of each series form groups of their own. The labels of a group then include all labels of
    /// the series.
    pub group_by_series: bool,
    /// Detail of the stacks in the response: no stack, only the leaf, or the full stack.
    pub stacks: StackDetail,
    /// Conditions on stacks, and the locations that the router knows. The response need not define these locations.
    pub locations: LocationSets,
}

impl Matcher {
    /// Encodes the condition.
    #[must_use]
    pub fn to_wire(&self) -> wire::Matcher {
        wire::Matcher { name: self.name.clone(), operation: self.operation.into(), value: self.value.clone() }
    }

    /// Decodes all conditions of a request.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] for too many conditions, or if [`Matcher::from_wire`] refuses one.
    pub fn all_from_wire(from: Vec<wire::Matcher>) -> Result<Vec<Self>, SelectionError> {
        if from.len() > limits::QUERY_LABELS_MAX {
            return Err(SelectionError::Inconsistent("there are too many matchers: use fewer"));
        }
        from.into_iter().map(Self::from_wire).collect()
    }

    /// Decodes a condition.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if this version does not know the operation.
    pub fn from_wire(from: wire::Matcher) -> Result<Self, SelectionError> {
        let unknown = |_unknown: prost::UnknownEnumValue| SelectionError::Inconsistent("unknown matcher operation");
        let operation = Operation::try_from(from.operation).map_err(unknown)?;
        Ok(Self { name: from.name, operation, value: from.value })
    }
}

impl Selection {
    /// Encodes the request to a shard.
    #[must_use]
    pub fn to_wire(&self, shard: u32, at: ReadAt) -> wire::SelectRequest {
        use wire::fold::Kind;
        let (kind, windows) = match &self.fold {
            Fold::Sum(windows) => (Kind::Sum, windows.as_slice()),
            Fold::Points(window) => (Kind::Points, std::slice::from_ref(window)),
            Fold::Last(window) => (Kind::Last, std::slice::from_ref(window)),
        };
        let edges: Vec<i64> = windows.iter().flat_map(|window| [window.start_ns, window.end_ns]).collect();
        wire::SelectRequest {
            shard,
            placement_epoch: at.placement_epoch,
            applied_index: at.applied_index,
            tenant: self.tenant.as_str().to_owned(),
            matchers: self.matchers.iter().map(Matcher::to_wire).collect(),
            fold: Some(wire::Fold { kind: kind.into(), edge_deltas_ns: deltas(&edges) }),
            group_by: self.group_by.clone(),
            group_by_series: self.group_by_series,
            stacks: self.stacks.into(),
            locations: Some(self.locations.to_wire()),
        }
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if the message contradicts itself or exceeds a limit.
    pub fn from_wire(from: wire::SelectRequest) -> Result<Self, SelectionError> {
        use wire::fold::Kind;
        let unknown =
            |_unknown: prost::UnknownEnumValue| SelectionError::Inconsistent("unknown kind of fold or stack detail");
        let fold = from.fold.unwrap_or_default();
        if fold.edge_deltas_ns.len() > limits::QUERY_EDGES_MAX {
            return Err(SelectionError::Inconsistent("there are too many edges: use fewer steps"));
        }
        if from.group_by.len() > limits::QUERY_LABELS_MAX {
            return Err(SelectionError::Inconsistent("there are too many labels to group by: use fewer"));
        }
        let edges = from_deltas(&fold.edge_deltas_ns);
        let (windows, half) = edges.as_chunks();
        if windows.is_empty() || !half.is_empty() || !edges.is_sorted() {
            return Err(SelectionError::Inconsistent(
                "there must be at least one window, and windows must ascend and have two edges each",
            ));
        }
        let windows: Vec<Window> = windows.iter().map(|&[start_ns, end_ns]| Window { start_ns, end_ns }).collect();
        let fold = match (Kind::try_from(fold.kind).map_err(unknown)?, windows.as_slice()) {
            (Kind::Sum, _) => Fold::Sum(windows),
            (Kind::Points, &[window]) => Fold::Points(window),
            (Kind::Last, &[window]) => Fold::Last(window),
            _ => return Err(SelectionError::Inconsistent("points must have one window")),
        };
        Ok(Self {
            tenant: TenantId::new(&from.tenant)?,
            matchers: Matcher::all_from_wire(from.matchers)?,
            fold,
            group_by: from.group_by,
            group_by_series: from.group_by_series,
            stacks: StackDetail::try_from(from.stacks).map_err(unknown)?,
            locations: LocationSets::from_wire(from.locations.unwrap_or_default())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(fold: Fold) -> Selection {
        Selection {
            tenant: TenantId::default_tenant(),
            matchers: vec![Matcher { name: "a".to_owned(), operation: Operation::Equal, value: "b".to_owned() }],
            fold,
            group_by: vec!["c".to_owned()],
            group_by_series: true,
            stacks: StackDetail::Leaf,
            locations: LocationSets::default(),
        }
    }

    #[test]
    fn folds_are_read_back_with_the_gaps_between_their_windows() {
        let [first, next, far] =
            [(-5, 10), (10, 20), (i64::MAX - 7, i64::MAX)].map(|(start_ns, end_ns)| Window { start_ns, end_ns });
        for fold in [Fold::Sum(vec![first]), Fold::Sum(vec![first, next, far]), Fold::Points(next), Fold::Last(far)] {
            let read = Selection::from_wire(selection(fold.clone()).to_wire(1, ReadAt::leader(1))).unwrap();
            assert_eq!((&read.fold, read.matchers.len(), read.group_by.len()), (&fold, 1, 1));
        }
    }

    #[test]
    fn selections_that_no_router_sends_are_refused() {
        let sent = || selection(Fold::Sum(Window::between(&[1, 2, 3]))).to_wire(1, ReadAt::leader(1));
        let refuses = |change: fn(&mut wire::SelectRequest)| {
            let mut request = sent();
            change(&mut request);
            Selection::from_wire(request).is_err()
        };
        assert!(Selection::from_wire(sent()).is_ok());
        let deltas = |request: &mut wire::SelectRequest, deltas: &[i64]| {
            request.fold.as_mut().unwrap().edge_deltas_ns = deltas.to_vec();
        };
        assert!(refuses(|request| request.fold = None), "no window");
        for bad in [&[][..], &[1], &[1, 2, 3], &[5, -1], &[1, 1, -1, 2]] {
            let mut request = sent();
            deltas(&mut request, bad);
            assert!(Selection::from_wire(request).is_err(), "{bad:?}");
        }
        assert!(
            refuses(|request| request.fold.as_mut().unwrap().edge_deltas_ns = vec![0; limits::QUERY_EDGES_MAX + 2])
        );
        assert!(refuses(|request| request.matchers = vec![request.matchers[0].clone(); limits::QUERY_LABELS_MAX + 1]));
        assert!(refuses(|request| request.group_by = vec![String::new(); limits::QUERY_LABELS_MAX + 1]));
    }
}
