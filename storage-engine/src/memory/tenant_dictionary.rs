//! What all partitions of a tenant that are in memory refer to, each thing once: names, locations, attributes, label sets, and
//! stacks as a tree.
//!
//! A partition's dictionary on disk is its own, so that it can be dropped; in memory most of them say the same, so they are
//! numbers of this. Node 0 of the tree is the root; a stacktrace is the node at which it ends, its frames are on the way up.
//! Parents stand before their children. The vocabulary only grows; when partitions were let go, it is made anew.

use std::hash::BuildHasher as _;
use std::ops::DerefMut;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet, HashTable};
use proto::{Dictionary, Importer, LabelSet, StackHash};
use roaring::RoaringBitmap;

use crate::memory::footprint::{Footprint, MemoryTotal};
use crate::memory::partition::Partition;

/// Making a vocabulary anew that takes less saves nothing.
const SMALL_BYTES: usize = 16 << 20;

/// The node of the empty stacktrace.
pub(crate) const ROOT: u32 = 0;

/// A frame under its caller's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    pub(crate) location: u32,
}

/// Where the stacktraces of a batch end, `None` where that is not known, in the vocabulary of a generation.
#[derive(Debug)]
pub(crate) struct BatchNodes {
    generation: u64,
    pub(crate) nodes: Vec<Option<u32>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct TenantDictionary {
    /// Its stacks and pairs are not used.
    pub(crate) dictionary: Dictionary,
    nodes: Vec<Node>,
    /// Nodes by parent and location.
    children: HashTable<u32>,
    stacks: HashMap<StackHash, u32, FixedState>,
    labels: HashSet<Arc<LabelSet>, FixedState>,
    label_bytes: usize,
    /// Which vocabulary this is: numbers mean something only in the same.
    generation: u64,
    hashes: FixedState,
    /// What it took when it held only what was needed.
    renewed_bytes: usize,
    footprint: Footprint,
}

impl TenantDictionary {
    pub(crate) fn new(generation: u64) -> Self {
        let mut stacks = HashMap::default();
        stacks.insert(StackHash::default(), ROOT);
        Self {
            dictionary: Dictionary::default(),
            nodes: vec![Node { parent: ROOT, location: 0 }],
            children: HashTable::new(),
            stacks,
            labels: HashSet::default(),
            label_bytes: 0,
            generation,
            hashes: FixedState::default(),
            renewed_bytes: 0,
            footprint: Footprint::default(),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    #[inline]
    pub(crate) fn node(&self, node: u32) -> Node {
        self.nodes[node as usize]
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The node at which a stacktrace ends, if any partition in memory has it.
    pub(crate) fn find_stack(&self, hash: StackHash) -> Option<u32> {
        self.stacks.get(&hash).copied()
    }

    /// All stacktraces, and the nodes at which they end.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (StackHash, u32)> + '_ {
        self.stacks.iter().map(|(&hash, &node)| (hash, node))
    }

    /// The nodes at which the stacktraces of a batch end, by id.
    pub(crate) fn nodes_of(&self, dictionary: &Dictionary) -> BatchNodes {
        let nodes = dictionary.stacks.keys().map(|&hash| self.find_stack(hash)).collect();
        BatchNodes { generation: self.generation, nodes }
    }

    /// The same as of now; none if this vocabulary was made anew meanwhile.
    pub(crate) fn current(&self, of: &BatchNodes) -> Vec<Option<u32>> {
        if of.generation == self.generation { of.nodes.clone() } else { vec![None; of.nodes.len()] }
    }

    /// The node below another one, which is made if it is not there. `known`: how many nodes there were when the caller began to add
    /// a tree that has each node once: below one of its own nothing can be there, so it is not looked for, which takes longest.
    pub(crate) fn child(&mut self, parent: u32, location: u32, known: usize) -> u32 {
        let Self { nodes, children, hashes, .. } = self;
        let wanted = Node { parent, location };
        let hash = hashes.hash_one(wanted);
        let new = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let rehash = |&node: &u32| hashes.hash_one(nodes[node as usize]);
        let node = if (parent as usize) < known {
            *children.entry(hash, |&node| nodes[node as usize] == wanted, rehash).or_insert(new).get()
        } else {
            *children.insert_unique(hash, new, rehash).get()
        };
        if node == new {
            nodes.push(wanted);
        }
        node
    }

    /// The node of a stacktrace whose locations, leaf first, are numbers of this vocabulary.
    pub(crate) fn add_stack(&mut self, hash: StackHash, leaf_first: &[u32]) -> u32 {
        let known = self.nodes.len();
        let node = leaf_first.iter().rev().fold(ROOT, |node, &location| self.child(node, location, known));
        self.name_stack(hash, node);
        node
    }

    /// Notes that a stacktrace ends at a node; `false` if it ends at another one already.
    pub(crate) fn name_stack(&mut self, hash: StackHash, node: u32) -> bool {
        *self.stacks.entry(hash).or_insert(node) == node
    }

    /// The node of a batch's stacktrace; `None` if the batch leaves it out and it is not known here.
    pub(crate) fn import_stack(&mut self, importer: &mut Importer<'_>, from: &Dictionary, id: u32) -> Option<u32> {
        let hash = from.stacks.hash(id);
        if let Some(node) = self.find_stack(hash) {
            return Some(node);
        }
        let locations = from.stacks.get(id)?;
        let own: Vec<u32> =
            locations.iter().map(|&location| importer.location(&mut self.dictionary, location)).collect();
        Some(self.add_stack(hash, &own))
    }

    /// The locations of a stacktrace, leaf first.
    pub(crate) fn stack(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let up = |&node: &u32| Some(self.node(node).parent);
        std::iter::successors(Some(node), up).take_while(|&node| node != ROOT).map(|node| self.node(node).location)
    }

    /// The hash of a stacktrace, from those of its locations.
    #[cfg(test)]
    pub(crate) fn hash_of(&self, node: u32, location_hashes: &[u128]) -> StackHash {
        let hashes: Vec<u128> = self.stack(node).map(|location| location_hashes[location as usize]).collect();
        proto::dictionary::stack_hash(&hashes)
    }

    /// The label set, shared with all that are equal.
    pub(crate) fn share_labels(&mut self, labels: Arc<LabelSet>) -> Arc<LabelSet> {
        if let Some(known) = self.labels.get(&labels) {
            return Arc::clone(known);
        }
        self.label_bytes += 64 + labels.memory_bytes();
        self.labels.insert(Arc::clone(&labels));
        labels
    }

    /// Becomes another one, of what these partitions need and nothing else, to whose numbers theirs are changed.
    pub(crate) fn renew(&mut self, generation: u64, partitions: &mut [impl DerefMut<Target = Partition>]) {
        let mut new = Self::new(generation);
        let mut importer = Importer::new(&self.dictionary);
        let mut nodes: HashMap<u32, u32, FixedState> = HashMap::default();
        nodes.insert(ROOT, ROOT);
        let needed = partitions.iter().fold(RoaringBitmap::new(), |all, partition| all | partition.stacks());
        for (&hash, &node) in self.stacks.iter().filter(|(_, node)| needed.contains(**node)) {
            let locations: Vec<u32> =
                self.stack(node).map(|location| importer.location(&mut new.dictionary, location)).collect();
            nodes.insert(node, new.add_stack(hash, &locations));
        }
        for partition in partitions {
            let sets: Vec<u32> = partition
                .attribute_sets
                .as_slice()
                .iter()
                .map(|&set| importer.attributes(&mut new.dictionary, set))
                .collect();
            partition.move_to(&mut new, |node| nodes.get(&node).copied().unwrap_or(ROOT), sets);
        }
        new.footprint = std::mem::take(&mut self.footprint);
        new.renewed_bytes = new.memory_bytes();
        *self = new;
        self.recount();
    }

    /// Whether it has more than doubled since it held only what was needed.
    pub(crate) fn has_doubled(&self) -> bool {
        self.memory_bytes() > self.renewed_bytes.max(SMALL_BYTES) * 2
    }

    /// Counts it in a total, from now on.
    pub(crate) fn count_in(&mut self, total: &MemoryTotal) {
        self.footprint = Footprint::new(total);
        self.recount();
    }

    /// To be called when it has changed.
    pub(crate) fn recount(&mut self) {
        self.footprint.set(self.memory_bytes());
    }

    /// About how many bytes it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        // A slot of a table beside what it holds: one byte and the load.
        self.dictionary.memory_bytes()
            + self.nodes.capacity() * size_of::<Node>()
            + self.children.capacity() * 6
            + self.stacks.capacity() * (size_of::<(StackHash, u32)>() + 2)
            + self.label_bytes
    }
}

#[cfg(test)]
mod tests {
    use proto::dictionary::stack_hash;
    use proto::{Line, Location};

    use super::*;

    #[test]
    fn nodes_of_a_batch_mean_nothing_in_a_vocabulary_that_was_made_anew() {
        let mut batch = Dictionary::default();
        let function = batch.intern_function(proto::Function::default());
        let lines = [Line { function, line: 1, column: 0 }].into();
        let location = batch.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
        batch.intern_stack(stack_hash(&[batch.location_hash(location)]), Some(&[location]));
        let mut vocabulary = TenantDictionary::new(1);
        let before = vocabulary.nodes_of(&batch);
        assert_eq!(vocabulary.current(&before), [Some(ROOT), None]);
        let node = vocabulary.import_stack(&mut Importer::new(&batch), &batch, 1);
        let nodes = vocabulary.nodes_of(&batch);
        assert_eq!(vocabulary.current(&nodes), [Some(ROOT), node]);
        let mut partitions: [Box<Partition>; 0] = [];
        vocabulary.renew(2, &mut partitions);
        assert_eq!(vocabulary.current(&nodes), [None, None]);
    }
}
