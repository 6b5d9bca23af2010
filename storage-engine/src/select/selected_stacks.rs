//! Stack tree of one response: user frames from the root on, and kernel frames below the leaf of the user part.
//!
//! Locations that the router knows keep their numbers in the tenant dictionary. Other locations are copied, and get the
//! numbers after the known ones. If the tenant dictionary is rebuilt, none of its locations count as known. A node may
//! then occur twice: with the known number of its location, and with that of the copy. The router merges both, as it
//! merges all nodes that have the same names.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::answer::Node;
use proto::{Copied, Dictionary, Importer, KnownLocations, StackDetail, limits};

use crate::error::SelectError;
use crate::memory::tenant_dictionary::{self, Pair, TenantDictionary};

/// Stack tree of one response. Its dictionary holds exactly those locations of the tree that the router does not know.
pub(crate) struct SelectedStacks {
    detail: StackDetail,
    known: KnownLocations,
    dictionary: Dictionary,
    nodes: Vec<Node>,
    /// Child node by parent and location. Contains only nodes of kernel parts and of single leaves, until the tenant
    /// dictionary is rebuilt. From then on, it contains all nodes.
    children: HashMap<(u32, u32), u32, FixedState>,
    has_all_children: bool,
    /// Node of each user part in this tree, by node of the tenant dictionary; 0 if the part is not in this tree yet.
    users: Vec<u32>,
    /// One bit for each node of the tenant dictionary. It is set if the node must be added to this tree. All bits are 0
    /// while [`Naming::name`] is not running.
    marked: Vec<u64>,
    copied: Copied,
    /// Generation of the tenant dictionary that was used last; `None` if none was used yet.
    generation: Option<u64>,
}

/// [`SelectedStacks`] together with the tenant dictionary that its stacks come from.
pub(crate) struct Naming<'a> {
    from: &'a TenantDictionary,
    /// Importer that copies unknown locations; `None` until the first unknown location.
    importer: Option<Importer<'a>>,
    /// Number of locations that the router knows. These are the locations 0 to `known - 1`.
    known: u32,
    tree: &'a mut SelectedStacks,
    path: Vec<u32>,
}

const ROOT: u32 = 0;

impl SelectedStacks {
    pub(crate) fn new(detail: StackDetail, known: KnownLocations) -> Self {
        Self {
            detail,
            known,
            dictionary: Dictionary::default(),
            nodes: vec![Node { parent: ROOT, location: 0 }],
            children: HashMap::default(),
            has_all_children: false,
            users: Vec::new(),
            marked: Vec::new(),
            copied: Copied::default(),
            generation: None,
        }
    }

    /// Continues with the tenant dictionary, which may have grown or have been rebuilt since the last call.
    pub(crate) fn resume<'a>(&'a mut self, from: &'a TenantDictionary) -> Naming<'a> {
        if self.generation.is_some_and(|generation| generation != from.generation()) {
            self.forget_dictionary();
        }
        self.generation = Some(from.generation());
        grow(&mut self.users, from.nodes());
        grow(&mut self.marked, from.nodes().div_ceil(64));
        let known = if self.known.generation == from.generation() { self.known.count } else { 0 };
        Naming { from, importer: None, known, tree: self, path: Vec::new() }
    }

    /// Forgets the tenant dictionary's node numbers. From then on, nodes are found by parent and location.
    fn forget_dictionary(&mut self) {
        self.users.clear();
        self.copied = Copied::default();
        if !self.has_all_children {
            for (node, number) in self.nodes.iter().zip(0..).skip(1) {
                self.children.entry((node.parent, node.location)).or_insert(number);
            }
            self.has_all_children = true;
        }
    }

    #[inline]
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

    /// Returns the number of nodes, including the root.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn into_parts(self) -> (Vec<Node>, Dictionary) {
        (self.nodes, self.dictionary)
    }
}

impl Naming<'_> {
    pub(crate) fn stop(self) {
        if let Some(importer) = self.importer {
            self.tree.copied = importer.stop();
        }
    }

    /// Appends to `nodes` the nodes at which the stacks of the pairs end. Adds missing nodes to the tree.
    pub(crate) fn name(&mut self, pairs: &[Pair], nodes: &mut Vec<u32>) -> Result<(), SelectError> {
        match self.tree.detail {
            StackDetail::None => nodes.resize(nodes.len() + pairs.len(), ROOT),
            StackDetail::Leaf => {
                for pair in pairs {
                    nodes.push(self.leaf(*pair)?);
                }
            }
            StackDetail::Full => {
                self.add_users(pairs)?;
                for pair in pairs {
                    let user = self.tree.users[pair.user as usize];
                    nodes.push(self.kernel(user, pair.kernel)?);
                }
            }
        }
        Ok(())
    }

    /// Returns the number that a location of the tenant dictionary has in the response.
    #[inline]
    fn location(&mut self, location: u32) -> u32 {
        if location < self.known {
            return location;
        }
        let Self { from, importer, tree, .. } = self;
        let resume = || Importer::resume(&from.dictionary, std::mem::take(&mut tree.copied));
        let importer = importer.get_or_insert_with(resume);
        tree.known.count + importer.location(&mut tree.dictionary, location)
    }

    fn leaf(&mut self, pair: Pair) -> Result<u32, SelectError> {
        let leaf = if pair.kernel == tenant_dictionary::ROOT { pair.user } else { pair.kernel };
        if leaf == tenant_dictionary::ROOT {
            return Ok(ROOT);
        }
        let location = self.location(self.from.node(leaf).location);
        self.tree.child(ROOT, location)
    }

    /// Adds the missing user parts. Callers have smaller numbers than their callees in the tenant dictionary. So one
    /// pass by falling numbers marks all needed nodes, and one pass by rising numbers adds them. Both passes access
    /// memory in order, unlike a walk up each stack.
    fn add_users(&mut self, pairs: &[Pair]) -> Result<(), SelectError> {
        let mut low = usize::MAX;
        let mut high = 0;
        for pair in pairs.iter().filter(|pair| pair.user != tenant_dictionary::ROOT) {
            low = low.min(self.mark(pair.user));
            high = high.max(pair.user as usize / 64);
        }
        let mut word = high;
        let mut count = 0;
        while word >= low {
            let mut marked = self.tree.marked[word];
            let mut below = u64::MAX;
            while let Some(bit) = (marked & below).checked_ilog2() {
                below = (1 << bit) - 1;
                let parent = self.from.node(number(word, bit)).parent;
                if parent == tenant_dictionary::ROOT {
                    continue;
                }
                // Most callers are in the same word of marks as the callee, at a lower bit.
                if parent as usize / 64 == word {
                    marked |= u64::from(self.tree.users[parent as usize] == ROOT) << (parent % 64);
                } else {
                    low = low.min(self.mark(parent));
                }
            }
            self.tree.marked[word] = marked;
            count += marked.count_ones() as usize;
            let Some(next) = word.checked_sub(1) else { break };
            word = next;
        }
        let left = limits::QUERY_NODES_MAX.saturating_sub(self.tree.nodes.len());
        self.tree.nodes.reserve(count.min(left));
        for word in low..=high {
            let mut bits = std::mem::take(&mut self.tree.marked[word]);
            while bits != 0 {
                let number = number(word, bits.trailing_zeros());
                bits &= bits - 1;
                let node = self.from.node(number);
                let parent = self.tree.users[node.parent as usize];
                let location = self.location(node.location);
                self.tree.users[number as usize] = if self.tree.has_all_children {
                    self.tree.child(parent, location)?
                } else {
                    self.tree.add(parent, location)?
                };
            }
        }
        Ok(())
    }

    /// Marks a node that is not in this tree yet. Returns the index of its word; `usize::MAX` if the node is in the
    /// tree.
    fn mark(&mut self, node: u32) -> usize {
        if self.tree.users[node as usize] != ROOT {
            return usize::MAX;
        }
        let word = node as usize / 64;
        self.tree.marked[word] |= 1 << (node % 64);
        word
    }

    fn kernel(&mut self, below: u32, end: u32) -> Result<u32, SelectError> {
        let mut node = end;
        while node != tenant_dictionary::ROOT {
            self.path.push(node);
            node = self.from.node(node).parent;
        }
        let mut parent = below;
        while let Some(node) = self.path.pop() {
            let location = self.location(self.from.node(node).location);
            parent = self.tree.child(parent, location)?;
        }
        Ok(parent)
    }
}

/// Extends a list to `length` with default values. The first allocation uses zeroed pages. Most of these are never
/// touched, because one service has few of a tenant dictionary's stacks.
fn grow<T: Copy + Default>(list: &mut Vec<T>, length: usize) {
    if list.is_empty() {
        *list = vec![T::default(); length];
    } else {
        list.resize(length, T::default());
    }
}

/// Returns the node that a bit of a word stands for.
fn number(word: usize, bit: u32) -> u32 {
    u32::try_from(word * 64).unwrap_or(u32::MAX) + bit
}

#[cfg(test)]
mod tests {
    use proto::dictionary::stack_hash;
    use proto::{Function, Line, Location};

    use super::*;

    /// Returns a tenant dictionary with stacks of functions, leaf first, and the nodes at which these stacks end.
    fn tenant_dictionary(generation: u64, stacks: &[&[&str]]) -> (TenantDictionary, Vec<u32>) {
        let mut shared = TenantDictionary::new(generation);
        let mut ends = Vec::new();
        for stack in stacks {
            let dictionary = &mut shared.dictionary;
            let mut location = |name: &&str| {
                let name = dictionary.strings.intern(name);
                let function = dictionary.intern_function(Function { name, ..Function::default() });
                let lines = [Line { function, line: 1, column: 0 }].into();
                dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
            };
            let locations: Vec<u32> = stack.iter().map(&mut location).collect();
            let hashes: Vec<u128> = locations.iter().map(|&id| shared.dictionary.location_hash(id)).collect();
            ends.push(shared.add_stack(stack_hash(&hashes), &locations));
        }
        (shared, ends)
    }

    fn name(tree: &mut SelectedStacks, (shared, ends): &(TenantDictionary, Vec<u32>)) -> Vec<u32> {
        // Each stack alone, and with the next one as its kernel part.
        let alone = ends.iter().map(|&user| Pair { user, kernel: tenant_dictionary::ROOT });
        let below = ends.windows(2).map(|ends| Pair { user: ends[0], kernel: ends[1] });
        let mut naming = tree.resume(shared);
        let mut nodes = Vec::new();
        naming.name(&alone.chain(below).collect::<Vec<_>>(), &mut nodes).unwrap();
        naming.stop();
        nodes
    }

    fn path(tree: &SelectedStacks, mut node: u32) -> Vec<String> {
        let mut path = Vec::new();
        while node != ROOT {
            let Node { parent, location } = tree.nodes[node as usize];
            assert!(parent < node, "parents precede children");
            let Location::Lines { lines, .. } = &tree.dictionary.locations[location as usize] else { panic!("lines") };
            let function = tree.dictionary.functions[lines[0].function as usize];
            path.push(tree.dictionary.strings.get(function.name).to_owned());
            node = parent;
        }
        path
    }

    #[test]
    fn stacks_keep_their_nodes_when_the_tenant_dictionary_is_rebuilt() {
        let stacks: &[&[&str]] = &[&["c", "b", "a"], &["b", "a"], &["d", "b", "a"], &["x"], &["c", "a"]];
        let mut tree = SelectedStacks::new(StackDetail::Full, KnownLocations::default());
        let first = tenant_dictionary(1, stacks);
        let named = name(&mut tree, &first);
        for (node, stack) in named.iter().zip(stacks) {
            assert_eq!(path(&tree, *node), *stack);
        }
        assert_eq!(path(&tree, named[5]), ["b", "a", "c", "b", "a"]);
        assert_eq!(name(&mut tree, &first), named, "nothing is new");
        let count = tree.nodes.len();
        let reversed: Vec<&[&str]> = stacks.iter().rev().copied().collect();
        let again = name(&mut tree, &tenant_dictionary(2, &reversed));
        let same: Vec<u32> = again[..5].iter().rev().copied().collect();
        assert_eq!(same, named[..5], "nodes are found by parent and location");
        let more = again[5..].iter().filter(|node| **node as usize >= count).count();
        assert_eq!(more, 4, "only pairs that are new have new nodes");
    }

    #[test]
    fn stacks_deeper_than_a_word_of_marks_are_added_callers_first() {
        let names: Vec<String> = (0..300).map(|i| format!("f{i}")).collect();
        let deep: Vec<&str> = names.iter().map(String::as_str).collect();
        let stacks: Vec<&[&str]> = (0..300).map(|from| &deep[from..]).collect();
        let mut tree = SelectedStacks::new(StackDetail::Full, KnownLocations::default());
        let named = name(&mut tree, &tenant_dictionary(1, &stacks[..1]));
        assert_eq!((path(&tree, named[0]).as_slice(), tree.nodes.len()), (names.as_slice(), 301));
    }
}
