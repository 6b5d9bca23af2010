//! Constant tables for the splits of sums: the numbers of the splits of small sums, and the codes of the parts of
//! larger ones. `shares` describes the format.

use std::sync::LazyLock;

use crate::encoding::shares::{MINUTES, Parts};

/// Length of a split's number, in bits, for each of the sums 2 to 5.
pub(crate) const SMALL_BITS: [u32; 4] = [6, 8, 10, 11];
/// The largest sum whose splits are numbered.
pub(crate) const SMALL_MAX: u32 = 5;

/// Number of high bits of a sum that determine its class. A symbol has as many bits, so it is below 2^6.
pub(crate) const SYMBOL_BITS: u32 = 6;
/// First symbol without a code of its own. All symbols from this one on share the last code, which is followed by the
/// symbol itself.
pub(crate) const ESCAPE: u32 = 15;
/// Length of the longest code, in bits.
pub(crate) const CODE_LENGTH_MAX: u32 = 10;
/// Length of each symbol's code, in bits, by class of the sum. A sum is in the last class whose number is not above the
/// highest six bits of the sum. The numbers 6, 8, 12, 16, 24, 32 and 48 are those of the seven classes. The codes are
/// Huffman codes for symbols from three sources: the mixes H and L of `bench`, and a Poisson distribution.
const CODE_LENGTHS: [[u8; 16]; 7] = [
    [1, 2, 3, 4, 5, 6, 9, 9, 9, 9, 10, 10, 10, 10, 9, 9],
    [1, 2, 3, 4, 5, 6, 8, 9, 10, 10, 10, 10, 10, 10, 9, 9],
    [2, 2, 2, 3, 4, 5, 6, 8, 8, 9, 10, 10, 10, 10, 10, 10],
    [2, 2, 2, 3, 4, 5, 6, 7, 10, 10, 10, 10, 10, 10, 10, 10],
    [3, 3, 2, 2, 3, 4, 5, 6, 7, 9, 10, 10, 10, 10, 10, 10],
    [5, 4, 3, 2, 2, 3, 4, 5, 5, 6, 7, 8, 10, 10, 10, 10],
    [5, 6, 4, 3, 3, 2, 3, 3, 4, 5, 6, 6, 7, 9, 9, 8],
];

/// Code of a symbol: its bits, with the first written bit lowest, and the number of its bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Code {
    pub(crate) bits: u32,
    pub(crate) length: u32,
}

/// Up to three symbols whose codes lie entirely in the next ten bits. [`ESCAPE`] is never among them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Symbols {
    /// The symbols, four bits each.
    pub(crate) symbols: u16,
    pub(crate) count: u8,
    /// Total code length of the first one, two and three symbols, four bits each.
    pub(crate) lengths: u16,
}

impl Symbols {
    fn of(bits: u32, codes: &[Code; 16]) -> Self {
        let mut symbols = Self::default();
        let mut taken = 0;
        while symbols.count < 3 {
            let fits = |code: &Code| {
                taken + code.length <= CODE_LENGTH_MAX && (bits >> taken) & ((1 << code.length) - 1) == code.bits
            };
            let Some((symbol, code)) = (0..).zip(codes).find(|(symbol, code)| *symbol < ESCAPE && fits(code)) else {
                break;
            };
            taken += code.length;
            symbols.symbols |= (symbol << (4 * symbols.count)) as u16;
            symbols.lengths |= (taken << (4 * symbols.count)) as u16;
            symbols.count += 1;
        }
        symbols
    }
}

/// Tables that are computed from the constants of this file.
pub(crate) struct CodeTables {
    /// Code of each symbol, by class and symbol.
    pub(crate) codes: [[Code; 16]; 7],
    /// Decoded symbols, by class and the next ten bits.
    pub(crate) symbols: Vec<[Symbols; 1 << CODE_LENGTH_MAX]>,
    /// All splits of the sums 2 to 5, by sum and number of the split. A split has three bits for each minute, which
    /// hold the minute's part.
    pub(crate) small: [Vec<u32>; 4],
}

/// Tables of all codes, computed on first use.
pub(crate) static TABLES: LazyLock<CodeTables> = LazyLock::new(|| {
    let codes = CODE_LENGTHS.map(|lengths| canonical(&lengths));
    let symbols = codes.iter().map(|codes| std::array::from_fn(|bits| Symbols::of(bits as u32, codes)));
    CodeTables { symbols: symbols.collect(), codes, small: [2, 3, 4, 5].map(divisions) }
});

fn canonical(lengths: &[u8; 16]) -> [Code; 16] {
    let mut codes = [Code::default(); 16];
    let mut next = 0_u32;
    for length in 1..=CODE_LENGTH_MAX {
        for (code, _) in codes.iter_mut().zip(lengths).filter(|(_, of)| u32::from(**of) == length) {
            // The highest bit of a code is written first.
            *code = Code { bits: next.reverse_bits() >> (32 - length), length };
            next += 1;
        }
        next <<= 1;
    }
    codes
}

/// Returns all splits of a small sum, in the order of their numbers.
fn divisions(sum: u32) -> Vec<u32> {
    let mut divisions = vec![0];
    for unit in 1..=sum {
        let mut more = Vec::new();
        // Splits are ordered by the minute of the last unit, then by the minutes of the units before it.
        for minute in 0..MINUTES as u32 {
            let before = divisions.iter().take(binomial(minute + unit - 1, unit - 1) as usize);
            more.extend(before.map(|division| division + (1 << (3 * minute))));
        }
        divisions = more;
    }
    divisions
}

fn binomial(n: u32, k: u32) -> u32 {
    (1..=k).fold(1, |product, i| product * (n + 1 - i) / i)
}

/// Returns the number of a split of a small sum.
pub(crate) fn number_of(parts: &Parts) -> u32 {
    let minutes = (0..).zip(parts).flat_map(|(minute, &part)| std::iter::repeat_n(minute, part as usize));
    (0..).zip(minutes).map(|(unit, minute): (u32, u32)| binomial(minute + unit, unit + 1)).sum()
}

/// Returns the number of low bits of each part that are stored without a code.
pub(crate) fn low_bits(sum: u32) -> u32 {
    (32 - sum.leading_zeros()).saturating_sub(SYMBOL_BITS)
}

/// Returns the class of a sum, which is an index into the tables of codes.
pub(crate) fn class(sum: u32) -> usize {
    [8, 12, 16, 24, 32, 48].partition_point(|&from| from <= sum >> low_bits(sum))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_division_of_a_small_sum_has_its_number() {
        for sum in 2..=SMALL_MAX {
            let divisions = &TABLES.small[sum as usize - 2];
            let bits = SMALL_BITS[sum as usize - 2];
            assert_eq!(divisions.len(), binomial(sum + 9, sum) as usize);
            assert!(divisions.len() <= 1 << bits && divisions.len() > 1 << (bits - 1));
            assert_eq!(divisions.iter().collect::<BTreeSet<_>>().len(), divisions.len());
            for (number, division) in (0..).zip(divisions) {
                let parts: Parts = std::array::from_fn(|minute| division >> (3 * minute) & 7);
                assert_eq!((parts.iter().sum(), number_of(&parts)), (sum, number));
            }
        }
    }

    #[test]
    fn codes_of_every_class_are_complete() {
        for lengths in CODE_LENGTHS {
            assert_eq!(lengths.iter().map(|&length| 1 << (CODE_LENGTH_MAX - u32::from(length))).sum::<u32>(), 1024);
        }
        // The first codes of the first row: 0, 10, 110.
        let codes = TABLES.codes[0].map(|code| (code.bits, code.length));
        assert_eq!(codes[..3], [(0, 1), (1, 2), (3, 3)]);
    }
}
