//! A block of a partition's dictionary: the stack pairs and attribute sets added since the previous block, with all
//! definitions that they refer to. Each block can be read without the others.
//!
//! ```text
//! compressed: | definitions, with length | nodes varint | step varint ... | location varint ... |
//!             | pairs varint | user stacks, in packed blocks | kernel stacks, in packed blocks |
//! ```
//!
//! The definitions are a `varve.v1.Definitions` without stacks and pairs. Its attribute sets, from 1 on, are those that
//! the partition added, in order. Stacktraces are a tree in depth-first order, so a node stores no reference to its
//! parent. The parent of a node is `step / 2` levels above the previous node, and `step % 2` is 1 if a stacktrace ends
//! at the node. Stacktraces are numbered from 1 in the order in which they end; 0 is the empty stacktrace. A pair is
//! two of these numbers.

use prost::Message as _;
use proto::{Dictionary, Importer, StackHash, limits, wire};

use crate::database::frame;
use crate::encoding::packed::{BLOCK, put_block, take_block};
use crate::encoding::varint::{put, put_bytes, take_bytes, take_length, take_u32};
use crate::error::{Corruption, CorruptionCheck};
use crate::memory::tenant_dictionary::{Pair, ROOT, TenantDictionary};

/// zstd level of the blocks that flushes add. `LEVEL_FINAL` is the level of the block into which compaction merges
/// them, and which stays as long as the partition.
pub(crate) const LEVEL_GROWING: i32 = 3;
pub(crate) const LEVEL_FINAL: i32 = 12;

/// Encodes a block, without compression. The caller compresses the block after it has released the tenant's dictionary,
/// because compression takes much longer.
pub(crate) fn encode(shared: &TenantDictionary, pairs: &[Pair], attribute_sets: &[u32]) -> Vec<u8> {
    let mut local = Dictionary::default();
    let mut importer = Importer::new(&shared.dictionary);
    for &set in attribute_sets {
        importer.attributes(&mut local, set);
    }
    let tree = Tree::of(shared, pairs);
    let locations: Vec<u32> =
        tree.order.iter().map(|&node| importer.location(&mut local, shared.node(node).location)).collect();
    let mut out = Vec::new();
    put_bytes(&mut out, &local.to_wire().encode_to_vec());
    put(&mut out, tree.order.len() as u64);
    tree.steps.iter().for_each(|&step| put(&mut out, u64::from(step)));
    locations.iter().for_each(|&location| put(&mut out, u64::from(location)));
    put(&mut out, pairs.len() as u64);
    for part in [|pair: &Pair| pair.user, |pair: &Pair| pair.kernel] {
        let indexes: Vec<u32> = pairs.iter().map(|pair| tree.index_of(part(pair))).collect();
        indexes.chunks(BLOCK).for_each(|block| put_block(&mut out, block));
    }
    out
}

/// The part of the tenant's stack tree that a list of pairs needs.
struct Tree {
    /// Nodes of the tenant's dictionary in depth-first order.
    order: Vec<u32>,
    /// Step of each node in `order`, as the block stores it.
    steps: Vec<u32>,
    /// For each node of the tenant's dictionary, the number of the stacktrace that ends there; 0 if none ends there.
    end_index: Vec<u32>,
}

impl Tree {
    fn of(shared: &TenantDictionary, pairs: &[Pair]) -> Self {
        let count = shared.nodes();
        let mut needed = vec![false; count];
        let mut ends = vec![false; count];
        needed[ROOT as usize] = true;
        for end in pairs.iter().flat_map(|pair| [pair.user, pair.kernel]) {
            ends[end as usize] = end != ROOT;
            let mut node = end;
            while !std::mem::replace(&mut needed[node as usize], true) {
                node = shared.node(node).parent;
            }
        }
        // Groups the nodes by parent, so that the children of a node are adjacent in `children`.
        let mut starts = vec![0_u32; count + 1];
        let wanted = |node: &u32| needed[*node as usize];
        let nodes = || (1..).take(count.saturating_sub(1)).filter(wanted);
        nodes().for_each(|node| starts[shared.node(node).parent as usize + 1] += 1);
        (0..count).for_each(|node| starts[node + 1] += starts[node]);
        let mut children = vec![0; starts[count] as usize];
        let mut filled = starts.clone();
        for node in nodes() {
            let next = &mut filled[shared.node(node).parent as usize];
            children[*next as usize] = node;
            *next += 1;
        }
        let children_of = |node: u32| &children[starts[node as usize] as usize..starts[node as usize + 1] as usize];
        let mut order = Vec::new();
        let mut steps = Vec::new();
        let mut end_index = vec![0; count];
        let mut waiting = Vec::new();
        let mut depth_before = 0_u32;
        let mut last_end = 0;
        waiting.extend(children_of(ROOT).iter().rev().map(|&node| (node, 1_u32)));
        while let Some((node, depth)) = waiting.pop() {
            let is_end = ends[node as usize];
            if is_end {
                last_end += 1;
                end_index[node as usize] = last_end;
            }
            order.push(node);
            steps.push((depth_before + 1 - depth) << 1 | u32::from(is_end));
            depth_before = depth;
            waiting.extend(children_of(node).iter().rev().map(|&child| (child, depth + 1)));
        }
        Self { order, steps, end_index }
    }

    fn index_of(&self, end: u32) -> u32 {
        self.end_index[end as usize]
    }
}

/// A decoded block. All numbers in it are valid only within the block.
#[derive(Debug)]
pub(crate) struct Block {
    local: Dictionary,
    /// For each node in depth-first order, the number of levels from the previous node up to the parent, and the
    /// location.
    nodes: Vec<(u32, u32)>,
    /// Ends of stacktraces: ascending indexes into `nodes`, each with the hash of its stacktrace.
    ends: Vec<(u32, StackHash)>,
    /// Pairs of stacktrace numbers. These are indexes into `ends`, counted from 1; 0 is the empty stacktrace.
    pairs: Vec<(u32, u32)>,
}

/// Pairs and attribute sets that a block adds to its partition. Their numbers are those of the tenant's dictionary.
#[derive(Debug, Default)]
pub(crate) struct AddedEntries {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) attribute_sets: Vec<u32>,
}

impl Block {
    pub(crate) fn read(key: &[u8], value: &[u8]) -> Result<Self, Corruption> {
        let bytes = frame::unpack(key, value)?;
        Self::of_bytes(&bytes).ok_or(Corruption { key: key.to_vec(), check: CorruptionCheck::Content })
    }

    fn of_bytes(mut bytes: &[u8]) -> Option<Self> {
        let definitions = wire::Definitions::decode(take_bytes(&mut bytes)?).ok()?;
        let local = Dictionary::from_wire(&definitions).ok()?;
        let count = take_length(&mut bytes).filter(|&count| count <= bytes.len() / 2)?;
        let steps = (0..count).map(|_| take_u32(&mut bytes)).collect::<Option<Vec<_>>>()?;
        let mut nodes = Vec::with_capacity(count);
        let mut ends = Vec::new();
        // Hashes of the locations on the path from the root.
        let mut hashes: Vec<u128> = Vec::new();
        for (index, step) in (0..).zip(steps) {
            let location = take_u32(&mut bytes).filter(|&location| (location as usize) < local.locations.len())?;
            hashes.truncate(hashes.len().checked_sub((step >> 1) as usize)?);
            // The limit is twice the depth that pushes allow. Without a limit, a few bytes could expand to many copies
            // of a long path.
            if hashes.len() == limits::STACK_DEPTH_MAX * 2 {
                return None;
            }
            hashes.push(local.location_hash(location));
            nodes.push((step >> 1, location));
            if step & 1 == 1 {
                let leaf_first: Vec<u128> = hashes.iter().rev().copied().collect();
                ends.push((index, proto::dictionary::stack_hash(&leaf_first)));
            }
        }
        // A packed block of 128 numbers takes at least a byte.
        let count = take_length(&mut bytes).filter(|&count| count.div_ceil(BLOCK) * 2 <= bytes.len())?;
        let users = read_ends(&mut bytes, count, ends.len())?;
        let kernels = read_ends(&mut bytes, count, ends.len())?;
        let pairs = users.into_iter().zip(kernels).collect();
        bytes.is_empty().then_some(Self { local, nodes, ends, pairs })
    }

    /// Returns the number of pairs that the block adds.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the number of attribute sets that the block adds.
    pub(crate) fn attribute_sets(&self) -> usize {
        self.local.attribute_sets.len().saturating_sub(1)
    }

    /// Adds the definitions of the block to the tenant's dictionary; `None` if the block has a stacktrace twice.
    pub(crate) fn add_to(&self, shared: &mut TenantDictionary) -> Option<AddedEntries> {
        let mut importer = Importer::new(&self.local);
        // Nodes of the tenant's stack tree on the path from the root to the current node.
        let mut path: Vec<u32> = Vec::new();
        let mut ends = Vec::with_capacity(self.ends.len() + 1);
        ends.push(ROOT);
        let mut waiting = self.ends.iter().peekable();
        let known = shared.nodes();
        for (index, &(up, location)) in (0..).zip(&self.nodes) {
            path.truncate(path.len().saturating_sub(up as usize));
            let parent = path.last().copied().unwrap_or(ROOT);
            let location = importer.location(&mut shared.dictionary, location);
            let node = shared.child(parent, location, known);
            path.push(node);
            if let Some(&(_, hash)) = waiting.next_if(|(end, _)| *end == index) {
                // Two nodes with the same hash would give one stacktrace two numbers.
                shared.name_stack(hash, node).then_some(())?;
                ends.push(node);
            }
        }
        let pair = |&(user, kernel): &(u32, u32)| Pair { user: ends[user as usize], kernel: ends[kernel as usize] };
        let sets = 1..u32::try_from(self.local.attribute_sets.len()).unwrap_or(u32::MAX);
        let attribute_sets = sets.map(|set| importer.attributes(&mut shared.dictionary, set)).collect();
        Some(AddedEntries { pairs: self.pairs.iter().map(pair).collect(), attribute_sets })
    }
}

/// Reads `count` stacktrace numbers, each at most `ends`; `None` if a check fails.
fn read_ends(bytes: &mut &[u8], count: usize, ends: usize) -> Option<Vec<u32>> {
    let mut out = Vec::with_capacity(count);
    let mut block = [0; BLOCK];
    while out.len() < count {
        let length = (count - out.len()).min(BLOCK);
        take_block(bytes, length, &mut block)?;
        for &end in &block[..length] {
            out.push(Some(end).filter(|&end| end as usize <= ends)?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::{Line, Location};

    use super::*;

    /// Returns a tenant dictionary with these stacks, and the node of each stack. A stack lists the numbers of its
    /// functions, 0 to 19, root first.
    fn tenant_dictionary(stacks: &[Vec<u8>]) -> (TenantDictionary, Vec<u32>) {
        let mut shared = TenantDictionary::new(1);
        let nodes = stacks.iter().map(|stack| {
            let locations: Vec<u32> =
                stack.iter().rev().map(|&function| location(&mut shared.dictionary, function)).collect();
            let hashes: Vec<u128> = locations.iter().map(|&id| shared.dictionary.location_hash(id)).collect();
            shared.add_stack(proto::dictionary::stack_hash(&hashes), &locations)
        });
        let nodes = nodes.collect();
        (shared, nodes)
    }

    fn location(dictionary: &mut Dictionary, function: u8) -> u32 {
        let name = dictionary.strings.intern(&format!("f{function}"));
        let function = dictionary.intern_function(proto::Function { name, ..Default::default() });
        let lines = [Line { function, line: 1, column: 0 }].into();
        dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
    }

    fn names(shared: &TenantDictionary, node: u32) -> Vec<String> {
        let name = |location: u32| {
            let Location::Lines { lines, .. } = &shared.dictionary.locations[location as usize] else { panic!() };
            shared.dictionary.strings.get(shared.dictionary.functions[lines[0].function as usize].name).to_owned()
        };
        shared.stack(node).map(name).collect()
    }

    proptest! {
        #[test]
        fn a_block_adds_its_pairs_to_any_tenant_dictionary(
            stacks in prop::collection::vec(prop::collection::vec(0..20_u8, 0..8), 1..40),
            pairs in prop::collection::vec((0..40_usize, 0..40_usize), 0..300),
            known in prop::collection::vec(prop::collection::vec(0..20_u8, 0..8), 0..10),
        ) {
            let (from, nodes) = tenant_dictionary(&stacks);
            let pairs: Vec<Pair> = pairs
                .iter()
                .map(|&(user, kernel)| Pair { user: nodes[user % nodes.len()], kernel: nodes[kernel % nodes.len()] })
                .collect();
            let value = frame::pack(b"k", &encode(&from, &pairs, &[]), LEVEL_GROWING).unwrap();
            let (mut to, _) = tenant_dictionary(&known);
            let added = Block::read(b"k", &value).unwrap().add_to(&mut to).unwrap();
            let named = |dictionary: &_, pair: &Pair| (names(dictionary, pair.user), names(dictionary, pair.kernel));
            let wanted: Vec<_> = pairs.iter().map(|pair| named(&from, pair)).collect();
            let got: Vec<_> = added.pairs.iter().map(|pair| named(&to, pair)).collect();
            prop_assert_eq!(got, wanted);
            // A stacktrace of the block is found by its hash.
            let locations = 0..from.dictionary.locations.len();
            let hashes: Vec<u128> = locations.map(|id| from.dictionary.location_hash(id as u32)).collect();
            for (pair, added) in pairs.iter().zip(&added.pairs) {
                prop_assert_eq!(to.find_stack(from.hash_of(pair.user, &hashes)), Some(added.user));
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_a_block_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(block) = Block::of_bytes(&bytes) {
                block.add_to(&mut TenantDictionary::new(1));
            }
        }
    }

    // Children of new nodes are added without a lookup, so a stacktrace that a block held twice used to get two nodes.
    #[test]
    fn a_block_with_one_stacktrace_twice_is_refused() {
        let (from, nodes) = tenant_dictionary(&[vec![0, 1], vec![0, 2]]);
        let pairs: Vec<Pair> = nodes.iter().map(|&user| Pair { user, kernel: ROOT }).collect();
        let mut block = Block::of_bytes(&encode(&from, &pairs, &[])).unwrap();
        assert!(block.add_to(&mut TenantDictionary::new(1)).is_some());
        let first = block.nodes[1];
        let second = block.nodes.last_mut().unwrap();
        second.1 = first.1;
        block.ends[1].1 = block.ends[0].1;
        assert!(block.add_to(&mut TenantDictionary::new(1)).is_none());
    }
}
