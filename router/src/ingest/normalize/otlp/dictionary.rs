//! The request's dictionary: its tables as raw messages. An entry is read when a sample first refers to it, for the hash that it is
//! known by, and once more if it must be defined.
//!
//! So an entry that nothing refers to costs nothing, what shards hold already costs a hash, and a broken one refuses those profiles
//! that need it and no others.

use proto::attribute::{Attribute, AttributeValue};
use proto::build_id::to_hex;
use proto::dictionary::Room;

use super::location::{FrameType, Mapping, RawLine};
use super::table::Table;
use crate::ingest::decode::otlp::FORMAT;
use crate::ingest::decode::protobuf::{Fields, Value, WireError};
use crate::ingest::error::IngestError;
use crate::ingest::known_stacks::Knowledge;
use crate::ingest::normalize::builder::{Builder, Rejection};
use crate::ingest::normalize::stacks::{Frame, Frames};

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
    pub(super) mappings: Table<'a, Mapping>,
    pub(super) locations: Table<'a, Frame>,
    /// Hashes.
    pub(super) functions: Table<'a, u128>,
    links: Table<'a, Link>,
    /// Hashes.
    strings: Table<'a, u128>,
    pub(super) attributes: Table<'a, Attribute>,
    /// Ids of stack pairs.
    stacks: Table<'a, u32>,
    /// Of arrays and maps, written out.
    pub(super) json_bytes: usize,
    /// The attribute that was a location's frame type last, and which it was: neighbours share it.
    pub(super) last_frame_type: Option<(u64, FrameType)>,
    pub(super) scratch: Scratch,
}

/// Memory for what is being read, kept from entry to entry.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Of a stack.
    frames: Frames,
    /// Of a location.
    pub(super) lines: Vec<RawLine>,
    pub(super) attributes: Vec<u64>,
    pub(super) hashed: Vec<u8>,
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
        self.locations.reserve(entries);
        self.functions.reserve(entries);
        self.strings.reserve(entries);
        self.stacks.reserve(entries);
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

    /// Makes room for the stacks, which nearly always are all referred to, and where all of them are to be defined for what they
    /// need; there may be far too much of it.
    pub(crate) fn reserve(&self, builder: &mut Builder, knowledge: &Knowledge<'_>) {
        let of = |length: usize| length.min(ROOM_MAX);
        let mut room = Room { stacks: of(self.stacks.len()), ..Room::default() };
        if knowledge.is_empty() {
            // A location takes a byte at least, and, of thousands, nearly always two.
            let stack_locations = self.stacks.bytes() / if self.locations.len() < 0x80 { 1 } else { 2 };
            room.strings = of(self.strings.len());
            room.text_bytes = self.strings.bytes().min(ROOM_BYTES_MAX);
            room.functions = of(self.functions.len());
            room.locations = of(self.locations.len());
            room.stack_locations = stack_locations.min(ROOM_BYTES_MAX / size_of::<u32>());
        }
        builder.reserve(&room);
    }

    /// Entries of the attribute table.
    pub(crate) fn attribute_count(&self) -> usize {
        self.attributes.len()
    }

    /// The hash of a string of the table.
    #[inline]
    pub(super) fn string_hash(&mut self, builder: &mut Builder, index: i64) -> Result<u128, Rejection> {
        if let Some(known) = self.strings.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.strings.get(index)?;
        self.strings.remember(at, Ok(builder.text_hash(entry)))
    }

    /// A string of the table, defined.
    pub(crate) fn string(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let hash = self.string_hash(builder, index)?;
        let (_, entry) = self.strings.get(index)?;
        Ok(builder.hashed_text(hash, entry))
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

    /// The pair of a stack of the table, by its hashes.
    pub(crate) fn pair(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        if let Some(known) = self.stacks.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.stacks.get(index)?;
        if let Some(known) = self.stacks.known(at) {
            return known;
        }
        let read = self.read_pair(builder, at, entry);
        self.stacks.remember(at, read)
    }

    fn read_pair(&mut self, builder: &mut Builder, at: usize, entry: &'a [u8]) -> Result<u32, Rejection> {
        let mut frames = std::mem::take(&mut self.scratch.frames);
        frames.clear();
        each_location(entry, |index| {
            frames.push(match self.locations.read(index) {
                Some(known) => known,
                None => self.frame(builder, index)?,
            });
            Ok(())
        })?;
        // Entries are bounded (`ENTRIES_MAX`).
        let pair = builder.pair(&frames, at as u32);
        self.scratch.frames = frames;
        Ok(pair)
    }

    /// Adds the first so many locations of a stack of the table, defined.
    pub(crate) fn stack_locations(
        &mut self,
        builder: &mut Builder,
        at: u32,
        count: usize,
        locations: &mut Vec<u32>,
    ) -> Result<(), Rejection> {
        let (_, entry) = self.stacks.get(at.into())?;
        each_location(entry, |index| {
            if locations.len() < count {
                locations.push(self.location(builder, index)?);
            }
            Ok(())
        })
    }
}

/// Calls back with each location of a stack, leaf first.
#[inline]
fn each_location(entry: &[u8], mut visit: impl FnMut(i64) -> Result<(), Rejection>) -> Result<(), Rejection> {
    for field in Fields::new(entry) {
        if let (1, value) = field? {
            value.each_varint(1, |index| visit(index.cast_signed()))?;
        }
    }
    Ok(())
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
