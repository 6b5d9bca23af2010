//! Hashes that identify texts, functions, locations and stacks.
//!
//! The hashes depend on the content and not on any ID. So they are equal in every dictionary, and can be computed
//! before an entry is added. The hashes are part of the stored format (FORMAT.md).

use xxhash_rust::xxh3::xxh3_128;

use crate::dictionary::location::{Address, StackHash};

/// Hash of a text: the xxh3-128 of its UTF-8.
#[must_use]
#[inline]
pub fn text_hash(text: &[u8]) -> u128 {
    xxh3_128(text)
}

/// Hash of a function, made of the hashes of its name, system name and file (`texts`), and of its first line.
#[must_use]
#[inline]
pub fn function_hash(texts: [u128; 3], start_line: i64) -> u128 {
    let mut bytes = [0; 56];
    for (part, text) in bytes.as_chunks_mut::<16>().0.iter_mut().zip(texts) {
        *part = text.to_le_bytes();
    }
    bytes[48..].copy_from_slice(&start_line.to_le_bytes());
    xxh3_128(&bytes)
}

/// Hash of a mapping: the xxh3-128 of the hash of the file name (little-endian), followed by the text of the build ID.
/// The text is "" if there is no build ID.
#[must_use]
pub(crate) fn mapping_hash(file: u128, build_id: &str) -> u128 {
    let mut bytes = file.to_le_bytes().to_vec();
    bytes.extend_from_slice(build_id.as_bytes());
    xxh3_128(&bytes)
}

/// Hash of a location without lines, made of the hashes of its mapping and frame type, and of its address.
#[must_use]
#[inline]
pub fn address_hash(mapping: u128, frame_type: u128, address: Address) -> u128 {
    let (kind, address) = match address {
        Address::Virtual(address) => (0, address),
        Address::FileOffset(offset) => (1, offset),
    };
    let mut bytes = [0; 41];
    bytes[..33].copy_from_slice(&prefix(kind, mapping, frame_type));
    bytes[33..].copy_from_slice(&address.to_le_bytes());
    xxh3_128(&bytes)
}

/// Hash of a location with lines, made of the hashes of its mapping file and frame type, and of its lines.
///
/// Each line is the hash of its function, the line number and the column. `bytes` is a buffer that callers can reuse.
#[must_use]
pub fn lines_hash(
    mapping_file: u128,
    frame_type: u128,
    lines: impl IntoIterator<Item = (u128, i64, i64)>,
    bytes: &mut Vec<u8>,
) -> u128 {
    bytes.clear();
    bytes.extend_from_slice(&prefix(2, mapping_file, frame_type));
    for (function, line, column) in lines {
        let mut part = [0; 32];
        part[..16].copy_from_slice(&function.to_le_bytes());
        part[16..24].copy_from_slice(&line.to_le_bytes());
        part[24..].copy_from_slice(&column.to_le_bytes());
        bytes.extend_from_slice(&part);
    }
    xxh3_128(bytes)
}

/// Returns the first of the bytes that are hashed for a location: the kind, the hash of the mapping or mapping file,
/// and the hash of the frame type. Everything but the lines has a fixed length, so different locations have different
/// bytes.
#[inline]
fn prefix(kind: u8, mapping: u128, frame_type: u128) -> [u8; 33] {
    let mut prefix = [kind; 33];
    prefix[1..17].copy_from_slice(&mapping.to_le_bytes());
    prefix[17..].copy_from_slice(&frame_type.to_le_bytes());
    prefix
}

/// Hash of a stack, made of the hashes of its locations, leaf first. The empty stack has the hash 0 by definition.
#[must_use]
pub fn stack_hash(location_hashes: &[u128]) -> StackHash {
    stack_hash_with(location_hashes.iter().copied(), None, &mut Vec::new())
}

/// Like [`stack_hash`], but `last`, if given, is the hash of one more location, after all others. `bytes` is a buffer
/// that callers can reuse.
#[must_use]
pub fn stack_hash_with(
    location_hashes: impl ExactSizeIterator<Item = u128>,
    last: Option<u128>,
    bytes: &mut Vec<u8>,
) -> StackHash {
    let count = location_hashes.len() + usize::from(last.is_some());
    if count == 0 {
        return StackHash::default();
    }
    // All parts have the same length, so the encoding is unique without length fields.
    bytes.resize(count * size_of::<u128>(), 0);
    for (part, hash) in bytes.as_chunks_mut().0.iter_mut().zip(location_hashes.chain(last)) {
        *part = hash.to_le_bytes();
    }
    StackHash(xxh3_128(bytes))
}
