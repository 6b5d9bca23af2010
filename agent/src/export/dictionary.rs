//! The dictionary of one export request: the mappings, locations, functions, strings, attributes, links and stacks of
//! its samples.
//!
//! Invariants, as the OTLP profiles specification requires:
//! - Element 0 of every table is the zero value.
//! - There are no duplicates, because each entry is looked up by an id that is unique for its content.
//! - There are no orphans, because each entry is added with the entry that refers to it.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use proto::otlp::common::v1::{AnyValue, any_value::Value};
use proto::otlp::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, Stack, ValueType,
};

use crate::names::location::{self, FrameType, LocationId, LocationTable, SourceFunction, SourceLine};
use crate::process::file::table::FileTable;
use crate::process::file::{FileId, LoadedPart};
use crate::sampling::aggregate::{Aggregate, StackId};

/// Value of an attribute. All attributes that the agent sends have one of these two types.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttributeValue {
    Text(String),
    Number(i64),
}

/// Builds a [`ProfilesDictionary`], and tracks its encoded length.
#[derive(Debug)]
pub(crate) struct DictionaryBuilder<'a> {
    files: &'a FileTable,
    location_table: &'a LocationTable,
    strings: IndexSet<String, RandomState>,
    attributes: IndexSet<(i32, AttributeValue), RandomState>,
    links: IndexSet<ebpf::Link, RandomState>,
    mappings: Vec<Mapping>,
    mapping_indices: HashMap<(FileId, Option<LoadedPart>), i32, RandomState>,
    functions: Vec<Function>,
    /// Indices of functions, by name, file name and first line. File name and first line are 0 if only the name is
    /// known.
    function_indices: HashMap<(i32, i32, u32), i32, RandomState>,
    locations: Vec<Location>,
    location_indices: HashMap<LocationId, i32, RandomState>,
    stacks: Vec<Stack>,
    stack_indices: HashMap<StackId, i32, RandomState>,
    bytes: usize,
}

/// Largest number of bytes of an encoded index with its field tag. A request of a few megabytes has no larger index.
pub(super) const INDEX_BYTES: usize = 5;
/// Largest number of bytes of the tag and the length of a nested message.
const MESSAGE_BYTES: usize = 6;
/// Largest number of bytes of an encoded number with its field tag.
const NUMBER_BYTES: usize = 11;
/// Largest number of bytes that a new link adds to a request: ids of 16 and 8 bytes, tags and lengths.
pub(super) const LINK_BYTES: usize = 24 + 3 * MESSAGE_BYTES;
/// Largest number of bytes that a new location adds to a request, with its line, its mapping and its index in a stack,
/// but without the text of its name.
pub(crate) const LOCATION_BYTES: usize = 128;

impl<'a> DictionaryBuilder<'a> {
    pub(crate) fn new(files: &'a FileTable, location_table: &'a LocationTable) -> Self {
        Self {
            files,
            location_table,
            strings: IndexSet::from_iter([String::new()]),
            attributes: IndexSet::default(),
            links: IndexSet::default(),
            mappings: vec![Mapping::default()],
            mapping_indices: HashMap::default(),
            functions: vec![Function::default()],
            function_indices: HashMap::default(),
            locations: vec![Location::default()],
            location_indices: HashMap::default(),
            stacks: vec![Stack::default()],
            stack_indices: HashMap::default(),
            bytes: 64,
        }
    }

    /// Returns an upper bound of the encoded length of the dictionary, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn string(&mut self, text: &str) -> i32 {
        if let Some(index) = self.strings.get_index_of(text) {
            return to_index(index);
        }
        self.bytes += MESSAGE_BYTES + text.len();
        to_index(self.strings.insert_full(text.to_owned()).0)
    }

    pub(crate) fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { type_strindex: self.string(kind), unit_strindex: self.string(unit) }
    }

    pub(crate) fn attribute(&mut self, key: &str, value: AttributeValue) -> i32 {
        let value_bytes = match &value {
            AttributeValue::Text(text) => text.len() + 2 * MESSAGE_BYTES,
            AttributeValue::Number(_) => NUMBER_BYTES + MESSAGE_BYTES,
        };
        let key = self.string(key);
        let (index, is_new) = self.attributes.insert_full((key, value));
        if is_new {
            self.bytes += MESSAGE_BYTES + INDEX_BYTES + value_bytes;
        }
        // The zero value is not in the set. It becomes element 0 when the dictionary is finished, so indices are one
        // higher.
        to_index(index + 1)
    }

    pub(super) fn link(&mut self, link: &ebpf::Link) -> i32 {
        let (index, is_new) = self.links.insert_full(*link);
        self.bytes += if is_new { LINK_BYTES } else { 0 };
        // The zero value is added when the dictionary is finished, as for attributes.
        to_index(index + 1)
    }

    /// Returns the index of a stack. Adds the stack and all entries that it refers to, if they are new.
    pub(crate) fn stack(&mut self, id: StackId, aggregate: &Aggregate) -> i32 {
        if let Some(index) = self.stack_indices.get(&id) {
            return *index;
        }
        let location_indices: Vec<_> = aggregate.locations(id).iter().map(|id| self.location(*id)).collect();
        self.bytes += 2 * MESSAGE_BYTES + location_indices.len() * INDEX_BYTES;
        push(&mut self.stacks, Stack { location_indices }, &mut self.stack_indices, id)
    }

    pub(super) fn location(&mut self, id: LocationId) -> i32 {
        if let Some(index) = self.location_indices.get(&id) {
            return *index;
        }
        let location = match self.location_table.get(id) {
            // Never happens, because every id is from this table. Index 0 is the unset location.
            None => return 0,
            Some(location::Location::Native { file, address }) => Location {
                mapping_index: self.mapping(file, Some(address)),
                address,
                lines: Vec::new(),
                attribute_indices: vec![self.frame_type(FrameType::Native)],
            },
            Some(location::Location::Named { name, file, frame_type }) => {
                let text = self.location_table.name(name);
                Location {
                    mapping_index: file.map_or(0, |file| self.mapping(file, None)),
                    address: 0,
                    lines: vec![self.line(text)],
                    attribute_indices: vec![self.frame_type(frame_type)],
                }
            }
            Some(location::Location::Lines { place, lines, frame_type }) => {
                let table = self.location_table;
                Location {
                    mapping_index: place.map_or(0, |(file, address)| self.mapping(file, Some(address))),
                    address: place.map_or(0, |(_, address)| address),
                    lines: table.lines(lines).iter().map(|line| self.source_line(line)).collect(),
                    attribute_indices: vec![self.frame_type(frame_type)],
                }
            }
            Some(location::Location::Marker(marker)) => Location {
                mapping_index: 0,
                address: 0,
                lines: vec![self.line(marker.name())],
                attribute_indices: vec![self.frame_type(marker.frame_type())],
            },
        };
        self.bytes += 2 * MESSAGE_BYTES
            + 2 * INDEX_BYTES
            + NUMBER_BYTES
            + location.lines.len() * (2 * MESSAGE_BYTES + NUMBER_BYTES);
        push(&mut self.locations, location, &mut self.location_indices, id)
    }

    fn frame_type(&mut self, frame_type: FrameType) -> i32 {
        self.attribute("profile.frame.type", AttributeValue::Text(frame_type.name().to_owned()))
    }

    fn line(&mut self, name: &str) -> Line {
        Line { function_index: self.function(name, "", 0), line: 0, column: 0 }
    }

    fn source_line(&mut self, line: &SourceLine) -> Line {
        let SourceFunction { name, file_name, start_line } = line.function;
        let table = self.location_table;
        let function_index = self.function(table.name(name), table.name(file_name), start_line);
        Line { function_index, line: line.line.into(), column: 0 }
    }

    fn function(&mut self, name: &str, file_name: &str, start_line: u32) -> i32 {
        let key @ (name_strindex, filename_strindex, _) = (self.string(name), self.string(file_name), start_line);
        if let Some(index) = self.function_indices.get(&key) {
            return *index;
        }
        let start_line = start_line.into();
        let function = Function { name_strindex, filename_strindex, start_line, ..Function::default() };
        self.bytes += MESSAGE_BYTES + 2 * INDEX_BYTES + NUMBER_BYTES;
        push(&mut self.functions, function, &mut self.function_indices, key)
    }

    /// Returns the index of the mapping of a file. The mapping describes the segment that holds `address`.
    fn mapping(&mut self, id: FileId, address: Option<u64>) -> i32 {
        let Some(file) = self.files.get(id) else { return 0 };
        let part = address.and_then(|address| file.part(address));
        if let Some(index) = self.mapping_indices.get(&(id, part)) {
            return *index;
        }
        let attribute = |build_id: &(crate::process::file::BuildIdKind, Box<str>)| {
            self.attribute(build_id.0.attribute(), AttributeValue::Text(build_id.1.as_ref().to_owned()))
        };
        let attribute_indices: Vec<_> = file.build_ids.iter().map(attribute).collect();
        let mapping = Mapping {
            memory_start: part.map_or(0, |part| part.address),
            memory_limit: part.map_or(0, |part| part.address.saturating_add(part.size)),
            file_offset: part.map_or(0, |part| part.offset),
            filename_strindex: self.string(&file.name),
            attribute_indices,
        };
        self.bytes += 2 * MESSAGE_BYTES + 3 * NUMBER_BYTES + 4 * INDEX_BYTES;
        push(&mut self.mappings, mapping, &mut self.mapping_indices, (id, part))
    }

    pub(crate) fn finish(self) -> ProfilesDictionary {
        let attributes = self.attributes.into_iter().map(|(key_strindex, value)| {
            let value = match value {
                AttributeValue::Text(text) => Value::StringValue(text),
                AttributeValue::Number(number) => Value::IntValue(number),
            };
            KeyValueAndUnit { key_strindex, value: Some(AnyValue { value: Some(value) }), unit_strindex: 0 }
        });
        // Zero-filled rather than empty, because some receivers check the lengths.
        let zero = Link { trace_id: vec![0; 16], span_id: vec![0; 8] };
        let link = |link: ebpf::Link| Link { trace_id: link.trace_id.into(), span_id: link.span_id.into() };
        ProfilesDictionary {
            mapping_table: self.mappings,
            location_table: self.locations,
            function_table: self.functions,
            link_table: std::iter::once(zero).chain(self.links.into_iter().map(link)).collect(),
            string_table: self.strings.into_iter().collect(),
            attribute_table: std::iter::once(KeyValueAndUnit::default()).chain(attributes).collect(),
            stack_table: self.stacks,
        }
    }
}

fn push<T, K: Eq + Hash>(table: &mut Vec<T>, element: T, indices: &mut HashMap<K, i32, RandomState>, key: K) -> i32 {
    let index = to_index(table.len());
    table.push(element);
    indices.insert(key, index);
    index
}

/// Converts an index to i32. The size of a request bounds the tables, so an index is far below the limit of i32.
fn to_index(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}
