//! The dictionary: what samples refer to, each thing once, by dense ids.
//!
//! One structure serves a push, a batch, a partition and an answer; [`Importer`] copies from one into another what is
//! needed and nothing else. Entry 0 of strings, stacks, attribute sets and pairs is the empty one. Ids are dense, only
//! ever appended, and refer to entries of the same dictionary that exist; whoever adds an entry keeps that so.

use foldhash::fast::FixedState;
use indexmap::{IndexMap, IndexSet};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::attribute::{Attribute, AttributeValue};
use crate::location::{Address, Function, Line, Location, MappingIdentity, StackHash};

type Set<T> = IndexSet<T, FixedState>;
type Map<K, V> = IndexMap<K, V, FixedState>;

/// Interned text; id 0 is "".
#[derive(Clone, Debug)]
pub struct Strings(Set<Box<str>>);

impl Default for Strings {
    fn default() -> Self {
        let mut set = Set::default();
        set.insert(Box::from(""));
        Self(set)
    }
}

impl Strings {
    /// The id of a text, new or old.
    pub fn intern(&mut self, text: &str) -> u32 {
        match self.0.get_index_of(text) {
            Some(id) => dense(id),
            None => dense(self.0.insert_full(Box::from(text)).0),
        }
    }

    /// The text of an id of this table.
    #[must_use]
    pub fn get(&self, id: u32) -> &str {
        &self.0[id as usize]
    }

    pub(crate) fn at(&self, index: usize) -> &str {
        &self.0[index]
    }

    /// The id of a text that is here.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<u32> {
        self.0.get_index_of(text).map(dense)
    }

    /// How many there are, "" included.
    #[must_use]
    pub fn len(&self) -> u32 {
        dense(self.0.len())
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
        dense(self.locations.insert_full(location).0)
    }

    /// The id of a stack, new or old. A stack that was known by its hash alone gets its locations here.
    pub fn intern_stack(&mut self, hash: StackHash, stack: Stack) -> u32 {
        let entry = self.stacks.entry(hash);
        let id = entry.index();
        let known = entry.or_insert(None);
        if known.is_none() {
            *known = stack;
        }
        dense(id)
    }

    /// The id of an attribute set, new or old. Sorts by the keys' text; of equal keys the first stays.
    pub fn intern_attributes(&mut self, mut attributes: Vec<Attribute>) -> u32 {
        let strings = &self.strings;
        attributes.sort_by(|a, b| strings.get(a.key).cmp(strings.get(b.key)));
        attributes.dedup_by_key(|attribute| attribute.key);
        dense(self.attribute_sets.insert_full(attributes.into_boxed_slice()).0)
    }

    /// The id of a pair, new or old.
    pub fn intern_pair(&mut self, pair: StackPair) -> u32 {
        dense(self.pairs.insert_full(pair).0)
    }

    /// The hash of a location's identity; the ids in it do not matter, what they stand for does.
    #[must_use]
    pub fn location_hash(&self, id: u32) -> u128 {
        let mut hash = Xxh3::new();
        let text = |hash: &mut Xxh3, text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        match &self.locations[id as usize] {
            Location::Address { mapping, address, frame_type } => {
                let (identity, _file) = self.mapping(*mapping);
                match identity {
                    MappingIdentity::BuildId(build_id) => text(&mut hash, &build_id.to_string()),
                    MappingIdentity::File(file) => text(&mut hash, &format!("file:{}", self.strings.get(*file))),
                }
                text(&mut hash, self.strings.get(*frame_type));
                let (kind, address) = match address {
                    Address::Virtual(address) => (0, address),
                    Address::FileOffset(offset) => (1, offset),
                };
                hash.update(&[kind]);
                hash.update(&address.to_le_bytes());
            }
            Location::Lines { mapping_file, frame_type, lines } => {
                hash.update(&[2]);
                text(&mut hash, self.strings.get(*mapping_file));
                text(&mut hash, self.strings.get(*frame_type));
                for line in lines {
                    let function = &self.functions[line.function as usize];
                    for part in [function.name, function.system_name, function.file] {
                        text(&mut hash, self.strings.get(part));
                    }
                    for number in [function.start_line, line.line, line.column] {
                        hash.update(&number.to_le_bytes());
                    }
                }
            }
        }
        hash.digest128()
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
    let bytes: Vec<u8> = location_hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
    StackHash(xxh3_128(&bytes))
}

/// Ids are dense u32: a dictionary is bounded (`limits`) long before it holds 2^32 entries.
fn dense(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Copies entries of one dictionary into another, each once.
#[derive(Debug)]
pub struct Importer<'a> {
    from: &'a Dictionary,
    strings: Vec<u32>,
    functions: Vec<u32>,
    mappings: Vec<u32>,
    locations: Vec<u32>,
    stacks: Vec<u32>,
    attribute_sets: Vec<u32>,
    pairs: Vec<u32>,
}

/// No entry has this id: see [`dense`].
const UNKNOWN: u32 = u32::MAX;

impl<'a> Importer<'a> {
    /// An importer that has copied nothing yet. Always give its methods the same target.
    #[must_use]
    pub fn new(from: &'a Dictionary) -> Self {
        let unknown = |length: usize| vec![UNKNOWN; length];
        Self {
            from,
            strings: unknown(from.strings.0.len()),
            functions: unknown(from.functions.len()),
            mappings: unknown(from.mappings.len()),
            locations: unknown(from.locations.len()),
            stacks: unknown(from.stacks.len()),
            attribute_sets: unknown(from.attribute_sets.len()),
            pairs: unknown(from.pairs.len()),
        }
    }

    /// The id in `to` of a text.
    pub fn string(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        let known = &mut self.strings[id as usize];
        if *known == UNKNOWN {
            *known = to.strings.intern(self.from.strings.get(id));
        }
        *known
    }

    fn function(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.functions[id as usize] == UNKNOWN {
            let from = self.from.functions[id as usize];
            let copy = Function {
                name: self.string(to, from.name),
                system_name: self.string(to, from.system_name),
                file: self.string(to, from.file),
                start_line: from.start_line,
            };
            self.functions[id as usize] = to.intern_function(copy);
        }
        self.functions[id as usize]
    }

    fn mapping(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.mappings[id as usize] == UNKNOWN {
            let from = self.from;
            let (identity, file) = from.mappings.get_index(id as usize).unwrap_or((&MappingIdentity::File(0), &0));
            let identity = match identity {
                MappingIdentity::BuildId(build_id) => MappingIdentity::BuildId(build_id.clone()),
                MappingIdentity::File(file) => MappingIdentity::File(self.string(to, *file)),
            };
            let file = self.string(to, *file);
            self.mappings[id as usize] = to.intern_mapping(identity, file);
        }
        self.mappings[id as usize]
    }

    /// The id in `to` of a location.
    pub fn location(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.locations[id as usize] == UNKNOWN {
            let from = self.from;
            let copy = match &from.locations[id as usize] {
                Location::Address { mapping, address, frame_type } => Location::Address {
                    mapping: self.mapping(to, *mapping),
                    address: *address,
                    frame_type: self.string(to, *frame_type),
                },
                Location::Lines { mapping_file, frame_type, lines } => Location::Lines {
                    mapping_file: self.string(to, *mapping_file),
                    frame_type: self.string(to, *frame_type),
                    lines: lines
                        .iter()
                        .map(|line| Line { function: self.function(to, line.function), ..*line })
                        .collect(),
                },
            };
            self.locations[id as usize] = to.intern_location(copy);
        }
        self.locations[id as usize]
    }

    /// The id in `to` of a stack, its locations copied unless only its hash is here or `to` knows it.
    pub fn stack(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.stacks[id as usize] == UNKNOWN {
            let from = self.from;
            let (hash, stack) =
                from.stacks.get_index(id as usize).map_or_else(Default::default, |(h, s)| (*h, s.as_ref()));
            let known = to.stacks.get(&hash).is_some_and(Option::is_some);
            let copy: Stack = match stack {
                Some(locations) if !known => {
                    Some(locations.iter().map(|&location| self.location(to, location)).collect())
                }
                _ => None,
            };
            self.stacks[id as usize] = to.intern_stack(hash, copy);
        }
        self.stacks[id as usize]
    }

    /// The id in `to` of a stack of which only the hash is copied: whoever gets `to` knows the rest.
    pub fn stack_reference(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.stacks[id as usize] == UNKNOWN {
            let hash = self.from.stacks.get_index(id as usize).map_or_else(StackHash::default, |(hash, _)| *hash);
            self.stacks[id as usize] = to.intern_stack(hash, None);
        }
        self.stacks[id as usize]
    }

    /// The id in `to` of an attribute set.
    pub fn attributes(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.attribute_sets[id as usize] == UNKNOWN {
            let from = self.from;
            let copy = from.attribute_sets[id as usize]
                .iter()
                .map(|attribute| Attribute {
                    key: self.string(to, attribute.key),
                    unit: self.string(to, attribute.unit),
                    value: match attribute.value {
                        AttributeValue::Text(text) => AttributeValue::Text(self.string(to, text)),
                        AttributeValue::Json(text) => AttributeValue::Json(self.string(to, text)),
                        value => value,
                    },
                })
                .collect();
            self.attribute_sets[id as usize] = to.intern_attributes(copy);
        }
        self.attribute_sets[id as usize]
    }

    /// The id in `to` of a pair.
    pub fn pair(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.pairs[id as usize] == UNKNOWN {
            let StackPair { user, kernel } = self.from.pairs[id as usize];
            let copy = StackPair { user: self.stack(to, user), kernel: self.stack(to, kernel) };
            self.pairs[id as usize] = to.intern_pair(copy);
        }
        self.pairs[id as usize]
    }
}
