//! The protobuf wire format without a schema. A message is a list of fields, so that tests can edit and damage
//! messages.

/// A message: field numbers and values, in the order of the bytes.
pub type Message = Vec<(u32, Value)>;

/// The value of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A varint: wire type 0.
    Varint(u64),
    /// A fixed 64-bit number: wire type 1.
    Fixed64(u64),
    /// Bytes, text or a message: wire type 2.
    Bytes(Vec<u8>),
    /// A fixed 32-bit number: wire type 5.
    Fixed32(u32),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Varint(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&Message> for Value {
    fn from(message: &Message) -> Self {
        Self::Bytes(encode(message))
    }
}

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Encodes a message.
#[must_use]
pub fn encode(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, value) in message {
        let wire_type = match value {
            Value::Varint(_) => 0,
            Value::Fixed64(_) => 1,
            Value::Bytes(_) => 2,
            Value::Fixed32(_) => 5,
        };
        put_varint(&mut out, u64::from(*number) << 3 | wire_type);
        match value {
            Value::Varint(number) => put_varint(&mut out, *number),
            Value::Fixed64(number) => out.extend(number.to_le_bytes()),
            Value::Fixed32(number) => out.extend(number.to_le_bytes()),
            Value::Bytes(bytes) => {
                put_varint(&mut out, bytes.len() as u64);
                out.extend(bytes);
            }
        }
    }
    out
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a varint ends early");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// Decodes the fields of a message.
///
/// # Panics
/// The bytes are not a message.
#[must_use]
pub fn decode(mut bytes: &[u8]) -> Message {
    let mut message = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes);
        let number = u32::try_from(key >> 3).expect("a field number");
        let mut take = |length: usize| {
            let (taken, rest) = bytes.split_at_checked(length).expect("a field ends early");
            bytes = rest;
            taken
        };
        let value = match key & 7 {
            1 => Value::Fixed64(u64::from_le_bytes(take(8).try_into().unwrap())),
            5 => Value::Fixed32(u32::from_le_bytes(take(4).try_into().unwrap())),
            0 => Value::Varint(take_varint(&mut bytes)),
            2 => {
                let length = take_varint(&mut bytes);
                let (taken, rest) =
                    bytes.split_at_checked(usize::try_from(length).unwrap()).expect("a field ends early");
                bytes = rest;
                Value::Bytes(taken.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        message.push((number, value));
    }
    message
}

/// Returns the last value of a number field; 0 if the field is absent.
#[must_use]
pub fn number(message: &Message, field: u32) -> u64 {
    let found = message.iter().rev().find(|(number, _)| *number == field);
    match found {
        Some((_, Value::Varint(number) | Value::Fixed64(number))) => *number,
        None => 0,
        Some((_, other)) => panic!("field {field} is {other:?}"),
    }
}

/// Returns every value of a field that holds bytes.
pub fn all(message: &Message, field: u32) -> impl Iterator<Item = &[u8]> {
    message.iter().filter(move |(number, _)| *number == field).map(move |(_, value)| match value {
        Value::Bytes(bytes) => bytes.as_slice(),
        other => panic!("field {field} is {other:?}"),
    })
}

/// Returns the last value of a field that holds a message, decoded; empty if the field is absent.
#[must_use]
pub fn inner(message: &Message, field: u32) -> Message {
    all(message, field).last().map(decode).unwrap_or_default()
}

/// Returns the values of a repeated number field, packed or not.
#[must_use]
pub fn numbers(message: &Message, field: u32) -> Vec<u64> {
    let mut out = Vec::new();
    for (_, value) in message.iter().filter(|(number, _)| *number == field) {
        match value {
            Value::Bytes(bytes) => {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    out.push(take_varint(&mut rest));
                }
            }
            Value::Varint(number) | Value::Fixed64(number) => out.push(*number),
            Value::Fixed32(number) => out.push(u64::from(*number)),
        }
    }
    out
}

/// Returns the values of a repeated fixed64 field, packed or not.
#[must_use]
pub fn fixed64s(message: &Message, field: u32) -> Vec<u64> {
    let mut out = Vec::new();
    for (_, value) in message.iter().filter(|(number, _)| *number == field) {
        match value {
            Value::Bytes(bytes) => {
                out.extend(bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
            }
            Value::Fixed64(number) => out.push(*number),
            other => panic!("field {field} is {other:?}"),
        }
    }
    out
}

/// Encodes a packed repeated varint field.
#[must_use]
pub fn packed(numbers: impl IntoIterator<Item = u64>) -> Value {
    let mut bytes = Vec::new();
    numbers.into_iter().for_each(|number| put_varint(&mut bytes, number));
    Value::Bytes(bytes)
}

/// Encodes a packed repeated fixed64 field.
#[must_use]
pub fn packed_fixed64s(numbers: &[u64]) -> Value {
    Value::Bytes(numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

/// Calls `change` with every message at the end of a path of fields, and replaces the message by the result.
#[must_use]
pub fn edit(bytes: &[u8], path: &[u32], change: &mut dyn FnMut(Message) -> Message) -> Vec<u8> {
    let message = decode(bytes);
    let Some((&field, below)) = path.split_first() else { return encode(&change(message)) };
    let rewrite = |(number, value): (u32, Value)| match value {
        Value::Bytes(bytes) if number == field => (number, Value::Bytes(edit(&bytes, below, change))),
        value => (number, value),
    };
    encode(&message.into_iter().map(rewrite).collect())
}
