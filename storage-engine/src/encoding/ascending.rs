//! Strictly ascending numbers of 32 bits, in the smaller of two forms.
//!
//! ```text
//! | form u8 | ... |                                     the count of numbers is stored elsewhere
//! form 0..31: low `form` bits of each number, in packed blocks | high bits, with length |
//! form 32:    differences minus one, in packed blocks
//! ```
//!
//! Forms 0 to 31 are Elias-Fano. The high bits are a unary code, the lowest bit of each byte first. The code of a
//! number is a run of zero bits, then a one bit. The length of the run is the number's high part minus the high part of
//! the previous number. See Elias 1974, Fano 1971, and Vigna, "Quasi-succinct indices", 2013.
//!
//! For each number, Elias-Fano takes about 2 bits plus the binary logarithm of the mean difference, for any
//! distribution of the numbers. Form 32 is smaller if numbers are clustered. A reader checks that numbers ascend and
//! fit into 32 bits, and that no bytes remain.

use crate::encoding::packed::{BLOCK, Block, put_block, take_block};
use crate::encoding::varint::{put_bytes, take_bytes};

const DIFFERENCES: u8 = 32;

/// Appends strictly ascending numbers.
pub(crate) fn put_ascending(out: &mut Vec<u8>, numbers: &[u32]) {
    let mut differences = vec![DIFFERENCES];
    let mut next = 0_u32;
    for block in numbers.chunks(BLOCK) {
        let mut steps: Block = [0; BLOCK];
        for (step, &number) in steps.iter_mut().zip(block) {
            *step = number.wrapping_sub(next);
            next = number.wrapping_add(1);
        }
        put_block(&mut differences, &steps[..block.len()]);
    }
    let halves = put_halves(numbers);
    out.extend(if halves.len() < differences.len() { halves } else { differences });
}

fn put_halves(numbers: &[u32]) -> Vec<u8> {
    let span = numbers.last().map_or(0, |&last| u64::from(last) + 1);
    let low_bits = (span / numbers.len().max(1) as u64).checked_ilog2().unwrap_or(0).min(31);
    let mut out = vec![low_bits as u8];
    let mask = (1_u32 << low_bits) - 1;
    for block in numbers.chunks(BLOCK) {
        let mut lows: Block = [0; BLOCK];
        lows.iter_mut().zip(block).for_each(|(low, number)| *low = number & mask);
        put_block(&mut out, &lows[..block.len()]);
    }
    let bits = numbers.last().map_or(0, |&last| numbers.len() + (last >> low_bits) as usize);
    let mut high = vec![0_u8; bits.div_ceil(8)];
    for (i, &number) in numbers.iter().enumerate() {
        let bit = i + (number >> low_bits) as usize;
        high[bit / 8] |= 1 << (bit % 8);
    }
    put_bytes(&mut out, &high);
    out
}

/// Reader of ascending numbers, one block at a time.
#[derive(Debug)]
pub(crate) struct Ascending<'a> {
    /// Bytes of the packed blocks that are not read yet.
    blocks: &'a [u8],
    form: Form<'a>,
    left: usize,
}

#[derive(Debug)]
enum Form<'a> {
    Differences { next: u64 },
    Halves { low_bits: u32, high: HighBits<'a>, next: u64 },
}

/// Reads a bit string and finds its one bits, in order.
#[derive(Debug)]
struct HighBits<'a> {
    bytes: &'a [u8],
    word: u64,
    /// Offset of the current word's first bit, plus 64.
    offset: u64,
    /// Number of one bits that were read.
    taken: u64,
    /// Length of the bit string, in bytes.
    length: usize,
}

impl HighBits<'_> {
    /// Returns whether the bit string ends after the last number, whose high part is `high`.
    fn ends_with(&self, high: u32) -> bool {
        let bits = self.taken + u64::from(high);
        self.word == 0 && self.bytes.is_empty() && self.length as u64 == bits.div_ceil(8)
    }

    /// Reads the high parts of the next numbers, and adds each above the low bits that `numbers` holds. A high part is
    /// the count of zeros before the number's one bit.
    fn take(&mut self, numbers: &mut [u32], low_bits: u32) -> Option<()> {
        let mut numbers = numbers.iter_mut();
        while numbers.len() > 0 {
            while self.word == 0 {
                self.next_word()?;
            }
            // Number of ones to read from this word: all, or only as many as there are numbers left to complete.
            let ones = (self.word.count_ones() as usize).min(numbers.len());
            // `offset` is 64 more than the offset of this word's first bit.
            let mut word = self.word;
            let mut high = 0;
            let before = self.offset - 64 - self.taken;
            for (i, number) in (0..ones as u64).zip(numbers.by_ref()) {
                high = before + u64::from(word.trailing_zeros()) - i;
                word &= word - 1;
                *number |= (high << low_bits) as u32;
            }
            self.word = word;
            self.taken += ones as u64;
            // High parts never decrease, so if the last fits, all do.
            if high > u64::from(u32::MAX >> low_bits) {
                return None;
            }
        }
        Some(())
    }

    fn next_word(&mut self) -> Option<()> {
        let (word, rest) = match self.bytes.split_first_chunk::<8>() {
            Some((word, rest)) => (u64::from_le_bytes(*word), rest),
            None if self.bytes.is_empty() => return None,
            None => {
                let word = self.bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
                (word, Default::default())
            }
        };
        self.bytes = rest;
        self.word = word;
        self.offset += 64;
        Some(())
    }
}

impl<'a> Ascending<'a> {
    /// Removes `count` numbers, as [`put_ascending`] appends them, from the front of `bytes`. Returns their reader;
    /// `None` if the bytes are invalid.
    pub(crate) fn take(bytes: &mut &'a [u8], count: usize) -> Option<Self> {
        let (&form, rest) = bytes.split_first()?;
        let start = rest;
        let mut rest = rest;
        let mut left = count;
        // The first bytes of each block determine its length.
        while left > 0 {
            let length = left.min(BLOCK);
            crate::encoding::packed::skip_block(&mut rest, length)?;
            left -= length;
        }
        let blocks = &start[..start.len() - rest.len()];
        let form = match form {
            DIFFERENCES => Form::Differences { next: 0 },
            low_bits if low_bits < DIFFERENCES => {
                let bytes = take_bytes(&mut rest)?;
                let is_possible = count > 0 || bytes.is_empty();
                let high = HighBits { bytes, word: 0, offset: 0, taken: 0, length: bytes.len() };
                is_possible.then_some(Form::Halves { low_bits: low_bits.into(), high, next: 0 })?
            }
            _ => return None,
        };
        *bytes = rest;
        Some(Self { blocks, form, left: count })
    }

    /// Reads the next numbers into `to`, at most 128, and returns their count; `None` if they are invalid. Elements of
    /// `to` after the count are undefined.
    pub(crate) fn next_block(&mut self, to: &mut Block) -> Option<usize> {
        let count = self.left.min(BLOCK);
        self.left -= count;
        take_block(&mut self.blocks, count, to)?;
        let numbers = to.get_mut(..count)?;
        match &mut self.form {
            Form::Differences { next } => {
                for number in numbers {
                    let value = *next + u64::from(*number);
                    *number = u32::try_from(value).ok()?;
                    *next = value + 1;
                }
            }
            Form::Halves { low_bits, high, next } => {
                high.take(numbers, *low_bits)?;
                let &first = numbers.first()?;
                let &last = numbers.last()?;
                // All neighbors are compared without a branch, because this code runs for every row of every query.
                let ascend = numbers.windows(2).fold(true, |ascend, pair| ascend & (pair[0] < pair[1]));
                let is_whole = self.left > 0 || high.ends_with(last >> *low_bits);
                if !ascend || u64::from(first) < *next || !is_whole {
                    return None;
                }
                *next = u64::from(last) + 1;
            }
        }
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn read(mut bytes: &[u8], count: usize) -> Option<Vec<u32>> {
        let mut numbers = Ascending::take(&mut bytes, count)?;
        let mut out = Vec::new();
        let mut block = [0; BLOCK];
        while out.len() < count {
            let length = numbers.next_block(&mut block)?;
            out.extend(&block[..length]);
        }
        bytes.is_empty().then_some(out)
    }

    fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
        let anywhere = prop::collection::btree_set(any::<u32>(), 0..300);
        let dense = prop::collection::btree_set(0..1000_u32, 0..600);
        let far = (prop::collection::btree_set(0..500_u32, 1..400), 1_u32 << 31..u32::MAX - 500)
            .prop_map(|(set, from)| set.into_iter().map(|number| number + from).collect());
        prop_oneof![anywhere, dense, far]
    }

    proptest! {
        #[test]
        fn both_forms_decode_to_the_encoded_numbers(numbers in numbers()) {
            let list: Vec<u32> = numbers.into_iter().collect();
            let mut bytes = Vec::new();
            put_ascending(&mut bytes, &list);
            prop_assert_eq!(read(&bytes, list.len()), Some(list.clone()));
            prop_assert_eq!(read(&put_halves(&list), list.len()), Some(list));
        }

        #[test]
        fn damaged_bytes_decode_to_ascending_numbers_or_none(numbers in numbers(), halves: bool, bit: usize) {
            let list: Vec<u32> = numbers.into_iter().collect();
            let mut bytes = Vec::new();
            if halves { bytes = put_halves(&list) } else { put_ascending(&mut bytes, &list) }
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(read) = read(&bytes, list.len()) {
                prop_assert_eq!(read.len(), list.len());
                prop_assert!(read.is_sorted_by(|a, b| a < b));
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_numbers_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            count in 0..400_usize,
        ) {
            if let Some(read) = read(&bytes, count) {
                prop_assert_eq!(read.len(), count);
            }
        }
    }

    #[test]
    fn extra_bits_extra_bytes_and_repeated_numbers_are_refused() {
        // The low 2 bits of three numbers, then their high bits.
        let bytes = put_halves(&[1, 5, 9]);
        assert_eq!(read(&bytes, 3), Some(vec![1, 5, 9]));
        let high = bytes.len() - 1;
        let mut more = bytes.clone();
        more[high] |= 0x80;
        assert_eq!(read(&more, 3), None, "an extra one bit");
        more[high] = bytes[high];
        more.push(0);
        more[high - 1] += 1;
        assert_eq!(read(&more, 3), None, "an extra byte");
        // Three adjacent one bits: the numbers have equal high parts, so all three are 1.
        let mut same = bytes;
        same[high] = 0b111;
        assert_eq!(read(&same, 3), None);
    }

    #[test]
    fn sparse_numbers_take_two_bits_more_than_their_mean_difference() {
        // 4,000 pseudo-random numbers below 2^18.
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 46) as u32
        };
        let numbers: BTreeSet<u32> = (0..4000).map(|_| next()).collect();
        let list: Vec<u32> = numbers.into_iter().collect();
        let mut bytes = Vec::new();
        put_ascending(&mut bytes, &list);
        let bits = bytes.len() as f64 * 8.0 / list.len() as f64;
        assert!(bits < 8.2, "{bits}");
    }
}
