//! The dictionary: what samples refer to, each thing once, by dense ids.
//!
//! One structure serves a push, a batch, a partition and an answer; [`crate::Importer`] copies from one into another what is
//! needed and nothing else. Entry 0 of strings, stacks, attribute sets and pairs is the empty one. Ids are dense, only
//! ever appended, and refer to entries of the same dictionary that exist; whoever adds an entry keeps that so.

use foldhash::fast::FixedState;
use indexmap::{IndexMap, IndexSet};
use xxhash_rust::xxh3::xxh3_128;

use crate::attribute::{Attribute, AttributeValue};
use crate::location::{Address, Function, Line, Location, MappingIdentity, StackHash};

type Set<T> = IndexSet<T, FixedState>;
type Map<K, V> = IndexMap<K, V, FixedState>;

/// Interned text; id 0 is "".
#[derive(Clone, Debug)]
pub struct Strings {
    texts: Set<Box<str>>,
    text_bytes: usize,
}

impl Default for Strings {
    fn default() -> Self {
        let mut set = Set::default();
        set.insert(Box::from(""));
        Self { texts: set, text_bytes: 0 }
    }
}

impl Strings {
    /// The id of a text, new or old.
    pub fn intern(&mut self, text: &str) -> u32 {
        match self.texts.get_index_of(text) {
            Some(id) => dense(id),
            None => {
                self.text_bytes += text.len();
                dense(self.texts.insert_full(Box::from(text)).0)
            }
        }
    }

    /// The text of an id of this table.
    #[must_use]
    pub fn get(&self, id: u32) -> &str {
        &self.texts[id as usize]
    }

    pub(crate) fn at(&self, index: usize) -> &str {
        &self.texts[index]
    }

    /// The id of a text that is here.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<u32> {
        self.texts.get_index_of(text).map(dense)
    }

    /// How many there are, "" included.
    #[must_use]
    pub fn len(&self) -> u32 {
        dense(self.texts.len())
    }

    /// Never: "" is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The user part and the kernel part of one stack, by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackPair {
    /// Id of the user stacktrace; 0: none.
    pub user: u32,
    /// Id of the kernel stacktrace; 0: none.
    pub kernel: u32,
}

/// A stacktrace: location ids, leaf first, or nothing but its hash where the holder of the batch knows the rest.
pub type Stack = Option<Box<[u32]>>;

/// See the module.
#[derive(Clone, Debug)]
pub struct Dictionary {
    /// All text.
    pub strings: Strings,
    /// Functions.
    pub functions: Set<Function>,
    /// Mappings, with the id of the file name that came first.
    pub mappings: Map<MappingIdentity, u32>,
    /// Locations.
    pub locations: Set<Location>,
    /// Stacktraces.
    pub stacks: Map<StackHash, Stack>,
    /// Attributes of a sample, sorted, each key once.
    pub attribute_sets: Set<Box<[Attribute]>>,
    /// What a sample's stack is.
    pub pairs: Set<StackPair>,
    /// Locations of all stacks.
    frames: usize,
    /// Attributes of all sets.
    attributes: usize,
    /// Lines of all locations.
    lines: usize,
}

impl Default for Dictionary {
    fn default() -> Self {
        let mut dictionary = Self {
            strings: Strings::default(),
            functions: Set::default(),
            mappings: Map::default(),
            locations: Set::default(),
            stacks: Map::default(),
            attribute_sets: Set::default(),
            pairs: Set::default(),
            frames: 0,
            attributes: 0,
            lines: 0,
        };
        dictionary.stacks.insert(StackHash::default(), Some(Box::from([])));
        dictionary.attribute_sets.insert(Box::from([]));
        dictionary.pairs.insert(StackPair::default());
        dictionary
    }
}

impl Dictionary {
    /// The id of a function, new or old.
    pub fn intern_function(&mut self, function: Function) -> u32 {
        dense(self.functions.insert_full(function).0)
    }

    /// The id of a mapping, new or old; `file` is kept if it is new.
    pub fn intern_mapping(&mut self, identity: MappingIdentity, file: u32) -> u32 {
        let entry = self.mappings.entry(identity);
        let id = entry.index();
        entry.or_insert(file);
        dense(id)
    }

    /// The id of a location, new or old.
    pub fn intern_location(&mut self, location: Location) -> u32 {
        let lines = if let Location::Lines { lines, .. } = &location { lines.len() } else { 0 };
        let (id, is_new) = self.locations.insert_full(location);
        if is_new {
            self.lines += lines;
        }
        dense(id)
    }

    /// The id of a stack, new or old. A stack that was known by its hash alone gets its locations here.
    pub fn intern_stack(&mut self, hash: StackHash, stack: Stack) -> u32 {
        let entry = self.stacks.entry(hash);
        let id = entry.index();
        let known = entry.or_insert(None);
        if known.is_none() {
            self.frames += stack.as_deref().unwrap_or_default().len();
            *known = stack;
        }
        dense(id)
    }

    /// The id of an attribute set, new or old. Sorts by the keys' text; of equal keys the first stays.
    pub fn intern_attributes(&mut self, mut attributes: Vec<Attribute>) -> u32 {
        let strings = &self.strings;
        attributes.sort_by(|a, b| strings.get(a.key).cmp(strings.get(b.key)));
        attributes.dedup_by_key(|attribute| attribute.key);
        let count = attributes.len();
        let (id, is_new) = self.attribute_sets.insert_full(attributes.into_boxed_slice());
        if is_new {
            self.attributes += count;
        }
        dense(id)
    }

    /// The id of a pair, new or old.
    pub fn intern_pair(&mut self, pair: StackPair) -> u32 {
        dense(self.pairs.insert_full(pair).0)
    }

    /// Whether it has all attribute sets of another.
    #[must_use]
    pub fn has_attributes_of(&self, other: &Self) -> bool {
        let text = |id: u32| self.strings.find(other.strings.get(id));
        let here = |attribute: &Attribute| {
            let value = match attribute.value {
                AttributeValue::Text(id) => AttributeValue::Text(text(id)?),
                AttributeValue::Json(id) => AttributeValue::Json(text(id)?),
                value => value,
            };
            Some(Attribute { key: text(attribute.key)?, unit: text(attribute.unit)?, value })
        };
        // Sorted by the keys' text, so in the same order in both.
        other.attribute_sets.iter().all(|set| {
            let set: Option<Vec<_>> = set.iter().map(here).collect();
            set.is_some_and(|set| self.attribute_sets.contains(set.as_slice()))
        })
    }

    /// About how many bytes it takes in memory: each table's entries, hashes and index, and what they own.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // An entry of an index map: its hash (8), a slot of the table (4 to 8, by load), the allocator's header where it owns
        // memory (16), and itself.
        self.strings.text_bytes
            + self.strings.texts.len() * (16 + 16 + 16)
            + self.functions.len() * (size_of::<Function>() + 16)
            + self.mappings.len() * (size_of::<MappingIdentity>() + 64)
            + self.locations.len() * (size_of::<Location>() + 16)
            + self.lines * size_of::<Line>()
            + self.stacks.len() * (size_of::<(StackHash, Stack)>() + 32)
            + self.frames * size_of::<u32>()
            + self.attribute_sets.len() * (16 + 32)
            + self.attributes * size_of::<Attribute>()
            + self.pairs.len() * (size_of::<StackPair>() + 16)
    }

    /// The hash of a location's identity; the ids in it do not matter, what they stand for does.
    #[must_use]
    pub fn location_hash(&self, id: u32) -> u128 {
        // Hashed in one go: most encodings are shorter than the state of a hash that is fed in parts.
        let mut bytes = Vec::with_capacity(256);
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        match &self.locations[id as usize] {
            Location::Address { mapping, address, frame_type } => {
                let (identity, _file) = self.mapping(*mapping);
                match identity {
                    MappingIdentity::BuildId(build_id) => {
                        let start = bytes.len();
                        bytes.extend(0_u64.to_le_bytes());
                        build_id.write_to(&mut bytes);
                        let length = (bytes.len() - start - 8) as u64;
                        bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
                    }
                    MappingIdentity::File(file) => text(&mut bytes, &format!("file:{}", self.strings.get(*file))),
                }
                text(&mut bytes, self.strings.get(*frame_type));
                let (kind, address) = match address {
                    Address::Virtual(address) => (0, address),
                    Address::FileOffset(offset) => (1, offset),
                };
                bytes.push(kind);
                bytes.extend(address.to_le_bytes());
            }
            Location::Lines { mapping_file, frame_type, lines } => {
                bytes.push(2);
                text(&mut bytes, self.strings.get(*mapping_file));
                text(&mut bytes, self.strings.get(*frame_type));
                for line in lines {
                    let function = &self.functions[line.function as usize];
                    for part in [function.name, function.system_name, function.file] {
                        text(&mut bytes, self.strings.get(part));
                    }
                    for number in [function.start_line, line.line, line.column] {
                        bytes.extend(number.to_le_bytes());
                    }
                }
            }
        }
        xxh3_128(&bytes)
    }

    /// A mapping's identity and the name of its file.
    #[must_use]
    pub fn mapping(&self, id: u32) -> (&MappingIdentity, &str) {
        let (identity, file) = self.mappings.get_index(id as usize).unwrap_or((&MappingIdentity::File(0), &0));
        (identity, self.strings.get(*file))
    }

    /// The locations of a stack, leaf first; none if only its hash is here.
    #[must_use]
    pub fn stack(&self, id: u32) -> &[u32] {
        self.stacks[id as usize].as_deref().unwrap_or_default()
    }
}

/// The hash of a stack from the hashes of its locations, leaf first; the empty stack's is 0.
#[must_use]
pub fn stack_hash(location_hashes: &[u128]) -> StackHash {
    if location_hashes.is_empty() {
        return StackHash::default();
    }
    // Every part has the same length, so the encoding is canonical without lengths in between.
    let mut bytes = Vec::with_capacity(size_of_val(location_hashes));
    location_hashes.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
    StackHash(xxh3_128(&bytes))
}

/// Ids are dense u32: a dictionary is bounded (`limits`) long before it holds 2^32 entries.
fn dense(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
