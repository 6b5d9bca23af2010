//! Names of labels and attributes that a tier drops, and the encoding of their value in the database.

use crate::database::frame;
use crate::encoding::varint::{put, take_bytes};
use crate::error::{Corruption, CorruptionCheck};

/// A name that samples had, but that the windows of a tier do not keep.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DroppedName {
    /// Name of a label that the configuration drops.
    Label(String),
    /// Name of an attribute of samples, in the form that queries use. Windows never have attributes.
    Attribute(String),
}

impl DroppedName {
    /// Returns the name of the label or attribute.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Label(name) | Self::Attribute(name) => name,
        }
    }

    /// Returns the name of the label; `None` for an attribute.
    pub(crate) fn label(&self) -> Option<&String> {
        match self {
            Self::Label(name) => Some(name),
            Self::Attribute(_) => None,
        }
    }
}

/// Encodes the names that a tier dropped. A byte before each name says what it is the name of: `l` for a label, or `a`
/// for an attribute. The length of byte and name precedes both.
pub(crate) fn encode<'a>(key: &[u8], names: impl Iterator<Item = &'a DroppedName>) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        let (kind, name) = match name {
            DroppedName::Label(name) => (b'l', name),
            DroppedName::Attribute(name) => (b'a', name),
        };
        put(&mut out, name.len() as u64 + 1);
        out.push(kind);
        out.extend_from_slice(name.as_bytes());
    }
    frame::seal(key, &out)
}

/// Decodes a value that [`encode`] returned.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Vec<DroppedName>, Corruption> {
    let mut bytes = frame::open(key, value)?;
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let name = take_bytes(&mut bytes).and_then(read);
        names.push(name.ok_or_else(|| Corruption { key: key.to_vec(), check: CorruptionCheck::Content })?);
    }
    Ok(names)
}

fn read(bytes: &[u8]) -> Option<DroppedName> {
    let (kind, name) = bytes.split_first()?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    match kind {
        b'l' => Some(DroppedName::Label(name)),
        b'a' => Some(DroppedName::Attribute(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_names_decode_to_the_encoded_names() {
        let names = [DroppedName::Label("pod".to_owned()), DroppedName::Attribute(String::new())];
        let value = encode(b"k", names.iter());
        assert_eq!(decode(b"k", &value).unwrap(), names);
        assert!(decode(b"j", &value).is_err());
    }
}
