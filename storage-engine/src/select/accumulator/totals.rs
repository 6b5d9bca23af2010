//! Sums of a response by the nodes of their stacks.
//!
//! A flame graph has one group and one bucket, so each node has a slot. The sums of other responses are a list. A key
//! may occur several times in the list until the list is joined.

use proto::{Fold, Selection, StackDetail};

use crate::select::accumulator::sum_visitors::UNPASSED;

/// Sum of a stack that has a node in the response's tree.
pub(crate) struct Total {
    pub(crate) group: u32,
    pub(crate) bucket: i64,
    /// Node of the stack; [`UNPASSED`] if the sum only records that there are samples.
    pub(crate) node: u32,
    pub(crate) series: u32,
    pub(crate) sum: i128,
}

impl Total {
    fn key(&self) -> (u32, i64, u32, u32) {
        (self.group, self.bucket, self.node, self.series)
    }
}

/// Sums by key: group, bucket, node and series.
pub(crate) enum Totals {
    List(Vec<Total>),
    ByNode(NodeSums),
}

/// Sums of one group and one bucket, by node.
#[derive(Default)]
pub(crate) struct NodeSums {
    sums: Vec<i128>,
    /// True for each node to which anything was added. The sum of such a node may be zero.
    has: Vec<bool>,
    count: usize,
    has_unpassed: bool,
}

impl Totals {
    pub(crate) fn new(selection: &Selection) -> Self {
        let has_one_group = selection.group_by.is_empty() && !selection.group_by_series;
        match (&selection.fold, selection.stacks) {
            (_, StackDetail::None) => Self::List(Vec::new()),
            (Fold::Sum(windows), _) if windows.len() == 1 && has_one_group => Self::ByNode(NodeSums::default()),
            _ => Self::List(Vec::new()),
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, total: Total) {
        match self {
            Self::List(list) => list.push(total),
            Self::ByNode(sums) => sums.add(total.node, total.sum),
        }
    }

    /// Reserves memory for `nodes` slots in total, if each node has a slot.
    pub(crate) fn reserve_nodes(&mut self, nodes: usize) {
        if let Self::ByNode(sums) = self {
            sums.sums.reserve(nodes.saturating_sub(sums.sums.len()));
            sums.has.reserve(nodes.saturating_sub(sums.has.len()));
        }
    }

    /// Returns the number of sums. Joining may reduce this number.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::ByNode(sums) => sums.count + usize::from(sums.has_unpassed),
        }
    }

    /// Adds up the sums that have the same key.
    pub(crate) fn join(&mut self) {
        let Self::List(list) = self else { return };
        list.sort_unstable_by_key(Total::key);
        list.dedup_by(|later, first| {
            let same = later.key() == first.key();
            if same {
                first.sum += later.sum;
            }
            same
        });
    }

    /// Returns one sum for each key, ordered by key.
    pub(crate) fn into_joined(mut self) -> Vec<Total> {
        self.join();
        match self {
            Self::List(list) => list,
            Self::ByNode(sums) => sums.into_list(),
        }
    }
}

impl NodeSums {
    #[inline]
    fn add(&mut self, node: u32, sum: i128) {
        if node == UNPASSED {
            self.has_unpassed = true;
            return;
        }
        let at = node as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, 0);
            self.has.resize(at + 1, false);
        }
        self.sums[at] += sum;
        self.count += usize::from(!std::mem::replace(&mut self.has[at], true));
    }

    fn into_list(self) -> Vec<Total> {
        let total = |node, sum| Total { group: 0, bucket: 0, node, series: 0, sum };
        let mut list = Vec::with_capacity(self.count + 1);
        let slots = (0..).zip(self.sums).zip(self.has);
        list.extend(slots.filter(|(_, has)| *has).map(|((node, sum), _)| total(node, sum)));
        list.extend(self.has_unpassed.then(|| total(UNPASSED, 0)));
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::{LocationSets, TenantId, Window};

    use super::*;

    fn selection(stacks: StackDetail, edges: Vec<i64>, group_by: &[&str], group_by_series: bool) -> Selection {
        let tenant = TenantId::default_tenant();
        let fold = Fold::Sum(Window::between(&edges));
        let group_by = group_by.iter().map(ToString::to_string).collect();
        let locations = LocationSets::default();
        Selection { tenant, matchers: Vec::new(), fold, group_by, group_by_series, stacks, locations }
    }

    #[test]
    fn nodes_have_slots_only_for_one_group_and_one_bucket() {
        let has_slots = |selection: Selection| matches!(Totals::new(&selection), Totals::ByNode(_));
        for stacks in [StackDetail::Full, StackDetail::Leaf] {
            assert!(has_slots(selection(stacks, vec![0, 1], &[], false)));
            assert!(!has_slots(selection(stacks, vec![0, 1, 2], &[], false)), "buckets");
            assert!(!has_slots(selection(stacks, vec![0, 1], &["pod"], false)), "groups");
            assert!(!has_slots(selection(stacks, vec![0, 1], &[], true)), "series");
        }
        assert!(!has_slots(selection(StackDetail::None, vec![0, 1], &[], false)));
    }

    proptest! {
        #[test]
        fn slots_and_a_list_give_the_same_totals(
            added in prop::collection::vec((prop_oneof![9 => 0..40_u32, 1 => Just(UNPASSED)], -3..4_i128), 0..100),
        ) {
            let totals = [Totals::List(Vec::new()), Totals::ByNode(NodeSums::default())];
            let [list, slots] = totals.map(|mut totals| {
                for &(node, sum) in &added {
                    let sum = if node == UNPASSED { 0 } else { sum };
                    totals.add(Total { group: 0, bucket: 0, node, series: 0, sum });
                }
                totals.join();
                let joined = totals.len();
                let list = totals.into_joined();
                (joined, list.iter().map(|total| (total.key(), total.sum)).collect::<Vec<_>>())
            });
            prop_assert_eq!(list, slots);
        }
    }
}
