//! Splits of sums: how much of each stack's sum belongs to each of the ten minutes of a value.
//!
//! A stack that occurs in several minutes is stored once for ten minutes, with its sum over all of them and the split
//! of this sum. A query that selects all stored minutes does not read the splits.
//!
//! ```text
//! | digits, with length | codes |                                bits, lowest first
//! sum 1:      a digit, which is the minute; three digits in 10 bits of `digits`: first + 10 x second + 100 x third
//! sum 2 to 5: the number of the split, in 6, 8, 10 or 11 bits of `codes`
//! larger:     in `codes`: a symbol for each of the first nine minutes, see `codes`; then the low bits of each part
//! ```
//!
//! A sum of 2 to 5 units is a list of minutes, one for each unit: `m0 <= m1 <= ...`. The number of the split is
//! `binomial(m0, 1) + binomial(m1 + 1, 2) + binomial(m2 + 2, 3) + ...`. This is the combinatorial number system of
//! Lehmer, 1964.
//!
//! Let n be the number of bits of a larger sum. The lowest n - 6 bits of each part are stored as they are. The bits
//! above them are a symbol, at most 63, which is stored as a canonical Huffman code. Codes are assigned in the order of
//! their length, then of their symbol. They are written highest bit first. The part of the tenth minute is the
//! remainder, and is not stored.
//!
//! A reader checks that parts are at most the sum, that only minutes of the value have parts, and that no bits remain.

pub(crate) mod codes;

use crate::encoding::bits::{BitReader, BitWriter};
use crate::encoding::shares::codes::{
    CODE_LENGTH_MAX, Code, CodeTables, ESCAPE, SMALL_BITS, SMALL_MAX, SYMBOL_BITS, TABLES, class, low_bits, number_of,
};
use crate::encoding::varint::{put_bytes, take_bytes};

/// Number of minutes to which the parts of a sum belong.
pub(crate) const MINUTES: usize = 10;

/// Number of stored parts of a sum of 6 or more. The tenth part is not stored, because it is the remainder.
const CODED: usize = MINUTES - 1;

/// Parts of one sum, in units: one part for each minute.
pub(crate) type Parts = [u32; MINUTES];

const DIGITS: u32 = 3;
const DIGITS_BITS: u32 = 10;

/// Appends the splits of sums, one for each sum. Each split has at least one part that is not 0.
pub(crate) fn put_shares(out: &mut Vec<u8>, shares: impl Iterator<Item = Parts>) {
    let mut digits = BitWriter::default();
    let mut codes = BitWriter::default();
    let mut group = 0;
    let mut factor = 1;
    for parts in shares {
        let sum: u32 = parts.iter().sum();
        match sum {
            1 => {
                group += number_of(&parts) * factor;
                factor *= MINUTES as u32;
                if factor == 1000 {
                    digits.put(group, DIGITS_BITS);
                    group = 0;
                    factor = 1;
                }
            }
            2..=SMALL_MAX => codes.put(number_of(&parts), SMALL_BITS[sum as usize - 2]),
            _ => put_parts(&mut codes, sum, &parts),
        }
    }
    if factor > 1 {
        digits.put(group, DIGITS_BITS);
    }
    put_bytes(out, &digits.finish());
    out.extend(codes.finish());
}

fn put_parts(to: &mut BitWriter, sum: u32, parts: &Parts) {
    let low_bits = low_bits(sum);
    let codes = &TABLES.codes[class(sum)];
    for &part in &parts[..CODED] {
        let symbol = part >> low_bits;
        let Code { bits, length } = codes[symbol.min(ESCAPE) as usize];
        to.put(bits, length);
        if symbol >= ESCAPE {
            to.put(symbol, SYMBOL_BITS);
        }
    }
    for &part in &parts[..CODED] {
        to.put(part & ((1 << low_bits) - 1), low_bits);
    }
}

/// A set of minutes as a bit mask.
pub(crate) type Minutes = u16;

/// Splits of sums in their stored form, with the minutes that a query selects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares<'a> {
    digits: &'a [u8],
    codes: &'a [u8],
    /// Minutes for which the value has entries.
    stored: Minutes,
    /// Minutes that the query selects.
    selected: Minutes,
}

impl<'a> Shares<'a> {
    /// Reads all the bytes that [`put_shares`] appended. `stored` are the minutes for which the value has entries.
    pub(crate) fn read(mut bytes: &'a [u8], stored: Minutes) -> Option<Self> {
        let digits = take_bytes(&mut bytes)?;
        Some(Self { digits, codes: bytes, stored, selected: stored })
    }

    /// Returns these splits for a query that selects the minutes `selected`.
    pub(crate) fn of(self, selected: Minutes) -> Self {
        Self { selected, ..self }
    }

    /// Returns whether all stored minutes are selected, so that no split has to be read.
    pub(crate) fn are_all_selected(&self) -> bool {
        self.selected == self.stored
    }

    pub(crate) fn reader(&self) -> ShareReader<'a> {
        let threes = |minutes: Minutes| {
            (0..MINUTES).filter(|i| minutes >> i & 1 == 1).fold(0_u32, |fields, i| fields | 7 << (3 * i))
        };
        let nibbles = |minutes: Minutes| {
            (0..MINUTES).filter(|i| minutes >> i & 1 == 1).fold(0_u64, |nibbles, i| nibbles | 15 << (4 * i))
        };
        ShareReader {
            digits: BitReader::new(self.digits),
            group: 0,
            left: 0,
            codes: BitReader::new(self.codes),
            tables: &TABLES,
            stored: self.stored,
            selected: self.selected,
            other_fields: !threes(self.stored),
            selected_fields: threes(self.selected),
            other_nibbles: !nibbles(self.stored),
            selected_nibbles: nibbles(self.selected),
            masks: std::array::from_fn(|i| {
                let all_if = |is: bool| if is { u32::MAX } else { 0 };
                MinuteMasks {
                    selected: all_if(self.selected >> i & 1 == 1),
                    not_stored: all_if(self.stored >> i & 1 == 0),
                }
            }),
        }
    }
}

/// Sums over the parts of one split.
#[derive(Default)]
struct PartSums {
    /// Sum of all parts.
    all: u64,
    /// Sum of the parts of the selected minutes.
    selected: u64,
    /// Bitwise OR of all parts that belong to minutes that are not stored. The split is invalid unless this is 0.
    others: u32,
}

impl PartSums {
    fn add(&mut self, part: u32, masks: MinuteMasks) {
        self.all += u64::from(part);
        self.selected += u64::from(part & masks.selected);
        self.others |= part & masks.not_stored;
    }
}

/// Masks of one minute.
#[derive(Clone, Copy)]
struct MinuteMasks {
    /// All ones if the query selects the minute, and otherwise 0.
    selected: u32,
    /// All ones if the value has no entry for the minute, and otherwise 0.
    not_stored: u32,
}

/// Returns the sum of the 16 numbers of four bits each in `nibbles`.
fn nibble_sum(nibbles: u64) -> u64 {
    const EVEN: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    ((nibbles & EVEN) + (nibbles >> 4 & EVEN)).wrapping_mul(0x0101_0101_0101_0101) >> 56
}

/// Reader of the splits, in the order of the sums.
pub(crate) struct ShareReader<'a> {
    digits: BitReader<'a>,
    /// Digits of the current group that were not read yet. The next one is the lowest decimal digit.
    group: u32,
    /// Number of digits in `group`.
    left: u32,
    codes: BitReader<'a>,
    tables: &'static CodeTables,
    stored: Minutes,
    selected: Minutes,
    /// Mask with three bits for each minute. The bits are set if the minute is not stored.
    other_fields: u32,
    /// Mask with three bits for each minute. The bits are set if the minute is selected.
    selected_fields: u32,
    /// Mask with four bits for each minute. The bits are set if the minute is not stored.
    other_nibbles: u64,
    /// Mask with four bits for each minute. The bits are set if the minute is selected.
    selected_nibbles: u64,
    /// Masks of each minute.
    masks: [MinuteMasks; MINUTES],
}

impl ShareReader<'_> {
    /// Returns the part of the next sum that belongs to the selected minutes; `None` if its split is invalid.
    pub(crate) fn part(&mut self, sum: u32) -> Option<u32> {
        match sum {
            0 => None,
            1 => self.digit(),
            2..=SMALL_MAX => {
                let number = self.codes.take(SMALL_BITS[sum as usize - 2]);
                let way = *self.tables.small[sum as usize - 2].get(number as usize)?;
                // The product adds all fields in the highest one. No field overflows, because the sum is at most
                // five.
                let fields = u64::from(way & self.selected_fields).wrapping_mul(0o1_111_111_111);
                (way & self.other_fields == 0).then_some((fields >> 27 & 7) as u32)
            }
            _ => self.large(sum),
        }
    }

    fn digit(&mut self) -> Option<u32> {
        if self.left == 0 {
            self.group = self.digits.take(DIGITS_BITS);
            self.left = DIGITS;
        }
        let minute = self.group % MINUTES as u32;
        self.group /= MINUTES as u32;
        self.left -= 1;
        // A group above 999 leaves a remainder after its third digit, and is invalid.
        let is_one = self.left > 0 || self.group == 0;
        (is_one && self.stored >> minute & 1 == 1).then_some(u32::from(self.selected >> minute & 1))
    }

    fn large(&mut self, sum: u32) -> Option<u32> {
        let class = class(sum);
        let low_bits = low_bits(sum);
        let symbols = self.tables.symbols.get(class)?;
        // `fields` holds four bits for each minute; larger symbols are added to `parts`.
        let mut fields = 0_u64;
        let mut minute = 0;
        let mut parts = PartSums::default();
        let mut word = self.codes.peek();
        let mut used = 0;
        while minute < CODED {
            if used > 56 - CODE_LENGTH_MAX - SYMBOL_BITS {
                self.codes.skip(used);
                word = self.codes.peek();
                used = 0;
            }
            let next = symbols[word as usize % (1 << CODE_LENGTH_MAX)];
            let count = usize::from(next.count).min(CODED - minute);
            let bits = if count > 0 {
                fields |= (u64::from(next.symbols) & ((1 << (4 * count)) - 1)) << (4 * minute);
                minute += count;
                u32::from(next.lengths) >> (4 * (count - 1)) & 15
            } else {
                let length = self.tables.codes[class][ESCAPE as usize].length;
                let symbol = (word >> length) as u32 & ((1 << SYMBOL_BITS) - 1);
                parts.add(symbol << low_bits, self.masks[minute]);
                minute += 1;
                length + SYMBOL_BITS
            };
            word >>= bits;
            used += bits;
        }
        self.codes.skip(used);
        parts.all += nibble_sum(fields) << low_bits;
        parts.selected += nibble_sum(fields & self.selected_nibbles) << low_bits;
        parts.others |= u32::from(fields & self.other_nibbles != 0);
        if low_bits > 0 {
            for &masks in &self.masks[..CODED] {
                parts.add(self.codes.take(low_bits), masks);
            }
        }
        let all = u32::try_from(parts.all).ok()?;
        parts.add(sum.checked_sub(all)?, self.masks[CODED]);
        (parts.others == 0).then_some(parts.selected as u32)
    }

    /// Returns whether no bits remain after the last split.
    pub(crate) fn is_at_end(&self) -> bool {
        self.group == 0 && self.digits.is_at_end() && self.codes.is_at_end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8], sums: &[u32], stored: Minutes, selected: Minutes) -> Option<Vec<u32>> {
        let mut reader = Shares::read(bytes, stored)?.of(selected).reader();
        let parts = sums.iter().map(|&sum| reader.part(sum)).collect::<Option<Vec<_>>>()?;
        reader.is_at_end().then_some(parts)
    }

    fn parts() -> impl Strategy<Value = Parts> {
        let few = prop::collection::vec(0..MINUTES, 1..9).prop_map(|minutes| {
            let mut parts = [0; MINUTES];
            minutes.iter().for_each(|&minute| parts[minute] += 1);
            parts
        });
        let many = prop::array::uniform10(prop_oneof![4 => 0..12_u32, 1 => 0..400_000_000_u32]);
        prop_oneof![2 => few, 1 => many.prop_filter("a sum", |parts| parts.iter().sum::<u32>() > 0)]
    }

    proptest! {
        #[test]
        fn divisions_decode_to_the_encoded_parts(
            shares in prop::collection::vec(parts(), 0..60),
            selected in 0..1024_u16,
        ) {
            let mut bytes = Vec::new();
            put_shares(&mut bytes, shares.iter().copied());
            let sums: Vec<u32> = shares.iter().map(|parts| parts.iter().sum()).collect();
            let of = |parts: &Parts| (0..MINUTES).filter(|i| selected >> i & 1 == 1).map(|i| parts[i]).sum::<u32>();
            let wanted: Vec<u32> = shares.iter().map(of).collect();
            prop_assert_eq!(read(&bytes, &sums, 0x3ff, selected), Some(wanted));
            // Decoding fails if a minute that has a part is not among the stored minutes.
            let is_used = |&i: &usize| shares.iter().any(|parts| parts[i] > 0);
            let used = (0..MINUTES).filter(is_used).fold(0, |used, i| used | 1 << i);
            prop_assert!(read(&bytes, &sums, used, selected).is_some());
            if used & selected != 0 {
                prop_assert_eq!(read(&bytes, &sums, used & !(1 << (used & selected).trailing_zeros()), selected), None);
            }
            bytes.push(0);
            prop_assert_eq!(read(&bytes, &sums, 0x3ff, selected), None, "an extra byte");
        }

        #[test]
        fn arbitrary_bytes_decode_to_parts_of_the_sums_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            sums in prop::collection::vec(any::<u32>(), 0..20),
        ) {
            if let Some(parts) = read(&bytes, &sums, 0x3ff, 0x155) {
                prop_assert!(parts.iter().zip(&sums).all(|(part, sum)| part <= sum));
            }
        }
    }

    #[test]
    fn unknown_divisions_and_parts_above_the_sum_are_refused() {
        // A sum of 2 has 55 splits, numbered from 0 to 54.
        assert_eq!(read(&[0, 54], &[2], 0x3ff, 0x200), Some(vec![2]));
        assert_eq!(read(&[0, 55], &[2], 0x3ff, 0x200), None);
        // The digits 9, 9 and 9 in 10 bits, then 1000, which has four digits.
        assert_eq!(read(&[2, 0xe7, 3], &[1, 1, 1], 0x3ff, 0x200), Some(vec![1, 1, 1]));
        assert_eq!(read(&[2, 0xe8, 3], &[1, 1, 1], 0x3ff, 0x200), None);
        // Two parts of 5 for a sum of 6.
        let mut codes = BitWriter::default();
        let five = TABLES.codes[0][5];
        (0..2).for_each(|_| codes.put(five.bits, five.length));
        let mut bytes = vec![0];
        bytes.extend(codes.finish());
        assert_eq!(read(&bytes, &[6], 0x3ff, 1), None);
    }
}
