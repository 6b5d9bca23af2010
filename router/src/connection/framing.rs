//! Finds the end of a request body as the body arrives.

/// The remaining part of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A body of known length. The value is the number of remaining bytes.
    Sized(u64),
    /// A chunked body. The value is the position in the body.
    Chunked(Chunk),
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// In the hexadecimal size of a chunk; the value is the number that the digits before the position express.
    Size(u64),
    /// In the extension after the size of a chunk; the value is the size.
    Extension(u64),
    /// Before the line feed that ends the line of a chunk's size; the value is the size.
    SizeEnd(u64),
    /// In the data of a chunk; the value is the number of remaining bytes.
    Data(u64),
    /// Before the carriage return after the data of a chunk.
    DataReturn,
    /// Before the line feed after the data of a chunk.
    DataEnd,
    /// At the start of a line of the trailer, after the last chunk.
    TrailerStart,
    /// In a line of the trailer.
    Trailer,
    /// Before the last line feed of the body.
    LastLineFeed,
    /// The body is complete.
    Complete,
}

impl Framing {
    pub(super) const CHUNKED: Self = Self::Chunked(Chunk::Size(0));

    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Sized(0) | Self::Chunked(Chunk::Complete))
    }

    /// Advances over the bytes at the start of `bytes` that belong to the body. Returns the number of these bytes;
    /// `None` if the chunks are malformed.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Sized(left) => {
                let taken = (*left).min(bytes.len() as u64);
                *left -= taken;
                usize::try_from(taken).ok()
            }
            Self::Chunked(chunk) => {
                let mut rest = bytes;
                while *chunk != Chunk::Complete && !rest.is_empty() {
                    rest = chunk.advance(rest)?;
                }
                Some(bytes.len() - rest.len())
            }
        }
    }
}

impl Chunk {
    /// Advances over the remaining data of a chunk, or over one byte that is not data. Returns the rest of `bytes`;
    /// `None` if the byte is not allowed at this position.
    fn advance<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if let Self::Data(left) = self {
            let taken = (*left).min(bytes.len() as u64);
            *left -= taken;
            if *left == 0 {
                *self = Self::DataReturn;
            }
            return bytes.get(usize::try_from(taken).ok()?..);
        }
        let (&byte, rest) = bytes.split_first()?;
        *self = match (*self, byte) {
            (Self::Size(size), b'\r') | (Self::Extension(size), b'\r') => Self::SizeEnd(size),
            (Self::Size(size), b';' | b' ' | b'\t') | (Self::Extension(size), _) => Self::Extension(size),
            (Self::Size(size), digit) => {
                let digit = char::from(digit).to_digit(16)?;
                Self::Size(size.checked_mul(16)?.checked_add(digit.into())?)
            }
            (Self::SizeEnd(0), b'\n') | (Self::Trailer, b'\n') => Self::TrailerStart,
            (Self::SizeEnd(size), b'\n') => Self::Data(size),
            (Self::DataReturn, b'\r') => Self::DataEnd,
            (Self::DataEnd, b'\n') => Self::Size(0),
            (Self::TrailerStart, b'\r') => Self::LastLineFeed,
            (Self::TrailerStart | Self::Trailer, _) => Self::Trailer,
            (Self::LastLineFeed, b'\n') => Self::Complete,
            _ => return None,
        };
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of bytes that belong to the body. Checks that the number is the same if the bytes arrive one
    /// by one.
    fn taken(framing: Framing, bytes: &[u8]) -> Option<usize> {
        let mut whole = framing;
        let taken = whole.advance(bytes);
        let mut split = framing;
        let mut sum = Some(0);
        for byte in bytes {
            sum = sum.zip(split.advance(std::slice::from_ref(byte))).map(|(sum, taken)| sum + taken);
        }
        assert_eq!(taken, sum);
        taken
    }

    #[test]
    fn a_body_ends_where_its_framing_says() {
        assert_eq!(taken(Framing::Sized(3), b"abcGET /"), Some(3));
        assert_eq!(taken(Framing::Sized(3), b"ab"), Some(2));
        assert_eq!(taken(Framing::CHUNKED, b"3\r\nabc\r\n0\r\n\r\nGET /"), Some(13));
        assert_eq!(taken(Framing::CHUNKED, b"A;x=\"y\"\r\n0\r\n\r\n1234567\r\n0\r\na: b\r\n\r\nPUT"), None);
        assert_eq!(taken(Framing::CHUNKED, b"a ;x\r\n0\r\n\r\n12345\r\n0\r\na: b\r\n\r\nPUT"), Some(29));
    }

    #[test]
    fn malformed_chunks_are_recognized() {
        for bytes in [&b"x\r\n"[..], b"1\n", b"1\r\nabc", b"11111111111111111\r\n", b"0\r\n\rx"] {
            assert_eq!(taken(Framing::CHUNKED, bytes), None, "{bytes:?}");
        }
    }
}
