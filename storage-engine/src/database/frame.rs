//! The frame of a value: version and checksum, then the payload, which may be compressed.
//!
//! ```text
//! value:              | version u8 = 2 | CRC-32C u32 of key, version and payload | payload |          little-endian
//! compressed payload: | uncompressed length u32 | zstd frame |
//! ```
//!
//! Invariant: a value with a wrong checksum is neither decompressed nor decoded. The checksum covers the key, so a
//! value that is stored under the wrong key is detected.

use std::io;

use parking_lot::Mutex;
use zstd::bulk::{Compressor, Decompressor};

use crate::error::{Corruption, CorruptionCheck, EngineError};

const VERSION: u8 = 2;
const HEADER: usize = 5;

/// Maximum uncompressed length of a payload, in bytes.
const UNPACKED_BYTES_MAX: usize = 1 << 30;

/// Maximum uncompressed length of payloads for pooled contexts, in bytes. A context keeps memory in proportion to the
/// largest payload.
const POOLED_BYTES_MAX: usize = 64 << 10;

/// Number of contexts in a pool. Flushes of several shards use them at the same time.
const POOLED_CONTEXTS_MAX: usize = 4;

/// Idle zstd contexts. To create a context takes longer than to compress a few hundred bytes.
struct Pool<T>(Mutex<Vec<T>>);

static COMPRESSORS: Pool<Compressor<'static>> = Pool(Mutex::new(Vec::new()));
static DECOMPRESSORS: Pool<Decompressor<'static>> = Pool(Mutex::new(Vec::new()));

impl<T> Pool<T> {
    /// Runs `work` with an idle context, or with a new one if there is none or the payload is large.
    fn with<R>(
        &self,
        payload_bytes: usize,
        new: impl FnOnce() -> io::Result<T>,
        work: impl FnOnce(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        let is_pooled = payload_bytes <= POOLED_BYTES_MAX;
        let idle = if is_pooled { self.0.lock().pop() } else { None };
        let mut context = idle.map_or_else(new, Ok)?;
        let done = work(&mut context)?;
        if is_pooled {
            let mut idle = self.0.lock();
            if idle.len() < POOLED_CONTEXTS_MAX {
                idle.push(context);
            }
        }
        Ok(done)
    }
}

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
    let compress = |context: &mut Compressor<'static>| {
        context.set_compression_level(level)?;
        context.compress(bytes)
    };
    let new = || Compressor::new(level);
    payload.extend(COMPRESSORS.with(bytes.len(), new, compress).map_err(EngineError::Compress)?);
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
    match DECOMPRESSORS.with(length, Decompressor::new, |context| context.decompress(packed, length)) {
        Ok(bytes) if bytes.len() == length => Ok(bytes),
        _ => Err(wrong(CorruptionCheck::Length)),
    }
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn values_do_not_depend_on_the_values_before_them(
            payloads in prop::collection::vec((prop::collection::vec(0..4_u8, 0..300), 1..13, 1..400_usize), 1..12),
        ) {
            for (pattern, level, times) in payloads {
                let bytes = pattern.repeat(times);
                let value = pack(b"k", &bytes, level).unwrap();
                let alone = zstd::bulk::compress(&bytes, level).unwrap();
                prop_assert_eq!(&open(b"k", &value).unwrap()[4..], &alone);
                prop_assert_eq!(unpack(b"k", &value).unwrap(), bytes);
            }
        }
    }
}
