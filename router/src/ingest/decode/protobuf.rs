//! Parser of the protobuf wire format. Fields borrow from the message, and nothing is allocated.
//!
//! Generated code is not used for pushes. It allocates many times the size of the input before anything can be checked.
//! Also, the same field numbers have different meanings in different layouts of OTLP profiles.

/// Value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The error of bytes that are not a protobuf message, or of a field whose type differs from its definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("it ends in the middle of a field")]
    Truncated,
    #[error("a varint has more than 64 bits")]
    Varint,
    #[error("field number 0 or a wire type that does not exist")]
    Tag,
    #[error("field {0} has another wire type than its contract says")]
    Type(u32),
}

/// Iterator over the fields of one message, in the order in which they were sent.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    #[inline(always)]
    fn read(&mut self) -> Result<(u32, Value<'a>), WireError> {
        let tag = varint(&mut self.rest)?;
        let number =
            u32::try_from(tag >> 3).ok().filter(|&number| 0 < number && number < 1 << 29).ok_or(WireError::Tag)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take()?)),
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).unwrap_or(usize::MAX);
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(WireError::Truncated)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take()?)),
            _ => return Err(WireError::Tag),
        };
        Ok((number, value))
    }
}

#[allow(clippy::inline_always, reason = "half of the decoding time is spent here")]
impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), WireError>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Value<'a> {
    /// Returns the value of a nested message, a string or bytes. `number` is the number of the field, for the error.
    pub(crate) fn bytes(self, number: u32) -> Result<&'a [u8], WireError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::Type(number)),
        }
    }

    /// Returns the value of an integer that is encoded as a varint.
    pub(crate) fn varint(self, number: u32) -> Result<u64, WireError> {
        match self {
            Self::Varint(varint) => Ok(varint),
            _ => Err(WireError::Type(number)),
        }
    }

    /// Returns the value of an int64, whose 64 bits are those of its varint.
    pub(crate) fn int64(self, number: u32) -> Result<i64, WireError> {
        Ok(self.varint(number)?.cast_signed())
    }

    pub(crate) fn fixed64(self, number: u32) -> Result<u64, WireError> {
        match self {
            Self::Fixed64(fixed) => Ok(fixed),
            _ => Err(WireError::Type(number)),
        }
    }

    /// Appends the values of a repeated integer, packed or not, to `out`.
    pub(crate) fn varints(self, number: u32, out: &mut Vec<u64>) -> Result<(), WireError> {
        if let Self::Bytes(packed) = self {
            // Each number has at least one byte.
            out.reserve(packed.len());
        }
        self.each_varint(number, |varint| {
            out.push(varint);
            Ok(())
        })
    }

    /// Calls `visit` with each value of a repeated integer, packed or not.
    #[inline]
    pub(crate) fn each_varint<E: From<WireError>>(
        self,
        number: u32,
        mut visit: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Varint(varint) => visit(varint),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    visit(varint(&mut packed)?)?;
                }
                Ok(())
            }
            _ => Err(WireError::Type(number).into()),
        }
    }

    /// Returns the number of values in a repeated fixed64, packed or not.
    pub(crate) fn fixed64_count(self, number: u32) -> Result<usize, WireError> {
        match self {
            Self::Fixed64(_) => Ok(1),
            Self::Bytes(packed) if packed.len().is_multiple_of(8) => Ok(packed.len() / 8),
            Self::Bytes(_) => Err(WireError::Truncated),
            _ => Err(WireError::Type(number)),
        }
    }

    /// Appends the values of a repeated fixed64, packed or not, to `out`.
    pub(crate) fn fixed64s(self, number: u32, out: &mut Vec<u64>) -> Result<(), WireError> {
        match self {
            Self::Fixed64(fixed) => out.push(fixed),
            Self::Bytes(packed) => {
                let (chunks, rest) = packed.as_chunks();
                if !rest.is_empty() {
                    return Err(WireError::Truncated);
                }
                out.extend(chunks.iter().map(|bytes| u64::from_le_bytes(*bytes)));
            }
            _ => return Err(WireError::Type(number)),
        }
        Ok(())
    }
}

/// Reads a varint from the start of `bytes`. The first two cases are fast paths: most tags, lengths and indices have
/// one byte or two.
#[inline(always)]
fn varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    match **bytes {
        [byte, ref rest @ ..] if byte < 0x80 => {
            *bytes = rest;
            Ok(u64::from(byte))
        }
        [low, high, ref rest @ ..] if high < 0x80 => {
            *bytes = rest;
            Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
        }
        _ => long_varint(bytes),
    }
}

#[cold]
#[inline(never)]
fn long_varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(WireError::Truncated)?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            return Err(WireError::Varint);
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(WireError::Varint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x19, 1, 0, 0, 0, 0, 0, 0, 0, 0x25, 2, 0, 0, 0];
        let fields: Vec<_> = Fields::new(&message).collect::<Result<_, _>>().unwrap();
        let want = [(1, Value::Varint(150)), (2, Value::Bytes(b"hi")), (3, Value::Fixed64(1)), (4, Value::Fixed32(2))];
        assert_eq!(fields, want);
    }

    #[test]
    fn broken_messages_give_one_error() {
        for (bytes, error) in [
            (&[0x08][..], WireError::Truncated),
            (&[0x12, 5, 1], WireError::Truncated),
            (&[0x19, 1], WireError::Truncated),
            (&[0x00, 1], WireError::Tag),
            (&[0x0b], WireError::Tag),
            (&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], WireError::Varint),
            (&[0xff; 20], WireError::Varint),
        ] {
            let read: Vec<_> = Fields::new(bytes).collect();
            assert_eq!(read, [Err(error)], "{bytes:?}");
        }
    }

    #[test]
    fn repeated_numbers_are_packed_or_not() {
        let mut out = Vec::new();
        Value::Bytes(&[1, 0x96, 1]).varints(1, &mut out).unwrap();
        Value::Varint(7).varints(1, &mut out).unwrap();
        assert_eq!(out, [1, 150, 7]);
        assert_eq!(Value::Bytes(&[0x80]).varints(1, &mut out), Err(WireError::Truncated));
        assert_eq!(Value::Bytes(&[0; 9]).fixed64s(1, &mut out), Err(WireError::Truncated));
        assert_eq!(Value::Fixed32(1).varints(9, &mut out), Err(WireError::Type(9)));
    }
}
