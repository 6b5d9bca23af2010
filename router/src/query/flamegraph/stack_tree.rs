//! Tree of all stacks of a flame graph. The children of the root are the outermost frames.
//!
//! Invariant: every node has a higher index than its parent, and its total is its own value plus its children's totals.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use proto::Answer;

use crate::query::error::QueryError;
use crate::query::flamegraph::weights::Weights;
use crate::query::limits::TREE_NODES_MAX;
use crate::query::run::Cancelled;

/// Index of the root. The root has no key, and is never a child or a sibling.
pub(crate) const ROOT: u32 = 0;

/// Value of `first_child` and `next_sibling` if there is no such node.
const NONE: u32 = ROOT;

/// Number of nodes between two checks for cancellation.
const NODES_BETWEEN_CHECKS: usize = 1 << 16;

/// Maximum number of children of a node that are searched one by one. Nearly all nodes have fewer children. Further
/// children are found by hash.
const NEAR_SIBLINGS_MAX: usize = 8;

/// Number of nodes of the largest tree whose memory is kept for the next tree. They take 18 MB.
const SPARE_NODES_MAX: usize = 1 << 19;

/// Memory of the last dropped tree, which the next tree of any query reuses. New pages from the kernel take about as
/// long as building a tree.
static SPARE: Mutex<Spare> = Mutex::new(Spare { nodes: Vec::new(), totals: Vec::new(), indices: Vec::new() });

/// Empty lists with allocated memory.
#[derive(Debug, Default)]
struct Spare {
    nodes: Vec<TreeNode>,
    totals: Vec<i128>,
    indices: Vec<u32>,
}

/// A tree of stacks with the total of each node.
#[derive(Debug)]
pub(crate) struct StackTree {
    nodes: Vec<TreeNode>,
    /// For each node, the total of the stacks that pass through it or end at it.
    totals: Vec<i128>,
    weighing: usize,
    /// Histogram of the totals; `None` if some values are negative, because a node may then weigh more than its parent.
    weights: Option<Weights>,
    /// For each node, true if its positive and negative own values cancel out. Empty if no value is negative.
    cancelled_out: Vec<bool>,
    /// For each node, true if a stack passes through or ends at it, even if the total is 0. Empty if no value is
    /// negative.
    passed: Vec<bool>,
    /// Buffer whose memory the next tree reuses.
    indices: Vec<u32>,
}

impl Drop for StackTree {
    fn drop(&mut self) {
        use std::mem::take;
        let nodes = take(&mut self.nodes);
        let totals = take(&mut self.totals);
        let indices = take(&mut self.indices);
        let mut spare = Spare { nodes, totals, indices };
        if spare.nodes.capacity().max(spare.indices.capacity()) <= SPARE_NODES_MAX {
            spare.nodes.clear();
            spare.totals.clear();
            *SPARE.lock() = spare;
        }
    }
}

/// A node of the tree. Its key is a frame, or other content, depending on the format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeNode {
    /// Index of the parent. The root is its own parent.
    pub(crate) parent: u32,
    pub(crate) key: u32,
    first_child: u32,
    next_sibling: u32,
}

/// The keys of each location of one response. The keys of a location are outermost first.
#[derive(Debug)]
pub(crate) struct LocationKeys {
    /// Start of each location's keys. Location i has the keys from `starts[i]` to `starts[i + 1]`.
    starts: Vec<u32>,
    keys: Vec<u32>,
}

impl Default for LocationKeys {
    fn default() -> Self {
        Self { starts: vec![0], keys: Vec::new() }
    }
}

impl LocationKeys {
    /// Adds the keys of the next location.
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

/// A tree under construction, to which responses are added.
#[derive(Debug)]
pub(crate) struct StackTreeBuilder {
    nodes: Vec<TreeNode>,
    /// For each node, the total of the stacks that end at it.
    own: Vec<i128>,
    /// For each node of the response that is being added, the index of the corresponding node in this tree.
    indices: Vec<u32>,
    /// Maps a parent and a key to a child. Holds only the children after the first [`NEAR_SIBLINGS_MAX`] of each
    /// parent.
    far: HashMap<(u32, u32), u32, RandomState>,
    /// Nodes with at least one value that is not positive. Only at these nodes can values cancel out.
    not_positive: Vec<u32>,
}

impl StackTreeBuilder {
    pub(crate) fn new() -> Self {
        let root = TreeNode { parent: ROOT, key: 0, first_child: NONE, next_sibling: NONE };
        let Spare { mut nodes, totals, indices } = std::mem::take(&mut *SPARE.lock());
        nodes.push(root);
        let far = HashMap::default();
        Self { nodes, own: totals, indices, far, not_positive: Vec::new() }
    }

    /// Adds the stacks of a response.
    ///
    /// `groups` contains the key of each group. The sums of a group are added to a node with this key below the leaf.
    /// If the key is `None`, or the list is too short, the sums are added to the leaf itself.
    ///
    /// # Errors
    /// Returns [`QueryError::TooLarge`] if the tree would have more than [`TREE_NODES_MAX`] nodes.
    pub(crate) fn add(
        &mut self,
        answer: &Answer,
        keys: &LocationKeys,
        groups: &[Option<u32>],
        cancelled: &Cancelled,
    ) -> Result<(), QueryError> {
        let mut indices = std::mem::take(&mut self.indices);
        indices.clear();
        indices.reserve(answer.nodes.len());
        // This is an estimate: most locations have one frame, and most nodes are new.
        self.nodes.reserve(answer.nodes.len());
        for (i, node) in answer.nodes.iter().enumerate() {
            if i % NODES_BETWEEN_CHECKS == 0 {
                cancelled.check()?;
            }
            let above = indices.get(node.parent as usize).copied().unwrap_or(ROOT);
            let keys = if i == 0 { &[] } else { keys.of(node.location) };
            indices.push(keys.iter().try_fold(above, |parent, &key| self.child(parent, key))?);
        }
        self.own.resize(self.nodes.len(), 0);
        for (i, cell) in answer.cells.iter().enumerate() {
            if i % NODES_BETWEEN_CHECKS == 0 {
                cancelled.check()?;
            }
            let Some(&leaf) = indices.get(cell.node as usize) else { continue };
            let index = match groups.get(cell.group as usize) {
                Some(&Some(group)) => self.child(leaf, group)?,
                _ => leaf,
            };
            if self.own.len() < self.nodes.len() {
                self.own.resize(self.nodes.len(), 0);
            }
            if let Some(own) = self.own.get_mut(index as usize) {
                *own += cell.sum;
            }
            if cell.sum <= 0 {
                self.not_positive.push(index);
            }
        }
        self.indices = indices;
        Ok(())
    }

    /// Returns the child that has this key and this parent. Adds the child if it is new.
    fn child(&mut self, parent: u32, key: u32) -> Result<u32, QueryError> {
        let first = self.nodes[parent as usize].first_child;
        let mut at = first;
        let mut last = NONE;
        let mut passed = 0;
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
            // The new child comes after the near siblings, so that these stay near.
            self.far.insert((parent, key), child);
            std::mem::replace(&mut self.nodes[last as usize].next_sibling, child)
        } else {
            std::mem::replace(&mut self.nodes[parent as usize].first_child, child)
        };
        self.nodes.push(TreeNode { parent, key, first_child: NONE, next_sibling });
        Ok(child)
    }

    /// Computes the totals, and returns the finished tree.
    pub(crate) fn finish(self) -> StackTree {
        // Only sums over all shards count: values that cancel out within one shard are not known to the router.
        if self.own.iter().any(|&own| own < 0) {
            return self.finish_with_negative();
        }
        let mut totals = self.own;
        totals.resize(self.nodes.len(), 0);
        let mut weighing = 0;
        let mut weights = Weights::default();
        for (i, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let total = totals[i];
            totals[node.parent as usize] += total;
            weighing += usize::from(total != 0);
            weights.add(total);
        }
        let cancelled_out = Vec::new();
        let passed = Vec::new();
        let weights = Some(weights);
        StackTree { nodes: self.nodes, totals, weighing, weights, cancelled_out, passed, indices: self.indices }
    }

    /// Like [`StackTreeBuilder::finish`], if some stacks have negative sums. Then a node with stacks may have a total
    /// of zero.
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
        StackTree { nodes: self.nodes, totals, weighing, weights: None, cancelled_out, passed, indices: self.indices }
    }
}

impl StackTree {
    /// All nodes; node 0 is the root.
    pub(crate) fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    /// Returns whether the positive and negative values of the stacks that end at a node cancel out. Gauges can have
    /// negative values.
    pub(crate) fn cancels_out(&self, node: u32) -> bool {
        self.cancelled_out.get(node as usize).copied().unwrap_or_default()
    }

    /// Returns whether any stack passes through or ends at a node.
    pub(crate) fn weighs(&self, node: u32) -> bool {
        self.total(node) != 0 || self.passed.get(node as usize).copied().unwrap_or_default()
    }

    /// Number of nodes that have stacks. The root is not counted.
    pub(crate) fn weighing(&self) -> usize {
        self.weighing
    }

    /// Returns a total that at least `nodes` nodes reach. The root is not counted. Returns `None` if nodes may weigh
    /// more than their parents: then light nodes matter too.
    pub(crate) fn weight_reached_by(&self, nodes: usize) -> Option<i128> {
        self.weights.as_ref().map(|weights| weights.reached_by(nodes))
    }

    /// Returns the key of a node. The key of the root has no meaning.
    #[inline]
    pub(crate) fn key(&self, node: u32) -> u32 {
        self.nodes[node as usize].key
    }

    /// Returns the total of the stacks that pass through or end at a node.
    #[inline]
    pub(crate) fn total(&self, node: u32) -> i128 {
        self.totals[node as usize]
    }

    /// Iterates over the children of a node that have stacks, in no particular order.
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

    /// Makes a tree of nodes (parent, key, own). Unlike in a builder, nodes with equal parent and key stay separate.
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
    fn a_node_has_each_of_many_children_once() {
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
