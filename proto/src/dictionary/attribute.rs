//! Sample attributes: thread, CPU, pid, span, pprof labels.

use crate::dictionary::strings::Strings;

/// One attribute; text is ids into the strings of the dictionary that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribute {
    /// Id of the key as it was pushed, dots and all.
    pub key: u32,
    /// Id of the unit, or of "".
    pub unit: u32,
    /// The value, its type kept.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttributeValue {
    /// Id of a text.
    Text(u32),
    /// An integer.
    Integer(i64),
    /// True or false.
    Boolean(bool),
    /// The bits of an IEEE 754 double, so that equal means identical.
    Double(u64),
    /// Id of an array, map or bytes, written as OTLP JSON.
    Json(u32),
}

impl AttributeValue {
    /// As queries see it.
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
