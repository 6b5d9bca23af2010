//! Pruning of a tree to a number of nodes. The total weight does not change.
//!
//! The heaviest nodes are kept. The pruned children of a node become one child `(other)`, so for every node, `total` is
//! `own` plus the totals of the children. The result depends only on the content of the tree. Among nodes of equal
//! weight, children of nodes that were kept earlier come first, and siblings are sorted by the content of their keys.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::num::NonZeroU32;

use crate::query::flamegraph::stack_tree::{ROOT, StackTree};

/// A pruned tree. Each node is followed by its subtree, and siblings are sorted by total, the largest first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrunedTree {
    /// Nodes of the tree. Node 0 is the root.
    pub(crate) nodes: Vec<PrunedNode>,
    /// Number of nodes that were pruned.
    pub(crate) pruned_nodes: usize,
    /// Total value of all `(other)` nodes.
    pub(crate) pruned_value: i128,
}

/// A kept node, or an `(other)` node that stands for pruned nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrunedNode {
    /// Index of the parent, which comes before this node. 0 for the root.
    pub(crate) parent: u32,
    pub(crate) kind: NodeKind,
    pub(crate) own: i128,
    pub(crate) total: i128,
    /// True if stacks end at this node. `own` may still be 0 if negative values cancel out positive ones.
    pub(crate) has_own: bool,
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Root,
    /// A kept node with this key of the tree.
    Key(u32),
    /// An `(other)` node, which stands for the pruned children of its parent.
    Other,
}

/// Prunes a tree to at most `nodes_max` nodes, including the root and `(other)` nodes.
///
/// `order` compares two keys by their content, and decides between siblings of the same weight.
pub(crate) fn prune(tree: &StackTree, nodes_max: usize, order: impl Fn(u32, u32) -> Ordering) -> PrunedTree {
    let total = tree.total(ROOT);
    // Only the root fits, and no `(other)` node.
    if nodes_max <= 1 && tree.weighing() > 0 {
        let root = PrunedNode { parent: 0, kind: NodeKind::Root, own: total, total, has_own: true };
        return PrunedTree { nodes: vec![root], pruned_nodes: tree.weighing(), pruned_value: total };
    }
    if tree.weighing() < nodes_max {
        let mut pruning = Pruning::of(tree, nodes_max, None, &order);
        pruning.keep_all();
        return pruning.written(0);
    }
    let mut pruning = Pruning::of(tree, nodes_max, tree.weight_reached_by(nodes_max), &order);
    if !pruning.keep_heaviest() {
        pruning = Pruning::of(tree, nodes_max, None, &order);
        pruning.keep_heaviest();
    }
    let pruned_nodes = tree.weighing() + 1 - pruning.kept.len();
    pruning.written(pruned_nodes)
}

/// A child of a kept node.
#[derive(Clone, Copy, Debug)]
struct Child {
    total: i128,
    node: u32,
    /// Index of this child among the kept nodes; `None` if it was not kept. It is never 0, the index of the root.
    kept: Option<NonZeroU32>,
}

/// A kept node.
#[derive(Clone, Copy, Debug)]
struct Kept {
    node: u32,
    /// Index in `children` of this node's first child. The last child is before index `end`.
    first: u32,
    end: u32,
    /// End of the sorted part of this node's children.
    sorted: u32,
    /// Number of this node's children that are not kept yet.
    left: u32,
    /// Total of this node's children that are too light to be kept. There are at least two such children, or none.
    light: i128,
}

/// The heaviest child of a kept node, among the children that were not considered yet. Among candidates of equal
/// weight, the one whose parent was kept earlier comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    total: i128,
    /// Index of the parent among the kept nodes.
    parent: Reverse<u32>,
    child: u32,
}

struct Pruning<'a, F> {
    tree: &'a StackTree,
    order: &'a F,
    nodes_max: usize,
    /// Weight that at least as many nodes reach as can be kept; `None` if a node may weigh more than its parent. A node
    /// below this weight is kept only if it is the only such child of its parent.
    least: Option<i128>,
    kept: Vec<Kept>,
    /// Children of the kept nodes, except children that are too light. Children of the same node are adjacent.
    children: Vec<Child>,
}

impl<'a, F: Fn(u32, u32) -> Ordering> Pruning<'a, F> {
    /// Makes a pruning that has kept only the root.
    fn of(tree: &'a StackTree, nodes_max: usize, least: Option<i128>, order: &'a F) -> Self {
        let kept = Vec::with_capacity(nodes_max.min(tree.weighing() + 1));
        let children = Vec::new();
        let mut pruning = Self { tree, order, nodes_max, least, kept, children };
        pruning.keep(ROOT);
        pruning
    }

    /// Keeps a node, and returns its index among the kept nodes.
    fn keep(&mut self, node: u32) -> u32 {
        let tree = self.tree;
        let index = dense(self.kept.len());
        let first = self.children.len();
        let child = |node| Child { total: tree.total(node), node, kept: None };
        let mut light = 0;
        let mut light_count = 0;
        let mut last_light = None;
        for child in tree.children(node).map(child) {
            if self.least.is_none_or(|least| child.total >= least) {
                self.children.push(child);
            } else {
                (light, light_count, last_light) = (light + child.total, light_count + 1, Some(child));
            }
        }
        // An `(other)` node never replaces a single node.
        if let Some(alone) = last_light.filter(|_| light_count == 1) {
            self.children.push(alone);
            (light, light_count) = (0, 0);
        }
        let first = dense(first);
        let end = dense(self.children.len());
        self.kept.push(Kept { node, first, end, sorted: first, left: end - first + light_count, light });
        self.sort(index, self.nodes_max);
        index
    }

    /// Sorts the next `count` children of a kept node, the heaviest first. The rest stays unsorted, because a node may
    /// have many children of equal weight, most of which will be pruned.
    fn sort(&mut self, index: u32, count: usize) {
        let tree = self.tree;
        let order = self.order;
        let kept = &mut self.kept[index as usize];
        let order =
            |a: &Child, b: &Child| b.total.cmp(&a.total).then_with(|| order(tree.key(a.node), tree.key(b.node)));
        let mut children = &mut self.children[kept.sorted as usize..kept.end as usize];
        if count < children.len() {
            children = children.select_nth_unstable_by(count, order).0;
        }
        children.sort_unstable_by(order);
        kept.sorted += dense(children.len());
    }

    fn keep_child(&mut self, parent: u32, child: u32) {
        self.kept[parent as usize].left -= 1;
        let index = self.keep(self.children[child as usize].node);
        self.children[child as usize].kept = NonZeroU32::new(index);
    }

    /// Keeps all nodes that have stacks.
    fn keep_all(&mut self) {
        let mut parent = 0;
        while let Some(&Kept { first, end, .. }) = self.kept.get(parent as usize) {
            (first..end).for_each(|child| self.keep_child(parent, child));
            parent += 1;
        }
    }

    /// Repeatedly keeps the heaviest node whose parent is kept, starting at the root. Stops when this node and the
    /// necessary `(other)` nodes do not fit.
    ///
    /// Returns `false`, which is rare, if a node that should be kept was classified as too light. The caller then
    /// repeats the pruning without this classification.
    fn keep_heaviest(&mut self) -> bool {
        let nodes_max = self.nodes_max;
        let mut candidates = BinaryHeap::new();
        candidates.extend(self.first_child(0));
        let mut count = 1 + candidates.len();
        while count < nodes_max {
            let Some(mut heaviest) = candidates.peek_mut() else { break };
            let Candidate { total, parent: Reverse(parent), child } = *heaviest;
            if self.least.is_some_and(|least| total < least) {
                return false;
            }
            // If all its siblings are kept, the child replaces the `(other)` beside them, and so frees a node.
            let frees = usize::from(self.kept[parent as usize].left == 1);
            let needs = 1 + usize::from(self.has_children(child));
            let mut below = None;
            let end = self.kept[parent as usize].end;
            if count + needs <= nodes_max + frees {
                count = count + needs - frees;
                let index = dense(self.kept.len());
                self.keep_child(parent, child);
                below = self.first_child(index);
            }
            if child + 1 == self.kept[parent as usize].sorted {
                self.sort(parent, usize::MAX);
            }
            let beside = (child + 1 < end).then(|| self.candidate(parent, child + 1));
            // The candidate below, or else the one beside, replaces the heaviest one. It is often nearly as heavy, so
            // that nothing else moves in the heap.
            match below.or(beside) {
                Some(next) => {
                    *heaviest = next;
                    drop(heaviest);
                }
                None => drop(PeekMut::pop(heaviest)),
            }
            if let (Some(_), Some(beside)) = (below, beside) {
                candidates.push(beside);
            }
        }
        if count < nodes_max && self.least.is_some() {
            return false;
        }
        // No space is left. Only a child without children, whose siblings are all kept, still fits: it replaces the
        // `(other)`.
        for Candidate { parent: Reverse(parent), child, .. } in candidates {
            if self.kept[parent as usize].left == 1 && !self.has_children(child) {
                self.keep_child(parent, child);
            }
        }
        true
    }

    fn has_children(&self, child: u32) -> bool {
        self.tree.children(self.children[child as usize].node).next().is_some()
    }

    fn candidate(&self, parent: u32, child: u32) -> Candidate {
        Candidate { total: self.children[child as usize].total, parent: Reverse(parent), child }
    }

    /// Returns the heaviest child of a kept node as a candidate.
    fn first_child(&self, index: u32) -> Option<Candidate> {
        let Kept { first, end, .. } = self.kept[index as usize];
        (first < end).then(|| self.candidate(index, first))
    }

    fn written(&self, pruned_nodes: usize) -> PrunedTree {
        let mut out = PrunedTree { nodes: Vec::with_capacity(2 * self.kept.len()), pruned_nodes, pruned_value: 0 };
        // Nodes that are still to be written, the next one last. Each is the index of a kept node, or the weight of an
        // `(other)`, together with the index of its parent in the output.
        let mut pending: Vec<(Result<u32, i128>, u32)> = vec![(Ok(0), 0)];
        while let Some((next, parent)) = pending.pop() {
            let here = dense(out.nodes.len());
            let index = match next {
                Ok(index) => index,
                Err(weight) => {
                    out.pruned_value += weight;
                    out.nodes.push(PrunedNode {
                        parent,
                        kind: NodeKind::Other,
                        own: weight,
                        total: weight,
                        has_own: true,
                    });
                    continue;
                }
            };
            let Kept { node, first, end, left, light, .. } = self.kept[index as usize];
            let kind = if node == ROOT { NodeKind::Root } else { NodeKind::Key(self.tree.key(node)) };
            let children = &self.children[first as usize..end as usize];
            let total = self.tree.total(node);
            let own = total - light - children.iter().map(|child| child.total).sum::<i128>();
            let has_own = own != 0 || self.tree.cancels_out(node);
            out.nodes.push(PrunedNode { parent, kind, own, total, has_own });
            let pruned = children.iter().filter(|child| child.kept.is_none());
            let other = light + pruned.map(|child| child.total).sum::<i128>();
            let mut other = (left > 0).then_some(other);
            // The lightest is pushed first, and so written last. A node as heavy as the `(other)` is written before it.
            for child in children.iter().rev() {
                let Some(index) = child.kept else { continue };
                if let Some(weight) = other.take_if(|weight| child.total >= *weight) {
                    pending.push((Err(weight), here));
                }
                pending.push((Ok(index.get()), here));
            }
            pending.extend(other.map(|weight| (Err(weight), here)));
        }
        out
    }
}

fn dense(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::query::flamegraph::stack_tree::tests::tree_of;

    /// Returns a tree of any shape. The index of a node's parent is lower than the node's index.
    fn any_tree() -> impl Strategy<Value = StackTree> {
        proptest::collection::vec((any::<u32>(), 0_u32..6, 0_i128..50), 0..200).prop_map(|shape| {
            let parents = (0_u32..).zip(&shape).map(|(i, (parent, _, _))| parent % (i + 1));
            let nodes: Vec<_> = parents.zip(&shape).map(|(parent, &(_, key, own))| (parent, key, own)).collect();
            tree_of(&nodes)
        })
    }

    proptest! {
        #[test]
        fn the_weight_limit_gives_the_same_result_as_sorting(tree in any_tree(), nodes_max in 2_usize..120) {
            prop_assume!(tree.weighing() >= nodes_max);
            let order = |a: u32, b: u32| a.cmp(&b);
            let mut pruning = Pruning::of(&tree, nodes_max, None, &order);
            prop_assert!(pruning.keep_heaviest());
            let pruned_nodes = tree.weighing() + 1 - pruning.kept.len();
            prop_assert_eq!(prune(&tree, nodes_max, order), pruning.written(pruned_nodes));
        }

        #[test]
        fn pruning_keeps_the_weight_at_every_node(tree in any_tree(), nodes_max in 1_usize..250) {
            let pruned = prune(&tree, nodes_max, |a, b| a.cmp(&b));
            prop_assert!(pruned.nodes.len() <= nodes_max);
            prop_assert_eq!(pruned.nodes[0].total, tree.total(ROOT));
            let mut below = vec![0; pruned.nodes.len()];
            let mut last = vec![i128::MAX; pruned.nodes.len()];
            for (i, node) in pruned.nodes.iter().enumerate().skip(1) {
                prop_assert!((node.parent as usize) < i);
                prop_assert!(node.total <= last[node.parent as usize], "children fall");
                last[node.parent as usize] = node.total;
                below[node.parent as usize] += node.total;
            }
            for (node, below) in pruned.nodes.iter().zip(below) {
                prop_assert_eq!(node.own + below, node.total);
            }
            let weighing = tree.weighing() + 1;
            let others = pruned.nodes.iter().filter(|node| node.kind == NodeKind::Other).count();
            prop_assert_eq!(pruned.nodes.len() - others + pruned.pruned_nodes, weighing);
            if weighing <= nodes_max {
                prop_assert_eq!((pruned.pruned_nodes, pruned.pruned_value), (0, 0));
            } else {
                // At most two nodes fewer than possible are kept.
                prop_assert!(pruned.nodes.len() + 2 >= nodes_max.min(weighing));
            }
        }
    }

    /// Returns a tree whose root has an own value of 3, and children with these weights.
    fn star(weights: &[i128]) -> StackTree {
        tree_of(&(0..).zip(weights).map(|(key, &own)| (ROOT, key, own)).collect::<Vec<_>>())
    }

    #[test]
    fn the_heaviest_stay_and_the_rest_is_other() {
        let pruned = prune(&star(&[5, 1, 9, 2, 1]), 4, |a, b| a.cmp(&b));
        let kinds: Vec<_> = pruned.nodes.iter().map(|node| (node.kind, node.total)).collect();
        use NodeKind::{Key, Other, Root};
        assert_eq!(kinds, [(Root, 21), (Key(2), 9), (Key(0), 5), (Other, 4)]);
        assert_eq!((pruned.pruned_nodes, pruned.pruned_value), (3, 4));
    }

    #[test]
    fn equal_weights_are_decided_by_the_order_of_keys() {
        let kept = |ranks: [u32; 3]| {
            let order = |a: u32, b: u32| ranks[a as usize].cmp(&ranks[b as usize]);
            prune(&star(&[1, 1, 1]), 3, order).nodes.iter().map(|node| node.kind).collect::<Vec<_>>()
        };
        assert_eq!(kept([2, 0, 1])[1..], [NodeKind::Other, NodeKind::Key(1)]);
        assert_eq!(kept([0, 2, 1])[1..], [NodeKind::Other, NodeKind::Key(0)]);
    }

    #[test]
    fn one_node_is_the_root_with_all_weight() {
        let pruned = prune(&star(&[5, 1]), 1, |a, b| a.cmp(&b));
        assert_eq!(pruned.nodes, [PrunedNode { parent: 0, kind: NodeKind::Root, own: 9, total: 9, has_own: true }]);
        assert_eq!((pruned.pruned_nodes, pruned.pruned_value), (2, 9));
    }
}
