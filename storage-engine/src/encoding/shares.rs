//! How sums of ten minutes are divided among the minutes: one share after another, in the order of the sums, each in as few bits as
//! samples that come evenly need. A stack that recurs is stored once in ten minutes, and a query of all ten reads no share.
//!
//! ```text
//! | digits, behind their length | codes |                        bits, lowest first
//! sum 1:      a digit, the minute; three in 10 bits of `digits`: first + 10 x second + 100 x third
//! sum 2 to 5: 6, 8, 10, 11 bits of `codes`: which of all ways to divide it
//! others:     for each minute but the last a symbol of its part, see `share_codes`; then for each but the last its part's low bits
//! ```
//!
//! A way to divide a small sum is the minutes of its units, ascending, `m0 <= m1 <= ...`; it has the number binomial(m0, 1) +
//! binomial(m1 + 1, 2) + binomial(m2 + 2, 3) + ... ("combinatorial number system": Lehmer, 1964). Of a larger sum of n bits the lowest n - 6
//! of each part are as they are, and the rest of the part, at most 63, is a symbol, its code canonical: shorter ones first, then by symbol,
//! highest bit first. The last minute has what is left. Checks: parts are no larger than the sum; only minutes that are stored have
//! any; nothing is left over.

pub(crate) mod codes;

use crate::encoding::bits::{BitReader, BitWriter};
use crate::encoding::shares::codes::{
    CODE_LENGTH_MAX, Code, ESCAPE, SMALL_BITS, SMALL_MAX, SYMBOL_BITS, TABLES, Tables, class, low_bits, number_of,
};
use crate::encoding::varint::{put_bytes, take_bytes};

/// Minutes among which a sum is divided.
pub(crate) const MINUTES: usize = 10;

/// Of a larger sum, parts that have codes.
const CODED: usize = MINUTES - 1;

/// The part of each minute.
pub(crate) type Parts = [u32; MINUTES];

const DIGITS: u32 = 3;
const DIGITS_BITS: u32 = 10;

/// Appends how sums are divided; each has parts.
pub(crate) fn put_shares(out: &mut Vec<u8>, shares: impl Iterator<Item = Parts>) {
    let (mut digits, mut codes) = (BitWriter::default(), BitWriter::default());
    let (mut group, mut factor) = (0, 1);
    for parts in shares {
        let sum: u32 = parts.iter().sum();
        match sum {
            1 => {
                group += number_of(&parts) * factor;
                factor *= MINUTES as u32;
                if factor == 1000 {
                    digits.put(group, DIGITS_BITS);
                    (group, factor) = (0, 1);
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
    let (low_bits, codes) = (low_bits(sum), &TABLES.codes[class(sum)]);
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

/// A set of minutes, a bit for each.
pub(crate) type Minutes = u16;

/// Shares as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares<'a> {
    digits: &'a [u8],
    codes: &'a [u8],
    /// Minutes that there are.
    stored: Minutes,
    /// Of them, those that are asked for.
    asked: Minutes,
}

impl<'a> Shares<'a> {
    /// What [`put_shares`] appended, and nothing behind it, of these minutes.
    pub(crate) fn read(mut bytes: &'a [u8], stored: Minutes) -> Option<Self> {
        let digits = take_bytes(&mut bytes)?;
        Some(Self { digits, codes: bytes, stored, asked: stored })
    }

    /// The same, of which these minutes are asked for.
    pub(crate) fn of(self, asked: Minutes) -> Self {
        Self { asked, ..self }
    }

    /// Whether no share has to be read.
    pub(crate) fn are_all_asked(&self) -> bool {
        self.asked == self.stored
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
            asked: self.asked,
            other_fields: !threes(self.stored),
            asked_fields: threes(self.asked),
            other_nibbles: !nibbles(self.stored),
            asked_nibbles: nibbles(self.asked),
            masks: std::array::from_fn(|i| {
                let all_if = |is: bool| if is { u32::MAX } else { 0 };
                (all_if(self.asked >> i & 1 == 1), all_if(self.stored >> i & 1 == 0))
            }),
        }
    }
}

/// Parts that are added up: all of them, those that are asked for, and whether any is of a minute that is not stored.
#[derive(Default)]
struct Asked {
    all: u64,
    asked: u64,
    others: u32,
}

impl Asked {
    fn add(&mut self, part: u32, (is_asked, is_other): (u32, u32)) {
        self.all += u64::from(part);
        self.asked += u64::from(part & is_asked);
        self.others |= part & is_other;
    }
}

/// The sum of ten numbers of four bits.
fn nibble_sum(nibbles: u64) -> u64 {
    const EVEN: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    ((nibbles & EVEN) + (nibbles >> 4 & EVEN)).wrapping_mul(0x0101_0101_0101_0101) >> 56
}

/// Reads one share after another.
pub(crate) struct ShareReader<'a> {
    digits: BitReader<'a>,
    /// Digits that were taken, and how many of them are left.
    group: u32,
    left: u32,
    codes: BitReader<'a>,
    tables: &'static Tables,
    stored: Minutes,
    asked: Minutes,
    /// Fields of three bits: of minutes that are not stored, and of those that are asked for.
    other_fields: u32,
    asked_fields: u32,
    /// The same of four bits.
    other_nibbles: u64,
    asked_nibbles: u64,
    /// For each minute, all bits if it is asked for, and all if it is not stored.
    masks: [(u32, u32); MINUTES],
}

impl ShareReader<'_> {
    /// How much of the next sum belongs to the minutes that are asked for.
    pub(crate) fn part(&mut self, sum: u32) -> Option<u32> {
        match sum {
            0 => None,
            1 => self.digit(),
            2..=SMALL_MAX => {
                let number = self.codes.take(SMALL_BITS[sum as usize - 2]);
                let way = *self.tables.small[sum as usize - 2].get(number as usize)?;
                // Fields add up in the highest one: none overflows, since all together are at most five.
                let fields = u64::from(way & self.asked_fields).wrapping_mul(0o1_111_111_111);
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
        // The third of a number above 999 is none.
        let is_one = self.left > 0 || self.group == 0;
        (is_one && self.stored >> minute & 1 == 1).then_some(u32::from(self.asked >> minute & 1))
    }

    fn large(&mut self, sum: u32) -> Option<u32> {
        let class = class(sum);
        let (low_bits, symbols) = (low_bits(sum), self.tables.symbols.get(class)?);
        // Four bits for each minute, and what does not fit them.
        let (mut fields, mut minute, mut parts) = (0_u64, 0, Asked::default());
        let (mut word, mut used) = (self.codes.peek(), 0);
        while minute < CODED {
            if used > 56 - CODE_LENGTH_MAX - SYMBOL_BITS {
                self.codes.skip(used);
                (word, used) = (self.codes.peek(), 0);
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
        parts.asked += nibble_sum(fields & self.asked_nibbles) << low_bits;
        parts.others |= u32::from(fields & self.other_nibbles != 0);
        if low_bits > 0 {
            for &masks in &self.masks[..CODED] {
                parts.add(self.codes.take(low_bits), masks);
            }
        }
        let all = u32::try_from(parts.all).ok()?;
        parts.add(sum.checked_sub(all)?, self.masks[CODED]);
        (parts.others == 0).then_some(parts.asked as u32)
    }

    /// Whether nothing is left over behind the last share.
    pub(crate) fn is_at_end(&self) -> bool {
        self.group == 0 && self.digits.is_at_end() && self.codes.is_at_end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8], sums: &[u32], stored: Minutes, asked: Minutes) -> Option<Vec<u32>> {
        let mut reader = Shares::read(bytes, stored)?.of(asked).reader();
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
        fn shares_come_back(shares in prop::collection::vec(parts(), 0..60), asked in 0..1024_u16) {
            let mut bytes = Vec::new();
            put_shares(&mut bytes, shares.iter().copied());
            let sums: Vec<u32> = shares.iter().map(|parts| parts.iter().sum()).collect();
            let of = |parts: &Parts| (0..MINUTES).filter(|i| asked >> i & 1 == 1).map(|i| parts[i]).sum::<u32>();
            let wanted: Vec<u32> = shares.iter().map(of).collect();
            prop_assert_eq!(read(&bytes, &sums, 0x3ff, asked), Some(wanted));
            // What is not stored has no part.
            let used = (0..MINUTES).filter(|&i| shares.iter().any(|parts| parts[i] > 0)).fold(0, |used, i| used | 1 << i);
            prop_assert!(read(&bytes, &sums, used, asked).is_some());
            if used & asked != 0 {
                prop_assert_eq!(read(&bytes, &sums, used & !(1 << (used & asked).trailing_zeros()), asked), None);
            }
            bytes.push(0);
            prop_assert_eq!(read(&bytes, &sums, 0x3ff, asked), None, "another byte");
        }

        #[test]
        fn any_bytes_are_shares_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60), sums in prop::collection::vec(any::<u32>(), 0..20)) {
            if let Some(parts) = read(&bytes, &sums, 0x3ff, 0x155) {
                prop_assert!(parts.iter().zip(&sums).all(|(part, sum)| part <= sum));
            }
        }
    }

    #[test]
    fn a_number_that_is_no_way_and_a_part_above_the_sum_are_refused() {
        // 55 ways to divide 2.
        assert_eq!(read(&[0, 54], &[2], 0x3ff, 0x200), Some(vec![2]));
        assert_eq!(read(&[0, 55], &[2], 0x3ff, 0x200), None);
        // Three digits of 10 bits.
        assert_eq!(read(&[2, 0xe7, 3], &[1, 1, 1], 0x3ff, 0x200), Some(vec![1, 1, 1]));
        assert_eq!(read(&[2, 0xe8, 3], &[1, 1, 1], 0x3ff, 0x200), None);
        // Of 6: 5 and 5.
        let mut codes = BitWriter::default();
        let five = TABLES.codes[0][5];
        (0..2).for_each(|_| codes.put(five.bits, five.length));
        let mut bytes = vec![0];
        bytes.extend(codes.finish());
        assert_eq!(read(&bytes, &[6], 0x3ff, 1), None);
    }
}
