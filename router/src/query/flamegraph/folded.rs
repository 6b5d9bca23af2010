//! Writer of folded stacks, which are lines `root;...;leaf value` for flame graph tools.
//!
//! Frames with the same name are merged, so that every line is unique. The line of stacks without frames is `[no
//! stack]`.

use std::cmp::Ordering;

use proto::dictionary::Strings;
use proto::folded::written;

use crate::query::error::QueryError;
use crate::query::flamegraph::prune::{NodeKind, PrunedTree};
use crate::query::flamegraph::stack_tree::LocationKeys;
use crate::query::naming::frame::{FrameTable, NamedLocations};

/// Largest size of the text, in bytes. For comparison: 40,000 stacks of 100 frames with long names are 200 MB.
const BYTES_MAX: usize = 1 << 30;

/// Text in place of the frames, for stacks without frames.
const NO_STACK: &str = "[no stack]";

/// Names of the frames, in the form in which they are written.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: Strings,
    /// Index of the name of each frame; `None` if the name is not computed yet.
    of_frame: Vec<Option<u32>>,
}

impl Names {
    /// Returns the names of each location's frames as keys of the tree, outermost first.
    pub(crate) fn keys(&mut self, named: &NamedLocations, table: &FrameTable) -> LocationKeys {
        self.of_frame.resize(table.len(), None);
        let mut keys = LocationKeys::default();
        for location in 0..named.len() {
            keys.push(named.lines(location).iter().rev().map(|line| self.of_frame(line.frame, table)));
        }
        keys
    }

    fn of_frame(&mut self, frame: u32, table: &FrameTable) -> u32 {
        let known = self.of_frame.get(frame as usize).copied().flatten();
        known.unwrap_or_else(|| {
            let name = table.key(frame).map_or("", |key| table.text(key.name));
            let name = self.names.intern(&written(name));
            if let Some(slot) = self.of_frame.get_mut(frame as usize) {
                *slot = Some(name);
            }
            name
        })
    }

    /// Compares two names alphabetically.
    pub(crate) fn order(&self, a: u32, b: u32) -> Ordering {
        self.names.get(a).cmp(self.names.get(b))
    }
}

/// Writes a tree whose keys are names.
///
/// # Errors
/// Returns [`QueryError::TooLarge`] if the text is larger than [`BYTES_MAX`].
pub(crate) fn write(tree: &PrunedTree, names: &Names) -> Result<Vec<u8>, QueryError> {
    let mut out = Vec::new();
    // `line` is the text of the path to the current node. `path` holds, for each node on it, the node's index and the
    // length of `line` up to that node.
    let mut line = String::new();
    let mut path: Vec<(u32, usize)> = Vec::new();
    for (i, node) in (0..).zip(&tree.nodes) {
        while path.last().is_some_and(|&(above, _)| i > 0 && above != node.parent) {
            path.pop();
        }
        line.truncate(path.last().map_or(0, |&(_, length)| length));
        let name = match node.kind {
            NodeKind::Root => NO_STACK,
            NodeKind::Key(name) => names.names.get(name),
            NodeKind::Other => "(other)",
        };
        if !line.is_empty() {
            line.push(';');
        }
        let start = line.len();
        line.push_str(name);
        if node.has_own {
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(format!(" {}\n", node.own).as_bytes());
        }
        if out.len() > BYTES_MAX {
            return Err(QueryError::TooLarge {
                what: "bytes of folded stacks (max_nodes bounds them)",
                max: BYTES_MAX,
            });
        }
        // Lines do not contain the root, so its name is removed again.
        if node.kind == NodeKind::Root {
            line.truncate(start);
        }
        path.push((i, line.len()));
    }
    Ok(out)
}
