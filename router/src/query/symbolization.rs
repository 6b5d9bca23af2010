//! How many of a flame graph's frames have names, and why the others have none.

use std::collections::BTreeMap;

use crate::query::frame::{FrameTable, Unnamed};
use crate::query::stack_tree::StackTree;

/// See the module. Frames are counted once, wherever they stand in the tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbolization {
    pub(crate) frames: usize,
    pub(crate) named: usize,
    /// In the order of reason, binary and build ID.
    pub(crate) unnamed: Vec<UnnamedShare>,
}

/// What has no names for one reason in one binary.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnnamedShare {
    pub(crate) why: Unnamed,
    /// Distinct frames.
    pub(crate) frames: usize,
    /// Weight of the stacks that pass through any of them, each stack counted once.
    pub(crate) value: i128,
}

/// What is still to be done on the way through the tree.
enum Visit {
    Enter(u32),
    Leave(u32),
}

impl Symbolization {
    /// Of a tree whose keys are frames, before it is pruned.
    pub(crate) fn of(tree: &StackTree, table: &FrameTable) -> Self {
        let children = tree.children();
        let mut seen = vec![false; table.frames.len()];
        let mut shares: BTreeMap<u32, (usize, i128)> = BTreeMap::new();
        // How many frames of each reason are above the place in the tree.
        let mut above = vec![0_usize; table.unnamed.len()];
        let mut visits: Vec<Visit> = children.of(0).iter().map(|&child| Visit::Enter(child)).collect();
        let mut out = Self::default();
        while let Some(visit) = visits.pop() {
            let node = match visit {
                Visit::Leave(why) => {
                    if let Some(above) = above.get_mut(why as usize) {
                        *above -= 1;
                    }
                    continue;
                }
                Visit::Enter(node) => node,
            };
            let Some(content) = tree.nodes.get(node as usize) else { continue };
            let Some(frame) = table.frames.get(content.key as usize) else { continue };
            let is_new = seen.get_mut(content.key as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            out.frames += usize::from(is_new);
            match frame.unnamed {
                None => out.named += usize::from(is_new),
                Some(why) => {
                    let (frames, value) = shares.entry(why).or_default();
                    *frames += usize::from(is_new);
                    if let Some(above) = above.get_mut(why as usize) {
                        *value += if *above == 0 { content.total } else { 0 };
                        *above += 1;
                    }
                    visits.push(Visit::Leave(why));
                }
            }
            visits.extend(children.of(node).iter().map(|&child| Visit::Enter(child)));
        }
        let share = |(why, (frames, value)): (u32, (usize, i128))| {
            let why = table.unnamed.get(why as usize)?.clone();
            Some(UnnamedShare { why, frames, value })
        };
        out.unnamed = shares.into_iter().filter_map(share).collect();
        out.unnamed.sort_unstable();
        out
    }
}
