//! The dictionary: what samples refer to, each thing once, by dense ids.
//!
//! One structure serves a push, a batch, a partition and an answer; [`Importer`] copies from one into another what is
//! needed and nothing else. Entry 0 of strings, stacks, attribute sets and pairs is the empty one. Ids are dense, only
//! ever appended, and refer to entries of the same dictionary that exist; whoever adds an entry keeps that so.

use foldhash::fast::FixedState;
use indexmap::IndexMap;
use indexmap::map::Entry;
use xxhash_rust::xxh3::xxh3_128;

mod attribute;
mod attribute_sets;
mod hashed;
mod identity;
mod ids;
mod importer;
mod location;
mod pairs;
mod stacks;
mod strings;

pub use attribute::{Attribute, AttributeValue};
pub use attribute_sets::{AttributeSets, Attributes};
pub use hashed::{Functions, Hashed, Locations};
pub use identity::{address_hash, function_hash, lines_hash, stack_hash, stack_hash_with, text_hash};
pub(crate) use ids::dense;
pub use importer::{Copied, Importer};
pub use location::{Address, Function, Line, Lines, Location, MappingIdentity, StackHash};
pub use pairs::{Pairs, StackPair};
pub(crate) use stacks::Spans;
pub use stacks::Stacks;
pub use strings::Strings;

type Map<K, V> = IndexMap<K, V, FixedState>;

/// Memory for hashing that is kept; one location may have thousands of lines.
const HASHED_BYTES_MAX: usize = 1 << 16;

/// How many entries are about to be added, about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Strings.
    pub strings: usize,
    /// Bytes of all strings.
    pub text_bytes: usize,
    /// Functions.
    pub functions: usize,
    /// Locations.
    pub locations: usize,
    /// Stacks, and pairs of them.
    pub stacks: usize,
    /// Locations of all stacks.
    pub stack_locations: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Dictionary {
    /// All text.
    pub strings: Strings,
    /// Functions.
    pub functions: Functions,
    /// Mappings, with the id of the file name that came first.
    pub mappings: Map<MappingIdentity, u32>,
    /// Of their identities, by id.
    mapping_hashes: Vec<u128>,
    /// Locations.
    pub locations: Locations,
    /// Stacktraces.
    pub stacks: Stacks,
    /// Attributes of a sample, sorted, each key once.
    pub attribute_sets: AttributeSets,
    /// What a sample's stack is.
    pub pairs: Pairs,
    /// Lines that lie outside their locations.
    lines: usize,
    /// Text of mappings' identities, in bytes.
    mapping_text: usize,
    /// What is being hashed.
    hashed: Vec<u8>,
}

impl Default for Dictionary {
    fn default() -> Self {
        let mut dictionary = Self {
            strings: Strings::default(),
            functions: Functions::default(),
            mappings: Map::default(),
            mapping_hashes: Vec::new(),
            locations: Locations::default(),
            stacks: Stacks::default(),
            attribute_sets: AttributeSets::default(),
            pairs: Pairs::default(),
            lines: 0,
            mapping_text: 0,
            hashed: Vec::new(),
        };
        dictionary.stacks.intern(StackHash::default(), Some(&[]));
        dictionary.attribute_sets.intern(&[]);
        dictionary.pairs.intern(StackPair::default());
        dictionary
    }
}

impl Dictionary {
    /// The id of a function, new or old.
    pub fn intern_function(&mut self, function: Function) -> u32 {
        let Function { name, system_name, file, start_line } = function;
        let hash = function_hash([name, system_name, file].map(|text| self.strings.hash(text)), start_line);
        self.functions.intern(hash, function)
    }

    /// The id of a mapping, new or old; `file` is kept if it is new.
    pub fn intern_mapping(&mut self, identity: MappingIdentity, file: u32) -> u32 {
        let entry = self.mappings.entry(identity);
        let id = entry.index();
        if let Entry::Vacant(entry) = entry {
            let hash = match entry.key() {
                MappingIdentity::BuildId(build_id) => {
                    let text = build_id.to_string();
                    self.mapping_text += text.len();
                    xxh3_128(text.as_bytes())
                }
                MappingIdentity::File(file) => xxh3_128(format!("file:{}", self.strings.get(*file)).as_bytes()),
            };
            self.mapping_hashes.push(hash);
            entry.insert(file);
        }
        dense(id)
    }

    /// The id of a location, new or old.
    pub fn intern_location(&mut self, location: Location) -> u32 {
        let mut hashed = std::mem::take(&mut self.hashed);
        let hash = self.identity_hash(&location, &mut hashed);
        if hashed.capacity() <= HASHED_BYTES_MAX {
            self.hashed = hashed;
        }
        self.intern_hashed(hash, location)
    }

    /// The id of a location whose hash is known, new or old.
    pub(crate) fn intern_hashed(&mut self, hash: u128, location: Location) -> u32 {
        let outside = match &location {
            Location::Lines { lines, .. } if lines.spilled() => lines.len(),
            Location::Lines { .. } | Location::Address { .. } => 0,
        };
        let before = self.locations.len();
        let id = self.locations.intern(hash, location);
        if self.locations.len() > before {
            self.lines += outside;
        }
        id
    }

    /// The id of a stack, new or old: its locations, leaf first, or nothing but its hash where the holder of the batch knows
    /// the rest. A stack that was known by its hash alone gets its locations here.
    pub fn intern_stack(&mut self, hash: StackHash, stack: Option<&[u32]>) -> u32 {
        self.stacks.intern(hash, stack)
    }

    /// Makes room, so that tables need not grow step by step.
    pub fn reserve(&mut self, room: &Room) {
        self.strings.reserve(room.strings, room.text_bytes);
        self.functions.reserve(room.functions);
        self.locations.reserve(room.locations);
        self.stacks.reserve(room.stacks, room.stack_locations);
        self.pairs.reserve(room.stacks);
    }

    /// The id of an attribute set, new or old. Sorts by the keys' text; of equal keys the first stays.
    pub fn intern_attributes(&mut self, mut attributes: Vec<Attribute>) -> u32 {
        let strings = &self.strings;
        attributes.sort_by(|a, b| strings.get(a.key).cmp(strings.get(b.key)));
        attributes.dedup_by_key(|attribute| attribute.key);
        self.attribute_sets.intern(&attributes)
    }

    /// The id of a pair, new or old.
    #[inline]
    pub fn intern_pair(&mut self, pair: StackPair) -> u32 {
        self.pairs.intern(pair)
    }

    /// Whether it has all attribute sets of another.
    #[must_use]
    pub fn has_attributes_of(&self, other: &Self) -> bool {
        let text = |id: u32| self.strings.find(other.strings.get(id));
        let here = |attribute: Attribute| {
            let value = match attribute.value {
                AttributeValue::Text(id) => AttributeValue::Text(text(id)?),
                AttributeValue::Json(id) => AttributeValue::Json(text(id)?),
                value => value,
            };
            Some(Attribute { key: text(attribute.key)?, unit: text(attribute.unit)?, value })
        };
        // Sorted by the keys' text, so in the same order in both.
        other.attribute_sets.iter().all(|set| {
            let set: Option<Vec<_>> = set.map(here).collect();
            set.is_some_and(|set| self.attribute_sets.find(&set).is_some())
        })
    }

    /// About how many bytes it takes in memory: each table's entries, hashes and index, and what they own.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // An entry of an index map: its hash (8), a slot of the table (4 to 8, by load), the allocator's header where it owns
        // memory (16), and itself.
        self.strings.memory_bytes()
            + self.functions.memory_bytes()
            + self.mappings.len() * (size_of::<MappingIdentity>() + 80)
            + self.mapping_text
            + self.locations.memory_bytes()
            + self.lines * size_of::<Line>()
            + self.stacks.memory_bytes()
            + self.attribute_sets.memory_bytes()
            + self.pairs.memory_bytes()
    }

    /// What its wire form takes more than itself in memory, where that is more, at most.
    pub(crate) fn wire_bytes_more(&self) -> usize {
        // Two numbers of ten bytes, a function's of five, tags and a length.
        const LINE_BYTES: usize = 10 + 10 + 5 + 3 + 2;
        self.attribute_sets.wire_bytes_more() + self.lines * LINE_BYTES.saturating_sub(size_of::<Line>())
    }

    /// The hash of a location's identity; the ids in it do not matter, what they stand for does.
    #[must_use]
    #[inline]
    pub fn location_hash(&self, id: u32) -> u128 {
        self.locations.hash(id)
    }

    fn identity_hash(&self, location: &Location, bytes: &mut Vec<u8>) -> u128 {
        let text = |id: u32| self.strings.hash(id);
        match location {
            Location::Address { mapping, address, frame_type } => {
                address_hash(self.mapping_hash(*mapping), text(*frame_type), *address)
            }
            Location::Lines { mapping_file, frame_type, lines } => {
                let lines = lines.iter().map(|line| (self.functions.hash(line.function), line.line, line.column));
                lines_hash(text(*mapping_file), text(*frame_type), lines, bytes)
            }
        }
    }

    /// The hash of a mapping's identity.
    #[must_use]
    #[inline]
    pub fn mapping_hash(&self, id: u32) -> u128 {
        self.mapping_hashes[id as usize]
    }

    /// A mapping's identity and the name of its file.
    #[must_use]
    #[inline]
    pub fn mapping(&self, id: u32) -> (&MappingIdentity, &str) {
        let (identity, file) = self.mapping_at(id);
        (identity, self.strings.get(file))
    }

    /// A mapping's identity and the id of its file's name.
    pub(crate) fn mapping_at(&self, id: u32) -> (&MappingIdentity, u32) {
        let (identity, file) = self.mappings.get_index(id as usize).unwrap_or((&MappingIdentity::File(0), &0));
        (identity, *file)
    }

    /// The locations of a stack, leaf first; none if only its hash is here.
    #[must_use]
    #[inline]
    pub fn stack(&self, id: u32) -> &[u32] {
        self.stacks.get(id).unwrap_or_default()
    }
}
