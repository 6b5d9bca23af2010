//! The dictionary of an export request. Splits its tables into entries, which are not read yet.

use crate::ingest::decode::protobuf::{Fields, Value, WireError};
use crate::ingest::error::{IngestError, OTLP_FORMAT};

/// Maximum number of entries of all tables together. An empty entry has two bytes in the request and takes 16 bytes
/// here.
const ENTRIES_MAX: usize = 4_000_000;

/// Largest number of entries for which a table reserves memory in advance.
const RESERVED_ENTRIES_MAX: usize = 1 << 13;

/// Estimated number of bytes of a dictionary for each entry of a long table. In real dictionaries, the number is 25 to
/// 60 bytes.
const BYTES_PER_ENTRY: usize = 24;

/// The tables of a dictionary.
#[derive(Debug, Default)]
pub(crate) struct RawDictionary<'a> {
    pub(crate) mappings: Vec<&'a [u8]>,
    pub(crate) locations: Vec<&'a [u8]>,
    pub(crate) functions: Vec<&'a [u8]>,
    pub(crate) links: Vec<&'a [u8]>,
    pub(crate) strings: Vec<&'a [u8]>,
    pub(crate) attributes: Vec<&'a [u8]>,
    pub(crate) stacks: Vec<&'a [u8]>,
}

impl<'a> RawDictionary<'a> {
    /// Reads the tables. `messages` are the dictionaries of a request. A request may have several, and protobuf
    /// requires that they are merged.
    pub(crate) fn read(messages: &[&'a [u8]]) -> Result<Self, IngestError> {
        let mut tables = Self::default();
        let malformed = |error| IngestError::wire(OTLP_FORMAT, error);
        let mut entries = 0;
        for &message in messages {
            tables.reserve(message.len());
            for field in Fields::new(message) {
                let (number, value) = field.map_err(malformed)?;
                let Some(table) = tables.of_field(number) else { continue };
                table.push(value.bytes(number).map_err(malformed)?);
                entries += 1;
                if entries > ENTRIES_MAX {
                    return Err(IngestError::TooMany { what: "dictionary entries", count_max: ENTRIES_MAX });
                }
            }
        }
        tables.check_zero_entries()?;
        Ok(tables)
    }

    fn of_field(&mut self, number: u32) -> Option<&mut Vec<&'a [u8]>> {
        match number {
            1 => Some(&mut self.mappings),
            2 => Some(&mut self.locations),
            3 => Some(&mut self.functions),
            4 => Some(&mut self.links),
            5 => Some(&mut self.strings),
            6 => Some(&mut self.attributes),
            7 => Some(&mut self.stacks),
            _ => None,
        }
    }

    /// Reserves memory in the long tables. `bytes` is the size of the dictionary, in bytes.
    fn reserve(&mut self, bytes: usize) {
        let entries = (bytes / BYTES_PER_ENTRY).min(RESERVED_ENTRIES_MAX);
        for table in [&mut self.locations, &mut self.functions, &mut self.strings, &mut self.stacks] {
            table.reserve(entries);
        }
    }

    /// Checks that entry 0 of every table is the zero value. If a sender omits this entry, all indices are off by one,
    /// and names are wrong.
    fn check_zero_entries(&self) -> Result<(), IngestError> {
        for (name, table) in [
            ("mapping_table", &self.mappings),
            ("location_table", &self.locations),
            ("function_table", &self.functions),
            ("link_table", &self.links),
            ("string_table", &self.strings),
            ("attribute_table", &self.attributes),
            ("stack_table", &self.stacks),
        ] {
            if table.first().is_some_and(|entry| !is_zero(entry)) {
                let detail = format!("entry 0 of {name} must be the zero value: index 0 means \"not set\"");
                return Err(IngestError::Malformed { format: OTLP_FORMAT, detail });
            }
        }
        Ok(())
    }
}

/// Returns whether every field of an entry is zero, in any encoding. For example, the IDs of a link may be bytes of
/// zeros.
fn is_zero(entry: &[u8]) -> bool {
    let zero = |field: Result<(u32, Value<'_>), WireError>| match field {
        Ok((_, Value::Varint(number) | Value::Fixed64(number))) => number == 0,
        Ok((_, Value::Fixed32(number))) => number == 0,
        // An empty string or message is zero, and so is an ID that consists of zeros.
        Ok((_, Value::Bytes(bytes))) => bytes.iter().all(|&byte| byte == 0),
        Err(_malformed) => false,
    };
    Fields::new(entry).all(zero)
}
