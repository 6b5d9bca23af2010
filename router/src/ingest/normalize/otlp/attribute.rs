//! Attributes of the dictionary's attribute table, of resources and of scopes. Their texts may be in the string table.

use base64::Engine as _;
use proto::dictionary::{Attribute, AttributeValue};
use proto::limits;
use serde_json::{Value as Json, json};

use super::dictionary::RequestDictionary;
use crate::ingest::decode::protobuf::Fields;
use crate::ingest::error::ProfileError;
use crate::ingest::normalize::builder::{Builder, text_of};

/// Maximum number of levels of nested arrays and maps. Deeper values are refused.
const NESTING_MAX: u32 = 16;

/// Largest total size of the arrays and maps of one request as JSON, in bytes. A string is sent once, and many arrays
/// and maps may refer to it.
const JSON_BYTES_MAX: usize = limits::PUSH_UNPACKED_BYTES_MAX;

const EMPTY: Attribute = Attribute { key: 0, unit: 0, value: AttributeValue::Text(0) };

impl<'a> RequestDictionary<'a> {
    /// Reads an attribute of the attribute table.
    pub(crate) fn attribute(&mut self, builder: &mut Builder, index: i64) -> Result<Attribute, ProfileError> {
        if let Some(known) = self.attributes.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.attributes.get(index)?;
        if let Some(known) = self.attributes.known(at) {
            return known;
        }
        let read = self.read_attribute(builder, entry);
        self.attributes.remember(at, read)
    }

    fn read_attribute(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<Attribute, ProfileError> {
        let mut attribute = EMPTY;
        for field in Fields::new(entry) {
            match field? {
                (1, value) => attribute.key = self.string(builder, value.int64(1)?)?,
                (2, value) => attribute.value = self.any_value(builder, value.bytes(2)?)?,
                (3, value) => attribute.unit = self.string(builder, value.int64(3)?)?,
                _ => {}
            }
        }
        Ok(attribute)
    }

    /// Reads a `common.KeyValue`, whose key and value may refer to the string table.
    pub(crate) fn key_value(&mut self, builder: &mut Builder, message: &'a [u8]) -> Result<Attribute, ProfileError> {
        let mut attribute = EMPTY;
        for field in Fields::new(message) {
            match field? {
                (1, value) => attribute.key = builder.text(value.bytes(1)?),
                (2, value) => attribute.value = self.any_value(builder, value.bytes(2)?)?,
                (3, value) => attribute.key = self.string(builder, value.int64(3)?)?,
                _ => {}
            }
        }
        Ok(attribute)
    }

    /// Reads a `common.AnyValue`.
    fn any_value(&mut self, builder: &mut Builder, message: &'a [u8]) -> Result<AttributeValue, ProfileError> {
        let mut read = AttributeValue::Text(0);
        for field in Fields::new(message) {
            read = match field? {
                (1, value) => AttributeValue::Text(builder.text(value.bytes(1)?)),
                (2, value) => AttributeValue::Boolean(value.varint(2)? != 0),
                (3, value) => AttributeValue::Integer(value.int64(3)?),
                (4, value) => AttributeValue::Double(value.fixed64(4)?),
                (8, value) => AttributeValue::Text(self.string(builder, value.int64(8)?)?),
                // `structure` reads the whole message, so it is called once and not for each field.
                (5..=7, _) => return self.structure(builder, message),
                _ => continue,
            };
        }
        Ok(read)
    }

    fn structure(&mut self, builder: &mut Builder, message: &'a [u8]) -> Result<AttributeValue, ProfileError> {
        let mut left = limits::STRING_BYTES_MAX;
        let json = self.json(builder, message, 0, &mut left)?.to_string();
        self.json_bytes += json.len();
        if self.json_bytes > JSON_BYTES_MAX {
            let what = "bytes of arrays and maps in one request";
            return Err(ProfileError::TooMany { what, count_max: JSON_BYTES_MAX });
        }
        Ok(AttributeValue::Json(builder.text(json.as_bytes())))
    }

    /// Converts an AnyValue to the JSON of its value, without the member that names the type. Bytes become base64.
    /// `left` is the number of bytes that the JSON may still take. When `left` is 0, further elements are omitted.
    fn json(
        &mut self,
        builder: &mut Builder,
        message: &'a [u8],
        depth: u32,
        left: &mut usize,
    ) -> Result<Json, ProfileError> {
        if depth > NESTING_MAX {
            let what = "arrays and maps inside each other";
            return Err(ProfileError::TooMany { what, count_max: NESTING_MAX as usize });
        }
        let mut read = Json::Null;
        for field in Fields::new(message) {
            if *left == 0 {
                break;
            }
            read = match field? {
                (1, value) => json!(text_of(value.bytes(1)?)),
                (2, value) => json!(value.varint(2)? != 0),
                (3, value) => json!(value.int64(3)?),
                (4, value) => json!(f64::from_bits(value.fixed64(4)?)),
                (5, value) => self.json_array(builder, value.bytes(5)?, depth, left)?,
                (6, value) => self.json_map(builder, value.bytes(6)?, depth, left)?,
                (7, value) => json!(base64::engine::general_purpose::STANDARD.encode(value.bytes(7)?)),
                (8, value) => {
                    let text = self.string(builder, value.int64(8)?)?;
                    json!(builder.dictionary().strings.get(text))
                }
                _ => continue,
            };
            spend(left, read.as_str().map_or(0, str::len));
        }
        Ok(read)
    }

    fn json_array(
        &mut self,
        builder: &mut Builder,
        message: &'a [u8],
        depth: u32,
        left: &mut usize,
    ) -> Result<Json, ProfileError> {
        let mut array = Vec::new();
        for element in Fields::new(message) {
            let (1, element) = element? else { continue };
            if !spend(left, 1) {
                builder.warn_truncated();
                break;
            }
            array.push(self.json(builder, element.bytes(1)?, depth + 1, left)?);
        }
        Ok(Json::Array(array))
    }

    fn json_map(
        &mut self,
        builder: &mut Builder,
        message: &'a [u8],
        depth: u32,
        left: &mut usize,
    ) -> Result<Json, ProfileError> {
        let mut map = serde_json::Map::new();
        for entry in Fields::new(message) {
            let (1, entry) = entry? else { continue };
            if !spend(left, 1) {
                builder.warn_truncated();
                break;
            }
            let mut key = String::new();
            let mut value = Json::Null;
            for field in Fields::new(entry.bytes(1)?) {
                match field? {
                    (1, name) => key = text_of(name.bytes(1)?).into_owned(),
                    (2, any) => value = self.json(builder, any.bytes(2)?, depth + 1, left)?,
                    (3, index) if *left > 0 => {
                        let id = self.string(builder, index.int64(3)?)?;
                        builder.dictionary().strings.get(id).clone_into(&mut key);
                        spend(left, key.len());
                    }
                    _ => {}
                }
            }
            map.insert(key, value);
        }
        Ok(Json::Object(map))
    }
}

/// Subtracts `bytes` from the budget `left`, down to 0 at most. Returns whether the budget was above 0 before.
fn spend(left: &mut usize, bytes: usize) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(bytes);
    some
}
