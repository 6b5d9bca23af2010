//! Build IDs, which identify an executable or library wherever it is mapped.
//!
//! The three kinds are the ones that the semantic conventions of OpenTelemetry define for mappings.

use std::fmt;

/// The identity of a mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BuildId {
    /// The descriptor of the ELF note `NT_GNU_BUILD_ID`, usually 20 bytes.
    Gnu(Vec<u8>),
    /// The Go build ID string of the ELF note `Go`.
    Go(String),
    /// First 16 bytes of a SHA-256. The hashed bytes are the file's first 4096, its last 4096, and its length as
    /// big-endian u64.
    Htlhash([u8; 16]),
}

impl BuildId {
    /// Parses the text that [`fmt::Display`] writes: `gnu:<hex>`, `go:<text>` or `htlhash:<hex>`. Returns `None` for
    /// any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, id) = text.split_once(':')?;
        match kind {
            "gnu" => from_hex(id).filter(|bytes| !bytes.is_empty()).map(Self::Gnu),
            "go" => (!id.is_empty()).then(|| Self::Go(id.to_owned())),
            "htlhash" => Some(Self::Htlhash(from_hex(id)?.try_into().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gnu(bytes) => write!(f, "gnu:{}", to_hex(bytes)),
            Self::Go(id) => write!(f, "go:{id}"),
            Self::Htlhash(bytes) => write!(f, "htlhash:{}", to_hex(bytes)),
        }
    }
}

fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Returns bytes as lower-case hexadecimal digits, two for each byte.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let mut digits = Vec::with_capacity(bytes.len() * 2);
    write_hex(bytes, &mut digits);
    digits.into_iter().map(char::from).collect()
}

/// Parses an even number of hexadecimal digits of either case. Returns `None` for any other text.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| {
            let digit = |byte: u8| (byte as char).to_digit(16);
            u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_build_id_is_parsed_from_its_own_text() {
        for id in [BuildId::Gnu(vec![0, 255, 16]), BuildId::Go("a/b:c".into()), BuildId::Htlhash([7; 16])] {
            assert_eq!(BuildId::parse(&id.to_string()), Some(id));
        }
    }

    #[test]
    fn text_that_is_no_build_id_is_refused() {
        for text in ["", "gnu:", "gnu:0", "gnu:0g", "go:", "htlhash:00", "md5:00", "gnu"] {
            assert_eq!(BuildId::parse(text), None, "{text}");
        }
    }
}
