//! The request's dictionary: its tables as raw messages, each entry interned when a sample first refers to it.
//!
//! So an entry that nothing refers to costs nothing, and a broken one refuses those profiles that need it and no others.

use std::borrow::Cow;

use proto::attribute::{Attribute, AttributeValue};
use proto::build_id::from_hex;
use proto::{Address, BuildId, Function, Line, Location, MappingIdentity, limits};

use super::FORMAT;
use crate::ingest::IngestError;
use crate::ingest::builder::{Builder, Rejection, text_of};
use crate::ingest::protobuf::{Fields, WireError};

/// Entries of all tables together: an empty entry has two bytes on the wire and costs us 24.
const ENTRIES_MAX: usize = 4_000_000;

/// One table: raw entries, and what became of each.
#[derive(Debug, Default)]
struct Table<'a> {
    entries: Vec<&'a [u8]>,
    ids: Vec<Option<u32>>,
}

impl<'a> Table<'a> {
    fn get(&self, table: &'static str, index: i64) -> Result<(usize, &'a [u8]), Rejection> {
        let out_of_range = || Rejection::OutOfRange { table, index, length: self.entries.len() };
        let at = usize::try_from(index).map_err(|_negative| out_of_range())?;
        match self.entries.get(at) {
            Some(entry) => Ok((at, entry)),
            // Index 0 means "not set"; a sender without anything in a table may leave its zero entry out, too.
            None if at == 0 => Ok((0, &[])),
            None => Err(out_of_range()),
        }
    }

    fn remember(&mut self, at: usize, id: u32) -> u32 {
        if self.ids.len() <= at {
            self.ids.resize(self.entries.len().max(at + 1), None);
        }
        self.ids[at] = Some(id);
        id
    }

    fn known(&self, at: usize) -> Option<u32> {
        self.ids.get(at).copied().flatten()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tables<'a> {
    mappings: Table<'a>,
    locations: Table<'a>,
    functions: Table<'a>,
    links: Table<'a>,
    strings: Table<'a>,
    attributes: Table<'a>,
    /// Ids of stack pairs.
    stacks: Table<'a>,
}

/// A key, a value and a unit, as they were sent.
#[derive(Clone, Debug)]
pub(crate) struct RawAttribute<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: RawValue<'a>,
    pub(crate) unit: Cow<'a, str>,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(crate) enum RawValue<'a> {
    Text(Cow<'a, str>),
    Integer(i64),
    Boolean(bool),
    Double(u64),
    Json(String),
}

impl<'a> Tables<'a> {
    pub(crate) fn read(dictionaries: &[&'a [u8]]) -> Result<Self, IngestError> {
        let mut tables = Self::default();
        let malformed = |error| IngestError::wire(FORMAT, error);
        let mut entries = 0;
        for field in dictionaries.iter().flat_map(|dictionary| Fields::new(dictionary)) {
            let (number, value) = field.map_err(malformed)?;
            let table = match number {
                1 => &mut tables.mappings,
                2 => &mut tables.locations,
                3 => &mut tables.functions,
                4 => &mut tables.links,
                5 => &mut tables.strings,
                6 => &mut tables.attributes,
                7 => &mut tables.stacks,
                _ => continue,
            };
            table.entries.push(value.bytes(number).map_err(malformed)?);
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(IngestError::TooMany { what: "dictionary entries", count_max: ENTRIES_MAX });
            }
        }
        tables.check_zero_entries()?;
        Ok(tables)
    }

    /// Entry 0 of every table must be its zero value: else everything in it is off by one, and names would be wrong.
    fn check_zero_entries(&self) -> Result<(), IngestError> {
        let tables = [
            ("mapping_table", &self.mappings),
            ("location_table", &self.locations),
            ("function_table", &self.functions),
            ("link_table", &self.links),
            ("string_table", &self.strings),
            ("attribute_table", &self.attributes),
            ("stack_table", &self.stacks),
        ];
        for (name, table) in tables {
            if table.entries.first().is_some_and(|entry| !is_zero(entry)) {
                let detail = format!("entry 0 of {name} must be the zero value: index 0 means \"not set\"");
                return Err(IngestError::Malformed { format: FORMAT, detail });
            }
        }
        Ok(())
    }

    /// Entries of the attribute table.
    pub(crate) fn attributes(&self) -> usize {
        self.attributes.entries.len()
    }

    /// A string of the table.
    pub(crate) fn string(&self, index: i64) -> Result<Cow<'a, str>, Rejection> {
        Ok(text_of(self.strings.get("string_table", index)?.1))
    }

    fn string_id(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let (at, entry) = self.strings.get("string_table", index)?;
        match self.strings.known(at) {
            Some(id) => Ok(id),
            None => Ok(self.strings.remember(at, builder.text(entry))),
        }
    }

    /// An attribute of the table.
    pub(crate) fn attribute(&self, index: i64) -> Result<RawAttribute<'a>, Rejection> {
        let (_, entry) = self.attributes.get("attribute_table", index)?;
        let mut attribute = RawAttribute { key: "".into(), value: RawValue::Text("".into()), unit: "".into() };
        for field in Fields::new(entry) {
            match field? {
                (1, value) => attribute.key = self.string(value.int64(1)?)?,
                (2, value) => attribute.value = self.any_value(value.bytes(2)?)?,
                (3, value) => attribute.unit = self.string(value.int64(3)?)?,
                _ => {}
            }
        }
        Ok(attribute)
    }

    /// A `common.KeyValue`, whose key and value may refer to the string table.
    pub(crate) fn key_value(&self, message: &'a [u8]) -> Result<RawAttribute<'a>, Rejection> {
        let mut attribute = RawAttribute { key: "".into(), value: RawValue::Text("".into()), unit: "".into() };
        for field in Fields::new(message) {
            match field? {
                (1, value) => attribute.key = text_of(value.bytes(1)?),
                (2, value) => attribute.value = self.any_value(value.bytes(2)?)?,
                (3, value) => attribute.key = self.string(value.int64(3)?)?,
                _ => {}
            }
        }
        Ok(attribute)
    }

    /// A `common.AnyValue`.
    fn any_value(&self, message: &'a [u8]) -> Result<RawValue<'a>, Rejection> {
        let mut read = RawValue::Text("".into());
        for field in Fields::new(message) {
            read = match field? {
                (1, value) => RawValue::Text(text_of(value.bytes(1)?)),
                (2, value) => RawValue::Boolean(value.varint(2)? != 0),
                (3, value) => RawValue::Integer(value.int64(3)?),
                (4, value) => RawValue::Double(value.fixed64(4)?),
                (8, value) => RawValue::Text(self.string(value.int64(8)?)?),
                (5..=7, _) => RawValue::Json(super::resource::any_value_json(self, message, 0)?.to_string()),
                _ => continue,
            };
        }
        Ok(read)
    }

    /// Trace and span id of a link, lower-case hexadecimal; `None` for ids of zeros.
    pub(crate) fn link(&self, index: i64) -> Result<[Option<String>; 2], Rejection> {
        let (_, entry) = self.links.get("link_table", index)?;
        let mut ids = [None, None];
        for field in Fields::new(entry) {
            if let (number @ 1..=2, value) = field? {
                let bytes = value.bytes(number)?;
                if bytes.len() > 16 {
                    return Err(Rejection::Invalid("a trace id has 16 bytes and a span id 8"));
                }
                let id = bytes.iter().any(|&byte| byte != 0).then(|| proto::build_id::to_hex(bytes));
                ids[usize::from(number == 2)] = id;
            }
        }
        Ok(ids)
    }

    /// The pair of a stack of the table.
    pub(crate) fn pair(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let (at, entry) = self.stacks.get("stack_table", index)?;
        if let Some(pair) = self.stacks.known(at) {
            return Ok(pair);
        }
        let mut indices = Vec::new();
        for field in Fields::new(entry) {
            if let (1, value) = field? {
                value.varints(1, &mut indices)?;
            }
        }
        let locations: Vec<u32> =
            indices.iter().map(|index| self.location(builder, index.cast_signed())).collect::<Result<_, _>>()?;
        let pair = builder.pair(&locations);
        Ok(self.stacks.remember(at, pair))
    }

    fn location(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let (at, entry) = self.locations.get("location_table", index)?;
        if let Some(id) = self.locations.known(at) {
            return Ok(id);
        }
        let (mut mapping, mut address, mut lines, mut attributes) = (0, 0, Vec::new(), Vec::new());
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
        let frame_type = self.frame_type(&attributes)?;
        let location = if lines.is_empty() {
            let mapping = self.mapping(builder, mapping)?;
            let frame_type = builder.text(frame_type.as_deref().unwrap_or("native").as_bytes());
            Location::Address { mapping, address: Address::Virtual(address), frame_type }
        } else {
            let mapping_file = self.mapping_file(builder, mapping)?;
            let frame_type = builder.text(frame_type.as_deref().unwrap_or_default().as_bytes());
            Location::Lines { mapping_file, frame_type, lines: lines.into() }
        };
        let id = builder.location(location);
        Ok(self.locations.remember(at, id))
    }

    fn frame_type(&self, attributes: &[u64]) -> Result<Option<String>, Rejection> {
        for &index in attributes {
            let attribute = self.attribute(index.cast_signed())?;
            if let ("profile.frame.type", RawValue::Text(frame_type)) = (attribute.key.as_ref(), &attribute.value) {
                return Ok(Some(frame_type.clone().into_owned()));
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
        let (at, entry) = self.functions.get("function_table", index)?;
        if let Some(id) = self.functions.known(at) {
            return Ok(id);
        }
        let mut function = Function::default();
        for field in Fields::new(entry) {
            match field? {
                (1, value) => function.name = self.string_id(builder, value.int64(1)?)?,
                (2, value) => function.system_name = self.string_id(builder, value.int64(2)?)?,
                (3, value) => function.file = self.string_id(builder, value.int64(3)?)?,
                (4, value) => function.start_line = value.int64(4)?,
                _ => {}
            }
        }
        let id = builder.dictionary().intern_function(function);
        Ok(self.functions.remember(at, id))
    }

    /// The index of a mapping's file name, and of its attributes.
    fn raw_mapping(&self, index: i64) -> Result<(usize, i64, Vec<u64>), Rejection> {
        let (at, entry) = self.mappings.get("mapping_table", index)?;
        let (mut file, mut attributes) = (0, Vec::new());
        for field in Fields::new(entry) {
            match field? {
                (4, value) => file = value.int64(4)?,
                (5, value) => value.varints(5, &mut attributes)?,
                _ => {}
            }
        }
        Ok((at, file, attributes))
    }

    fn mapping_file(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let (_, file, _) = self.raw_mapping(index)?;
        self.string_id(builder, file)
    }

    fn mapping(&mut self, builder: &mut Builder, index: i64) -> Result<u32, Rejection> {
        let (at, file, attributes) = self.raw_mapping(index)?;
        if let Some(id) = self.mappings.known(at) {
            return Ok(id);
        }
        let file = self.string_id(builder, file)?;
        let identity = match self.build_id(&attributes)? {
            Some(build_id) => MappingIdentity::BuildId(build_id),
            None => MappingIdentity::File(file),
        };
        let id = builder.dictionary().intern_mapping(identity, file);
        Ok(self.mappings.remember(at, id))
    }

    /// Of several build IDs the GNU one wins, which debug files are found by; then Go's; then the hash.
    fn build_id(&self, attributes: &[u64]) -> Result<Option<BuildId>, Rejection> {
        let mut found: [Option<BuildId>; 3] = [None, None, None];
        for &index in attributes {
            let attribute = self.attribute(index.cast_signed())?;
            let RawValue::Text(text) = &attribute.value else { continue };
            let hash = || from_hex(text).and_then(|bytes| bytes.try_into().ok()).map(BuildId::Htlhash);
            match attribute.key.as_ref() {
                "process.executable.build_id.gnu" => {
                    found[0] = from_hex(text).filter(|bytes| !bytes.is_empty()).map(BuildId::Gnu);
                }
                "process.executable.build_id.go" if !text.is_empty() => {
                    found[1] = Some(BuildId::Go(text.clone().into_owned()));
                }
                // The second is the older name.
                "process.executable.build_id.htlhash" | "process.executable.build_id.profiling" => found[2] = hash(),
                _ => {}
            }
        }
        Ok(found.into_iter().flatten().next())
    }
}

impl RawAttribute<'_> {
    /// The attribute in the push's dictionary.
    pub(crate) fn intern(&self, builder: &mut Builder) -> Attribute {
        let value = match &self.value {
            RawValue::Text(text) => AttributeValue::Text(builder.text(text.as_bytes())),
            RawValue::Json(text) => AttributeValue::Json(builder.text(text.as_bytes())),
            RawValue::Integer(integer) => AttributeValue::Integer(*integer),
            RawValue::Boolean(boolean) => AttributeValue::Boolean(*boolean),
            RawValue::Double(bits) => AttributeValue::Double(*bits),
        };
        Attribute { key: builder.text(self.key.as_bytes()), unit: builder.text(self.unit.as_bytes()), value }
    }

    /// The value as a label has it.
    pub(crate) fn label_value(&self) -> Cow<'_, str> {
        match &self.value {
            RawValue::Text(text) => Cow::Borrowed(text),
            RawValue::Json(text) => Cow::Borrowed(text),
            RawValue::Integer(integer) => Cow::Owned(integer.to_string()),
            RawValue::Boolean(boolean) => Cow::Owned(boolean.to_string()),
            RawValue::Double(bits) => Cow::Owned(f64::from_bits(*bits).to_string()),
        }
    }
}

/// Whether every field of an entry is zero, however it was written: link ids may be bytes of zeros.
fn is_zero(entry: &[u8]) -> bool {
    use crate::ingest::protobuf::Value;
    let zero = |field: Result<(u32, Value<'_>), WireError>| match field {
        Ok((_, Value::Varint(number) | Value::Fixed64(number))) => number == 0,
        Ok((_, Value::Fixed32(number))) => number == 0,
        // A nested empty value is zero as well.
        Ok((_, Value::Bytes(bytes))) => bytes.iter().all(|&byte| byte == 0),
        Err(_malformed) => false,
    };
    Fields::new(entry).all(zero)
}
