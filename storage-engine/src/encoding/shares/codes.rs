//! What is known beforehand of how sums are divided among minutes: the numbers of the ways to divide a small sum, and the codes of parts
//! of a larger one. See `shares`.

use std::sync::LazyLock;

use crate::encoding::shares::{MINUTES, Parts};

/// Bits of sums from 2 on.
pub(crate) const SMALL_BITS: [u32; 4] = [6, 8, 10, 11];
/// The largest of them.
pub(crate) const SMALL_MAX: u32 = 5;

/// Bits of a sum that its parts' symbols are of.
pub(crate) const SYMBOL_BITS: u32 = 6;
/// This symbol and larger ones are the last code, then the symbol.
pub(crate) const ESCAPE: u32 = 15;
/// Bits of the longest code.
pub(crate) const CODE_LENGTH_MAX: u32 = 10;
/// Lengths of the codes of symbols, for sums whose highest six bits are from 6, 8, 12, 16, 24, 32 and 48 on: of Huffman's code for what
/// the mixes H and L have, and Poisson's distribution.
const CODE_LENGTHS: [[u8; 16]; 7] = [
    [1, 2, 3, 4, 5, 6, 9, 9, 9, 9, 10, 10, 10, 10, 9, 9],
    [1, 2, 3, 4, 5, 6, 8, 9, 10, 10, 10, 10, 10, 10, 9, 9],
    [2, 2, 2, 3, 4, 5, 6, 8, 8, 9, 10, 10, 10, 10, 10, 10],
    [2, 2, 2, 3, 4, 5, 6, 7, 10, 10, 10, 10, 10, 10, 10, 10],
    [3, 3, 2, 2, 3, 4, 5, 6, 7, 9, 10, 10, 10, 10, 10, 10],
    [5, 4, 3, 2, 2, 3, 4, 5, 5, 6, 7, 8, 10, 10, 10, 10],
    [5, 6, 4, 3, 3, 2, 3, 3, 4, 5, 6, 6, 7, 9, 9, 8],
];

/// A symbol's code as it is written, and its length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Code {
    pub(crate) bits: u32,
    pub(crate) length: u32,
}

/// Up to three symbols whose codes are whole in some bits, none of them [`ESCAPE`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Symbols {
    /// Four bits each.
    pub(crate) symbols: u16,
    pub(crate) count: u8,
    /// Of the codes of one of them, of two, of three: four bits each.
    pub(crate) lengths: u16,
}

impl Symbols {
    fn of(bits: u32, codes: &[Code; 16]) -> Self {
        let (mut symbols, mut taken) = (Self::default(), 0);
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

/// What follows from the constants.
pub(crate) struct Tables {
    /// By class and symbol.
    pub(crate) codes: [[Code; 16]; 7],
    /// By class and the next ten bits.
    pub(crate) symbols: Vec<[Symbols; 1 << CODE_LENGTH_MAX]>,
    /// By sum, from 2 on, and number: three bits for each minute.
    pub(crate) small: [Vec<u32>; 4],
}

/// Made once.
pub(crate) static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let codes = CODE_LENGTHS.map(|lengths| canonical(&lengths));
    let symbols = codes.iter().map(|codes| std::array::from_fn(|bits| Symbols::of(bits as u32, codes)));
    Tables { symbols: symbols.collect(), codes, small: [2, 3, 4, 5].map(ways) }
});

fn canonical(lengths: &[u8; 16]) -> [Code; 16] {
    let (mut codes, mut next) = ([Code::default(); 16], 0_u32);
    for length in 1..=CODE_LENGTH_MAX {
        for (code, _) in codes.iter_mut().zip(lengths).filter(|(_, of)| u32::from(**of) == length) {
            // The highest bit is written first.
            *code = Code { bits: next.reverse_bits() >> (32 - length), length };
            next += 1;
        }
        next <<= 1;
    }
    codes
}

/// All ways to divide a small sum, by number.
fn ways(sum: u32) -> Vec<u32> {
    let mut ways = vec![0];
    for unit in 1..=sum {
        let mut more = Vec::new();
        // In the order of their numbers: by the last minute, then by those before it.
        for minute in 0..MINUTES as u32 {
            let before = ways.iter().take(binomial(minute + unit - 1, unit - 1) as usize);
            more.extend(before.map(|way| way + (1 << (3 * minute))));
        }
        ways = more;
    }
    ways
}

fn binomial(n: u32, k: u32) -> u32 {
    (1..=k).fold(1, |product, i| product * (n + 1 - i) / i)
}

/// The number of a way to divide a small sum.
pub(crate) fn number_of(parts: &Parts) -> u32 {
    let minutes = (0..).zip(parts).flat_map(|(minute, &part)| std::iter::repeat_n(minute, part as usize));
    (0..).zip(minutes).map(|(unit, minute): (u32, u32)| binomial(minute + unit, unit + 1)).sum()
}

/// Low bits of the parts of a sum.
pub(crate) fn low_bits(sum: u32) -> u32 {
    (32 - sum.leading_zeros()).saturating_sub(SYMBOL_BITS)
}

/// Which of the codes those of a sum are.
pub(crate) fn class(sum: u32) -> usize {
    [8, 12, 16, 24, 32, 48].partition_point(|&from| from <= sum >> low_bits(sum))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_way_to_divide_a_small_sum_has_its_number() {
        for sum in 2..=SMALL_MAX {
            let ways = &TABLES.small[sum as usize - 2];
            let bits = SMALL_BITS[sum as usize - 2];
            assert_eq!(ways.len(), binomial(sum + 9, sum) as usize);
            assert!(ways.len() <= 1 << bits && ways.len() > 1 << (bits - 1));
            assert_eq!(ways.iter().collect::<BTreeSet<_>>().len(), ways.len());
            for (number, way) in (0..).zip(ways) {
                let parts: Parts = std::array::from_fn(|minute| way >> (3 * minute) & 7);
                assert_eq!((parts.iter().sum(), number_of(&parts)), (sum, number));
            }
        }
    }

    #[test]
    fn codes_are_whole() {
        for lengths in CODE_LENGTHS {
            assert_eq!(lengths.iter().map(|&length| 1 << (CODE_LENGTH_MAX - u32::from(length))).sum::<u32>(), 1024);
        }
        // The first symbols of the first row: 0, 10, 110.
        let codes = TABLES.codes[0].map(|code| (code.bits, code.length));
        assert_eq!(codes[..3], [(0, 1), (1, 2), (3, 3)]);
    }
}
