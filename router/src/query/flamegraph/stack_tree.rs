//! All stacks of a flame graph as one tree, root first.
//!
//! Invariant: every node's parent stands before it, and its total is what is its own plus the totals of its children.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use proto::Answer;

use crate::query::error::QueryError;
use crate::query::flamegraph::weights::Weights;
use crate::query::limits::TREE_NODES_MAX;
use crate::query::run::Cancelled;

/// The root; it has no key, and no node has it for a child or sibling.
pub(crate) const ROOT: u32 = 0;

/// No child, or no further sibling.
const NONE: u32 = ROOT;

/// Nodes between two looks at whether anybody still waits.
const NODES_BETWEEN_CHECKS: usize = 1 << 16;

/// Siblings that are looked through one by one: nearly all nodes have fewer children. Further ones are found by their hash.
const NEAR_SIBLINGS_MAX: usize = 8;

/// The largest tree whose memory is kept for the next one: 18 MB.
const SPARE_NODES_MAX: usize = 1 << 19;

/// Memory of the tree that was let go last, for the next one: getting as many new pages from the system takes about as long as
/// building a tree. There is one, however many queries there are.
static SPARE: Mutex<Spare> = Mutex::new(Spare { nodes: Vec::new(), totals: Vec::new(), places: Vec::new() });

/// Empty lists with budget.
#[derive(Debug, Default)]
struct Spare {
    nodes: Vec<TreeNode>,
    totals: Vec<i128>,
    places: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct StackTree {
    nodes: Vec<TreeNode>,
    /// Of the stacks that pass a node or end there.
    totals: Vec<i128>,
    weighing: usize,
    /// `None`: some stacks weigh less than nothing, so nodes may be heavier than what they stand below.
    weights: Option<Weights>,
    /// Where some stacks weigh less than nothing, by node: its values cancel out. Empty elsewhere.
    cancelled_out: Vec<bool>,
    /// Where some stacks weigh less than nothing, by node: a stack passes or ends here, whatever the total. Empty elsewhere.
    passed: Vec<bool>,
    /// Empty.
    places: Vec<u32>,
}

impl Drop for StackTree {
    fn drop(&mut self) {
        use std::mem::take;
        let (nodes, totals, places) = (take(&mut self.nodes), take(&mut self.totals), take(&mut self.places));
        let mut spare = Spare { nodes, totals, places };
        if spare.nodes.capacity().max(spare.places.capacity()) <= SPARE_NODES_MAX {
            spare.nodes.clear();
            spare.totals.clear();
            *SPARE.lock() = spare;
        }
    }
}

/// A node: a frame, or whatever the keys stand for, below its parent's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeNode {
    /// The root's is the root.
    pub(crate) parent: u32,
    pub(crate) key: u32,
    first_child: u32,
    next_sibling: u32,
}

/// The keys of each location of one answer, outermost first.
#[derive(Debug)]
pub(crate) struct LocationKeys {
    /// Location i has the keys from `starts[i]` to `starts[i + 1]`.
    starts: Vec<u32>,
    keys: Vec<u32>,
}

impl Default for LocationKeys {
    fn default() -> Self {
        Self { starts: vec![0], keys: Vec::new() }
    }
}

impl LocationKeys {
    /// Adds the next location.
    pub(crate) fn push(&mut self, outermost_first: impl Iterator<Item = u32>) {
        self.keys.extend(outermost_first);
        self.starts.push(u32::try_from(self.keys.len()).unwrap_or(u32::MAX));
    }

    #[inline]
    fn of(&self, location: u32) -> &[u32] {
        let i = location as usize;
        match self.starts.get(i..i.saturating_add(2)) {
            Some(&[start, end]) => self.keys.get(start as usize..end as usize).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// A tree that answers are added to.
#[derive(Debug)]
pub(crate) struct StackTreeBuilder {
    nodes: Vec<TreeNode>,
    /// Of the stacks that end at a node.
    own: Vec<i128>,
    /// Where the nodes of the answer that is being added are here.
    places: Vec<u32>,
    /// (parent, key) to child, of the children behind their parent's first [`NEAR_SIBLINGS_MAX`].
    far: HashMap<(u32, u32), u32, RandomState>,
    /// Nodes with a value that is not positive: only their values can cancel out.
    not_positive: Vec<u32>,
    is_any_negative: bool,
}

impl StackTreeBuilder {
    pub(crate) fn new() -> Self {
        let root = TreeNode { parent: ROOT, key: 0, first_child: NONE, next_sibling: NONE };
        let Spare { mut nodes, totals, places } = std::mem::take(&mut *SPARE.lock());
        nodes.push(root);
        let far = HashMap::default();
        Self { nodes, own: totals, places, far, not_positive: Vec::new(), is_any_negative: false }
    }

    /// Adds the stacks of an answer. `groups`: the key of each of its groups, of nodes below the stacks' leaves that hold
    /// what the group has; `None`, or beyond the list, is at the leaf itself.
    ///
    /// # Errors
    /// [`QueryError::TooLarge`] beyond [`TREE_NODES_MAX`] nodes.
    pub(crate) fn add(
        &mut self,
        answer: &Answer,
        keys: &LocationKeys,
        groups: &[Option<u32>],
        cancelled: &Cancelled,
    ) -> Result<(), QueryError> {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.reserve(answer.nodes.len());
        // Most locations are one frame, and most nodes are nothing that is there already.
        self.nodes.reserve(answer.nodes.len());
        for (i, node) in answer.nodes.iter().enumerate() {
            if i % NODES_BETWEEN_CHECKS == 0 {
                cancelled.check()?;
            }
            let above = places.get(node.parent as usize).copied().unwrap_or(ROOT);
            let keys = if i == 0 { &[] } else { keys.of(node.location) };
            places.push(keys.iter().try_fold(above, |parent, &key| self.child(parent, key))?);
        }
        self.own.resize(self.nodes.len(), 0);
        for (i, cell) in answer.cells.iter().enumerate() {
            if i % NODES_BETWEEN_CHECKS == 0 {
                cancelled.check()?;
            }
            let Some(&leaf) = places.get(cell.node as usize) else { continue };
            let place = match groups.get(cell.group as usize) {
                Some(&Some(group)) => self.child(leaf, group)?,
                _ => leaf,
            };
            if self.own.len() < self.nodes.len() {
                self.own.resize(self.nodes.len(), 0);
            }
            if let Some(own) = self.own.get_mut(place as usize) {
                *own += cell.sum;
            }
            if cell.sum <= 0 {
                self.not_positive.push(place);
                self.is_any_negative |= cell.sum < 0;
            }
        }
        self.places = places;
        Ok(())
    }

    /// The child of a node that has this key, new or old.
    fn child(&mut self, parent: u32, key: u32) -> Result<u32, QueryError> {
        let first = self.nodes[parent as usize].first_child;
        let (mut at, mut last, mut passed) = (first, NONE, 0);
        while at != NONE && passed < NEAR_SIBLINGS_MAX {
            let node = self.nodes[at as usize];
            if node.key == key {
                return Ok(at);
            }
            (last, at, passed) = (at, node.next_sibling, passed + 1);
        }
        let is_far = passed == NEAR_SIBLINGS_MAX;
        if is_far && let Some(&child) = self.far.get(&(parent, key)) {
            return Ok(child);
        }
        if self.nodes.len() >= TREE_NODES_MAX {
            return Err(QueryError::TooLarge { what: "nodes", max: TREE_NODES_MAX });
        }
        let child = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let next_sibling = if is_far {
            // Behind the near ones, so that those stay the near ones.
            self.far.insert((parent, key), child);
            std::mem::replace(&mut self.nodes[last as usize].next_sibling, child)
        } else {
            std::mem::replace(&mut self.nodes[parent as usize].first_child, child)
        };
        self.nodes.push(TreeNode { parent, key, first_child: NONE, next_sibling });
        Ok(child)
    }

    /// The tree, totals worked out.
    pub(crate) fn finish(self) -> StackTree {
        if self.is_any_negative || self.own.iter().any(|&own| own < 0) {
            return self.finish_with_negative();
        }
        let mut totals = self.own;
        totals.resize(self.nodes.len(), 0);
        let (mut weighing, mut weights) = (0, Weights::default());
        for (i, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let total = totals[i];
            totals[node.parent as usize] += total;
            weighing += usize::from(total != 0);
            weights.add(total);
        }
        let (cancelled_out, passed) = (Vec::new(), Vec::new());
        let weights = Some(weights);
        StackTree { nodes: self.nodes, totals, weighing, weights, cancelled_out, passed, places: self.places }
    }

    /// The tree where values are negative: a total of zero does not mean that there is nothing below a node.
    fn finish_with_negative(self) -> StackTree {
        let mut totals = self.own;
        totals.resize(self.nodes.len(), 0);
        let mut cancelled_out = vec![false; self.nodes.len()];
        for node in self.not_positive {
            cancelled_out[node as usize] = totals[node as usize] == 0;
        }
        let mut passed: Vec<bool> =
            totals.iter().zip(&cancelled_out).map(|(&own, &is_zero)| own != 0 || is_zero).collect();
        for (i, node) in self.nodes.iter().enumerate().skip(1).rev() {
            totals[node.parent as usize] += totals[i];
            passed[node.parent as usize] |= passed[i];
        }
        let weighing = passed.iter().skip(1).filter(|is_passed| **is_passed).count();
        StackTree { nodes: self.nodes, totals, weighing, weights: None, cancelled_out, passed, places: self.places }
    }
}

impl StackTree {
    /// All nodes; node 0 is the root.
    pub(crate) fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    /// Whether stacks end at a node whose values cancel out: positive and negative ones, which gauges may have.
    pub(crate) fn cancels_out(&self, node: u32) -> bool {
        self.cancelled_out.get(node as usize).copied().unwrap_or_default()
    }

    /// Whether any stack passes or ends at a node.
    pub(crate) fn weighs(&self, node: u32) -> bool {
        self.total(node) != 0 || self.passed.get(node as usize).copied().unwrap_or_default()
    }

    /// How many nodes weigh anything, the root not counted.
    pub(crate) fn weighing(&self) -> usize {
        self.weighing
    }

    /// A weight that at least so many nodes reach, the root not counted; `None` where nodes may be heavier than what they stand
    /// below, so that light ones matter, too.
    pub(crate) fn weight_reached_by(&self, nodes: usize) -> Option<i128> {
        self.weights.as_ref().map(|weights| weights.reached_by(nodes))
    }

    /// The key of a node; the root's means nothing.
    #[inline]
    pub(crate) fn key(&self, node: u32) -> u32 {
        self.nodes[node as usize].key
    }

    /// What the stacks weigh that pass or end at a node.
    #[inline]
    pub(crate) fn total(&self, node: u32) -> i128 {
        self.totals[node as usize]
    }

    /// The children of a node that weigh anything, in no particular order.
    #[inline]
    pub(crate) fn children(&self, node: u32) -> impl Iterator<Item = u32> {
        let first = self.nodes[node as usize].first_child;
        let next = |&child: &u32| Some(self.nodes[child as usize].next_sibling).filter(|&next| next != NONE);
        let all = std::iter::successors(Some(first).filter(|&first| first != NONE), next);
        all.filter(|&child| self.weighs(child))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree of (parent, key, own); of equal (parent, key) the later are further nodes, as no builder makes them.
    pub(crate) fn tree_of(nodes: &[(u32, u32, i128)]) -> StackTree {
        let mut builder = StackTreeBuilder::new();
        builder.own.push(3);
        for (i, &(parent, key, own)) in (1..).zip(nodes) {
            let next_sibling = std::mem::replace(&mut builder.nodes[parent as usize].first_child, i);
            builder.nodes.push(TreeNode { parent, key, first_child: NONE, next_sibling });
            builder.own.push(own);
        }
        builder.finish()
    }

    #[test]
    fn a_node_has_each_child_once_however_many_there_are() {
        let mut builder = StackTreeBuilder::new();
        let first: Vec<u32> = (0..100).map(|key| builder.child(ROOT, key).unwrap()).collect();
        let again: Vec<u32> = (0..100).map(|key| builder.child(ROOT, key).unwrap()).collect();
        assert_eq!(first, again);
        assert_eq!(builder.nodes.len(), 101);
        builder.own = vec![1; 101];
        let tree = builder.finish();
        let mut children: Vec<u32> = tree.children(ROOT).collect();
        children.sort_unstable();
        assert_eq!(children, (1..=100).collect::<Vec<_>>());
        assert_eq!((tree.total(ROOT), tree.weighing()), (101, 100));
    }
}
