//! Blocks of up to 128 numbers of 32 bits, each packed to as few bits as most of them need; the few that need more are patched
//! ("PFOR": Zukowski, Heman, Nes, Boncz, "Super-scalar RAM-CPU cache compression", ICDE 2006).
//!
//! ```text
//! | width u8, bit 7: has patches | patches u8 if so | packed | position u8 ... | high bits varint ... |
//! ```
//!
//! 128 numbers are packed as the crate `bitpacking` does it with four lanes, so that they unpack by SIMD; fewer are packed one
//! behind the other, lowest bits first. How many there are is known to who reads.

use bitpacking::{BitPacker as _, BitPacker4x};

use crate::encoding::varint::{put, take, take_u32};

/// Numbers of a whole block.
pub(crate) const BLOCK: usize = BitPacker4x::BLOCK_LEN;

/// One block, unpacked.
pub(crate) type Block = [u32; BLOCK];

const HAS_PATCHES: u8 = 0x80;

/// Appends up to 128 numbers.
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

/// The width at which a block takes the fewest bytes.
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
    let (mut waiting, mut bits) = (0_u64, 0_u32);
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

/// Takes a block of `count` numbers, at most 128, from the front; what is behind them in `to` means nothing.
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
        let (positions, behind) = rest.split_at_checked(patches)?;
        rest = behind;
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

/// Takes a block of `count` numbers, at most 128, from the front, unread.
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
    // With zeros behind them, eight bytes can be read wherever a number begins.
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
        fn every_block_comes_back(numbers in prop::collection::vec(prop_oneof![8 => 0..20_u32, 2 => 0..5000_u32, 1 => any::<u32>()], 0..=128)) {
            let mut bytes = vec![7];
            put_block(&mut bytes, &numbers);
            bytes.push(9);
            let (mut rest, mut block) = (&bytes[1..], [1; BLOCK]);
            prop_assert_eq!(take_block(&mut rest, numbers.len(), &mut block), Some(()));
            prop_assert_eq!(&block[..numbers.len()], numbers.as_slice());
            prop_assert_eq!(rest, [9].as_slice());
            let mut skipped = &bytes[1..];
            prop_assert_eq!(skip_block(&mut skipped, numbers.len()), Some(()));
            prop_assert_eq!(skipped, rest);
        }

        #[test]
        fn any_bytes_are_a_block_or_none(bytes in prop::collection::vec(any::<u8>(), 0..600), count in 0..200_usize) {
            let mut rest = bytes.as_slice();
            if take_block(&mut rest, count, &mut [0; BLOCK]).is_some() {
                prop_assert!(count <= BLOCK);
            }
        }
    }

    #[test]
    fn a_patch_is_inside_once_and_of_what_the_width_lacks() {
        // Width 4, one patch: number 1 of 3 has a bit more.
        let block = [4 | HAS_PATCHES, 1, 0x21, 3, 1, 1];
        let read = |bytes: &[u8]| {
            let (mut rest, mut block) = (bytes, [0; BLOCK]);
            take_block(&mut rest, 3, &mut block).map(|()| (block[..3].to_vec(), rest.len()))
        };
        assert_eq!(read(&block), Some((vec![1, 2 + 16, 3], 0)));
        let with = |at: usize, byte: u8| {
            let mut bytes = block;
            bytes[at] = byte;
            read(&bytes)
        };
        assert_eq!(with(4, 3), None, "behind the last number");
        assert_eq!(with(5, 0), None, "of nothing");
        let two =
            |positions: [u8; 2], high: u8| read(&[4 | HAS_PATCHES, 2, 0x21, 3, positions[0], positions[1], 1, high]);
        assert!(two([1, 2], 1).is_some());
        assert_eq!((two([1, 1], 1), two([2, 1], 1)), (None, None));
        assert!(read(&[4 | HAS_PATCHES, 1, 0x21, 3, 1, 0xff, 0xff, 0xff, 0x7f]).is_some(), "all of 32 bits");
        assert_eq!(read(&[4 | HAS_PATCHES, 1, 0x21, 3, 1, 0x80, 0x80, 0x80, 0x80, 1]), None, "a bit more");
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
