//! The wire form of a [`Dictionary`]: [`wire::Definitions`].
//!
//! Entry 0 of each table that has a zero entry is not sent. Reading checks that every id points to an entry that exists, so
//! that nothing behind it can dangle. Lines of one location precede it, mappings precede locations, and so on.

use bytes::{BufMut, BytesMut};

use crate::build_id::BuildId;
use crate::dictionary::{
    Address, Attribute, AttributeValue, Attributes, Dictionary, Function, Line, Location, MappingIdentity, StackHash,
    StackPair, dense,
};
use crate::formats::numbers::read_u128;
use crate::formats::wire;
use crate::limits;

/// Definitions that contradict themselves: the sender is broken, or the bytes are not what it sent.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionsError {
    /// An id points behind the end of its table.
    #[error("{table} {id} is referred to, and there are {length}")]
    OutOfRange {
        /// Which table.
        table: &'static str,
        /// The id.
        id: u32,
        /// The table's length.
        length: usize,
    },
    /// Columns or lengths that do not add up.
    #[error("{0}")]
    Inconsistent(&'static str),
    /// Not what [`BuildId`] writes.
    #[error("{0:?} is no build ID")]
    BuildId(String),
    /// The same entry twice, so that the ids behind it would shift.
    #[error("{table} {id} is there twice")]
    Duplicate {
        /// Which table.
        table: &'static str,
        /// Its second place.
        id: usize,
    },
}

impl Dictionary {
    /// Everything in this dictionary, ids unchanged.
    #[must_use]
    pub fn to_wire(&self) -> wire::Definitions {
        self.to_wire_since(&Self::default().lengths())
    }

    /// How much is in each table.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        Lengths {
            strings: self.strings.len() as usize,
            functions: self.functions.len(),
            mappings: self.mappings.len(),
            locations: self.locations.len(),
            stacks: self.stacks.len(),
            attribute_sets: self.attribute_sets.len(),
            pairs: self.pairs.len(),
        }
    }

    /// What came after `since`, ids unchanged: [`Dictionary::extend_from_wire`] on the dictionary of then gives that of now.
    #[must_use]
    pub fn to_wire_since(&self, since: &Lengths) -> wire::Definitions {
        let mappings = self.mappings.iter().skip(since.mappings);
        let attribute_sets = self.attribute_sets.iter().skip(since.attribute_sets);
        let mut out = wire::Definitions {
            strings: (since.strings..self.strings.len() as usize)
                .map(|id| self.strings.get(dense(id)).to_owned())
                .collect(),
            functions: self.functions.iter().skip(since.functions).map(function_to_wire).collect(),
            mappings: mappings.map(|(identity, file)| mapping_to_wire(identity, *file)).collect(),
            locations: self.locations.iter().skip(since.locations).map(location_to_wire).collect(),
            attribute_sets: attribute_sets.map(attributes_to_wire).collect(),
            ..wire::Definitions::default()
        };
        let mut hashes = BytesMut::with_capacity((self.stacks.len() - since.stacks) * 16);
        for (hash, stack) in self.stacks.iter().skip(since.stacks) {
            hashes.put_u128(hash.0);
            let locations = stack.unwrap_or_default();
            out.stack_lengths.push(u32::try_from(locations.len()).unwrap_or(u32::MAX));
            out.stack_locations.extend_from_slice(locations);
        }
        out.stack_hashes = hashes.freeze();
        for pair in self.pairs.iter().skip(since.pairs) {
            out.pair_users.push(pair.user);
            out.pair_kernels.push(pair.kernel);
        }
        out
    }

    /// The dictionary that was sent, ids unchanged.
    ///
    /// # Errors
    /// [`DefinitionsError`] where an id dangles or columns do not add up; nothing of it may be used then.
    pub fn from_wire(from: &wire::Definitions) -> Result<Self, DefinitionsError> {
        let mut to = Self::default();
        to.extend_from_wire(from)?;
        Ok(to)
    }

    /// Adds what [`Dictionary::to_wire_since`] wrote for a dictionary of this one's lengths.
    ///
    /// # Errors
    /// [`DefinitionsError`] where an id dangles or columns do not add up; the dictionary may not be used any more then.
    pub fn extend_from_wire(&mut self, from: &wire::Definitions) -> Result<(), DefinitionsError> {
        let since = self.lengths();
        read_strings(self, from, since.strings)?;
        read_functions(self, from, since.functions)?;
        read_mappings(self, from, since.mappings)?;
        read_locations(self, from, since.locations)?;
        read_stacks(self, from, since.stacks)?;
        read_attribute_sets(self, from, since.attribute_sets)?;
        read_pairs(self, from, since.pairs)
    }
}

/// How much is in each table of a dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    strings: usize,
    functions: usize,
    mappings: usize,
    locations: usize,
    stacks: usize,
    attribute_sets: usize,
    pairs: usize,
}

fn function_to_wire(function: &Function) -> wire::Function {
    let Function { name, system_name, file, start_line } = *function;
    wire::Function { name, system_name, file, start_line }
}

fn mapping_to_wire(identity: &MappingIdentity, file: u32) -> wire::Mapping {
    match identity {
        MappingIdentity::BuildId(build_id) => wire::Mapping { file, build_id: build_id.to_string() },
        MappingIdentity::File(file) => wire::Mapping { file: *file, build_id: String::new() },
    }
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

/// An entry that was interned must have got the id that its place says.
fn in_place(table: &'static str, got: u32, id: usize) -> Result<(), DefinitionsError> {
    if got as usize == id { Ok(()) } else { Err(DefinitionsError::Duplicate { table, id }) }
}

fn read_strings(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    for (i, text) in from.strings.iter().enumerate() {
        in_place("string", to.strings.intern(text), since + i)?;
    }
    Ok(())
}

fn read_functions(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    let strings = to.strings.len() as usize;
    for (i, &wire::Function { name, system_name, file, start_line }) in from.functions.iter().enumerate() {
        for id in [name, system_name, file] {
            within("string", id, strings)?;
        }
        in_place("function", to.intern_function(Function { name, system_name, file, start_line }), since + i)?;
    }
    Ok(())
}

fn read_mappings(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    for (i, mapping) in from.mappings.iter().enumerate() {
        let file = within("string", mapping.file, to.strings.len() as usize)?;
        let identity = if mapping.build_id.is_empty() {
            MappingIdentity::File(file)
        } else {
            let unreadable = || DefinitionsError::BuildId(mapping.build_id.chars().take(100).collect());
            MappingIdentity::BuildId(BuildId::parse(&mapping.build_id).ok_or_else(unreadable)?)
        };
        in_place("mapping", to.intern_mapping(identity, file), since + i)?;
    }
    Ok(())
}

fn read_locations(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    let strings = to.strings.len() as usize;
    for (i, location) in from.locations.iter().enumerate() {
        let frame_type = within("string", location.frame_type, strings)?;
        let read = if location.lines.is_empty() {
            let mapping = within("mapping", location.mapping, to.mappings.len())?;
            let address = if location.is_file_offset {
                Address::FileOffset(location.address)
            } else {
                Address::Virtual(location.address)
            };
            Location::Address { mapping, address, frame_type }
        } else {
            let line = |&wire::Line { function, line, column }: &wire::Line| {
                Ok(Line { function: within("function", function, to.functions.len())?, line, column })
            };
            let lines = location.lines.iter().map(line).collect::<Result<_, DefinitionsError>>()?;
            Location::Lines { mapping_file: within("string", location.mapping, strings)?, frame_type, lines }
        };
        in_place("location", to.intern_location(read), since + i)?;
    }
    Ok(())
}

fn read_stacks(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    let hashes = from.stack_hashes.chunks_exact(16);
    if !hashes.remainder().is_empty() || hashes.len() != from.stack_lengths.len() {
        return Err(DefinitionsError::Inconsistent("there is not one length for each stack hash"));
    }
    let mut rest = from.stack_locations.as_slice();
    for (i, (hash, &length)) in hashes.zip(&from.stack_lengths).enumerate() {
        let hash = StackHash(read_u128(hash));
        let too_short = DefinitionsError::Inconsistent("fewer stack locations than the lengths add up to");
        let (locations, behind) = rest.split_at_checked(length as usize).ok_or(too_short)?;
        rest = behind;
        if length as usize > limits::STACK_DEPTH_MAX * 2 {
            return Err(DefinitionsError::Inconsistent("a stack is deeper than any push may be"));
        }
        for &location in locations {
            within("location", location, to.locations.len())?;
        }
        let stack = (length > 0).then_some(locations);
        in_place("stack", to.intern_stack(hash, stack), since + i)?;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(DefinitionsError::Inconsistent("more stack locations than the lengths add up to"))
    }
}

fn read_attribute_sets(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    use wire::attribute::Value;
    let strings = to.strings.len() as usize;
    for (i, set) in from.attribute_sets.iter().enumerate() {
        let attribute = |attribute: &wire::Attribute| {
            let value = match attribute.value {
                Some(Value::Text(id)) => AttributeValue::Text(within("string", id, strings)?),
                Some(Value::Json(id)) => AttributeValue::Json(within("string", id, strings)?),
                Some(Value::Integer(integer)) => AttributeValue::Integer(integer),
                Some(Value::Boolean(boolean)) => AttributeValue::Boolean(boolean),
                Some(Value::DoubleBits(bits)) => AttributeValue::Double(bits),
                None => return Err(DefinitionsError::Inconsistent("an attribute has no value")),
            };
            let key = within("string", attribute.key, strings)?;
            Ok(Attribute { key, unit: within("string", attribute.unit, strings)?, value })
        };
        let attributes = set.attributes.iter().map(attribute).collect::<Result<_, _>>()?;
        in_place("attribute set", to.intern_attributes(attributes), since + i)?;
    }
    Ok(())
}

fn read_pairs(to: &mut Dictionary, from: &wire::Definitions, since: usize) -> Result<(), DefinitionsError> {
    if from.pair_users.len() != from.pair_kernels.len() {
        return Err(DefinitionsError::Inconsistent("there is not one kernel stack for each user stack"));
    }
    for (i, (&user, &kernel)) in from.pair_users.iter().zip(&from.pair_kernels).enumerate() {
        for id in [user, kernel] {
            within("stack", id, to.stacks.len())?;
        }
        in_place("pair", to.intern_pair(StackPair { user, kernel }), since + i)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dictionary::stack_hash;

    /// A dictionary with something of every kind, `n` of each.
    pub(crate) fn filled(n: u32) -> Dictionary {
        let mut d = Dictionary::default();
        for i in 0..n {
            let name = d.strings.intern(&format!("f{i}"));
            let file = d.strings.intern(&format!("file{i}"));
            let function = d.intern_function(Function { name, system_name: 0, file, start_line: i64::from(i) });
            let by_id = d.intern_mapping(MappingIdentity::BuildId(BuildId::Gnu(vec![1, 2, i as u8])), file);
            let by_file = d.intern_mapping(MappingIdentity::File(file), file);
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

    fn same(a: &Dictionary, b: &Dictionary) -> bool {
        a.to_wire() == b.to_wire()
    }

    #[test]
    fn a_dictionary_reads_what_it_writes_at_once_or_in_parts() {
        let whole = filled(9);
        assert!(same(&Dictionary::from_wire(&whole.to_wire()).unwrap(), &whole));
        let mut parts = filled(4);
        let since = parts.lengths();
        parts.extend_from_wire(&whole.to_wire_since(&since)).unwrap();
        assert!(same(&parts, &whole));
    }

    #[test]
    fn importing_everything_keeps_every_hash() {
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
    fn an_id_behind_the_end_of_its_table_is_refused() {
        let good = filled(2).to_wire();
        let damages: [fn(&mut wire::Definitions); 11] = [
            |d| d.functions[0].name = 1000,
            |d| d.mappings[0].file = 1000,
            |d| d.locations[0].lines[0].function = 1000,
            |d| d.locations[1].mapping = 1000,
            |d| d.stack_locations[0] = 1000,
            |d| d.stack_lengths[0] = 1000,
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
