//! All stacks of a flame graph as one tree, root first.
//!
//! Invariant: every node's parent stands before it, and `total` is `own` plus the totals of the children.

use std::collections::HashMap;

use proto::Answer;

use crate::query::error::QueryError;
use crate::query::limits::TREE_NODES_MAX;
use crate::query::run::Cancelled;

/// Nodes between two looks at whether anybody still waits.
const NODES_BETWEEN_CHECKS: usize = 1 << 16;

/// See the module. Node 0 is the root; it has no key.
#[derive(Debug)]
pub(crate) struct StackTree {
    pub(crate) nodes: Vec<TreeNode>,
}

/// A node: a frame, or whatever the keys stand for, below its parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeNode {
    /// The root's is 0.
    pub(crate) parent: u32,
    pub(crate) key: u32,
    /// Of the stacks that end here.
    pub(crate) own: i128,
    /// Of the stacks that pass here or end here.
    pub(crate) total: i128,
}

/// The keys of each location of one answer, outermost first.
#[derive(Debug, Default)]
pub(crate) struct LocationKeys {
    /// Location i has the keys from `ends[i - 1]` (or 0) to `ends[i]`.
    ends: Vec<usize>,
    keys: Vec<u32>,
}

impl LocationKeys {
    /// Adds the next location.
    pub(crate) fn push(&mut self, outermost_first: impl Iterator<Item = u32>) {
        self.keys.extend(outermost_first);
        self.ends.push(self.keys.len());
    }

    fn of(&self, location: u32) -> &[u32] {
        let i = location as usize;
        let start = i.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(i).and_then(|&end| self.keys.get(start..end)).unwrap_or_default()
    }
}

/// A tree that answers are added to.
#[derive(Debug)]
pub(crate) struct StackTreeBuilder {
    nodes: Vec<TreeNode>,
    /// (parent, key) to child.
    children: HashMap<(u32, u32), u32>,
}

impl StackTreeBuilder {
    pub(crate) fn new() -> Self {
        let root = TreeNode { parent: 0, key: 0, own: 0, total: 0 };
        Self { nodes: vec![root], children: HashMap::new() }
    }

    /// Adds the stacks of an answer whose nodes pass.
    ///
    /// # Errors
    /// [`QueryError::TooLarge`] beyond [`TREE_NODES_MAX`] nodes.
    pub(crate) fn add(
        &mut self,
        answer: &Answer,
        keys: &LocationKeys,
        passes: &[bool],
        cancelled: &Cancelled,
    ) -> Result<(), QueryError> {
        let mut places: Vec<u32> = Vec::with_capacity(answer.nodes.len());
        for (i, node) in answer.nodes.iter().enumerate() {
            if i % NODES_BETWEEN_CHECKS == 0 {
                cancelled.check()?;
            }
            let above = places.get(node.parent as usize).copied().unwrap_or(0);
            let keys = if i == 0 { &[] } else { keys.of(node.location) };
            places.push(keys.iter().try_fold(above, |parent, &key| self.child(parent, key))?);
        }
        for cell in &answer.cells {
            let node = cell.node as usize;
            if passes.get(node).copied().unwrap_or(false)
                && let Some(place) = places.get(node).and_then(|&place| self.nodes.get_mut(place as usize))
            {
                place.own += cell.sum;
            }
        }
        Ok(())
    }

    fn child(&mut self, parent: u32, key: u32) -> Result<u32, QueryError> {
        if let Some(&child) = self.children.get(&(parent, key)) {
            return Ok(child);
        }
        if self.nodes.len() >= TREE_NODES_MAX {
            return Err(QueryError::TooLarge { what: "nodes", max: TREE_NODES_MAX });
        }
        let child = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(TreeNode { parent, key, own: 0, total: 0 });
        self.children.insert((parent, key), child);
        Ok(child)
    }

    /// The tree, totals worked out.
    pub(crate) fn finish(self) -> StackTree {
        let mut nodes = self.nodes;
        for i in (0..nodes.len()).rev() {
            let Some(node) = nodes.get_mut(i) else { continue };
            node.total += node.own;
            let (parent, total) = (node.parent as usize, node.total);
            if i > 0
                && let Some(parent) = nodes.get_mut(parent)
            {
                parent.total += total;
            }
        }
        StackTree { nodes }
    }
}

/// The children of every node, those that weigh nothing left out.
#[derive(Debug)]
pub(crate) struct Children {
    /// Node i has the children from `starts[i]` to `starts[i + 1]`.
    starts: Vec<usize>,
    children: Vec<u32>,
}

impl Children {
    pub(crate) fn of(&self, node: u32) -> &[u32] {
        let i = node as usize;
        let range = self.starts.get(i).zip(self.starts.get(i + 1));
        range.and_then(|(&start, &end)| self.children.get(start..end)).unwrap_or_default()
    }

    /// How many there are in all.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }
}

impl StackTree {
    /// The children of every node.
    pub(crate) fn children(&self) -> Children {
        let weighing = || self.nodes.iter().enumerate().skip(1).filter(|(_, node)| node.total != 0);
        let mut starts = vec![0; self.nodes.len() + 1];
        for (_, node) in weighing() {
            if let Some(count) = starts.get_mut(node.parent as usize + 1) {
                *count += 1;
            }
        }
        let mut before = 0;
        for start in &mut starts {
            before += *start;
            *start = before;
        }
        let mut next = starts.clone();
        let mut children = vec![0; before];
        for (i, node) in weighing() {
            if let Some(next) = next.get_mut(node.parent as usize)
                && let Some(place) = children.get_mut(*next)
            {
                *place = u32::try_from(i).unwrap_or(u32::MAX);
                *next += 1;
            }
        }
        Children { starts, children }
    }
}
