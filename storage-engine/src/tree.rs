//! The tree of stacks of one answer: user frames from the root on, kernel frames below the user part's leaf.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::selection::Node;
use proto::{Copied, Dictionary, Importer, StackDetail, limits};

use crate::error::SelectError;
use crate::partition::Pair;
use crate::vocabulary::{self, Vocabulary};

/// See the module. Its dictionary holds the locations of the tree and nothing else.
pub(crate) struct StackTree {
    detail: StackDetail,
    dictionary: Dictionary,
    nodes: Vec<Node>,
    /// Of kernel parts and of leaves alone, by parent and location; of all, once the vocabulary was another.
    children: HashMap<(u32, u32), u32, FixedState>,
    has_all_children: bool,
    /// By node of the vocabulary, the node of its user part here; 0: none yet.
    users: Vec<u32>,
    copied: Copied,
    /// Of the vocabulary.
    generation: u64,
}

/// [`StackTree`] while the vocabulary is at hand.
pub(crate) struct Naming<'a> {
    from: &'a Vocabulary,
    importer: Importer<'a>,
    tree: &'a mut StackTree,
    path: Vec<u32>,
}

const ROOT: u32 = 0;

impl StackTree {
    pub(crate) fn new(detail: StackDetail) -> Self {
        Self {
            detail,
            dictionary: Dictionary::default(),
            nodes: vec![Node { parent: ROOT, location: 0 }],
            children: HashMap::default(),
            has_all_children: false,
            users: Vec::new(),
            copied: Copied::default(),
            generation: 0,
        }
    }

    /// Goes on with the vocabulary, which may have grown, or may have been renewed since.
    pub(crate) fn resume<'a>(&'a mut self, from: &'a Vocabulary) -> Naming<'a> {
        if self.generation != from.generation() && self.generation != 0 {
            self.forget_vocabulary();
        }
        self.generation = from.generation();
        self.users.resize(from.nodes(), 0);
        let importer = Importer::resume(&from.dictionary, std::mem::take(&mut self.copied));
        Naming { from, importer, tree: self, path: Vec::new() }
    }

    /// From now on nodes are found by what they are.
    fn forget_vocabulary(&mut self) {
        self.users.clear();
        self.copied = Copied::default();
        if !self.has_all_children {
            for (node, number) in self.nodes.iter().zip(0..).skip(1) {
                self.children.entry((node.parent, node.location)).or_insert(number);
            }
            self.has_all_children = true;
        }
    }

    fn add(&mut self, parent: u32, location: u32) -> Result<u32, SelectError> {
        let nodes_max = limits::QUERY_NODES_MAX;
        if self.nodes.len() >= nodes_max {
            return Err(SelectError::TooManyNodes { nodes_max });
        }
        self.nodes.push(Node { parent, location });
        Ok(u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX))
    }

    fn child(&mut self, parent: u32, location: u32) -> Result<u32, SelectError> {
        if let Some(&node) = self.children.get(&(parent, location)) {
            return Ok(node);
        }
        let node = self.add(parent, location)?;
        self.children.insert((parent, location), node);
        Ok(node)
    }

    pub(crate) fn into_parts(self) -> (Vec<Node>, Dictionary) {
        (self.nodes, self.dictionary)
    }
}

impl Naming<'_> {
    pub(crate) fn stop(self) {
        self.tree.copied = self.importer.stop();
    }

    /// The node at which a pair's stack ends.
    pub(crate) fn node(&mut self, pair: Pair) -> Result<u32, SelectError> {
        match self.tree.detail {
            StackDetail::None => Ok(ROOT),
            StackDetail::Leaf => {
                let leaf = if pair.kernel == vocabulary::ROOT { pair.user } else { pair.kernel };
                if leaf == vocabulary::ROOT {
                    return Ok(ROOT);
                }
                let location = self.location(leaf);
                self.tree.child(ROOT, location)
            }
            StackDetail::Full => {
                let user = self.user(pair.user)?;
                self.kernel(user, pair.kernel)
            }
        }
    }

    fn location(&mut self, node: u32) -> u32 {
        self.importer.location(&mut self.tree.dictionary, self.from.node(node).location)
    }

    fn user(&mut self, end: u32) -> Result<u32, SelectError> {
        let mut node = end;
        while node != vocabulary::ROOT && self.tree.users[node as usize] == ROOT {
            self.path.push(node);
            node = self.from.node(node).parent;
        }
        let mut parent = if node == vocabulary::ROOT { ROOT } else { self.tree.users[node as usize] };
        while let Some(node) = self.path.pop() {
            let location = self.location(node);
            parent = if self.tree.has_all_children {
                self.tree.child(parent, location)?
            } else {
                self.tree.add(parent, location)?
            };
            self.tree.users[node as usize] = parent;
        }
        Ok(parent)
    }

    fn kernel(&mut self, below: u32, end: u32) -> Result<u32, SelectError> {
        let mut node = end;
        while node != vocabulary::ROOT {
            self.path.push(node);
            node = self.from.node(node).parent;
        }
        let mut parent = below;
        while let Some(node) = self.path.pop() {
            let location = self.location(node);
            parent = self.tree.child(parent, location)?;
        }
        Ok(parent)
    }
}
