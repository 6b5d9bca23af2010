//! The tree of stacks of one answer: user frames from the root on, kernel frames below the user part's leaf.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::selection::Node;
use proto::{Dictionary, Importer, StackDetail};

/// See the module. Its dictionary holds the locations of the tree and nothing else.
pub(crate) struct StackTree {
    detail: StackDetail,
    dictionary: Dictionary,
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32, FixedState>,
}

/// From the ids of one partition to nodes of the tree, each worked out once.
pub(crate) struct PartitionNames<'a> {
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

    /// For the ids of this partition's dictionary.
    pub(crate) fn names_of<'a>(&self, from: &'a Dictionary) -> PartitionNames<'a> {
        PartitionNames { from, importer: Importer::new(from), users: HashMap::default() }
    }

    fn child(&mut self, parent: u32, location: u32) -> u32 {
        *self.children.entry((parent, location)).or_insert_with(|| {
            self.nodes.push(Node { parent, location });
            u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
        })
    }

    pub(crate) fn into_parts(self) -> (Vec<Node>, Dictionary) {
        (self.nodes, self.dictionary)
    }
}

impl PartitionNames<'_> {
    /// The node at which a pair's stack ends.
    pub(crate) fn node(&mut self, tree: &mut StackTree, pair: u32) -> u32 {
        let pair = self.from.pairs[pair as usize];
        match tree.detail {
            StackDetail::None => ROOT,
            StackDetail::Leaf => {
                let leaf = self.from.stack(pair.kernel).first().or_else(|| self.from.stack(pair.user).first());
                leaf.map_or(ROOT, |&leaf| self.child(tree, ROOT, leaf))
            }
            StackDetail::Full => {
                let user = match self.users.get(&pair.user) {
                    Some(&node) => node,
                    None => {
                        let node = self.descend(tree, ROOT, pair.user);
                        self.users.insert(pair.user, node);
                        node
                    }
                };
                self.descend(tree, user, pair.kernel)
            }
        }
    }

    fn descend(&mut self, tree: &mut StackTree, from: u32, stack: u32) -> u32 {
        let locations = self.from.stack(stack);
        locations.iter().rev().fold(from, |node, &location| self.child(tree, node, location))
    }

    fn child(&mut self, tree: &mut StackTree, parent: u32, location: u32) -> u32 {
        let location = self.importer.location(&mut tree.dictionary, location);
        tree.child(parent, location)
    }
}
