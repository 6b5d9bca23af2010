//! Mappings, locations, functions and strings of a pprof file. Strings are found by index, all others by the ID in
//! their message.

use std::collections::HashMap;

use proto::build_id::from_hex;
use proto::{Address, BuildId, Function, Line, Location, ValueType, limits};

use crate::ingest::decode::pprof::RawTables;
use crate::ingest::decode::protobuf::{Fields, WireError};
use crate::ingest::error::ProfileError;
use crate::ingest::normalize::builder::{Builder, KERNEL_FRAME_TYPE, check_build_id, text_of};

/// A table of messages by ID. Each message is read once, on its first use, and the result is a `T`.
struct Table<'a, T = u32> {
    name: &'static str,
    by_id: HashMap<u64, &'a [u8]>,
    read: HashMap<u64, T>,
}

impl<'a, T> Table<'a, T> {
    /// Makes a table. Field 1 of every message, whatever its kind, is its ID.
    fn new(name: &'static str, messages: &[&'a [u8]]) -> Result<Self, WireError> {
        let mut by_id = HashMap::with_capacity(messages.len());
        for message in messages {
            let mut id = 0;
            for field in Fields::new(message) {
                if let (1, value) = field? {
                    id = value.varint(1)?;
                }
            }
            by_id.insert(id, *message);
        }
        Ok(Self { name, by_id, read: HashMap::new() })
    }

    fn get(&self, id: u64) -> Result<&'a [u8], ProfileError> {
        let missing =
            || ProfileError::OutOfRange { table: self.name, index: id.cast_signed(), length: self.by_id.len() };
        if id == 0 {
            return Err(ProfileError::Invalid("id 0 is referred to: ids of a pprof begin at 1"));
        }
        self.by_id.get(&id).copied().ok_or_else(missing)
    }
}

/// The tables of a pprof file.
pub(crate) struct ProfileTables<'a> {
    mappings: Table<'a, ProcessMapping>,
    locations: Table<'a, Located>,
    functions: Table<'a>,
    strings: Vec<&'a [u8]>,
    string_ids: Vec<Option<u32>>,
}

/// ID of a location, and whether the location is in the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Located {
    pub(crate) id: u32,
    pub(crate) is_kernel: bool,
}

/// A mapping: its ID, the ID of the text of its file's path, and its addresses in the process.
#[derive(Clone, Copy, Default)]
struct ProcessMapping {
    id: u32,
    file: u32,
    start: u64,
    limit: u64,
    offset: u64,
}

impl<'a> ProfileTables<'a> {
    pub(crate) fn read(raw: &RawTables<'a>) -> Result<Self, ProfileError> {
        if raw.strings.first().is_some_and(|first| !first.is_empty()) {
            return Err(ProfileError::Invalid("entry 0 of string_table must be empty"));
        }
        Ok(Self {
            mappings: Table::new("mapping", &raw.mappings)?,
            locations: Table::new("location", &raw.locations)?,
            functions: Table::new("function", &raw.functions)?,
            string_ids: vec![None; raw.strings.len()],
            strings: raw.strings.clone(),
        })
    }

    fn string(&self, index: i64) -> Result<&'a [u8], ProfileError> {
        let out_of_range = || ProfileError::OutOfRange { table: "string_table", index, length: self.strings.len() };
        let at = usize::try_from(index).map_err(|_negative| out_of_range())?;
        self.strings.get(at).copied().ok_or_else(out_of_range)
    }

    pub(crate) fn string_id(&mut self, builder: &mut Builder, index: i64) -> Result<u32, ProfileError> {
        if index == 0 {
            return Ok(0);
        }
        let text = self.string(index)?;
        // The index is in range, because `string` found the text.
        let known = usize::try_from(index).ok().and_then(|at| self.string_ids.get_mut(at));
        match known {
            Some(known) => Ok(*known.get_or_insert_with(|| builder.text(text))),
            None => Ok(builder.text(text)),
        }
    }

    pub(crate) fn value_type(&self, message: &'a [u8]) -> Result<ValueType, ProfileError> {
        let mut value_type = ValueType::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => value_type.kind = text_of(self.string(value.int64(1)?)?).into_owned(),
                (2, value) => value_type.unit = text_of(self.string(value.int64(2)?)?).into_owned(),
                _ => {}
            }
        }
        Ok(value_type)
    }

    pub(crate) fn location(&mut self, builder: &mut Builder, id: u64) -> Result<Located, ProfileError> {
        if let Some(&known) = self.locations.read.get(&id) {
            return Ok(known);
        }
        let mut mapping = 0;
        let mut address = 0;
        let mut lines = Vec::new();
        for field in Fields::new(self.locations.get(id)?) {
            match field? {
                (2, value) => mapping = value.varint(2)?,
                (3, value) => address = value.varint(3)?,
                (4, value) if lines.len() < limits::LOCATION_LINES_MAX => {
                    lines.push(self.line(builder, value.bytes(4)?)?);
                }
                (4, _) => {
                    return Err(ProfileError::TooMany {
                        what: "lines in one location",
                        count_max: limits::LOCATION_LINES_MAX,
                    });
                }
                _ => {}
            }
        }
        let mapping = self.mapping(builder, mapping)?;
        let is_kernel = builder.dictionary().strings.get(mapping.file).starts_with("[kernel");
        let location = if lines.is_empty() {
            let frame_type = builder.text(if is_kernel { KERNEL_FRAME_TYPE } else { "native" }.as_bytes());
            let inside = mapping.start <= address && address < mapping.limit;
            let address = if inside {
                Address::FileOffset((address - mapping.start).saturating_add(mapping.offset))
            } else {
                Address::Virtual(address)
            };
            Location::Address { mapping: mapping.id, address, frame_type }
        } else {
            let frame_type = builder.text(if is_kernel { KERNEL_FRAME_TYPE } else { "" }.as_bytes());
            Location::Lines { mapping_file: mapping.file, frame_type, lines: lines.into() }
        };
        let located = Located { id: builder.location(location)?, is_kernel };
        self.locations.read.insert(id, located);
        Ok(located)
    }

    fn line(&mut self, builder: &mut Builder, message: &'a [u8]) -> Result<Line, ProfileError> {
        let mut function = 0;
        let mut line = 0;
        let mut column = 0;
        for field in Fields::new(message) {
            match field? {
                (1, value) => function = value.varint(1)?,
                (2, value) => line = value.int64(2)?,
                (3, value) => column = value.int64(3)?,
                _ => {}
            }
        }
        Ok(Line { function: self.function(builder, function)?, line, column })
    }

    fn function(&mut self, builder: &mut Builder, id: u64) -> Result<u32, ProfileError> {
        if let Some(&known) = self.functions.read.get(&id) {
            return Ok(known);
        }
        let mut function = Function::default();
        for field in Fields::new(self.functions.get(id)?) {
            match field? {
                (2, value) => function.name = self.string_id(builder, value.int64(2)?)?,
                (3, value) => function.system_name = self.string_id(builder, value.int64(3)?)?,
                (4, value) => function.file = self.string_id(builder, value.int64(4)?)?,
                (5, value) => function.start_line = value.int64(5)?,
                _ => {}
            }
        }
        let interned = builder.dictionary().intern_function(function);
        self.functions.read.insert(id, interned);
        Ok(interned)
    }

    /// Returns the mapping of a location. It is empty if the ID is 0, or if no mapping has the ID, as in Go's reader.
    fn mapping(&mut self, builder: &mut Builder, id: u64) -> Result<ProcessMapping, ProfileError> {
        if let Some(&known) = self.mappings.read.get(&id) {
            return Ok(known);
        }
        let mut mapping = ProcessMapping::default();
        let mut file = 0;
        let mut build_id = 0;
        let message = self.mappings.by_id.get(&id).copied().filter(|_| id != 0).unwrap_or_default();
        for field in Fields::new(message) {
            match field? {
                (2, value) => mapping.start = value.varint(2)?,
                (3, value) => mapping.limit = value.varint(3)?,
                (4, value) => mapping.offset = value.varint(4)?,
                (5, value) => file = value.int64(5)?,
                (6, value) => build_id = value.int64(6)?,
                _ => {}
            }
        }
        mapping.file = self.string_id(builder, file)?;
        let build_id = if build_id == 0 { &[] } else { self.string(build_id)? };
        check_build_id(build_id.len())?;
        let build_id = text_of(build_id);
        // A GNU build ID is hexadecimal; any other build ID is Go's.
        let build_id = match from_hex(&build_id) {
            _ if build_id.is_empty() => None,
            Some(bytes) => Some(BuildId::Gnu(bytes)),
            None => Some(BuildId::Go(build_id.into_owned())),
        };
        mapping.id = builder.dictionary().intern_mapping(proto::Mapping { build_id, file: mapping.file });
        self.mappings.read.insert(id, mapping);
        Ok(mapping)
    }
}
