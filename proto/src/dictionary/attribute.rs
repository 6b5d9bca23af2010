//! Attributes of samples: thread, CPU, process ID, span, pprof labels.

use crate::dictionary::strings::Strings;

/// An attribute. Its IDs are entries of the dictionary that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribute {
    /// ID of the key as it was pushed, with dots.
    pub key: u32,
    /// ID of the unit, or of "".
    pub unit: u32,
    /// Value, with its type.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttributeValue {
    /// ID of a text.
    Text(u32),
    /// An integer.
    Integer(i64),
    /// True or false.
    Boolean(bool),
    /// Bits of an IEEE 754 double. Values are equal if their bits are.
    Double(u64),
    /// ID of an array, map or bytes, written as OTLP JSON.
    Json(u32),
}

impl AttributeValue {
    /// Text of the value, as queries see it.
    #[must_use]
    pub fn render(&self, strings: &Strings) -> String {
        match *self {
            Self::Text(id) | Self::Json(id) => strings.get(id).to_owned(),
            Self::Integer(value) => value.to_string(),
            Self::Boolean(value) => value.to_string(),
            Self::Double(bits) => f64::from_bits(bits).to_string(),
        }
    }
}
