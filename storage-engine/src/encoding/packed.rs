//! Packed blocks of up to 128 numbers of 32 bits. A block stores the same number of low bits of each number, enough for
//! most numbers. For each of the few larger ones, a patch stores the missing high bits. This is PFOR: Zukowski, Heman,
//! Nes, Boncz, "Super-scalar RAM-CPU cache compression", ICDE 2006.
//!
//! ```text
//! | width u8, bit 7: has patches | patches u8 | numbers | position u8 ... | high bits varint ... |
//! ```
//!
//! A full block is packed in four lanes, as `BitPacker4x` of the crate `bitpacking` does, so that SIMD can unpack it. A
//! shorter block is packed number after number, lowest bits first. The count of numbers is stored elsewhere.

use bitpacking::{BitPacker as _, BitPacker4x};

use crate::encoding::varint::{put, take, take_u32};

/// Number of numbers in a full block.
pub(crate) const BLOCK: usize = BitPacker4x::BLOCK_LEN;

/// Numbers of an unpacked block.
pub(crate) type Block = [u32; BLOCK];

const HAS_PATCHES: u8 = 0x80;

/// Appends up to 128 numbers as a packed block.
pub(crate) fn put_block(out: &mut Vec<u8>, numbers: &[u32]) {
    let width = best_width(numbers);
    let patched = |number: u32| 32 - number.leading_zeros() > u32::from(width);
    let patches = numbers.iter().filter(|&&number| patched(number)).count();
    out.push(width | if patches > 0 { HAS_PATCHES } else { 0 });
    if patches > 0 {
        out.push(patches as u8);
    }
    let mask = u32::MAX.checked_shr(32 - u32::from(width)).unwrap_or_default();
    if numbers.len() == BLOCK {
        let mut low = [0; BLOCK];
        low.iter_mut().zip(numbers).for_each(|(low, number)| *low = number & mask);
        let mut packed = [0; BLOCK * 4];
        let length = BitPacker4x::new().compress(&low, &mut packed, width);
        out.extend_from_slice(&packed[..length]);
    } else {
        pack_tail(out, numbers, mask, width);
    }
    let at = || numbers.iter().enumerate().filter(|(_, number)| patched(**number));
    out.extend(at().map(|(position, _)| position as u8));
    at().for_each(|(_, &number)| put(out, u64::from(number) >> width));
}

/// Returns the bit width at which the block takes the fewest bytes.
fn best_width(numbers: &[u32]) -> u8 {
    let mut lengths = [0_usize; 33];
    for number in numbers {
        lengths[(32 - number.leading_zeros()) as usize] += 1;
    }
    let cost = |width: usize| {
        let patches =
            (width + 1..=32).map(|length| lengths[length] * (1 + (length - width).div_ceil(7))).sum::<usize>();
        let count = usize::from(patches > 0);
        (numbers.len() * width).div_ceil(8) + patches + count
    };
    let longest = lengths.iter().rposition(|&count| count > 0).unwrap_or(0);
    (0..=longest).min_by_key(|&width| cost(width)).unwrap_or(0) as u8
}

fn pack_tail(out: &mut Vec<u8>, numbers: &[u32], mask: u32, width: u8) {
    let mut waiting = 0_u64;
    let mut bits = 0_u32;
    for number in numbers {
        waiting |= u64::from(number & mask) << bits;
        bits += u32::from(width);
        while bits >= 8 {
            out.push(waiting as u8);
            waiting >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(waiting as u8);
    }
}

/// Removes a block of `count` numbers, at most 128, from the front of `bytes`, and decodes it into `to`; `None` if the
/// block is invalid. Elements of `to` after the first `count` are undefined.
pub(crate) fn take_block(bytes: &mut &[u8], count: usize, to: &mut Block) -> Option<()> {
    let (&head, rest) = bytes.split_first()?;
    let width = head & !HAS_PATCHES;
    if width > 32 || count > BLOCK {
        return None;
    }
    let (patches, rest) = if head & HAS_PATCHES == 0 {
        (0, rest)
    } else {
        let (&patches, rest) = rest.split_first()?;
        (usize::from(patches), rest)
    };
    let (packed, mut rest) = rest.split_at_checked((count * usize::from(width)).div_ceil(8))?;
    if count == BLOCK {
        BitPacker4x::new().decompress(packed, to, width);
    } else {
        unpack_tail(packed, to.get_mut(..count)?, width);
    }
    if patches > 0 {
        let (positions, after) = rest.split_at_checked(patches)?;
        rest = after;
        if !positions.is_sorted_by(|a, b| a < b) {
            return None;
        }
        for &position in positions {
            let high = take_u32(&mut rest).filter(|high| *high > 0 && high.leading_zeros() >= u32::from(width))?;
            *to.get_mut(..count)?.get_mut(usize::from(position))? |= high << width;
        }
    }
    *bytes = rest;
    Some(())
}

/// Removes a block of `count` numbers, at most 128, from the front of `bytes` without decoding it; `None` if the bytes
/// end inside the block.
pub(crate) fn skip_block(bytes: &mut &[u8], count: usize) -> Option<()> {
    let (&head, rest) = bytes.split_first()?;
    let (patches, rest) = if head & HAS_PATCHES == 0 {
        (0, rest)
    } else {
        let (&patches, rest) = rest.split_first()?;
        (usize::from(patches), rest)
    };
    let packed = (count * usize::from(head & !HAS_PATCHES)).div_ceil(8);
    let mut rest = rest.get(packed.checked_add(patches)?..)?;
    for _ in 0..patches {
        take(&mut rest)?;
    }
    *bytes = rest;
    Some(())
}

fn unpack_tail(packed: &[u8], to: &mut [u32], width: u8) {
    // The zero padding allows a read of eight bytes at the start of every number.
    let mut bytes = [0; BLOCK * 4 + 8];
    if let Some(bytes) = bytes.get_mut(..packed.len()) {
        bytes.copy_from_slice(packed);
    }
    let mask = u64::from(u32::MAX.checked_shr(32 - u32::from(width)).unwrap_or_default());
    for (i, number) in to.iter_mut().enumerate() {
        let bit = i * usize::from(width);
        let word = bytes.get(bit / 8..).and_then(|rest| rest.first_chunk::<8>());
        *number = (word.map_or(0, |word| u64::from_le_bytes(*word)) >> (bit % 8) & mask) as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_decodes_to_the_encoded_numbers(
            numbers in prop::collection::vec(prop_oneof![8 => 0..20_u32, 2 => 0..5000_u32, 1 => any::<u32>()], 0..=128),
        ) {
            let mut bytes = vec![7];
            put_block(&mut bytes, &numbers);
            bytes.push(9);
            let mut rest = &bytes[1..];
            let mut block = [1; BLOCK];
            prop_assert_eq!(take_block(&mut rest, numbers.len(), &mut block), Some(()));
            prop_assert_eq!(&block[..numbers.len()], numbers.as_slice());
            prop_assert_eq!(rest, [9].as_slice());
            let mut skipped = &bytes[1..];
            prop_assert_eq!(skip_block(&mut skipped, numbers.len()), Some(()));
            prop_assert_eq!(skipped, rest);
        }

        #[test]
        fn arbitrary_bytes_decode_to_a_block_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            count in 0..200_usize,
        ) {
            let mut rest = bytes.as_slice();
            if take_block(&mut rest, count, &mut [0; BLOCK]).is_some() {
                prop_assert!(count <= BLOCK);
            }
        }
    }

    #[test]
    fn a_patch_is_inside_the_block_unique_and_fits() {
        // Width 4 with one patch: number 1 of 3 has one more bit.
        let block = [4 | HAS_PATCHES, 1, 0x21, 3, 1, 1];
        let read = |bytes: &[u8]| {
            let mut rest = bytes;
            let mut block = [0; BLOCK];
            take_block(&mut rest, 3, &mut block).map(|()| (block[..3].to_vec(), rest.len()))
        };
        assert_eq!(read(&block), Some((vec![1, 2 + 16, 3], 0)));
        let with = |at: usize, byte: u8| {
            let mut bytes = block;
            bytes[at] = byte;
            read(&bytes)
        };
        assert_eq!(with(4, 3), None, "after the last number");
        assert_eq!(with(5, 0), None, "no high bits");
        let two =
            |positions: [u8; 2], high: u8| read(&[4 | HAS_PATCHES, 2, 0x21, 3, positions[0], positions[1], 1, high]);
        assert!(two([1, 2], 1).is_some());
        assert_eq!((two([1, 1], 1), two([2, 1], 1)), (None, None));
        assert!(read(&[4 | HAS_PATCHES, 1, 0x21, 3, 1, 0xff, 0xff, 0xff, 0x7f]).is_some(), "all 32 bits");
        assert_eq!(read(&[4 | HAS_PATCHES, 1, 0x21, 3, 1, 0x80, 0x80, 0x80, 0x80, 1]), None, "33 bits");
    }

    #[test]
    fn a_few_large_numbers_do_not_widen_the_rest() {
        let mut numbers = [1; BLOCK];
        numbers[5] = u32::MAX;
        let mut bytes = Vec::new();
        put_block(&mut bytes, &numbers);
        assert!(bytes.len() <= 2 + 16 + 1 + 5, "{}", bytes.len());
    }
}
