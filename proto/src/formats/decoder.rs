//! Decoder of the bytes of a [`wire::Batch`](crate::wire::Batch) to a [`Batch`].
//!
//! The decoder builds no message object: columns are read into the columns of the batch, and definitions are interned
//! from the bytes. It accepts what prost accepts: fields in any order, columns in several pieces or not packed, and
//! unknown fields.
//!
//! Invariant: memory is reserved only for values that are in the bytes, so it is at most a multiple of their length.

use arcstr::ArcStr;
use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field};

use crate::batch::{Batch, BatchId, Samples, SeriesSamples};
use crate::dictionary::{Attribute, AttributeValue, Dictionary, Function, Line, Lines};
use crate::formats::batch::{BatchError, check_samples, fingerprint, retention_class};
use crate::formats::definitions::{
    WireLocation, add_attributes, add_function, add_location, add_mapping, add_string, read_pairs, read_stacks,
};
use crate::label::{Label, LabelSet};
use crate::tenant::TenantId;

/// One field of a message: its number, its wire type, and the rest of the message, which begins with its value.
struct Field<'m, 'a> {
    number: u32,
    wire_type: WireType,
    rest: &'m mut &'a [u8],
}

/// Calls `read` for each field of a message. `read` takes the value of the field.
fn fields<'a>(
    mut message: &'a [u8],
    mut read: impl FnMut(Field<'_, 'a>) -> Result<(), BatchError>,
) -> Result<(), BatchError> {
    while !message.is_empty() {
        let (number, wire_type) = decode_key(&mut message)?;
        read(Field { number, wire_type, rest: &mut message })?;
    }
    Ok(())
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

impl<'a> Field<'_, 'a> {
    fn skip(self) -> Result<(), BatchError> {
        Ok(skip_field(self.wire_type, self.number, self.rest, DecodeContext::default())?)
    }

    fn varint(self) -> Result<u64, BatchError> {
        check_wire_type(WireType::Varint, self.wire_type)?;
        Ok(decode_varint(self.rest)?)
    }

    /// Reads a uint32. Like every decoder of protobuf, ignores the upper bits of a larger number.
    fn id(self) -> Result<u32, BatchError> {
        Ok(self.varint()? as u32)
    }

    fn signed(self) -> Result<i64, BatchError> {
        Ok(unzigzag(self.varint()?))
    }

    fn boolean(self) -> Result<bool, BatchError> {
        Ok(self.varint()? != 0)
    }

    fn fixed64(self) -> Result<u64, BatchError> {
        check_wire_type(WireType::SixtyFourBit, self.wire_type)?;
        let (value, rest) = self.rest.split_first_chunk::<8>().ok_or(BatchError::TooShort)?;
        *self.rest = rest;
        Ok(u64::from_le_bytes(*value))
    }

    /// Reads a field with a length: bytes, or a message.
    fn bytes(self) -> Result<&'a [u8], BatchError> {
        check_wire_type(WireType::LengthDelimited, self.wire_type)?;
        let length = decode_varint(self.rest)?;
        let split = usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length));
        let (value, rest) = split.ok_or(BatchError::TooShort)?;
        *self.rest = rest;
        Ok(value)
    }

    fn text(self) -> Result<&'a str, BatchError> {
        Ok(std::str::from_utf8(self.bytes()?)?)
    }

    /// Appends numbers to a column: a packed piece of it, or one number.
    fn column<T>(self, to: &mut Vec<T>, mut value: impl FnMut(u64) -> T) -> Result<(), BatchError> {
        if self.wire_type != WireType::LengthDelimited {
            to.push(value(self.varint()?));
            return Ok(());
        }
        let mut packed = self.bytes()?;
        // Each number ends with the only one of its bytes whose highest bit is clear.
        to.reserve(packed.iter().filter(|&&byte| byte < 0x80).count());
        while !packed.is_empty() {
            to.push(value(decode_varint(&mut packed)?));
        }
        Ok(())
    }

    fn ids(self, to: &mut Vec<u32>) -> Result<(), BatchError> {
        self.column(to, |number| number as u32)
    }
}

impl Batch {
    /// Decodes the bytes of a [`wire::Batch`](crate::wire::Batch), and checks its IDs.
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the bytes are not such a message, or if the message contradicts itself. No part of
    /// it may be used then.
    pub fn decode(from: &[u8]) -> Result<Self, BatchError> {
        let (mut tenant, mut id, mut class) = ("", [].as_slice(), 0);
        let mut definitions = Definitions::default();
        let mut series = Vec::new();
        fields(from, |field| {
            match field.number {
                1 => tenant = field.text()?,
                2 => id = field.bytes()?,
                3 => definitions.add(field.bytes()?)?,
                4 => series.push(read_series(field.bytes()?)?),
                5 => class = field.id()?,
                _ => field.skip()?,
            }
            Ok(())
        })?;
        let id = if id.is_empty() { None } else { Some(BatchId::from_wire(id)?) };
        let dictionary = definitions.dictionary()?;
        for of in &series {
            check_samples(&of.samples, &dictionary)?;
        }
        let retention_class = retention_class(class)?;
        Ok(Self { tenant: TenantId::new(tenant)?, id, retention_class, dictionary, series })
    }
}

fn read_series(from: &[u8]) -> Result<SeriesSamples, BatchError> {
    let mut hash = [].as_slice();
    let mut labels = Vec::new();
    let mut samples = Samples::default();
    let mut time = 0_i64;
    fields(from, |field| match field.number {
        1 => field.bytes().map(|bytes| hash = bytes),
        2 => read_label(field.bytes()?).map(|label| labels.push(label)),
        3 => field.column(&mut samples.times_ns, |delta| {
            time = time.wrapping_add(unzigzag(delta));
            time
        }),
        4 => field.ids(&mut samples.pairs),
        5 => field.column(&mut samples.values, unzigzag),
        6 => field.ids(&mut samples.attribute_sets),
        _ => field.skip(),
    })?;
    let labels = (!labels.is_empty()).then(|| LabelSet::new(labels));
    Ok(SeriesSamples { fingerprint: fingerprint(hash)?, labels, samples })
}

fn read_label(from: &[u8]) -> Result<Label, BatchError> {
    let mut texts = [""; 3];
    fields(from, |field| match field.number {
        number @ 1..=3 => field.text().map(|text| texts[number as usize - 1] = text),
        _ => field.skip(),
    })?;
    let [name, value, original_name] = texts.map(ArcStr::from);
    Ok(Label { name, value, original_name: Some(original_name).filter(|name| !name.is_empty()) })
}

/// The fields of a [`wire::Definitions`](crate::wire::Definitions). Entries stay encoded until all fields are known,
/// because they may refer to entries of any table.
#[derive(Default)]
struct Definitions<'a> {
    strings: Vec<&'a str>,
    functions: Vec<&'a [u8]>,
    mappings: Vec<&'a [u8]>,
    locations: Vec<&'a [u8]>,
    stack_references: &'a [u8],
    stack_lengths: Vec<u32>,
    stack_locations: Vec<u32>,
    attribute_sets: Vec<&'a [u8]>,
    pair_users: Vec<u32>,
    pair_kernels: Vec<u32>,
}

impl<'a> Definitions<'a> {
    /// Adds the fields of a message. Messages of one field are merged.
    fn add(&mut self, from: &'a [u8]) -> Result<(), BatchError> {
        fields(from, |field| {
            match field.number {
                1 => self.strings.push(field.text()?),
                2 => self.functions.push(field.bytes()?),
                3 => self.mappings.push(field.bytes()?),
                4 => self.locations.push(field.bytes()?),
                5 => self.stack_references = field.bytes()?,
                6 => field.ids(&mut self.stack_lengths)?,
                7 => field.ids(&mut self.stack_locations)?,
                8 => self.attribute_sets.push(field.bytes()?),
                9 => field.ids(&mut self.pair_users)?,
                10 => field.ids(&mut self.pair_kernels)?,
                _ => field.skip()?,
            }
            Ok(())
        })
    }

    /// Returns the dictionary of all entries. The IDs of the entries do not change.
    fn dictionary(&self) -> Result<Dictionary, BatchError> {
        let mut to = Dictionary::default();
        self.reserve(&mut to);
        for (id, text) in (1..).zip(&self.strings) {
            add_string(&mut to, id, text)?;
        }
        for (id, from) in self.functions.iter().enumerate() {
            add_function(&mut to, id, read_function(from)?)?;
        }
        for (id, from) in self.mappings.iter().enumerate() {
            read_mapping(&mut to, id, from)?;
        }
        for (id, from) in self.locations.iter().enumerate() {
            add_location(&mut to, id, read_location(from)?)?;
        }
        read_stacks(&mut to, self.stack_references, &self.stack_lengths, &self.stack_locations)?;
        let mut attributes = Vec::new();
        for (id, from) in (1..).zip(&self.attribute_sets) {
            read_attributes(from, &mut attributes)?;
            add_attributes(&mut to, id, &mut attributes)?;
        }
        read_pairs(&mut to, &self.pair_users, &self.pair_kernels)?;
        Ok(to)
    }

    fn reserve(&self, to: &mut Dictionary) {
        to.strings.reserve(self.strings.len(), self.strings.iter().map(|text| text.len()).sum());
        to.functions.reserve(self.functions.len());
        to.locations.reserve(self.locations.len());
        to.stacks.reserve(self.stack_lengths.len(), self.stack_locations.len());
        let sets = self.attribute_sets.iter().map(|set| set.len()).sum();
        to.attribute_sets.reserve(self.attribute_sets.len(), sets);
        to.pairs.reserve(self.pair_users.len());
    }
}

fn read_function(from: &[u8]) -> Result<Function, BatchError> {
    let mut function = Function::default();
    fields(from, |field| {
        match field.number {
            1 => function.name = field.id()?,
            2 => function.system_name = field.id()?,
            3 => function.file = field.id()?,
            4 => function.start_line = field.signed()?,
            _ => field.skip()?,
        }
        Ok(())
    })?;
    Ok(function)
}

fn read_mapping(to: &mut Dictionary, id: usize, from: &[u8]) -> Result<(), BatchError> {
    let (mut file, mut build_id) = (0, "");
    fields(from, |field| match field.number {
        1 => field.id().map(|text| file = text),
        2 => field.text().map(|text| build_id = text),
        _ => field.skip(),
    })?;
    Ok(add_mapping(to, id, file, build_id)?)
}

fn read_location(from: &[u8]) -> Result<WireLocation, BatchError> {
    let mut location = WireLocation::default();
    fields(from, |field| {
        match field.number {
            1 => location.frame_type = field.id()?,
            2 => location.mapping = field.id()?,
            3 => location.address = field.varint()?,
            4 => location.is_file_offset = field.boolean()?,
            5 => read_line(field.bytes()?, &mut location.lines)?,
            _ => field.skip()?,
        }
        Ok(())
    })?;
    Ok(location)
}

fn read_line(from: &[u8], to: &mut Lines) -> Result<(), BatchError> {
    let mut read = Line { function: 0, line: 0, column: 0 };
    fields(from, |field| {
        match field.number {
            1 => read.function = field.id()?,
            2 => read.line = field.signed()?,
            3 => read.column = field.signed()?,
            _ => field.skip()?,
        }
        Ok(())
    })?;
    to.push(read);
    Ok(())
}

/// Replaces the content of `to` by the attributes of a set.
fn read_attributes(from: &[u8], to: &mut Vec<Attribute>) -> Result<(), BatchError> {
    to.clear();
    fields(from, |field| match field.number {
        1 => read_attribute(field.bytes()?).map(|attribute| to.push(attribute)),
        _ => field.skip(),
    })
}

fn read_attribute(from: &[u8]) -> Result<Attribute, BatchError> {
    let (mut key, mut unit, mut value) = (0, 0, None);
    fields(from, |field| {
        match field.number {
            1 => key = field.id()?,
            2 => unit = field.id()?,
            3 => value = Some(AttributeValue::Text(field.id()?)),
            4 => value = Some(AttributeValue::Integer(field.signed()?)),
            5 => value = Some(AttributeValue::Boolean(field.boolean()?)),
            6 => value = Some(AttributeValue::Double(field.fixed64()?)),
            7 => value = Some(AttributeValue::Json(field.id()?)),
            _ => field.skip()?,
        }
        Ok(())
    })?;
    let value = value.ok_or(BatchError::Inconsistent("an attribute has no value"))?;
    Ok(Attribute { key, unit, value })
}

#[cfg(test)]
mod tests;
