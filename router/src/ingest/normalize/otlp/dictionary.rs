//! The dictionary of a request. An entry is read when a sample first refers to it.
//!
//! The first reading of an entry computes its hash. If a shard might not have the entry yet, it is read a second time
//! to define it. So an unused entry costs nothing, an entry that shards hold costs one hash, and an invalid entry
//! refuses only the profiles that use it.

use proto::build_id::to_hex;
use proto::dictionary::Capacity;
use proto::dictionary::{Attribute, AttributeValue};

use super::entry::{FrameType, Link, MappingIds, Scratch};
use super::table::Table;
use crate::ingest::decode::otlp::dictionary::RawDictionary;
use crate::ingest::decode::protobuf::Fields;
use crate::ingest::error::ProfileError;
use crate::ingest::known_stacks::DefinitionPlan;
use crate::ingest::normalize::builder::Builder;
use crate::ingest::normalize::frames::Frame;

/// Largest number of entries for which a table reserves memory in advance.
const RESERVED_ENTRIES_MAX: usize = 1 << 13;

/// Largest number of bytes that are reserved in advance: once for all texts, and once for all stacks.
const RESERVED_BYTES_MAX: usize = 1 << 18;

/// Tables of a request's dictionary, with the results of the entries that were read already.
#[derive(Debug)]
pub(crate) struct RequestDictionary<'a> {
    pub(super) mappings: Table<'a, MappingIds>,
    pub(super) locations: Table<'a, Frame>,
    /// Table of functions. The result of an entry is the hash of the function.
    pub(super) functions: Table<'a, u128>,
    links: Table<'a, Link>,
    /// Table of strings. The result of an entry is the hash of the string.
    strings: Table<'a, u128>,
    pub(super) attributes: Table<'a, Attribute>,
    /// Table of stacks. The result of an entry is the ID of a pair: the user stack and the kernel stack of the entry.
    stacks: Table<'a, u32>,
    /// Total size of all arrays and maps that were read, as JSON, in bytes.
    pub(super) json_bytes: usize,
    /// Index and value of the attribute that was last read as a frame type. Neighbouring locations often share one
    /// attribute.
    pub(super) last_frame_type: Option<(u64, FrameType)>,
    pub(super) scratch: Scratch,
}

impl<'a> RequestDictionary<'a> {
    pub(crate) fn new(raw: &'a RawDictionary<'a>) -> Self {
        Self {
            mappings: Table::new("mapping_table", &raw.mappings),
            locations: Table::new("location_table", &raw.locations),
            functions: Table::new("function_table", &raw.functions),
            links: Table::new("link_table", &raw.links),
            strings: Table::new("string_table", &raw.strings),
            attributes: Table::new("attribute_table", &raw.attributes),
            stacks: Table::new("stack_table", &raw.stacks),
            json_bytes: 0,
            last_frame_type: None,
            scratch: Scratch::default(),
        }
    }

    /// Reserves memory for the stacks, nearly all of which are used. If the push defines all stacks, also reserves
    /// memory for their definitions. The sizes are estimates, which may be far too high.
    pub(crate) fn reserve(&self, builder: &mut Builder, plan: &DefinitionPlan<'_>) {
        let of = |length: usize| length.min(RESERVED_ENTRIES_MAX);
        let mut capacity = Capacity { stacks: of(self.stacks.len()), ..Capacity::default() };
        if plan.defines_all() {
            // The index of a location has at least one byte. If there are 128 locations or more, most indices have two.
            let stack_locations = self.stacks.bytes() / if self.locations.len() < 0x80 { 1 } else { 2 };
            capacity.strings = of(self.strings.len());
            capacity.text_bytes = self.strings.bytes().min(RESERVED_BYTES_MAX);
            capacity.functions = of(self.functions.len());
            capacity.locations = of(self.locations.len());
            capacity.stack_locations = stack_locations.min(RESERVED_BYTES_MAX / size_of::<u32>());
        }
        builder.reserve(&capacity);
    }

    /// Returns the hash of a string of the string table.
    #[inline]
    pub(super) fn string_hash(&mut self, builder: &mut Builder, index: i64) -> Result<u128, ProfileError> {
        if let Some(known) = self.strings.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.strings.get(index)?;
        self.strings.remember(at, Ok(builder.text_hash(entry)))
    }

    /// Defines a string of the string table and returns its ID.
    pub(crate) fn string(&mut self, builder: &mut Builder, index: i64) -> Result<u32, ProfileError> {
        let hash = self.string_hash(builder, index)?;
        let (_, entry) = self.strings.get(index)?;
        Ok(builder.hashed_text(hash, entry))
    }

    /// Returns the trace ID and the span ID of a link of the link table, as attributes.
    pub(crate) fn link(&mut self, builder: &mut Builder, index: i64) -> Result<Link, ProfileError> {
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

    /// Splits a stack of the stack table into a user stack and a kernel stack, and returns the ID of this pair.
    /// Identifies the stack by the hashes of its locations.
    pub(crate) fn pair(&mut self, builder: &mut Builder, index: i64) -> Result<u32, ProfileError> {
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

    fn read_pair(&mut self, builder: &mut Builder, at: usize, entry: &'a [u8]) -> Result<u32, ProfileError> {
        let mut frames = std::mem::take(&mut self.scratch.frames);
        frames.clear();
        each_location(entry, |index| {
            frames.push(match self.locations.read(index) {
                Some(known) => known,
                None => self.frame(builder, index)?,
            });
            Ok(())
        })?;
        // The index fits in u32, because `ENTRIES_MAX` limits the number of entries.
        let pair = builder.pair(&frames, at as u32);
        self.scratch.frames = frames;
        Ok(pair)
    }

    /// Defines the first `count` locations of a stack of the stack table. Appends the IDs of these locations to
    /// `locations`.
    pub(crate) fn stack_locations(
        &mut self,
        builder: &mut Builder,
        at: u32,
        count: usize,
        locations: &mut Vec<u32>,
    ) -> Result<(), ProfileError> {
        let (_, entry) = self.stacks.get(at.into())?;
        each_location(entry, |index| {
            if locations.len() < count {
                locations.push(self.location(builder, index)?);
            }
            Ok(())
        })
    }
}

/// Calls `visit` with the index of each location of a stack, leaf first.
#[inline]
fn each_location(entry: &[u8], mut visit: impl FnMut(i64) -> Result<(), ProfileError>) -> Result<(), ProfileError> {
    for field in Fields::new(entry) {
        if let (1, value) = field? {
            value.each_varint(1, |index| visit(index.cast_signed()))?;
        }
    }
    Ok(())
}

/// Reads the trace ID and span ID of a link, and converts them to lower-case hexadecimal digits.
fn read_link(builder: &mut Builder, entry: &[u8]) -> Result<Link, ProfileError> {
    let mut link = [None, None];
    for field in Fields::new(entry) {
        let (number @ 1..=2, value) = field? else { continue };
        let bytes = value.bytes(number)?;
        if bytes.len() > 16 {
            return Err(ProfileError::Invalid("a trace id has 16 bytes and a span id 8"));
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
