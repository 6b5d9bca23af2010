//! The dictionary: tables of the definitions that samples refer to. Each definition is stored once, under a dense ID.
//!
//! One structure serves a push, a batch, a partition and a response. [`Importer`] copies needed entries from one
//! dictionary to another. The empty entry is entry 0 in the tables of strings, stacks, attribute sets and pairs.
//!
//! Invariant: IDs are dense and never change. Every ID in an entry belongs to an existing entry of the same dictionary.

use foldhash::fast::FixedState;
use indexmap::IndexSet;

use crate::build_id::BuildId;

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
use identity::mapping_hash;
pub use identity::{address_hash, function_hash, lines_hash, stack_hash, stack_hash_with, text_hash};
pub(crate) use ids::dense;
pub use importer::{Copied, Importer};
pub use location::{Address, Function, Line, Lines, Location, Mapping, StackHash};
pub use pairs::{Pairs, StackPair};
pub(crate) use stacks::Spans;
pub use stacks::Stacks;
pub use strings::Strings;

/// Largest capacity, in bytes, with which the buffer for hashing is kept for the next location. So one location with
/// very many lines does not hold a large buffer forever.
const HASHED_BYTES_MAX: usize = 1 << 16;

/// Approximate numbers of entries that will be added to a dictionary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    /// Number of strings.
    pub strings: usize,
    /// Total size of the strings, in bytes.
    pub text_bytes: usize,
    /// Number of functions.
    pub functions: usize,
    /// Number of locations.
    pub locations: usize,
    /// Number of stacks, and also of stack pairs.
    pub stacks: usize,
    /// Total number of locations in all stacks.
    pub stack_locations: usize,
}

/// Tables of definitions with dense IDs.
#[derive(Clone, Debug)]
pub struct Dictionary {
    /// Table of the texts of all entries.
    pub strings: Strings,
    /// Table of the functions.
    pub functions: Functions,
    /// Table of the mapped files.
    pub mappings: IndexSet<Mapping, FixedState>,
    /// Hash of each mapping, by the mapping's ID.
    mapping_hashes: Vec<u128>,
    /// Table of the locations.
    pub locations: Locations,
    /// Table of the stacks, which are lists of location IDs.
    pub stacks: Stacks,
    /// Table of the attribute sets. A set is sorted by key, and its keys are unique.
    pub attribute_sets: AttributeSets,
    /// Table of the pairs of a user stack and a kernel stack.
    pub pairs: Pairs,
    /// Number of lines whose memory is allocated separately from their location.
    lines: usize,
    /// Total size of the texts of the build IDs of all mappings, in bytes.
    mapping_text: usize,
    /// Buffer for the bytes of a location that are hashed.
    hashed: Vec<u8>,
}

impl Default for Dictionary {
    fn default() -> Self {
        let mut dictionary = Self {
            strings: Strings::default(),
            functions: Functions::default(),
            mappings: IndexSet::default(),
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
    /// Returns the ID of a function. Adds the function if it is new.
    pub fn intern_function(&mut self, function: Function) -> u32 {
        let Function { name, system_name, file, start_line } = function;
        let hash = function_hash([name, system_name, file].map(|text| self.strings.hash(text)), start_line);
        self.functions.intern(hash, function)
    }

    /// Returns the ID of a mapping. Adds the mapping if it is new.
    pub fn intern_mapping(&mut self, mapping: Mapping) -> u32 {
        let (id, is_new) = self.mappings.insert_full(mapping);
        if is_new {
            let Mapping { build_id, file } = &self.mappings[id];
            let build_id = build_id.as_ref().map(BuildId::to_string).unwrap_or_default();
            self.mapping_text += build_id.len();
            self.mapping_hashes.push(mapping_hash(self.strings.hash(*file), &build_id));
        }
        dense(id)
    }

    /// Returns the ID of a location. Adds the location if it is new.
    pub fn intern_location(&mut self, location: Location) -> u32 {
        let mut hashed = std::mem::take(&mut self.hashed);
        let hash = self.identity_hash(&location, &mut hashed);
        if hashed.capacity() <= HASHED_BYTES_MAX {
            self.hashed = hashed;
        }
        self.intern_hashed(hash, location)
    }

    /// Returns the ID of a location, given the location's hash. Adds the location if it is new.
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

    /// Returns the ID of a stack. Adds the stack if it is new.
    ///
    /// `stack` holds the locations, leaf first. It is `None` if the receiver of the batch knows the stack by its hash.
    /// If the stack was added without locations, a later call with locations adds them.
    pub fn intern_stack(&mut self, hash: StackHash, stack: Option<&[u32]>) -> u32 {
        self.stacks.intern(hash, stack)
    }

    /// Allocates memory for further entries, so that the tables need not grow step by step.
    pub fn reserve(&mut self, capacity: &Capacity) {
        self.strings.reserve(capacity.strings, capacity.text_bytes);
        self.functions.reserve(capacity.functions);
        self.locations.reserve(capacity.locations);
        self.stacks.reserve(capacity.stacks, capacity.stack_locations);
        self.pairs.reserve(capacity.stacks);
    }

    /// Returns the ID of an attribute set. Adds the set if it is new.
    ///
    /// Sorts the attributes by the text of their keys. Among attributes with equal keys, keeps the first.
    pub fn intern_attributes(&mut self, mut attributes: Vec<Attribute>) -> u32 {
        self.intern_attributes_of(&mut attributes)
    }

    /// Like [`Dictionary::intern_attributes`], but callers can reuse the list of attributes.
    pub(crate) fn intern_attributes_of(&mut self, attributes: &mut Vec<Attribute>) -> u32 {
        let strings = &self.strings;
        attributes.sort_by(|a, b| strings.get(a.key).cmp(strings.get(b.key)));
        attributes.dedup_by_key(|attribute| attribute.key);
        self.attribute_sets.intern(attributes)
    }

    /// Returns the ID of a pair. Adds the pair if it is new.
    #[inline]
    pub fn intern_pair(&mut self, pair: StackPair) -> u32 {
        self.pairs.intern(pair)
    }

    /// Returns whether this dictionary has all attribute sets of `other`.
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
        // Sets are sorted by the text of their keys, so both dictionaries have the same order.
        other.attribute_sets.iter().all(|set| {
            let set: Option<Vec<_>> = set.map(here).collect();
            set.is_some_and(|set| self.attribute_sets.find(&set).is_some())
        })
    }

    /// Approximate size in memory, in bytes: the entries, hashes and index of each table, and memory that entries own.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // An entry of an index map takes its own size and, in bytes, 8 for its hash, and 4 to 8 for a slot of the
        // table. An entry that owns memory takes 16 more for the allocator's header.
        self.strings.memory_bytes()
            + self.functions.memory_bytes()
            + self.mappings.len() * (size_of::<Mapping>() + 80)
            + self.mapping_text
            + self.locations.memory_bytes()
            + self.lines * size_of::<Line>()
            + self.stacks.memory_bytes()
            + self.attribute_sets.memory_bytes()
            + self.pairs.memory_bytes()
    }

    /// Upper bound of the number of bytes that the entries take in the wire form beyond their size in memory.
    pub(crate) fn wire_bytes_more(&self) -> usize {
        // A line takes two numbers of ten bytes, a function's ID of five bytes, three tags, and a tag with a length.
        const LINE_BYTES: usize = 10 + 10 + 5 + 3 + 2;
        self.attribute_sets.wire_bytes_more() + self.lines * LINE_BYTES.saturating_sub(size_of::<Line>())
    }

    /// Hash of a location's identity. It depends on the content of the entries that the location refers to, and not on
    /// their IDs.
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

    /// Hash of the identity of a mapping.
    #[must_use]
    #[inline]
    pub fn mapping_hash(&self, id: u32) -> u128 {
        self.mapping_hashes[id as usize]
    }

    /// Returns the build ID of a mapping, and the name of the mapped file.
    #[must_use]
    #[inline]
    pub fn mapping(&self, id: u32) -> (Option<&BuildId>, &str) {
        let Mapping { build_id, file } = &self.mappings[id as usize];
        (build_id.as_ref(), self.strings.get(*file))
    }

    /// Locations of a stack, leaf first. Empty if the dictionary has only the stack's hash.
    #[must_use]
    #[inline]
    pub fn stack(&self, id: u32) -> &[u32] {
        self.stacks.get(id).unwrap_or_default()
    }
}
