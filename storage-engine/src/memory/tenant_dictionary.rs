//! The dictionary that all partitions of a tenant in memory share: distinct names, locations, attributes, label sets,
//! and stacks as a tree.
//!
//! On disk each partition has its own dictionary, so that the partition can be dropped. In memory, most of these
//! dictionaries would hold equal definitions, so partitions hold numbers of the tenant's dictionary instead. Node 0 of
//! the tree is the root. A stacktrace is identified by the node at which it ends, and its frames are on the path from
//! there to the root. A parent has a smaller number than its children. Definitions are only added. When partitions were
//! evicted, the whole dictionary is rebuilt without the definitions that only they needed.

mod renewal;
mod stack_nodes;

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashSet, HashTable};
use proto::label::text_bytes;
use proto::{ArcStr, Dictionary, Importer, Label, LabelSet, StackHash};

use crate::memory::footprint::{Footprint, MemoryTotal};
use crate::memory::tenant_dictionary::stack_nodes::StackNodes;

/// Size of a dictionary, in bytes, below which rebuilding is not worth while.
const SMALL_BYTES: usize = 16 << 20;

/// Approximate memory of a label set, in bytes, without its labels: two allocations, and a slot of a hash table.
const SET_BYTES: usize = 64;
/// Approximate memory of a text's slot in a hash table, in bytes.
const TEXT_BYTES: usize = 16;

/// Returns the approximate memory of a label set without its texts, in bytes.
pub(crate) fn label_set_bytes(labels: &LabelSet) -> usize {
    SET_BYTES + labels.len() * size_of::<Label>()
}

/// The node of the empty stacktrace.
pub(crate) const ROOT: u32 = 0;

/// A node of the tree: a frame, and the node of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    pub(crate) location: u32,
}

/// Stack of a sample: the nodes of the tenant's stack tree at which its user part and its kernel part end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) user: u32,
    pub(crate) kernel: u32,
}

/// Nodes of a batch's stacktraces; `None` for each unknown stacktrace. The nodes are valid only in one generation of
/// the dictionary.
#[derive(Debug)]
pub(crate) struct BatchNodes {
    generation: u64,
    pub(crate) nodes: Vec<Option<u32>>,
}

/// The shared dictionary of a tenant.
#[derive(Debug)]
pub(crate) struct TenantDictionary {
    /// Names, locations, attributes and strings of the tenant. The stacks and pairs of this dictionary are not used.
    pub(crate) dictionary: Dictionary,
    nodes: Vec<Node>,
    /// Nodes, hashed by parent and location.
    children: HashTable<u32>,
    stacks: StackNodes,
    /// Label sets of the series of all partitions, and their texts. Sets share equal texts.
    labels: HashSet<Arc<LabelSet>, FixedState>,
    texts: HashSet<ArcStr, FixedState>,
    label_bytes: usize,
    /// Generation of this dictionary. Numbers of nodes and definitions are valid only within one generation.
    generation: u64,
    hashes: FixedState,
    /// Memory use directly after the last rebuild, in bytes.
    renewed_bytes: usize,
    footprint: Footprint,
}

impl TenantDictionary {
    pub(crate) fn new(generation: u64) -> Self {
        let mut stacks = StackNodes::default();
        stacks.get_or_insert(StackHash::default(), ROOT);
        Self {
            dictionary: Dictionary::default(),
            nodes: vec![Node { parent: ROOT, location: 0 }],
            children: HashTable::new(),
            stacks,
            labels: HashSet::default(),
            texts: HashSet::default(),
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

    /// Returns the node of a stacktrace; `None` if no partition in memory has the stacktrace.
    pub(crate) fn find_stack(&self, hash: StackHash) -> Option<u32> {
        self.stacks.get(hash)
    }

    /// Returns the hash and the node of each stacktrace.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (StackHash, u32)> + '_ {
        self.stacks.iter()
    }

    /// Returns whether half of the hash of a stacktrace is also that of another stacktrace.
    pub(crate) fn shares_first_half(&self, hash: StackHash) -> bool {
        self.stacks.with_first_half(hash.first_half()).nth(1).is_some()
    }

    /// Returns the nodes of a batch's stacktraces, in the order of the batch's stack IDs. `knows` tells if the
    /// partitions of the batch know the stacktrace of a node.
    ///
    /// A reference stands for the only stacktrace of these partitions with this first half of the hash, also if the
    /// batch has the whole hash. So the outcome is the same on every replica, whatever other partitions are in memory.
    pub(crate) fn nodes_of(&self, dictionary: &Dictionary, knows: impl Fn(u32) -> bool) -> BatchNodes {
        let node = |(&hash, stack): (&StackHash, Option<&[u32]>)| match stack {
            Some(_) => self.find_stack(hash),
            None => self.find_reference(hash.first_half(), &knows),
        };
        BatchNodes { generation: self.generation, nodes: dictionary.stacks.iter().map(node).collect() }
    }

    fn find_reference(&self, half: u64, knows: impl Fn(u32) -> bool) -> Option<u32> {
        let mut nodes = self.stacks.with_first_half(half).peekable();
        let first = nodes.next()?;
        if nodes.peek().is_none() {
            return Some(first);
        }
        let mut known = std::iter::once(first).chain(nodes).filter(|&node| knows(node));
        known.next().filter(|_| known.next().is_none())
    }

    /// Returns a batch's nodes; `None` if the dictionary was rebuilt after they were found.
    pub(crate) fn current<'a>(&self, of: &'a BatchNodes) -> Option<&'a [Option<u32>]> {
        (of.generation == self.generation).then_some(&of.nodes)
    }

    /// Returns the child of a node for a location, and creates it if it is missing. The caller adds a tree of distinct
    /// nodes, and `known` is the number of nodes before its first call. A node that was added since then has no such
    /// child yet, so the lookup, which is the slowest step, is skipped.
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

    /// Adds a stacktrace and returns its node. Its locations, leaf first, are numbers of this dictionary.
    pub(crate) fn add_stack(&mut self, hash: StackHash, leaf_first: &[u32]) -> u32 {
        let known = self.nodes.len();
        let node = leaf_first.iter().rev().fold(ROOT, |node, &location| self.child(node, location, known));
        self.name_stack(hash, node);
        node
    }

    /// Records the node of a stacktrace. Returns false if the stacktrace already has another node.
    pub(crate) fn name_stack(&mut self, hash: StackHash, node: u32) -> bool {
        self.stacks.get_or_insert(hash, node) == node
    }

    /// Returns the node of a batch's stacktrace; `None` if the stacktrace is a reference. Adds the stacktrace if it is
    /// new.
    pub(crate) fn import_stack(&mut self, importer: &mut Importer<'_>, from: &Dictionary, id: u32) -> Option<u32> {
        let hash = from.stacks.hash(id);
        let locations = from.stacks.get(id)?;
        if let Some(node) = self.find_stack(hash) {
            return Some(node);
        }
        let own: Vec<u32> =
            locations.iter().map(|&location| importer.location(&mut self.dictionary, location)).collect();
        Some(self.add_stack(hash, &own))
    }

    /// Returns the locations of a stacktrace, leaf first.
    pub(crate) fn stack(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let up = |&node: &u32| Some(self.node(node).parent);
        std::iter::successors(Some(node), up).take_while(|&node| node != ROOT).map(|node| self.node(node).location)
    }

    /// Returns the hash of a stacktrace, computed from the hashes of its locations.
    #[cfg(test)]
    pub(crate) fn hash_of(&self, node: u32, location_hashes: &[u128]) -> StackHash {
        let hashes: Vec<u128> = self.stack(node).map(|location| location_hashes[location as usize]).collect();
        proto::dictionary::stack_hash(&hashes)
    }

    /// Returns the tenant's copy of a label set, which its partitions share. It has the tenant's copies of the texts.
    pub(crate) fn share_labels(&mut self, mut labels: Arc<LabelSet>) -> Arc<LabelSet> {
        if let Some(known) = self.labels.get(&labels) {
            return Arc::clone(known);
        }
        let Self { texts, label_bytes, .. } = self;
        *label_bytes += label_set_bytes(&labels);
        let mut share = |text: &ArcStr| {
            if let Some(known) = texts.get(text) {
                return known.clone();
            }
            *label_bytes += TEXT_BYTES + text_bytes(text);
            texts.insert(text.clone());
            text.clone()
        };
        // A renewal moves sets whose texts are shared already. They need no copy.
        let is_shared = labels.texts().all(|text| ArcStr::ptr_eq(text, &share(text)));
        if !is_shared {
            Arc::make_mut(&mut labels).share_texts(share);
        }
        self.labels.insert(Arc::clone(&labels));
        labels
    }

    /// Replaces the dictionary by a rebuilt one. The total memory use then counts the rebuilt one instead.
    pub(crate) fn replace_by(&mut self, mut new: Self) {
        new.footprint = std::mem::take(&mut self.footprint);
        new.renewed_bytes = new.memory_bytes();
        *self = new;
        self.recount();
    }

    /// Returns whether the memory use has more than doubled since the last rebuild.
    pub(crate) fn has_doubled(&self) -> bool {
        self.memory_bytes() > self.renewed_bytes.max(SMALL_BYTES) * 2
    }

    /// Adds the dictionary's memory use to a total for as long as the dictionary lives.
    pub(crate) fn count_in(&mut self, total: &MemoryTotal) {
        self.footprint = Footprint::new(total);
        self.recount();
    }

    /// Updates the total memory use. Must be called after every change of the dictionary.
    pub(crate) fn recount(&mut self) {
        self.footprint.set(self.memory_bytes());
    }

    /// Returns the approximate memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        // A hash table has more slots than entries, and needs one byte for each slot in addition to its content.
        self.dictionary.memory_bytes()
            + self.nodes.capacity() * size_of::<Node>()
            + self.children.capacity() * 6
            + self.stacks.memory_bytes()
            + self.label_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_sets_share_their_texts_which_count_once() {
        let set = |pod: &str| {
            Arc::new(LabelSet::new(vec![Label::new("k8s.pod.name", pod.to_owned()), Label::new("region", "eu")]))
        };
        let mut shared = TenantDictionary::new(1);
        let first = shared.share_labels(set("a"));
        let before = shared.memory_bytes();
        let second = shared.share_labels(set("b"));
        // Only the name of the pod is new.
        let new = SET_BYTES + 2 * size_of::<Label>() + TEXT_BYTES + text_bytes(&ArcStr::from("b"));
        assert_eq!(shared.memory_bytes(), before + new);
        for (first, second) in first.iter().zip(second.iter()) {
            assert!(ArcStr::ptr_eq(&first.name, &second.name));
            assert_eq!(ArcStr::ptr_eq(&first.value, &second.value), *first.name == *"region");
            let original_names = first.original_name.iter().zip(&second.original_name);
            original_names.for_each(|(first, second)| assert!(ArcStr::ptr_eq(first, second)));
        }
        assert_eq!((first.get("k8s_pod_name"), second.get("k8s_pod_name")), ("a", "b"));
        assert!(Arc::ptr_eq(&first, &shared.share_labels(set("a"))), "an equal set is not shared");
        let mut renewed = TenantDictionary::new(2);
        assert!(Arc::ptr_eq(&second, &renewed.share_labels(Arc::clone(&second))), "a renewal copies a set");
    }
}
