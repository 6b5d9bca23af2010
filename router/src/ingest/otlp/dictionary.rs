//! The request's dictionary: its tables as raw messages, each entry interned when a sample first refers to it.
//!
//! So an entry that nothing refers to costs nothing, and a broken one refuses those profiles that need it and no others.

use proto::attribute::{Attribute, AttributeValue};
use proto::build_id::{from_hex, to_hex};
use proto::dictionary::Room;
use proto::{Address, BuildId, Function, Line, Location, MappingIdentity, limits};

use super::FORMAT;
use super::table::Table;
use crate::ingest::IngestError;
use crate::ingest::builder::{Builder, Rejection, check_build_id};
use crate::ingest::protobuf::{Fields, Value, WireError};

/// Entries of all tables together: an empty entry has two bytes on the wire and costs us 24.
const ENTRIES_MAX: usize = 4_000_000;

/// Entries of a table for which room is made before any is referred to.
const ROOM_MAX: usize = 1 << 13;

/// Of a whole dictionary, so many bytes and one entry of each long table: real ones have 25 to 60.
const BYTES_PER_ENTRY: usize = 24;

/// Room of text, and of all stacks.
const ROOM_BYTES_MAX: usize = 1 << 18;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tables<'a> {
    mappings: Table<'a, Mapping>,
    locations: Table<'a>,
    functions: Table<'a>,
    links: Table<'a, Link>,
    strings: Table<'a>,
    pub(super) attributes: Table<'a, Attribute>,
    /// Ids of stack pairs.
    stacks: Table<'a>,
    /// Of arrays and maps, written out.
    pub(super) json_bytes: usize,
    /// The attribute that was a location's frame type last, and which it was: neighbours share it.
    last_frame_type: Option<(u64, u32)>,
    scratch: Scratch,
}

/// Memory for what is being read, kept from entry to entry.
#[derive(Debug, Default)]
struct Scratch {
    /// Of a stack.
    locations: Vec<u32>,
    /// Of a location.
    lines: Vec<Line>,
    attributes: Vec<u64>,
}

/// Ids of a mapping and of the name of its file.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    id: u32,
    file: u32,
}

/// Trace and span id as attributes; `None` for ids of zeros.
pub(crate) type Link = [Option<Attribute>; 2];

impl<'a> Tables<'a> {
    pub(crate) fn read(dictionaries: &[&'a [u8]]) -> Result<Self, IngestError> {
        let mut tables = Self {
            mappings: Table::new("mapping_table"),
            locations: Table::new("location_table"),
            functions: Table::new("function_table"),
            links: Table::new("link_table"),
            strings: Table::new("string_table"),
            attributes: Table::new("attribute_table"),
            stacks: Table::new("stack_table"),
            json_bytes: 0,
            last_frame_type: None,
            scratch: Scratch::default(),
        };
        let malformed = |error| IngestError::wire(FORMAT, error);
        let mut entries = 0;
        for &dictionary in dictionaries {
            tables.reserve_entries(dictionary.len());
            for field in Fields::new(dictionary) {
                let (number, value) = field.map_err(malformed)?;
                if !(1..=7).contains(&number) {
                    continue;
                }
                let entry = value.bytes(number).map_err(malformed)?;
                match number {
                    1 => tables.mappings.push(entry),
                    2 => tables.locations.push(entry),
                    3 => tables.functions.push(entry),
                    4 => tables.links.push(entry),
                    5 => tables.strings.push(entry),
                    6 => tables.attributes.push(entry),
                    _ => tables.stacks.push(entry),
                }
                entries += 1;
                if entries > ENTRIES_MAX {
                    return Err(IngestError::TooMany { what: "dictionary entries", count_max: ENTRIES_MAX });
                }
            }
        }
        tables.check_zero_entries()?;
        Ok(tables)
    }

    /// Makes room in the tables that are long, of a dictionary of so many bytes.
    fn reserve_entries(&mut self, bytes: usize) {
        let entries = (bytes / BYTES_PER_ENTRY).min(ROOM_MAX);
        for table in [&mut self.locations, &mut self.functions, &mut self.strings, &mut self.stacks] {
            table.reserve(entries);
        }
    }

    /// Entry 0 of every table must be its zero value: else everything in it is off by one, and names would be wrong.
    fn check_zero_entries(&self) -> Result<(), IngestError> {
        let firsts = [
            (self.mappings.name(), self.mappings.first()),
            (self.locations.name(), self.locations.first()),
            (self.functions.name(), self.functions.first()),
            (self.links.name(), self.links.first()),
            (self.strings.name(), self.strings.first()),
            (self.attributes.name(), self.attributes.first()),
            (self.stacks.name(), self.stacks.first()),
        ];
        for (name, first) in firsts {
            if first.is_some_and(|entry| !is_zero(entry)) {
                let detail = format!("entry 0 of {name} must be the zero value: index 0 means \"not set\"");
                return Err(IngestError::Malformed { format: FORMAT, detail });
            }
        }
        Ok(())
    }

    /// Makes room for what is nearly always referred to: everything, of which there may be far too much.
    pub(crate) fn reserve(&self, builder: &mut Builder) {
        let of = |length: usize| length.min(ROOM_MAX);
        // A location takes a byte at least, and, of thousands, nearly always two.
        let stack_locations = self.stacks.bytes() / if self.locations.len() < 0x80 { 1 } else { 2 };
        builder.reserve(&Room {
            strings: of(self.strings.len()),
            text_bytes: self.strings.bytes().min(ROOM_BYTES_MAX),
            functions: of(self.functions.len()),
            locations: of(self.locations.len()),
            stacks: of(self.stacks.len()),
            stack_locations: stack_locations.min(ROOM_BYTES_MAX / size_of::<u32>()),
        });
    }

    /// Entries of the attribute table.
    pub(crate) fn attribute_count(&self) -> usize {
        self.attributes.len()
    }

    /// A string of the table.
    pub(crate) fn string(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        if let Some(known) = self.strings.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.strings.get(index)?;
        if let Some(known) = self.strings.known(at) {
            return known;
        }
        self.strings.remember(at, Ok(builder.text(entry)))
    }

    /// A link of the table.
    pub(crate) fn link(&mut self, builder: &mut Builder, index: i64) -> Result<Link, Rejection> {
        if let Some(known) = self.links.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.links.get(index)?;
        if let Some(known) = self.links.known(at) {
            return known;
        }
        let read = read_link(builder, entry);
        self.links.remember(at, read)
    }

    /// The pair of a stack of the table.
    pub(crate) fn pair(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        if let Some(known) = self.stacks.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.stacks.get(index)?;
        if let Some(known) = self.stacks.known(at) {
            return known;
        }
        let read = self.read_pair(builder, entry);
        self.stacks.remember(at, read)
    }

    fn read_pair(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<u32, Rejection> {
        let mut locations = std::mem::take(&mut self.scratch.locations);
        locations.clear();
        for field in Fields::new(entry) {
            if let (1, value) = field? {
                value.each_varint(1, |index| {
                    let index = index.cast_signed();
                    locations.push(match self.locations.read(index) {
                        Some(known) => known,
                        None => self.location(builder, index)?,
                    });
                    Ok::<_, Rejection>(())
                })?;
            }
        }
        let pair = builder.pair(&locations);
        self.scratch.locations = locations;
        Ok(pair)
    }

    /// A location that was not read yet, or cannot be.
    #[inline(never)]
    fn location(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let (at, entry) = self.locations.get(index)?;
        if let Some(known) = self.locations.known(at) {
            return known;
        }
        let read = self.read_location(builder, entry);
        self.locations.remember(at, read)
    }

    fn read_location(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<u32, Rejection> {
        let (mut lines, mut attributes) =
            (std::mem::take(&mut self.scratch.lines), std::mem::take(&mut self.scratch.attributes));
        lines.clear();
        attributes.clear();
        let (mut mapping, mut address) = (0, 0);
        for field in Fields::new(entry) {
            match field? {
                (1, value) => mapping = value.int64(1)?,
                (2, value) => address = value.varint(2)?,
                (3, value) if lines.len() < limits::LOCATION_LINES_MAX => {
                    lines.push(self.line(builder, value.bytes(3)?)?);
                }
                (3, _) => {
                    return Err(Rejection::TooMany {
                        what: "lines in one location",
                        count_max: limits::LOCATION_LINES_MAX,
                    });
                }
                (4, value) => value.varints(4, &mut attributes)?,
                _ => {}
            }
        }
        let frame_type = self.frame_type(builder, &attributes)?;
        let mapping = self.mapping(builder, mapping)?;
        let location = if lines.is_empty() {
            let frame_type = frame_type.unwrap_or_else(|| builder.text(b"native"));
            Location::Address { mapping: mapping.id, address: Address::Virtual(address), frame_type }
        } else {
            let frame_type = frame_type.unwrap_or_default();
            Location::Lines { mapping_file: mapping.file, frame_type, lines: lines.as_slice().into() }
        };
        (self.scratch.lines, self.scratch.attributes) = (lines, attributes);
        builder.location(location)
    }

    fn frame_type(&mut self, builder: &mut Builder, attributes: &[u64]) -> Result<Option<u32>, Rejection> {
        if let (&[index], Some((last, frame_type))) = (attributes, self.last_frame_type)
            && index == last
        {
            return Ok(Some(frame_type));
        }
        for &index in attributes {
            let attribute = self.attribute(builder, index.cast_signed())?;
            if let ("profile.frame.type", AttributeValue::Text(frame_type)) =
                (builder.dictionary().strings.get(attribute.key), attribute.value)
            {
                self.last_frame_type = Some((index, frame_type));
                return Ok(Some(frame_type));
            }
        }
        Ok(None)
    }

    fn line(&mut self, builder: &mut Builder, message: &'a [u8]) -> Result<Line, Rejection> {
        let (mut function, mut line, mut column) = (0, 0, 0);
        for field in Fields::new(message) {
            match field? {
                (1, value) => function = value.int64(1)?,
                (2, value) => line = value.int64(2)?,
                (3, value) => column = value.int64(3)?,
                _ => {}
            }
        }
        Ok(Line { function: self.function(builder, function)?, line, column })
    }

    fn function(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        if let Some(known) = self.functions.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.functions.get(index)?;
        if let Some(known) = self.functions.known(at) {
            return known;
        }
        let read = self.read_function(builder, entry);
        self.functions.remember(at, read)
    }

    fn read_function(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<u32, Rejection> {
        let mut function = Function::default();
        for field in Fields::new(entry) {
            match field? {
                (1, value) => function.name = self.string(builder, value.int64(1)?)?,
                (2, value) => function.system_name = self.string(builder, value.int64(2)?)?,
                (3, value) => function.file = self.string(builder, value.int64(3)?)?,
                (4, value) => function.start_line = value.int64(4)?,
                _ => {}
            }
        }
        Ok(builder.dictionary().intern_function(function))
    }

    fn mapping(&mut self, builder: &mut Builder, index: i64) -> Result<Mapping, Rejection> {
        if let Some(known) = self.mappings.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.mappings.get(index)?;
        if let Some(known) = self.mappings.known(at) {
            return known;
        }
        let read = self.read_mapping(builder, entry);
        self.mappings.remember(at, read)
    }

    fn read_mapping(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<Mapping, Rejection> {
        let (mut file, mut attributes) = (0, Vec::new());
        for field in Fields::new(entry) {
            match field? {
                (4, value) => file = value.int64(4)?,
                (5, value) => value.varints(5, &mut attributes)?,
                _ => {}
            }
        }
        let file = self.string(builder, file)?;
        let identity = match self.build_id(builder, &attributes)? {
            Some(build_id) => MappingIdentity::BuildId(build_id),
            None => MappingIdentity::File(file),
        };
        Ok(Mapping { id: builder.dictionary().intern_mapping(identity, file), file })
    }

    /// Of several build IDs the GNU one wins, which debug files are found by; then Go's; then the hash.
    fn build_id(&mut self, builder: &mut Builder, attributes: &[u64]) -> Result<Option<BuildId>, Rejection> {
        // Ids of the texts first: a mapping may refer to one attribute any number of times.
        let mut found: [Option<u32>; 3] = [None, None, None];
        for &index in attributes {
            let attribute = self.attribute(builder, index.cast_signed())?;
            let AttributeValue::Text(text) = attribute.value else { continue };
            let kind = match builder.dictionary().strings.get(attribute.key) {
                "process.executable.build_id.gnu" => 0,
                "process.executable.build_id.go" => 1,
                // The second is the older name.
                "process.executable.build_id.htlhash" | "process.executable.build_id.profiling" => 2,
                _ => continue,
            };
            found[kind] = Some(text);
        }
        let strings = &builder.dictionary().strings;
        for id in found.into_iter().flatten() {
            check_build_id(strings.get(id).len())?;
        }
        let text = |id: Option<u32>| id.map(|id| strings.get(id)).filter(|text| !text.is_empty());
        let gnu = text(found[0]).and_then(from_hex).map(BuildId::Gnu);
        let go = || text(found[1]).map(|text| BuildId::Go(text.to_owned()));
        let hash = || text(found[2]).and_then(from_hex)?.try_into().ok().map(BuildId::Htlhash);
        Ok(gnu.or_else(go).or_else(hash))
    }
}

/// Lower-case hexadecimal ids.
fn read_link(builder: &mut Builder, entry: &[u8]) -> Result<Link, Rejection> {
    let mut link = [None, None];
    for field in Fields::new(entry) {
        let (number @ 1..=2, value) = field? else { continue };
        let bytes = value.bytes(number)?;
        if bytes.len() > 16 {
            return Err(Rejection::Invalid("a trace id has 16 bytes and a span id 8"));
        }
        let (at, key) = if number == 1 { (0, "trace_id") } else { (1, "span_id") };
        link[at] = bytes.iter().any(|&byte| byte != 0).then(|| Attribute {
            key: builder.text(key.as_bytes()),
            unit: 0,
            value: AttributeValue::Text(builder.text(to_hex(bytes).as_bytes())),
        });
    }
    Ok(link)
}

/// Whether every field of an entry is zero, however it was written: link ids may be bytes of zeros.
fn is_zero(entry: &[u8]) -> bool {
    let zero = |field: Result<(u32, Value<'_>), WireError>| match field {
        Ok((_, Value::Varint(number) | Value::Fixed64(number))) => number == 0,
        Ok((_, Value::Fixed32(number))) => number == 0,
        // A nested empty value is zero as well.
        Ok((_, Value::Bytes(bytes))) => bytes.iter().all(|&byte| byte == 0),
        Err(_malformed) => false,
    };
    Fields::new(entry).all(zero)
}
