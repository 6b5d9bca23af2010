//! The frame of a value: version and checksum, then the payload, which may be compressed.
//!
//! ```text
//! value:              | version u8 = 2 | CRC-32C u32 of key, version and payload | payload |          little-endian
//! compressed payload: | uncompressed length u32 | zstd frame |
//! ```
//!
//! Invariant: a value with a wrong checksum is neither decompressed nor decoded. The checksum covers the key, so a
//! value that is stored under the wrong key is detected.

use crate::error::{Corruption, CorruptionCheck, EngineError};

const VERSION: u8 = 2;
const HEADER: usize = 5;

/// Maximum uncompressed length of a payload, in bytes.
const UNPACKED_BYTES_MAX: usize = 1 << 30;

/// Returns the value for an uncompressed payload: the payload after its frame.
pub(crate) fn seal(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEADER + payload.len());
    value.push(VERSION);
    value.extend(checksum(key, VERSION, payload).to_le_bytes());
    value.extend_from_slice(payload);
    value
}

/// Returns the value for a payload that is compressed first.
pub(crate) fn pack(key: &[u8], bytes: &[u8], level: i32) -> Result<Vec<u8>, EngineError> {
    let length = u32::try_from(bytes.len()).ok().filter(|&length| length as usize <= UNPACKED_BYTES_MAX);
    let too_long = || std::io::Error::other(format!("{} bytes do not fit into one value", bytes.len()));
    let mut payload = length.ok_or_else(too_long).map_err(EngineError::Compress)?.to_le_bytes().to_vec();
    payload.extend(zstd::bulk::compress(bytes, level).map_err(EngineError::Compress)?);
    Ok(seal(key, &payload))
}

fn checksum(key: &[u8], version: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(key), &[version]), payload)
}

/// Checks the frame of a value and returns its payload.
pub(crate) fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], Corruption> {
    let fail = |check| Err(Corruption { key: key.to_vec(), check });
    let Some((header, payload)) = value.split_at_checked(HEADER) else { return fail(CorruptionCheck::Length) };
    if header[0] != VERSION {
        return fail(CorruptionCheck::Version);
    }
    if little_endian(&header[1..]) != checksum(key, VERSION, payload) {
        return fail(CorruptionCheck::Checksum);
    }
    Ok(payload)
}

/// Checks the frame of a value with a compressed payload, and returns the uncompressed bytes.
pub(crate) fn unpack(key: &[u8], value: &[u8]) -> Result<Vec<u8>, Corruption> {
    let wrong = |check| Corruption { key: key.to_vec(), check };
    let (length, packed) = open(key, value)?.split_at_checked(4).ok_or_else(|| wrong(CorruptionCheck::Length))?;
    let length = little_endian(length) as usize;
    if length > UNPACKED_BYTES_MAX {
        return Err(wrong(CorruptionCheck::Length));
    }
    match zstd::bulk::decompress(packed, length) {
        Ok(bytes) if bytes.len() == length => Ok(bytes),
        _ => Err(wrong(CorruptionCheck::Length)),
    }
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_truncation_and_wrong_key_is_detected() {
        let bytes: Vec<u8> = (0..200_u8).chain(0..200).collect();
        let value = pack(b"k", &bytes, 1).unwrap();
        assert_eq!(unpack(b"k", &value).unwrap(), bytes);
        for bit in 0..value.len() * 8 {
            let mut bad = value.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(unpack(b"k", &bad).is_err(), "bit {bit}");
        }
        for length in 0..value.len() {
            assert!(unpack(b"k", &value[..length]).is_err(), "truncated to {length}");
        }
        assert!(unpack(b"j", &value).is_err());
        assert_eq!(open(b"x", &seal(b"x", b"")).unwrap(), b"");
    }
}
