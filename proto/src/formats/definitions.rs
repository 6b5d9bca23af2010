//! Conversion between a [`Dictionary`] and its wire form [`wire::Definitions`].
//!
//! Tables whose entry 0 is the empty entry are sent without this entry. Decoding checks that every ID has an entry. A
//! table is decoded after the tables that it refers to: locations after mappings, stacks after locations, and so on.

use bytes::{BufMut, BytesMut};

use crate::build_id::BuildId;
use crate::dictionary::{
    Address, Attribute, AttributeValue, Attributes, Dictionary, Function, Line, Lines, Location, Mapping, StackHash,
    StackPair, stack_hash_with,
};
use crate::formats::wire;
use crate::limits;

/// The error of definitions that contradict each other: the sender has a bug, or the bytes were damaged.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionsError {
    /// An ID refers to an entry that does not exist.
    #[error("{table} {id} is out of range: the table has {length}")]
    OutOfRange {
        /// Name of the table.
        table: &'static str,
        /// The ID that has no entry.
        id: u32,
        /// Number of entries of the table.
        length: usize,
    },
    /// Columns or lengths contradict each other. The text says in which way.
    #[error("{0}")]
    Inconsistent(&'static str),
    /// A build ID has a form that [`BuildId`] never writes. The value is the text of the build ID.
    #[error("{0:?} is not a build ID")]
    BuildId(String),
    /// An entry occurs twice. Entries after it would get wrong IDs.
    #[error("{table} {id} repeats an earlier one")]
    Duplicate {
        /// Name of the table.
        table: &'static str,
        /// ID of the second occurrence.
        id: usize,
    },
}

impl Dictionary {
    /// Encodes the dictionary. The IDs of its entries do not change.
    #[must_use]
    pub fn to_wire(&self) -> wire::Definitions {
        let mut out = wire::Definitions {
            strings: (1..self.strings.len()).map(|id| self.strings.get(id).to_owned()).collect(),
            functions: self.functions.iter().map(function_to_wire).collect(),
            mappings: self.mappings.iter().map(mapping_to_wire).collect(),
            locations: self.locations.iter().map(location_to_wire).collect(),
            attribute_sets: self.attribute_sets.iter().skip(1).map(attributes_to_wire).collect(),
            ..wire::Definitions::default()
        };
        let mut references = BytesMut::new();
        self.stacks.references().for_each(|hash| references.put_u128(hash.0));
        out.stack_references = references.freeze();
        for (_, stack) in self.stacks.iter().skip(1) {
            let locations = stack.unwrap_or_default();
            out.stack_lengths.push(u32::try_from(locations.len()).unwrap_or(u32::MAX));
            out.stack_locations.extend_from_slice(locations);
        }
        for pair in self.pairs.iter().skip(1) {
            out.pair_users.push(pair.user);
            out.pair_kernels.push(pair.kernel);
        }
        out
    }

    /// Decodes a dictionary. The IDs of its entries do not change.
    ///
    /// # Errors
    /// Returns a [`DefinitionsError`] if an ID has no entry, or columns differ in length. No part of the message may be
    /// used then.
    pub fn from_wire(from: &wire::Definitions) -> Result<Self, DefinitionsError> {
        let mut to = Self::default();
        for (id, text) in (1..).zip(&from.strings) {
            add_string(&mut to, id, text)?;
        }
        for (id, &wire::Function { name, system_name, file, start_line }) in from.functions.iter().enumerate() {
            add_function(&mut to, id, Function { name, system_name, file, start_line })?;
        }
        for (id, mapping) in from.mappings.iter().enumerate() {
            add_mapping(&mut to, id, mapping.file, &mapping.build_id)?;
        }
        for (id, location) in from.locations.iter().enumerate() {
            add_location(&mut to, id, location.into())?;
        }
        read_stacks(&mut to, &from.stack_references, &from.stack_lengths, &from.stack_locations)?;
        for (id, set) in (1..).zip(&from.attribute_sets) {
            let mut attributes = set.attributes.iter().map(attribute_from_wire).collect::<Result<_, _>>()?;
            add_attributes(&mut to, id, &mut attributes)?;
        }
        read_pairs(&mut to, &from.pair_users, &from.pair_kernels)?;
        Ok(to)
    }
}

fn function_to_wire(function: &Function) -> wire::Function {
    let Function { name, system_name, file, start_line } = *function;
    wire::Function { name, system_name, file, start_line }
}

fn mapping_to_wire(mapping: &Mapping) -> wire::Mapping {
    let build_id = mapping.build_id.as_ref().map(BuildId::to_string).unwrap_or_default();
    wire::Mapping { file: mapping.file, build_id }
}

fn location_to_wire(location: &Location) -> wire::Location {
    match location {
        Location::Address { mapping, address, frame_type } => {
            let (address, is_file_offset) = match *address {
                Address::Virtual(address) => (address, false),
                Address::FileOffset(offset) => (offset, true),
            };
            wire::Location { frame_type: *frame_type, mapping: *mapping, address, is_file_offset, lines: Vec::new() }
        }
        Location::Lines { mapping_file, frame_type, lines } => wire::Location {
            frame_type: *frame_type,
            mapping: *mapping_file,
            lines: lines.iter().map(|&Line { function, line, column }| wire::Line { function, line, column }).collect(),
            ..wire::Location::default()
        },
    }
}

fn attributes_to_wire(attributes: Attributes<'_>) -> wire::AttributeSet {
    use wire::attribute::Value;
    let attribute = |attribute: Attribute| wire::Attribute {
        key: attribute.key,
        unit: attribute.unit,
        value: Some(match attribute.value {
            AttributeValue::Text(id) => Value::Text(id),
            AttributeValue::Integer(integer) => Value::Integer(integer),
            AttributeValue::Boolean(boolean) => Value::Boolean(boolean),
            AttributeValue::Double(bits) => Value::DoubleBits(bits),
            AttributeValue::Json(id) => Value::Json(id),
        }),
    };
    wire::AttributeSet { attributes: attributes.map(attribute).collect() }
}

fn within(table: &'static str, id: u32, length: usize) -> Result<u32, DefinitionsError> {
    if (id as usize) < length { Ok(id) } else { Err(DefinitionsError::OutOfRange { table, id, length }) }
}

/// Checks that an entry got the ID that is its position in the message.
fn check_id(table: &'static str, got: u32, id: usize) -> Result<(), DefinitionsError> {
    if got as usize == id { Ok(()) } else { Err(DefinitionsError::Duplicate { table, id }) }
}

pub(super) fn add_string(to: &mut Dictionary, id: usize, text: &str) -> Result<(), DefinitionsError> {
    check_id("string", to.strings.intern(text), id)
}

pub(super) fn add_function(to: &mut Dictionary, id: usize, function: Function) -> Result<(), DefinitionsError> {
    let strings = to.strings.len() as usize;
    for id in [function.name, function.system_name, function.file] {
        within("string", id, strings)?;
    }
    check_id("function", to.intern_function(function), id)
}

pub(super) fn add_mapping(to: &mut Dictionary, id: usize, file: u32, build_id: &str) -> Result<(), DefinitionsError> {
    let file = within("string", file, to.strings.len() as usize)?;
    let build_id = match build_id {
        "" => None,
        text => {
            let unreadable = || DefinitionsError::BuildId(text.chars().take(100).collect());
            Some(BuildId::parse(text).ok_or_else(unreadable)?)
        }
    };
    check_id("mapping", to.intern_mapping(Mapping { build_id, file }), id)
}

/// The fields of a [`wire::Location`].
#[derive(Default)]
pub(super) struct WireLocation {
    pub(super) frame_type: u32,
    pub(super) mapping: u32,
    pub(super) address: u64,
    pub(super) is_file_offset: bool,
    pub(super) lines: Lines,
}

impl From<&wire::Location> for WireLocation {
    fn from(from: &wire::Location) -> Self {
        let &wire::Location { frame_type, mapping, address, is_file_offset, ref lines } = from;
        let line = |&wire::Line { function, line, column }: &wire::Line| Line { function, line, column };
        Self { frame_type, mapping, address, is_file_offset, lines: lines.iter().map(line).collect() }
    }
}

pub(super) fn add_location(to: &mut Dictionary, id: usize, from: WireLocation) -> Result<(), DefinitionsError> {
    let strings = to.strings.len() as usize;
    let WireLocation { frame_type, mapping, address, is_file_offset, lines } = from;
    within("string", frame_type, strings)?;
    let location = if lines.is_empty() {
        within("mapping", mapping, to.mappings.len())?;
        let address = if is_file_offset { Address::FileOffset(address) } else { Address::Virtual(address) };
        Location::Address { mapping, address, frame_type }
    } else {
        for line in &lines {
            within("function", line.function, to.functions.len())?;
        }
        Location::Lines { mapping_file: within("string", mapping, strings)?, frame_type, lines }
    };
    check_id("location", to.intern_location(location), id)
}

/// Reads the hashes of `count` references, or the first halves of these hashes.
fn read_references(from: &[u8], count: usize) -> Result<Vec<StackHash>, DefinitionsError> {
    let (hashes, halves) = (from.as_chunks().0, from.as_chunks().0);
    if from.len() == count * size_of::<u128>() {
        Ok(hashes.iter().map(|&hash| StackHash(u128::from_be_bytes(hash))).collect())
    } else if from.len() == count * size_of::<u64>() {
        Ok(halves.iter().map(|&half| StackHash::of_first_half(u64::from_be_bytes(half))).collect())
    } else {
        Err(DefinitionsError::Inconsistent("the number of references is not that of stacks without locations"))
    }
}

/// Adds stacks. `references` has those without locations, `lengths` the number of locations of each stack, and
/// `locations` the locations of all stacks.
pub(super) fn read_stacks(
    to: &mut Dictionary,
    references: &[u8],
    lengths: &[u32],
    locations: &[u32],
) -> Result<(), DefinitionsError> {
    let count = lengths.iter().filter(|&&length| length == 0).count();
    let mut references = read_references(references, count)?.into_iter();
    let mut hashed = Vec::new();
    let mut rest = locations;
    for (id, &length) in (1..).zip(lengths) {
        let too_short =
            DefinitionsError::Inconsistent("there are fewer stack locations than the stack lengths add up to");
        let (locations, remaining) = rest.split_at_checked(length as usize).ok_or(too_short)?;
        rest = remaining;
        if length as usize > limits::STACK_DEPTH_MAX * 2 {
            return Err(DefinitionsError::Inconsistent("a stack is deeper than any push may be"));
        }
        for &location in locations {
            within("location", location, to.locations.len())?;
        }
        let stack = (length > 0).then_some(locations);
        let hash = match stack {
            Some(stack) => {
                let hashes = stack.iter().map(|&location| to.location_hash(location));
                stack_hash_with(hashes, None, &mut hashed)
            }
            // There is one reference for each stack without locations.
            None => references.next().unwrap_or_default(),
        };
        check_id("stack", to.intern_stack(hash, stack), id)?;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(DefinitionsError::Inconsistent("there are more stack locations than the stack lengths add up to"))
    }
}

fn attribute_from_wire(from: &wire::Attribute) -> Result<Attribute, DefinitionsError> {
    use wire::attribute::Value;
    let value = match from.value {
        Some(Value::Text(id)) => AttributeValue::Text(id),
        Some(Value::Json(id)) => AttributeValue::Json(id),
        Some(Value::Integer(integer)) => AttributeValue::Integer(integer),
        Some(Value::Boolean(boolean)) => AttributeValue::Boolean(boolean),
        Some(Value::DoubleBits(bits)) => AttributeValue::Double(bits),
        None => return Err(DefinitionsError::Inconsistent("an attribute has no value")),
    };
    Ok(Attribute { key: from.key, unit: from.unit, value })
}

/// Adds an attribute set. Sorts `attributes`, whose allocation callers can reuse.
pub(super) fn add_attributes(
    to: &mut Dictionary,
    id: usize,
    attributes: &mut Vec<Attribute>,
) -> Result<(), DefinitionsError> {
    let strings = to.strings.len() as usize;
    for attribute in &*attributes {
        within("string", attribute.key, strings)?;
        within("string", attribute.unit, strings)?;
        if let AttributeValue::Text(id) | AttributeValue::Json(id) = attribute.value {
            within("string", id, strings)?;
        }
    }
    check_id("attribute set", to.intern_attributes_of(attributes), id)
}

pub(super) fn read_pairs(to: &mut Dictionary, users: &[u32], kernels: &[u32]) -> Result<(), DefinitionsError> {
    if users.len() != kernels.len() {
        return Err(DefinitionsError::Inconsistent("the numbers of user and kernel stacks of pairs differ"));
    }
    for (id, (&user, &kernel)) in (1..).zip(users.iter().zip(kernels)) {
        for id in [user, kernel] {
            within("stack", id, to.stacks.len())?;
        }
        check_id("pair", to.intern_pair(StackPair { user, kernel }), id)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dictionary::stack_hash;

    /// Returns a dictionary with `n` entries of every kind.
    pub(crate) fn filled(n: u32) -> Dictionary {
        let mut d = Dictionary::default();
        for i in 0..n {
            let name = d.strings.intern(&format!("f{i}"));
            let file = d.strings.intern(&format!("file{i}"));
            let function = d.intern_function(Function { name, system_name: 0, file, start_line: i64::from(i) });
            let by_id = d.intern_mapping(Mapping { build_id: Some(BuildId::Gnu(vec![1, 2, i as u8])), file });
            let by_file = d.intern_mapping(Mapping { build_id: None, file });
            let lines = [Line { function, line: -1, column: 2 }].into();
            let a = d.intern_location(Location::Lines { mapping_file: file, frame_type: name, lines });
            let address = Address::Virtual(u64::MAX);
            let b = d.intern_location(Location::Address { mapping: by_id, address, frame_type: name });
            let address = Address::FileOffset(7);
            let c = d.intern_location(Location::Address { mapping: by_file, address, frame_type: 0 });
            let hashes: Vec<_> = [a, b, c].iter().map(|&id| d.location_hash(id)).collect();
            let user = d.intern_stack(stack_hash(&hashes), Some(&[a, b, c]));
            let kernel = d.intern_stack(stack_hash(&hashes[1..]), Some(&[b, c]));
            d.intern_pair(StackPair { user, kernel });
            let values = [
                AttributeValue::Text(file),
                AttributeValue::Integer(-5),
                AttributeValue::Boolean(true),
                AttributeValue::Double(0.5_f64.to_bits()),
                AttributeValue::Json(name),
            ];
            for value in values {
                d.intern_attributes(vec![Attribute { key: name, unit: 0, value }]);
            }
        }
        d
    }

    #[test]
    fn a_dictionary_is_decoded_from_its_own_message() {
        let filled = filled(9);
        assert_eq!(Dictionary::from_wire(&filled.to_wire()).unwrap().to_wire(), filled.to_wire());
    }

    #[test]
    fn importing_a_whole_dictionary_keeps_every_hash() {
        let from = filled(5);
        let mut to = filled(2);
        let mut importer = crate::Importer::new(&from);
        for id in 0..from.locations.len() as u32 {
            let copy = importer.location(&mut to, id);
            assert_eq!(from.location_hash(id), to.location_hash(copy));
        }
        for id in 0..from.stacks.len() as u32 {
            let copy = importer.stack(&mut to, id);
            assert_eq!(from.stacks.hash(id), to.stacks.hash(copy));
            assert_eq!(from.stack(id).len(), to.stack(copy).len());
        }
    }

    #[test]
    fn an_id_without_an_entry_is_refused() {
        let good = filled(2).to_wire();
        let damages: [fn(&mut wire::Definitions); 12] = [
            |d| d.functions[0].name = 1000,
            |d| d.mappings[0].file = 1000,
            |d| d.locations[0].lines[0].function = 1000,
            |d| d.locations[1].mapping = 1000,
            |d| d.stack_locations[0] = 1000,
            |d| d.stack_lengths[0] = 1000,
            |d| d.stack_references = vec![1; 16].into(),
            |d| d.pair_users[0] = 1000,
            |d| d.attribute_sets[0].attributes[0].key = 1000,
            |d| d.attribute_sets[0].attributes[0].value = None,
            |d| d.strings[1] = d.strings[0].clone(),
            |d| d.mappings[0].build_id = "gnu:zz".to_owned(),
        ];
        for (i, damage) in damages.iter().enumerate() {
            let mut bad = good.clone();
            damage(&mut bad);
            assert!(Dictionary::from_wire(&bad).is_err(), "damage {i}");
        }
    }
}
