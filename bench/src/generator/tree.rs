//! The tree of a service's stacks. New stacks are made by combining recorded calls.
//!
//! A new stack follows a recorded stack from the leaf up to some frame. From that frame on, the new stack continues as
//! another recorded stack that has the frame's location. Each call of the new stack was recorded; only the combination
//! is new. The leaf may be another address of its function. New stacks thus share prefixes and locations with other
//! stacks, as recorded stacks do.

use super::random::Random;
use crate::corpus::Node;

/// Largest number of attempts to find a combination that differs from the recorded stack.
const TRIES: usize = 8;
/// Largest depth of a new stack. Without a limit, combined recursions could become ever deeper.
const DEPTH_MAX: usize = 200;

/// The tree. Locations of nodes are IDs in the corpus's dictionary.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// Nodes, grouped by location. The nodes of location i begin at `location_starts[i]`.
    by_location: Vec<u32>,
    location_starts: Vec<u32>,
}

impl Tree {
    /// Builds a tree from these nodes. `locations` is the number of locations in the corpus.
    pub(crate) fn new(nodes: Vec<Node>, locations: usize) -> Self {
        let mut location_starts = vec![0_u32; locations + 1];
        nodes[1..].iter().for_each(|node| location_starts[node.location as usize + 1] += 1);
        for i in 0..locations {
            location_starts[i + 1] += location_starts[i];
        }
        let mut next = location_starts.clone();
        let mut by_location = vec![0; nodes.len() - 1];
        for (id, node) in (0_u32..).zip(&nodes).skip(1) {
            let place = &mut next[node.location as usize];
            by_location[*place as usize] = id;
            *place += 1;
        }
        Self { nodes, by_location, location_starts }
    }

    /// Adds the locations of a recorded stack to `out`, leaf first.
    pub(crate) fn push_locations(&self, stack: u32, out: &mut Vec<u32>) {
        let mut at = stack;
        while at != 0 {
            let node = self.nodes[at as usize];
            out.push(node.location);
            at = node.parent;
        }
    }

    /// Adds the locations of a variant of a recorded stack to `out`, leaf first. The numbers of `random` determine the
    /// variant.
    pub(crate) fn push_variant(&self, stack: u32, random: &mut Random, out: &mut Vec<u32>) {
        self.push_locations(stack, out);
        for _ in 0..TRIES {
            let depth = out.len();
            // Index of the frame from which on the new stack has other callers.
            let cut = random.below(depth.max(1));
            let Some(&location) = out.get(cut) else { return };
            let places =
                self.location_starts[location as usize] as usize..self.location_starts[location as usize + 1] as usize;
            let other = self.by_location[places.start + random.below(places.len())];
            let rest = out.split_off(cut);
            self.push_locations(other, out);
            if out.len() <= DEPTH_MAX && out[cut..] != rest {
                return;
            }
            out.truncate(cut);
            out.extend_from_slice(&rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_new_stack_has_only_recorded_calls() {
        // main(0) -> a(1) -> c(2) -> leaf(3); main -> b(4) -> c -> leaf(5); b -> a.
        let node = |parent, location| Node { parent, location };
        let tree = Tree::new(
            vec![
                node(0, 0),
                node(0, 0),
                node(1, 1),
                node(2, 2),
                node(3, 3),
                node(1, 4),
                node(5, 2),
                node(6, 5),
                node(5, 1),
            ],
            6,
        );
        let edges: HashSet<(u32, u32)> =
            tree.nodes[2..].iter().map(|node| (tree.nodes[node.parent as usize].location, node.location)).collect();
        let mut made = HashSet::new();
        let mut recorded = 0;
        for number in 0..100 {
            let mut stack = Vec::new();
            tree.push_variant(4, &mut Random::of([number]), &mut stack);
            assert!(stack.windows(2).all(|pair| edges.contains(&(pair[1], pair[0]))), "{stack:?}");
            assert_eq!((stack[0], *stack.last().unwrap()), (3, 0));
            recorded += u32::from(stack == [3, 2, 1, 0]);
            made.insert(stack);
        }
        // Two stacks that were not recorded: main -> b -> c -> leaf(3), and main -> b -> a -> c -> leaf(3).
        assert!(made.contains(&vec![3, 2, 4, 0]) && made.contains(&vec![3, 2, 1, 4, 0]), "{made:?}");
        // Only two of the four frames have other callers, so all attempts may fail, but rarely do.
        assert!(recorded < 20, "{recorded} of 100 are the recorded one");
    }
}
