//! What texts, functions and locations are known by: hashes of what they say, and not of any ids. So they are the same in every
//! dictionary, and known before anything is put into one.

use xxhash_rust::xxh3::xxh3_128;

use crate::dictionary::location::{Address, StackHash};

/// Of a text: the xxh3-128 of its UTF-8.
#[must_use]
#[inline]
pub fn text_hash(text: &[u8]) -> u128 {
    xxh3_128(text)
}

/// Of a function: the hashes of name, system name and file, and its first line.
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

/// Of a location without lines: the hashes of its mapping's identity and of its frame type, and the address.
#[must_use]
#[inline]
pub fn address_hash(mapping: u128, frame_type: u128, address: Address) -> u128 {
    let (kind, address) = match address {
        Address::Virtual(address) => (0, address),
        Address::FileOffset(offset) => (1, offset),
    };
    let mut bytes = [0; 41];
    bytes[..33].copy_from_slice(&place(kind, mapping, frame_type));
    bytes[33..].copy_from_slice(&address.to_le_bytes());
    xxh3_128(&bytes)
}

/// Of a location with lines: the hashes of its mapping's file and of its frame type; of each line the function's hash, line and
/// column. `bytes`: memory for it, for who asks often.
#[must_use]
pub fn lines_hash(
    mapping_file: u128,
    frame_type: u128,
    lines: impl IntoIterator<Item = (u128, i64, i64)>,
    bytes: &mut Vec<u8>,
) -> u128 {
    bytes.clear();
    bytes.extend_from_slice(&place(2, mapping_file, frame_type));
    for (function, line, column) in lines {
        let mut part = [0; 32];
        part[..16].copy_from_slice(&function.to_le_bytes());
        part[16..24].copy_from_slice(&line.to_le_bytes());
        part[24..].copy_from_slice(&column.to_le_bytes());
        bytes.extend_from_slice(&part);
    }
    xxh3_128(bytes)
}

/// How the identity of a location begins. All parts but the lines have one length.
#[inline]
fn place(kind: u8, place: u128, frame_type: u128) -> [u8; 33] {
    let mut start = [kind; 33];
    start[1..17].copy_from_slice(&place.to_le_bytes());
    start[17..].copy_from_slice(&frame_type.to_le_bytes());
    start
}

/// The hash of a stack from the hashes of its locations, leaf first; the empty stack's is 0.
#[must_use]
pub fn stack_hash(location_hashes: &[u128]) -> StackHash {
    stack_hash_with(location_hashes.iter().copied(), None, &mut Vec::new())
}

/// [`stack_hash`] for who asks often, and keeps the memory that it takes; `last`: one more.
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
    // Every part has the same length, so the encoding is canonical without lengths in between.
    bytes.resize(count * size_of::<u128>(), 0);
    for (part, hash) in bytes.as_chunks_mut().0.iter_mut().zip(location_hashes.chain(last)) {
        *part = hash.to_le_bytes();
    }
    StackHash(xxh3_128(bytes))
}
