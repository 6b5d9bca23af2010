//! Attributes of samples, such as thread, CPU, process ID, span and pprof labels.

use crate::dictionary::strings::Strings;

/// An attribute of a sample. The IDs in the attribute are those of the dictionary that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribute {
    /// ID of the text of the key. The key is unchanged from the push, so it may contain dots.
    pub key: u32,
    /// ID of the text of the unit. The text is "" if there is no unit.
    pub unit: u32,
    /// Value of the attribute, with its type.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttributeValue {
    /// ID of the value's text.
    Text(u32),
    /// An integer value.
    Integer(i64),
    /// A value that is true or false.
    Boolean(bool),
    /// Bits of an IEEE 754 double. Two doubles are the same value if their bits are equal.
    Double(u64),
    /// ID of the text of an array, a map or bytes, which is written as OTLP JSON.
    Json(u32),
}

impl AttributeValue {
    /// Returns the value as text, in the form that queries use.
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
