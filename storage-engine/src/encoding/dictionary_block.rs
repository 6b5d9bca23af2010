//! A block of a partition's dictionary: stack pairs and attribute sets that the partition gained, and everything that they refer
//! to. Each block can be read by itself.
//!
//! ```text
//! compressed: | definitions, behind their length | nodes varint | step varint ... | location varint ... |
//!             | pairs varint | users packed | kernels packed |
//! ```
//!
//! Definitions are a `varve.v1.Definitions` without stacks and pairs: its attribute sets, from 1 on, are what the partition
//! gained, in order. Stacktraces are a tree in depth-first order, so a node's parent needs no number: `step / 2` says how many
//! levels above the node before it the parent is, 0 for the node before it itself, and `step % 2` whether a stacktrace ends
//! here. Pairs, in order, are places in the list of those ends, from 1 on; 0 is the empty stacktrace.

use prost::Message as _;
use proto::{Dictionary, Importer, StackHash, limits, wire};

use crate::database::frame;
use crate::encoding::packed::{BLOCK, put_block, take_block};
use crate::encoding::varint::{put, put_bytes, take_bytes, take_length, take_u32};
use crate::error::{Corruption, CorruptionCheck};
use crate::memory::partition::{DroppedName, Pair};
use crate::memory::tenant_dictionary::{ROOT, TenantDictionary};

/// zstd levels: of what is written every minute, and of what stays as long as the partition.
pub(crate) const LEVEL_GROWING: i32 = 3;
pub(crate) const LEVEL_FINAL: i32 = 12;

/// A block, to be packed when the vocabulary is free again: that takes much longer.
pub(crate) fn encode(vocabulary: &TenantDictionary, pairs: &[Pair], attribute_sets: &[u32]) -> Vec<u8> {
    let mut local = Dictionary::default();
    let mut importer = Importer::new(&vocabulary.dictionary);
    for &set in attribute_sets {
        importer.attributes(&mut local, set);
    }
    let tree = Tree::of(vocabulary, pairs);
    let locations: Vec<u32> =
        tree.order.iter().map(|&node| importer.location(&mut local, vocabulary.node(node).location)).collect();
    let mut out = Vec::new();
    put_bytes(&mut out, &local.to_wire().encode_to_vec());
    put(&mut out, tree.order.len() as u64);
    tree.steps.iter().for_each(|&step| put(&mut out, u64::from(step)));
    locations.iter().for_each(|&location| put(&mut out, u64::from(location)));
    put(&mut out, pairs.len() as u64);
    for part in [|pair: &Pair| pair.user, |pair: &Pair| pair.kernel] {
        let places: Vec<u32> = pairs.iter().map(|pair| tree.place(part(pair))).collect();
        places.chunks(BLOCK).for_each(|block| put_block(&mut out, block));
    }
    out
}

/// The part of the vocabulary's tree that some stacktraces need.
struct Tree {
    /// Nodes depth first.
    order: Vec<u32>,
    steps: Vec<u32>,
    /// By node: 0, or the place in the list of ends, from 1 on.
    places: Vec<u32>,
}

impl Tree {
    fn of(vocabulary: &TenantDictionary, pairs: &[Pair]) -> Self {
        let count = vocabulary.nodes();
        let (mut needed, mut ends) = (vec![false; count], vec![false; count]);
        needed[ROOT as usize] = true;
        for end in pairs.iter().flat_map(|pair| [pair.user, pair.kernel]) {
            ends[end as usize] = end != ROOT;
            let mut node = end;
            while !std::mem::replace(&mut needed[node as usize], true) {
                node = vocabulary.node(node).parent;
            }
        }
        // Children one behind the other, by parent; a node's number is larger than its parent's.
        let mut starts = vec![0_u32; count + 1];
        let wanted = |node: &u32| needed[*node as usize];
        let nodes = || (1..).take(count.saturating_sub(1)).filter(wanted);
        nodes().for_each(|node| starts[vocabulary.node(node).parent as usize + 1] += 1);
        (0..count).for_each(|node| starts[node + 1] += starts[node]);
        let mut children = vec![0; starts[count] as usize];
        let mut filled = starts.clone();
        for node in nodes() {
            let place = &mut filled[vocabulary.node(node).parent as usize];
            children[*place as usize] = node;
            *place += 1;
        }
        let children_of = |node: u32| &children[starts[node as usize] as usize..starts[node as usize + 1] as usize];
        let (mut order, mut steps, mut places) = (Vec::new(), Vec::new(), vec![0; count]);
        let (mut waiting, mut depth_before, mut last_place) = (Vec::new(), 0_u32, 0);
        waiting.extend(children_of(ROOT).iter().rev().map(|&node| (node, 1_u32)));
        while let Some((node, depth)) = waiting.pop() {
            let is_end = ends[node as usize];
            if is_end {
                last_place += 1;
                places[node as usize] = last_place;
            }
            order.push(node);
            steps.push((depth_before + 1 - depth) << 1 | u32::from(is_end));
            depth_before = depth;
            waiting.extend(children_of(node).iter().rev().map(|&child| (child, depth + 1)));
        }
        Self { order, steps, places }
    }

    fn place(&self, end: u32) -> u32 {
        self.places[end as usize]
    }
}

/// A block that was read, in numbers of its own.
#[derive(Debug)]
pub(crate) struct Block {
    local: Dictionary,
    /// Nodes depth first: levels above the node before it at which its parent is, and location.
    nodes: Vec<(u32, u32)>,
    /// Where stacktraces end: places in `nodes`, ascending, and the hash of each.
    ends: Vec<(u32, StackHash)>,
    /// By numbers of the ends, from 1 on.
    pairs: Vec<(u32, u32)>,
}

/// What a block adds to its partition, in numbers of the vocabulary.
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
        let (mut nodes, mut ends) = (Vec::with_capacity(count), Vec::new());
        // From the root.
        let mut hashes: Vec<u128> = Vec::new();
        for (place, step) in (0..).zip(steps) {
            let location = take_u32(&mut bytes).filter(|&location| (location as usize) < local.locations.len())?;
            hashes.truncate(hashes.len().checked_sub((step >> 1) as usize)?);
            // As deep as a push may define one: without a bound, few bytes could be many copies of a long path.
            if hashes.len() == limits::STACK_DEPTH_MAX * 2 {
                return None;
            }
            hashes.push(local.location_hash(location));
            nodes.push((step >> 1, location));
            if step & 1 == 1 {
                let leaf_first: Vec<u128> = hashes.iter().rev().copied().collect();
                ends.push((place, proto::dictionary::stack_hash(&leaf_first)));
            }
        }
        // A packed block holds 128 in at least a byte.
        let count = take_length(&mut bytes).filter(|&count| count.div_ceil(BLOCK) * 2 <= bytes.len())?;
        let users = read_ends(&mut bytes, count, ends.len())?;
        let kernels = read_ends(&mut bytes, count, ends.len())?;
        let pairs = users.into_iter().zip(kernels).collect();
        bytes.is_empty().then_some(Self { local, nodes, ends, pairs })
    }

    /// How many pairs it adds.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// How many attribute sets it adds.
    pub(crate) fn attribute_sets(&self) -> usize {
        self.local.attribute_sets.len().saturating_sub(1)
    }

    /// Teaches the vocabulary what is in the block; `None` if it has a stacktrace twice.
    pub(crate) fn gained(&self, vocabulary: &mut TenantDictionary) -> Option<AddedEntries> {
        let mut importer = Importer::new(&self.local);
        // From the root, in the vocabulary's tree.
        let mut path: Vec<u32> = Vec::new();
        let mut ends = Vec::with_capacity(self.ends.len() + 1);
        ends.push(ROOT);
        let mut waiting = self.ends.iter().peekable();
        let known = vocabulary.nodes();
        for (place, &(up, location)) in (0..).zip(&self.nodes) {
            path.truncate(path.len().saturating_sub(up as usize));
            let parent = path.last().copied().unwrap_or(ROOT);
            let location = importer.location(&mut vocabulary.dictionary, location);
            let node = vocabulary.child(parent, location, known);
            path.push(node);
            if let Some(&(_, hash)) = waiting.next_if(|(end, _)| *end == place) {
                // Else one stack would have two numbers.
                vocabulary.name_stack(hash, node).then_some(())?;
                ends.push(node);
            }
        }
        let pair = |&(user, kernel): &(u32, u32)| Pair { user: ends[user as usize], kernel: ends[kernel as usize] };
        let sets = 1..u32::try_from(self.local.attribute_sets.len()).unwrap_or(u32::MAX);
        let attribute_sets = sets.map(|set| importer.attributes(&mut vocabulary.dictionary, set)).collect();
        Some(AddedEntries { pairs: self.pairs.iter().map(pair).collect(), attribute_sets })
    }
}

/// Numbers up to that of the last end.
fn read_ends(bytes: &mut &[u8], count: usize, ends: usize) -> Option<Vec<u32>> {
    let (mut out, mut block) = (Vec::with_capacity(count), [0; BLOCK]);
    while out.len() < count {
        let length = (count - out.len()).min(BLOCK);
        take_block(bytes, length, &mut block)?;
        for &place in &block[..length] {
            out.push(Some(place).filter(|&place| place as usize <= ends)?);
        }
    }
    Some(out)
}

/// What a tier left out: each name behind its length, its first byte `l` for a label or `a` for an attribute.
pub(crate) fn encode_dropped_names<'a>(key: &[u8], names: impl Iterator<Item = &'a DroppedName>) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        let (kind, name) = match name {
            DroppedName::Label(name) => (b'l', name),
            DroppedName::Attribute(name) => (b'a', name),
        };
        put(&mut out, name.len() as u64 + 1);
        out.push(kind);
        out.extend_from_slice(name.as_bytes());
    }
    frame::seal(key, &out)
}

/// What [`encode_dropped_names`] wrote.
pub(crate) fn decode_dropped_names(key: &[u8], value: &[u8]) -> Result<Vec<DroppedName>, Corruption> {
    let mut bytes = frame::open(key, value)?;
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let name = take_bytes(&mut bytes).and_then(dropped_names);
        names.push(name.ok_or_else(|| Corruption { key: key.to_vec(), check: CorruptionCheck::Content })?);
    }
    Ok(names)
}

fn dropped_names(bytes: &[u8]) -> Option<DroppedName> {
    let (kind, name) = bytes.split_first()?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    match kind {
        b'l' => Some(DroppedName::Label(name)),
        b'a' => Some(DroppedName::Attribute(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::{Line, Location};

    use super::*;

    /// A vocabulary with these stacks, root first, of functions 0 to 19, and each stack's node.
    fn vocabulary(stacks: &[Vec<u8>]) -> (TenantDictionary, Vec<u32>) {
        let mut vocabulary = TenantDictionary::new(1);
        let nodes = stacks.iter().map(|stack| {
            let locations: Vec<u32> =
                stack.iter().rev().map(|&function| location(&mut vocabulary.dictionary, function)).collect();
            let hashes: Vec<u128> = locations.iter().map(|&id| vocabulary.dictionary.location_hash(id)).collect();
            vocabulary.add_stack(proto::dictionary::stack_hash(&hashes), &locations)
        });
        let nodes = nodes.collect();
        (vocabulary, nodes)
    }

    fn location(dictionary: &mut Dictionary, function: u8) -> u32 {
        let name = dictionary.strings.intern(&format!("f{function}"));
        let function = dictionary.intern_function(proto::Function { name, ..Default::default() });
        let lines = [Line { function, line: 1, column: 0 }].into();
        dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
    }

    fn names(vocabulary: &TenantDictionary, node: u32) -> Vec<String> {
        let name = |location: u32| {
            let Location::Lines { lines, .. } = &vocabulary.dictionary.locations[location as usize] else { panic!() };
            vocabulary
                .dictionary
                .strings
                .get(vocabulary.dictionary.functions[lines[0].function as usize].name)
                .to_owned()
        };
        vocabulary.stack(node).map(name).collect()
    }

    proptest! {
        #[test]
        fn a_block_gives_back_its_pairs_into_any_vocabulary(
            stacks in prop::collection::vec(prop::collection::vec(0..20_u8, 0..8), 1..40),
            pairs in prop::collection::vec((0..40_usize, 0..40_usize), 0..300),
            known in prop::collection::vec(prop::collection::vec(0..20_u8, 0..8), 0..10),
        ) {
            let (from, nodes) = vocabulary(&stacks);
            let pairs: Vec<Pair> = pairs
                .iter()
                .map(|&(user, kernel)| Pair { user: nodes[user % nodes.len()], kernel: nodes[kernel % nodes.len()] })
                .collect();
            let value = frame::pack(b"k", &encode(&from, &pairs, &[]), LEVEL_GROWING).unwrap();
            let (mut to, _) = vocabulary(&known);
            let gained = Block::read(b"k", &value).unwrap().gained(&mut to).unwrap();
            let wanted: Vec<_> = pairs.iter().map(|pair| (names(&from, pair.user), names(&from, pair.kernel))).collect();
            let got: Vec<_> = gained.pairs.iter().map(|pair| (names(&to, pair.user), names(&to, pair.kernel))).collect();
            prop_assert_eq!(got, wanted);
            // A stack that was read is found by its hash.
            let hashes: Vec<u128> = (0..from.dictionary.locations.len()).map(|id| from.dictionary.location_hash(id as u32)).collect();
            for (pair, gained) in pairs.iter().zip(&gained.pairs) {
                prop_assert_eq!(to.find_stack(from.hash_of(pair.user, &hashes)), Some(gained.user));
            }
        }

        #[test]
        fn any_bytes_are_a_block_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(block) = Block::of_bytes(&bytes) {
                block.gained(&mut TenantDictionary::new(1));
            }
        }
    }

    // Found by review: below a node that is new nothing is looked for, so the second became another node of the same stack.
    #[test]
    fn a_stacktrace_that_is_there_twice_is_refused() {
        let (from, nodes) = vocabulary(&[vec![0, 1], vec![0, 2]]);
        let pairs: Vec<Pair> = nodes.iter().map(|&user| Pair { user, kernel: ROOT }).collect();
        let mut block = Block::of_bytes(&encode(&from, &pairs, &[])).unwrap();
        assert!(block.gained(&mut TenantDictionary::new(1)).is_some());
        let (first, second) = (block.nodes[1], block.nodes.last_mut().unwrap());
        second.1 = first.1;
        block.ends[1].1 = block.ends[0].1;
        assert!(block.gained(&mut TenantDictionary::new(1)).is_none());
    }

    #[test]
    fn what_was_left_out_comes_back() {
        let names = [DroppedName::Label("pod".to_owned()), DroppedName::Attribute(String::new())];
        let value = encode_dropped_names(b"k", names.iter());
        assert_eq!(decode_dropped_names(b"k", &value).unwrap(), names);
        assert!(decode_dropped_names(b"j", &value).is_err());
    }
}
