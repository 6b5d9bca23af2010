//! Cuts a tree down to a number of nodes without losing weight.
//!
//! The heaviest nodes stay. What is left out of a node's children becomes one child `(other)`, so `own` plus the children's
//! totals is `total` everywhere. The result depends on nothing but the tree's content: of equal weights, children of what
//! stayed first come first, and children of one node in an order of what their keys stand for.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::num::NonZeroU32;

use crate::query::flamegraph::stack_tree::{ROOT, StackTree};

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
    /// Stacks end here; `own` may still be 0 where negative values cancel out positive ones.
    pub(crate) has_own: bool,
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

/// Prunes to at most `nodes_max` nodes, root and `(other)` nodes included. `order`: of two keys, by what they stand for
/// alone; it is asked where siblings weigh the same.
pub(crate) fn prune(tree: &StackTree, nodes_max: usize, order: impl Fn(u32, u32) -> Ordering) -> PrunedTree {
    let total = tree.total(ROOT);
    // The root alone: there is no place for an `(other)` beside it.
    if nodes_max <= 1 && tree.weighing() > 0 {
        let root = PrunedNode { parent: 0, kind: NodeKind::Root, own: total, total, has_own: true };
        return PrunedTree { nodes: vec![root], left_out_nodes: tree.weighing(), left_out_value: total };
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
    let left_out_nodes = tree.weighing() + 1 - pruning.stayed.len();
    pruning.written(left_out_nodes)
}

/// A child of a node that stayed.
#[derive(Clone, Copy, Debug)]
struct Child {
    total: i128,
    node: u32,
    /// Its place among what stayed, if it did; the root's is 0.
    place: Option<NonZeroU32>,
}

/// A node that stayed.
#[derive(Clone, Copy, Debug)]
struct Stayed {
    node: u32,
    /// Its children, by their places.
    first: u32,
    end: u32,
    /// Up to where they are in order.
    sorted: u32,
    /// How many of all its children did not stay, so far.
    left: u32,
    /// What those weigh together that are too light for a place: two at least, or none.
    light: i128,
}

/// The heaviest child of a node that was not looked at yet. Of equal weights, the one whose parent stayed first is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    total: i128,
    /// Place among what stayed.
    parent: Reverse<u32>,
    child: u32,
}

struct Pruning<'a, F> {
    tree: &'a StackTree,
    order: &'a F,
    nodes_max: usize,
    /// As many nodes as may stay are as heavy, and none is heavier than what it stands below: lighter ones stay only where they are
    /// alone beside what stays.
    least: Option<i128>,
    stayed: Vec<Stayed>,
    /// Of all that stayed and may have a place, one node's behind another's, the heaviest first.
    children: Vec<Child>,
}

impl<'a, F: Fn(u32, u32) -> Ordering> Pruning<'a, F> {
    /// The root stays.
    fn of(tree: &'a StackTree, nodes_max: usize, least: Option<i128>, order: &'a F) -> Self {
        let (stayed, children) = (Vec::with_capacity(nodes_max.min(tree.weighing() + 1)), Vec::new());
        let mut pruning = Self { tree, order, nodes_max, least, stayed, children };
        pruning.stay(ROOT);
        pruning
    }

    /// A node stays; the place that it gets.
    fn stay(&mut self, node: u32) -> u32 {
        let (tree, place, first) = (self.tree, dense(self.stayed.len()), self.children.len());
        let child = |node| Child { total: tree.total(node), node, place: None };
        let (mut light, mut light_count, mut last_light) = (0, 0, None);
        for child in tree.children(node).map(child) {
            if self.least.is_none_or(|least| child.total >= least) {
                self.children.push(child);
            } else {
                (light, light_count, last_light) = (light + child.total, light_count + 1, Some(child));
            }
        }
        // No `(other)` is smaller than what it stands for.
        if let Some(alone) = last_light.filter(|_| light_count == 1) {
            self.children.push(alone);
            (light, light_count) = (0, 0);
        }
        let (first, end) = (dense(first), dense(self.children.len()));
        self.stayed.push(Stayed { node, first, end, sorted: first, left: end - first + light_count, light });
        self.sort(place, self.nodes_max);
        place
    }

    /// Puts so many more children of what stayed at a place in order, the heaviest first. A node may have very many of the same
    /// weight, most of which nobody will see.
    fn sort(&mut self, place: u32, count: usize) {
        let (tree, order, stayed) = (self.tree, self.order, &mut self.stayed[place as usize]);
        let order =
            |a: &Child, b: &Child| b.total.cmp(&a.total).then_with(|| order(tree.key(a.node), tree.key(b.node)));
        let mut children = &mut self.children[stayed.sorted as usize..stayed.end as usize];
        if count < children.len() {
            children = children.select_nth_unstable_by(count, order).0;
        }
        children.sort_unstable_by(order);
        stayed.sorted += dense(children.len());
    }

    fn child_stays(&mut self, parent: u32, child: u32) {
        self.stayed[parent as usize].left -= 1;
        let place = self.stay(self.children[child as usize].node);
        self.children[child as usize].place = NonZeroU32::new(place);
    }

    /// All that weighs anything.
    fn keep_all(&mut self) {
        let mut parent = 0;
        while let Some(&Stayed { first, end, .. }) = self.stayed.get(parent as usize) {
            (first..end).for_each(|child| self.child_stays(parent, child));
            parent += 1;
        }
    }

    /// From the root on always the heaviest whose parent stays, as long as there is place for it and for the `(other)` nodes
    /// that stand for the rest. `false`, which is rare: the last place is
    /// for something that was held to be too light.
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
            // The last of its siblings makes the `(other)` beside it needless.
            let frees = usize::from(self.stayed[parent as usize].left == 1);
            let needs = 1 + usize::from(self.has_children(child));
            let (mut below, end) = (None, self.stayed[parent as usize].end);
            if count + needs <= nodes_max + frees {
                count = count + needs - frees;
                let place = dense(self.stayed.len());
                self.child_stays(parent, child);
                below = self.first_child(place);
            }
            if child + 1 == self.stayed[parent as usize].sorted {
                self.sort(parent, usize::MAX);
            }
            let beside = (child + 1 < end).then(|| self.candidate(parent, child + 1));
            // One takes its place: often it is nearly as heavy, so that nothing else moves.
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
        // There is only place for what takes none: a last sibling without children, in place of the `(other)`.
        for Candidate { parent: Reverse(parent), child, .. } in candidates {
            if self.stayed[parent as usize].left == 1 && !self.has_children(child) {
                self.child_stays(parent, child);
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

    /// The heaviest child of what stayed at a place.
    fn first_child(&self, place: u32) -> Option<Candidate> {
        let Stayed { first, end, .. } = self.stayed[place as usize];
        (first < end).then(|| self.candidate(place, first))
    }

    fn written(&self, left_out_nodes: usize) -> PrunedTree {
        let mut out =
            PrunedTree { nodes: Vec::with_capacity(2 * self.stayed.len()), left_out_nodes, left_out_value: 0 };
        // What is still to be written, the next one last: (place or weight of an `(other)`, its parent in what is written).
        let mut pending: Vec<(Result<u32, i128>, u32)> = vec![(Ok(0), 0)];
        while let Some((next, parent)) = pending.pop() {
            let here = dense(out.nodes.len());
            let place = match next {
                Ok(place) => place,
                Err(weight) => {
                    out.left_out_value += weight;
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
            let Stayed { node, first, end, left, light, .. } = self.stayed[place as usize];
            let kind = if node == ROOT { NodeKind::Root } else { NodeKind::Key(self.tree.key(node)) };
            let children = &self.children[first as usize..end as usize];
            let total = self.tree.total(node);
            let own = total - light - children.iter().map(|child| child.total).sum::<i128>();
            let has_own = own != 0 || self.tree.cancels_out(node);
            out.nodes.push(PrunedNode { parent, kind, own, total, has_own });
            let left_out = children.iter().filter(|child| child.place.is_none());
            let other = light + left_out.map(|child| child.total).sum::<i128>();
            let mut other = (left > 0).then_some(other);
            // The lightest first. What is as heavy as the `(other)` stands before it.
            for child in children.iter().rev() {
                let Some(place) = child.place else { continue };
                if let Some(weight) = other.take_if(|weight| child.total >= *weight) {
                    pending.push((Err(weight), here));
                }
                pending.push((Ok(place.get()), here));
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

    /// A tree of any shape: the parent of node i is one before it.
    fn any_tree() -> impl Strategy<Value = StackTree> {
        proptest::collection::vec((any::<u32>(), 0_u32..6, 0_i128..50), 0..200).prop_map(|shape| {
            let parents = (0_u32..).zip(&shape).map(|(i, (parent, _, _))| parent % (i + 1));
            let nodes: Vec<_> = parents.zip(&shape).map(|(parent, &(_, key, own))| (parent, key, own)).collect();
            tree_of(&nodes)
        })
    }

    proptest! {
        #[test]
        fn what_is_too_light_is_left_out_just_as_if_it_had_been_put_in_order(tree in any_tree(), nodes_max in 2_usize..120) {
            prop_assume!(tree.weighing() >= nodes_max);
            let order = |a: u32, b: u32| a.cmp(&b);
            let mut pruning = Pruning::of(&tree, nodes_max, None, &order);
            prop_assert!(pruning.keep_heaviest());
            let left_out_nodes = tree.weighing() + 1 - pruning.stayed.len();
            prop_assert_eq!(prune(&tree, nodes_max, order), pruning.written(left_out_nodes));
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
            prop_assert_eq!(pruned.nodes.len() - others + pruned.left_out_nodes, weighing);
            if weighing <= nodes_max {
                prop_assert_eq!((pruned.left_out_nodes, pruned.left_out_value), (0, 0));
            } else {
                // Of the place that there is, at most two nodes' is wasted.
                prop_assert!(pruned.nodes.len() + 2 >= nodes_max.min(weighing));
            }
        }
    }

    /// A root with 3 of its own, and these children.
    fn star(weights: &[i128]) -> StackTree {
        tree_of(&(0..).zip(weights).map(|(key, &own)| (ROOT, key, own)).collect::<Vec<_>>())
    }

    #[test]
    fn the_heaviest_stay_and_the_rest_is_other() {
        let pruned = prune(&star(&[5, 1, 9, 2, 1]), 4, |a, b| a.cmp(&b));
        let kinds: Vec<_> = pruned.nodes.iter().map(|node| (node.kind, node.total)).collect();
        use NodeKind::{Key, Other, Root};
        assert_eq!(kinds, [(Root, 21), (Key(2), 9), (Key(0), 5), (Other, 4)]);
        assert_eq!((pruned.left_out_nodes, pruned.left_out_value), (3, 4));
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
        assert_eq!((pruned.left_out_nodes, pruned.left_out_value), (2, 9));
    }
}
