//! Counts the frames of a flame graph that have names. Also counts those that have none, for each reason.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::query::flamegraph::stack_tree::StackTree;
use crate::query::naming::frame::{Frames, Unnamed};

/// Numbers of named and unnamed frames. Each distinct frame is counted once, even if it is at several nodes of the
/// tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbolization {
    pub(crate) frames: usize,
    pub(crate) named: usize,
    /// Unnamed frames by reason, text, binary and build ID, in this order. Each combination occurs once.
    pub(crate) unnamed: Vec<UnnamedShare>,
}

/// Frames of one binary that have no names for one reason.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnnamedShare {
    pub(crate) why: Unnamed,
    /// Number of distinct frames.
    pub(crate) frames: usize,
    /// Weight of the stacks that contain at least one of these frames. Each stack is counted once.
    pub(crate) value: i128,
}

/// Sets of reasons why frames have no names. Each set holds the reasons that occur on some path from the root. It has a
/// number, and consists of an earlier set and one more reason.
///
/// The paths of one program have few reasons, so a search in a set is fast.
struct ReasonSets {
    /// For each set, the number of the earlier set that it extends, and the added reason.
    sets: Vec<(u32, u32)>,
    known: HashMap<(u32, u32), u32, RandomState>,
}

/// Number of the empty set.
const NO_REASONS: u32 = 0;

/// Number that a node without stacks has instead of the number of a set of reasons.
const NO_STACK: u32 = u32::MAX;

impl ReasonSets {
    fn new() -> Self {
        Self { sets: vec![(NO_REASONS, u32::MAX)], known: HashMap::default() }
    }

    fn has(&self, mut set: u32, why: u32) -> bool {
        while set != NO_REASONS {
            let (rest, one) = self.sets[set as usize];
            if one == why {
                return true;
            }
            set = rest;
        }
        false
    }

    fn with(&mut self, set: u32, why: u32) -> u32 {
        *self.known.entry((set, why)).or_insert_with(|| {
            self.sets.push((set, why));
            // The number fits in u32, because there are fewer sets than nodes.
            u32::try_from(self.sets.len() - 1).unwrap_or(NO_REASONS)
        })
    }
}

impl Symbolization {
    /// Counts the frames of a tree that is not pruned yet. The keys of the tree are frames.
    pub(crate) fn of(tree: &StackTree, frames: Frames<'_>) -> Self {
        let table = frames.table;
        let mut seen = vec![false; table.len()];
        let mut shares: Vec<(usize, i128)> = vec![(0, 0); table.unnamed.len()];
        let mut sets = ReasonSets::new();
        let mut set_of: Vec<u32> = Vec::with_capacity(tree.nodes().len());
        set_of.push(NO_REASONS);
        let mut out = Self::default();
        // Parents precede their children.
        for (i, node) in (1..).zip(tree.nodes().iter().skip(1)) {
            let above = set_of[node.parent as usize];
            let total = tree.total(i);
            if above == NO_STACK || !tree.weighs(i) {
                set_of.push(NO_STACK);
                continue;
            }
            let unnamed = frames.unnamed(node.key);
            let is_new = usize::from(!std::mem::replace(&mut seen[node.key as usize], true));
            out.frames += is_new;
            let Some(why) = unnamed.filter(|&why| !table.unnamed[why as usize].has_name()) else {
                out.named += is_new;
                set_of.push(above);
                continue;
            };
            let (frames, value) = &mut shares[why as usize];
            *frames += is_new;
            if sets.has(above, why) {
                set_of.push(above);
            } else {
                *value += total;
                set_of.push(sets.with(above, why));
            }
        }
        let shares = table.unnamed.iter().zip(shares).filter(|(_, (frames, _))| *frames > 0);
        let share = |(why, (frames, value)): (&Unnamed, _)| UnnamedShare { why: why.clone(), frames, value };
        out.unnamed = shares.map(share).collect();
        out.unnamed.sort_unstable();
        out
    }

    /// Returns the index of a reason in `unnamed`.
    pub(crate) fn index_of(&self, why: &Unnamed) -> Option<usize> {
        self.unnamed.binary_search_by(|share| share.why.cmp(why)).ok()
    }
}
