//! The frame around every value that is larger than a number: version, length, checksum, then zstd.
//!
//! ```text
//! | version u8 = 1 | unpacked length u32 | crc32c u32 of the two before and what follows | zstd frame |      little-endian
//! ```
//!
//! Invariant: nothing is allocated for, or read of, a block whose checksum is wrong.

use crate::error::{Corruption, CorruptionCheck};

const VERSION: u8 = 1;
const HEADER: usize = 9;

/// The most that one block unpacks to.
const UNPACKED_BYTES_MAX: usize = 1 << 30;

/// zstd level of all blocks: chunks are rewritten by the sealing of the full engine, dictionaries are small.
const ZSTD_LEVEL: i32 = 1;

/// Packs bytes.
pub(crate) fn pack(bytes: &[u8]) -> Result<Vec<u8>, std::io::Error> {
    let length = u32::try_from(bytes.len()).ok().filter(|&length| length as usize <= UNPACKED_BYTES_MAX);
    let length =
        length.ok_or_else(|| std::io::Error::other(format!("{} bytes are too many for a block", bytes.len())))?;
    let packed = zstd::bulk::compress(bytes, ZSTD_LEVEL)?;
    let mut block = Vec::with_capacity(HEADER + packed.len());
    block.push(VERSION);
    block.extend(length.to_le_bytes());
    block.extend(checksum(&block, &packed).to_le_bytes());
    block.extend(packed);
    Ok(block)
}

/// Of version and length, then of what is packed.
fn checksum(head: &[u8], packed: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), packed)
}

/// Unpacks what [`pack`] wrote; `key` is only used to say where an error is.
pub(crate) fn unpack(key: &[u8], block: &[u8]) -> Result<Vec<u8>, Corruption> {
    let fail = |check| Err(Corruption { key: key.to_vec(), check });
    let Some((header, packed)) = block.split_at_checked(HEADER) else { return fail(CorruptionCheck::Length) };
    if header[0] != VERSION {
        return fail(CorruptionCheck::Version);
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
    if number(&header[5..9]) != checksum(&header[..5], packed) {
        return fail(CorruptionCheck::Checksum);
    }
    let length = number(&header[1..5]) as usize;
    if length > UNPACKED_BYTES_MAX {
        return fail(CorruptionCheck::Length);
    }
    match zstd::bulk::decompress(packed, length) {
        Ok(bytes) if bytes.len() == length => Ok(bytes),
        _ => fail(CorruptionCheck::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_detected() {
        let bytes: Vec<u8> = (0..200_u8).chain(0..200).collect();
        let block = pack(&bytes).unwrap();
        assert_eq!(unpack(b"k", &block).unwrap(), bytes);
        for bit in 0..block.len() * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(unpack(b"k", &bad).is_err(), "bit {bit}");
        }
        for length in 0..block.len() {
            assert!(unpack(b"k", &block[..length]).is_err(), "cut to {length}");
        }
    }
}
