//! Cuts a tree down to a number of nodes without losing weight.
//!
//! The heaviest nodes stay. What is left out of a node's children becomes one child `(other)`, so `own` plus the children's
//! totals is `total` everywhere. The result depends on nothing but the tree's content.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::query::stack_tree::{Children, StackTree};

/// What is left of a tree, each node's subtree behind it, children in order of falling total.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrunedTree {
    /// Node 0 is the root.
    pub(crate) nodes: Vec<PrunedNode>,
    /// How many nodes were left out.
    pub(crate) left_out_nodes: usize,
    /// What `(other)` nodes weigh together.
    pub(crate) left_out_value: i128,
}

/// A node that stayed, or an `(other)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrunedNode {
    /// Index of a node before this one; the root's is 0.
    pub(crate) parent: u32,
    pub(crate) kind: NodeKind,
    pub(crate) own: i128,
    pub(crate) total: i128,
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Root,
    /// Key of the tree.
    Key(u32),
    /// What was left out of its parent's children.
    Other,
}

/// Prunes to at most `nodes_max` nodes, root and `(other)` nodes included. `ranks`: a place for each key that depends on what
/// it stands for alone, to decide between equal weights.
pub(crate) fn prune(tree: &StackTree, nodes_max: usize, ranks: &[u32]) -> PrunedTree {
    let children = tree.children();
    let kept = keep(tree, &children, nodes_max, ranks);
    let mut out = PrunedTree { nodes: Vec::new(), left_out_nodes: 0, left_out_value: 0 };
    let kept_count = kept.iter().filter(|&&kept| kept).count();
    out.left_out_nodes = (children.len() + 1).saturating_sub(kept_count);
    let root_total = tree.nodes.first().map_or(0, |root| root.total);
    // The root alone: there is no place for an `(other)` beside it.
    if nodes_max <= 1 && children.len() > 0 {
        out.left_out_value = root_total;
        out.nodes.push(PrunedNode { parent: 0, kind: NodeKind::Root, own: root_total, total: root_total });
        return out;
    }
    // Nodes still to be written, the next one last: (node or `(other)` with its weight, place of the parent).
    let mut pending: Vec<(Result<u32, i128>, u32)> = vec![(Ok(0), 0)];
    while let Some((next, parent)) = pending.pop() {
        let here = u32::try_from(out.nodes.len()).unwrap_or(u32::MAX);
        let node = match next {
            Ok(node) => node,
            Err(weight) => {
                out.left_out_value += weight;
                out.nodes.push(PrunedNode { parent, kind: NodeKind::Other, own: weight, total: weight });
                continue;
            }
        };
        let Some(content) = tree.nodes.get(node as usize) else { continue };
        let kind = if node == 0 { NodeKind::Root } else { NodeKind::Key(content.key) };
        out.nodes.push(PrunedNode { parent, kind, own: content.own, total: content.total });
        pending.extend(ordered(tree, &children, &kept, ranks, node).into_iter().rev().map(|child| (child, here)));
    }
    out
}

/// The children of a node that stayed, and the weight of those that did not, in order of falling total.
fn ordered(tree: &StackTree, children: &Children, kept: &[bool], ranks: &[u32], node: u32) -> Vec<Result<u32, i128>> {
    let is_kept = |child: &u32| kept.get(*child as usize).copied().unwrap_or(false);
    let (stay, go): (Vec<u32>, Vec<u32>) = children.of(node).iter().partition(|child| is_kept(child));
    let mut all: Vec<(Reverse<i128>, u64, Result<u32, i128>)> =
        stay.into_iter().map(|child| (Reverse(total(tree, child)), rank(tree, ranks, child), Ok(child))).collect();
    if !go.is_empty() {
        let weight = go.iter().map(|&child| total(tree, child)).sum();
        all.push((Reverse(weight), u64::MAX, Err(weight)));
    }
    all.sort_by_key(|&(total, rank, _)| (total, rank));
    all.into_iter().map(|(_, _, child)| child).collect()
}

fn total(tree: &StackTree, node: u32) -> i128 {
    tree.nodes.get(node as usize).map_or(0, |node| node.total)
}

fn rank(tree: &StackTree, ranks: &[u32], node: u32) -> u64 {
    tree.nodes.get(node as usize).and_then(|node| ranks.get(node.key as usize)).map_or(0, |&rank| u64::from(rank))
}

/// Which nodes stay: from the root on always the heaviest whose parent stays, as long as there is place for it and for the
/// `(other)` nodes that stand for the rest.
fn keep(tree: &StackTree, children: &Children, nodes_max: usize, ranks: &[u32]) -> Vec<bool> {
    let all_stay = children.len() < nodes_max;
    let mut kept: Vec<bool> = tree.nodes.iter().map(|node| all_stay && node.total != 0).collect();
    if let Some(root) = kept.first_mut() {
        *root = true;
    }
    if all_stay {
        return kept;
    }
    let mut left_of: Vec<usize> = (0..).take(tree.nodes.len()).map(|node| children.of(node).len()).collect();
    let mut candidates = Candidates::default();
    candidates.add(tree, children, ranks, 0);
    let mut count = 1 + usize::from(!children.of(0).is_empty());
    while let Some(node) = candidates.heaviest() {
        let parent = tree.nodes.get(node as usize).map_or(0, |node| node.parent);
        // The last of its siblings makes the `(other)` beside it needless.
        let frees = left_of.get(parent as usize).is_some_and(|&left| left == 1);
        let needs = 1 + usize::from(!children.of(node).is_empty());
        if count + needs > nodes_max + usize::from(frees) {
            continue;
        }
        count = count + needs - usize::from(frees);
        if let (Some(left), Some(kept)) = (left_of.get_mut(parent as usize), kept.get_mut(node as usize)) {
            *left -= 1;
            *kept = true;
        }
        candidates.add(tree, children, ranks, node);
    }
    kept
}

/// Nodes whose parents stay. Of equal weights the one that came first is first, and they come in an order of content.
#[derive(Default)]
struct Candidates {
    heap: BinaryHeap<(i128, Reverse<u64>, u32)>,
    added: u64,
}

impl Candidates {
    fn add(&mut self, tree: &StackTree, children: &Children, ranks: &[u32], parent: u32) {
        let mut new: Vec<u32> = children.of(parent).to_vec();
        new.sort_by_key(|&child| rank(tree, ranks, child));
        for child in new {
            self.heap.push((total(tree, child), Reverse(self.added), child));
            self.added += 1;
        }
    }

    fn heaviest(&mut self) -> Option<u32> {
        self.heap.pop().map(|(_, _, node)| node)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::query::stack_tree::TreeNode;

    /// A tree of any shape: the parent of node i is one before it.
    fn any_tree() -> impl Strategy<Value = StackTree> {
        proptest::collection::vec((any::<u32>(), 0_u32..6, 0_i128..50), 0..200).prop_map(|shape| {
            let mut nodes = vec![TreeNode { parent: 0, key: 0, own: 3, total: 0 }];
            for (i, (parent, key, own)) in shape.into_iter().enumerate() {
                nodes.push(TreeNode { parent: parent % (i as u32 + 1), key, own, total: 0 });
            }
            for i in (0..nodes.len()).rev() {
                nodes[i].total += nodes[i].own;
                let (parent, total) = (nodes[i].parent as usize, nodes[i].total);
                if i > 0 {
                    nodes[parent].total += total;
                }
            }
            StackTree { nodes }
        })
    }

    proptest! {
        #[test]
        fn pruning_keeps_the_weight_at_every_node(tree in any_tree(), nodes_max in 1_usize..250) {
            let ranks: Vec<u32> = (0..6).collect();
            let pruned = prune(&tree, nodes_max, &ranks);
            prop_assert!(pruned.nodes.len() <= nodes_max);
            prop_assert_eq!(pruned.nodes[0].total, tree.nodes[0].total);
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
            let weighing = tree.nodes.iter().skip(1).filter(|node| node.total != 0).count() + 1;
            let others = pruned.nodes.iter().filter(|node| node.kind == NodeKind::Other).count();
            prop_assert_eq!(pruned.nodes.len() - others + pruned.left_out_nodes, weighing);
            if weighing <= nodes_max {
                prop_assert_eq!((pruned.left_out_nodes, pruned.left_out_value), (0, 0));
            } else {
                // Of the place that there is, at most two nodes' is wasted.
                prop_assert!(pruned.nodes.len() + 2 >= nodes_max.min(weighing));
            }
        }
    }

    fn star(weights: &[i128]) -> StackTree {
        let total: i128 = weights.iter().sum();
        let root = TreeNode { parent: 0, key: 0, own: 0, total };
        let children = weights.iter().zip(0..).map(|(&own, key)| TreeNode { parent: 0, key, own, total: own });
        StackTree { nodes: std::iter::once(root).chain(children).collect() }
    }

    #[test]
    fn the_heaviest_stay_and_the_rest_is_other() {
        let pruned = prune(&star(&[5, 1, 9, 2, 1]), 4, &[0, 1, 2, 3, 4]);
        let kinds: Vec<_> = pruned.nodes.iter().map(|node| (node.kind, node.total)).collect();
        use NodeKind::{Key, Other, Root};
        assert_eq!(kinds, [(Root, 18), (Key(2), 9), (Key(0), 5), (Other, 4)]);
        assert_eq!((pruned.left_out_nodes, pruned.left_out_value), (3, 4));
    }

    #[test]
    fn equal_weights_are_decided_by_rank() {
        let kept = |ranks| prune(&star(&[1, 1, 1]), 3, ranks).nodes.iter().map(|node| node.kind).collect::<Vec<_>>();
        assert_eq!(kept(&[2, 0, 1])[1..], [NodeKind::Other, NodeKind::Key(1)]);
        assert_eq!(kept(&[0, 2, 1])[1..], [NodeKind::Other, NodeKind::Key(0)]);
    }

    #[test]
    fn one_node_is_the_root_with_all_weight() {
        let pruned = prune(&star(&[5, 1]), 1, &[0, 1]);
        assert_eq!(pruned.nodes, [PrunedNode { parent: 0, kind: NodeKind::Root, own: 6, total: 6 }]);
        assert_eq!((pruned.left_out_nodes, pruned.left_out_value), (2, 6));
    }
}
