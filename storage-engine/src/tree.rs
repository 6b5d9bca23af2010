//! The tree of stacks of one answer: user frames from the root on, kernel frames below the user part's leaf.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::selection::Node;
use proto::{Copied, Dictionary, Importer, StackDetail, limits};

use crate::error::SelectError;

/// See the module. Its dictionary holds the locations of the tree and nothing else.
pub(crate) struct StackTree {
    detail: StackDetail,
    dictionary: Dictionary,
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32, FixedState>,
}

/// From the ids of one partition to nodes of the tree, each worked out once.
#[derive(Default)]
pub(crate) struct PartitionNames {
    copied: Copied,
    users: HashMap<u32, u32, FixedState>,
}

/// [`PartitionNames`] while the partition's dictionary is at hand.
pub(crate) struct Naming<'a> {
    from: &'a Dictionary,
    importer: Importer<'a>,
    users: HashMap<u32, u32, FixedState>,
}

const ROOT: u32 = 0;

impl StackTree {
    pub(crate) fn new(detail: StackDetail) -> Self {
        Self {
            detail,
            dictionary: Dictionary::default(),
            nodes: vec![Node { parent: ROOT, location: 0 }],
            children: HashMap::default(),
        }
    }

    fn child(&mut self, parent: u32, location: u32) -> Result<u32, SelectError> {
        if let Some(&node) = self.children.get(&(parent, location)) {
            return Ok(node);
        }
        let nodes_max = limits::QUERY_NODES_MAX;
        let node = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        if self.nodes.len() >= nodes_max {
            return Err(SelectError::TooManyNodes { nodes_max });
        }
        self.nodes.push(Node { parent, location });
        self.children.insert((parent, location), node);
        Ok(node)
    }

    pub(crate) fn into_parts(self) -> (Vec<Node>, Dictionary) {
        (self.nodes, self.dictionary)
    }
}

impl PartitionNames {
    /// Goes on with the partition's dictionary, which may have grown.
    pub(crate) fn resume(self, from: &Dictionary) -> Naming<'_> {
        Naming { from, importer: Importer::resume(from, self.copied), users: self.users }
    }
}

impl Naming<'_> {
    pub(crate) fn stop(self) -> PartitionNames {
        PartitionNames { copied: self.importer.stop(), users: self.users }
    }

    /// The node at which a pair's stack ends.
    pub(crate) fn node(&mut self, tree: &mut StackTree, pair: u32) -> Result<u32, SelectError> {
        let pair = self.from.pairs[pair as usize];
        match tree.detail {
            StackDetail::None => Ok(ROOT),
            StackDetail::Leaf => {
                let leaf = self.from.stack(pair.kernel).first().or_else(|| self.from.stack(pair.user).first());
                leaf.map_or(Ok(ROOT), |&leaf| self.child(tree, ROOT, leaf))
            }
            StackDetail::Full => {
                let user = match self.users.get(&pair.user) {
                    Some(&node) => node,
                    None => {
                        let node = self.descend(tree, ROOT, pair.user)?;
                        self.users.insert(pair.user, node);
                        node
                    }
                };
                self.descend(tree, user, pair.kernel)
            }
        }
    }

    fn descend(&mut self, tree: &mut StackTree, from: u32, stack: u32) -> Result<u32, SelectError> {
        let locations = self.from.stack(stack);
        locations.iter().rev().try_fold(from, |node, &location| self.child(tree, node, location))
    }

    fn child(&mut self, tree: &mut StackTree, parent: u32, location: u32) -> Result<u32, SelectError> {
        let location = self.importer.location(&mut tree.dictionary, location);
        tree.child(parent, location)
    }
}
