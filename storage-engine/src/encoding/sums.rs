//! Sums by stack of one series in one window. A query over whole windows reads nothing else.
//!
//! ```text
//! | rows varint | form u8 | ... |
//! form 0: | pairs, ascending | sum / unit, in packed blocks |
//! form 1: | pairs, ascending | sum / unit, a varint each |         if a sum is negative or needs more than 32 bits
//! form 2: | lists varint | ( sum / unit varint | rows varint | pairs, ascending ) ... |
//!         | rows varint | remaining rows, as in form 0 |
//! ```
//!
//! Most stacks have a sum of one or two samples. Form 2 therefore lists the pairs of each frequent small sum together.
//! The unit, the number of samples and the total are stored outside, in the value that contains the sums.

use crate::encoding::ascending::{Ascending, put_ascending};
use crate::encoding::packed::{BLOCK, Block, put_block, take_block};
use crate::encoding::shares::{Minutes, ShareReader, Shares};
use crate::encoding::slot_sums::SlotSums;
use crate::encoding::varint::{put, put_sum, take_length, take_sum, take_u32};

const IN_ORDER: u8 = 0;
const WIDE: u8 = 1;
const BY_SUM: u8 = 2;

/// Largest sum, in units, that may have a list of its own in form 2.
const LISTED_SUM_MAX: u32 = 8;
/// Minimum number of rows of a list; a list also has at least 1 / [`LISTED_SHARE_MIN`] of all rows.
const LISTED_ROWS_MIN: usize = 32;
const LISTED_SHARE_MIN: usize = 16;

/// Number of a stack pair, and the sum of this pair.
pub(crate) type Row = (u32, i128);

/// Returns the greatest common divisor of all sums; 1 if the divisor exceeds 64 bits or all sums are 0.
pub(crate) fn unit_of(sums: impl Iterator<Item = i128>) -> u64 {
    let mut unit = 0_u64;
    for sum in sums {
        let mut a = unit;
        let Ok(mut b) = u64::try_from(sum.unsigned_abs()) else { return 1 };
        // Euclid's algorithm; it takes one step if the sum is a multiple of the unit.
        while b != 0 {
            (a, b) = (b, a % b);
        }
        unit = a;
        if unit == 1 {
            break;
        }
    }
    unit.max(1)
}

/// Appends rows, which ascend by stack. Each stack occurs once, and all sums are multiples of the unit. Readers get the
/// rows in this order if `in_order` is set, and otherwise in any order.
pub(crate) fn put_rows(out: &mut Vec<u8>, rows: &[Row], unit: u64, in_order: bool) {
    put(out, rows.len() as u64);
    let narrow = |&(stack, sum): &Row| Some((stack, u32::try_from(sum / i128::from(unit)).ok()?));
    let Some(narrow) = rows.iter().map(narrow).collect::<Option<Vec<_>>>() else {
        out.push(WIDE);
        put_ascending(out, &rows.iter().map(|row| row.0).collect::<Vec<_>>());
        return rows.iter().for_each(|row| put_sum(out, row.1 / i128::from(unit)));
    };
    let mut one_list = vec![IN_ORDER];
    put_narrow(&mut one_list, &narrow);
    let by_sum = if in_order { None } else { put_by_sum(&narrow) };
    out.extend(by_sum.filter(|lists| lists.len() < one_list.len()).unwrap_or(one_list));
}

fn put_narrow(out: &mut Vec<u8>, rows: &[(u32, u32)]) {
    let (stacks, sums): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
    put_ascending(out, &stacks);
    sums.chunks(BLOCK).for_each(|block| put_block(out, block));
}

fn put_by_sum(rows: &[(u32, u32)]) -> Option<Vec<u8>> {
    let is_long = |sum: &u32| {
        let count = rows.iter().filter(|row| row.1 == *sum).count();
        count >= LISTED_ROWS_MIN && count >= rows.len() / LISTED_SHARE_MIN
    };
    let listed: Vec<u32> = (1..=LISTED_SUM_MAX).filter(is_long).collect();
    if listed.is_empty() {
        return None;
    }
    let mut out = vec![BY_SUM];
    put(&mut out, listed.len() as u64);
    for &sum in &listed {
        let stacks: Vec<u32> = rows.iter().filter(|row| row.1 == sum).map(|row| row.0).collect();
        put(&mut out, u64::from(sum));
        put(&mut out, stacks.len() as u64);
        put_ascending(&mut out, &stacks);
    }
    let others: Vec<(u32, u32)> = rows.iter().filter(|row| !listed.contains(&row.1)).copied().collect();
    put(&mut out, others.len() as u64);
    put_narrow(&mut out, &others);
    Some(out)
}

/// Sums in their stored form. The default has no rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums<'a> {
    rows: usize,
    form: u8,
    unit: u64,
    bytes: &'a [u8],
    /// Splits of the sums among minutes; `None` unless the minutes of the value share their sums.
    shares: Option<Shares<'a>>,
}

impl<'a> Sums<'a> {
    /// Reads all the bytes that [`put_rows`] appended.
    pub(crate) fn read(mut bytes: &'a [u8], unit: u64) -> Option<Self> {
        let rows = take_length(&mut bytes)?;
        let (&form, rest) = bytes.split_first()?;
        // A packed block of 128 stacks takes at least a byte.
        let is_possible = form <= BY_SUM && rows.div_ceil(BLOCK) <= rest.len() && unit > 0;
        is_possible.then_some(Self { rows, form, unit, bytes: rest, shares: None })
    }

    /// Reads sums that the minutes of a value share. `shares` are the splits of these sums.
    pub(crate) fn read_shared(bytes: &'a [u8], unit: u64, shares: Shares<'a>) -> Option<Self> {
        let sums = Self::read(bytes, unit).filter(|sums| sums.form != WIDE)?;
        Some(Self { shares: Some(shares), ..sums })
    }

    /// Returns these sums. If minutes share them, only the parts of the minutes `selected` are added up or visited.
    pub(crate) fn of_minutes(self, selected: Minutes) -> Self {
        Self { shares: self.shares.map(|shares| shares.of(selected)), ..self }
    }

    /// Returns the number of stored rows. Selected minutes may have fewer.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds the sum of every row to its stack's slot; `None` if the rows cannot be read or a stack has no slot. `total`
    /// is the total of all rows.
    pub(crate) fn add_to(&self, slots: &mut SlotSums, total: i128) -> Option<()> {
        if self.form == WIDE || !slots.reserve(total, self.rows()) {
            return self.for_each(|stack, sum| slots.add(stack, sum));
        }
        let unit = self.unit;
        self.for_each_block(|stacks, sums| match sums {
            BlockSums::Each(sums) => slots.add_block(stacks, sums, unit),
            BlockSums::All(sum) => slots.add_same(stacks, u64::from(sum).wrapping_mul(unit)),
        })
    }

    /// Calls `visit` with every row. Returns `None` if the rows cannot be read, or as soon as `visit` returns `None`.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32, i128) -> Option<()>) -> Option<()> {
        let unit = i128::from(self.unit);
        if self.form != WIDE {
            return self.for_each_block(|stacks, sums| {
                stacks.iter().enumerate().try_for_each(|(i, &stack)| match sums {
                    BlockSums::Each(sums) => visit(stack, i128::from(sums[i]) * unit),
                    BlockSums::All(sum) => visit(stack, i128::from(sum) * unit),
                })
            });
        }
        let mut bytes = self.bytes;
        let mut stacks = Ascending::take(&mut bytes, self.rows)?;
        let mut block: Block = [0; BLOCK];
        let mut left = self.rows;
        while left > 0 {
            let count = stacks.next_block(&mut block)?;
            for &stack in &block[..count] {
                visit(stack, take_sum(&mut bytes)?.checked_mul(unit)?)?;
            }
            left -= count;
        }
        bytes.is_empty().then_some(())
    }

    fn for_each_block(&self, mut visit: impl FnMut(&[u32], BlockSums<'_>) -> Option<()>) -> Option<()> {
        let Some(shares) = self.shares.filter(|shares| !shares.are_all_selected()) else {
            return self.for_each_whole_block(visit);
        };
        let mut shares = shares.reader();
        let mut selected_stacks: Block = [0; BLOCK];
        let mut parts: Block = [0; BLOCK];
        self.for_each_whole_block(|stacks, sums| {
            let count = select_parts(stacks, sums, &mut shares, &mut selected_stacks, &mut parts)?;
            visit(&selected_stacks[..count], BlockSums::Each(&parts[..count]))
        })?;
        shares.is_at_end().then_some(())
    }

    fn for_each_whole_block(&self, mut visit: impl FnMut(&[u32], BlockSums<'_>) -> Option<()>) -> Option<()> {
        let mut bytes = self.bytes;
        let mut others = self.rows;
        if self.form == BY_SUM {
            let lists = take_length(&mut bytes).filter(|&lists| lists <= LISTED_SUM_MAX as usize)?;
            for _ in 0..lists {
                let sum = take_u32(&mut bytes)?;
                let count = take_length(&mut bytes).filter(|&count| count > 0)?;
                others = others.checked_sub(count)?;
                let mut stacks = Ascending::take(&mut bytes, count)?;
                let mut block: Block = [0; BLOCK];
                let mut left = count;
                while left > 0 {
                    let count = stacks.next_block(&mut block)?;
                    visit(&block[..count], BlockSums::All(sum))?;
                    left -= count;
                }
            }
            others = take_length(&mut bytes).filter(|&rest| rest == others)?;
        }
        let mut stacks = Ascending::take(&mut bytes, others)?;
        let mut block: Block = [0; BLOCK];
        let mut sums: Block = [0; BLOCK];
        while others > 0 {
            let count = stacks.next_block(&mut block)?;
            take_block(&mut bytes, count, &mut sums)?;
            visit(&block[..count], BlockSums::Each(&sums[..count]))?;
            others -= count;
        }
        bytes.is_empty().then_some(())
    }
}

/// Writes the stacks that have a part in the selected minutes to `to_stacks`, and these parts to `to_parts`. Returns
/// their number; `None` if a split is invalid.
fn select_parts(
    stacks: &[u32],
    sums: BlockSums<'_>,
    shares: &mut ShareReader<'_>,
    to_stacks: &mut Block,
    to_parts: &mut Block,
) -> Option<usize> {
    let mut count = 0;
    for (i, &stack) in stacks.iter().enumerate() {
        let part = shares.part(match sums {
            BlockSums::Each(sums) => *sums.get(i)?,
            BlockSums::All(sum) => sum,
        })?;
        // The next stack overwrites an entry without a part.
        *to_stacks.get_mut(count)? = stack;
        *to_parts.get_mut(count)? = part;
        count += usize::from(part > 0);
    }
    Some(count)
}

/// Sums of the stacks of a block, in units: one for each stack, or one that all stacks have.
#[derive(Clone, Copy)]
enum BlockSums<'a> {
    Each(&'a [u32]),
    All(u32),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn read_all(bytes: &[u8], unit: u64) -> Option<Vec<Row>> {
        let mut rows = Vec::new();
        Sums::read(bytes, unit)?.for_each(|stack, sum| {
            rows.push((stack, sum));
            Some(())
        })?;
        Some(rows)
    }

    fn sum() -> impl Strategy<Value = i128> {
        prop_oneof![
            20 => 1..3_i128,
            8 => 0..40_i128,
            1 => any::<i64>().prop_map(i128::from),
            1 => any::<i128>().prop_map(|sum| sum / 4),
        ]
    }

    proptest! {
        #[test]
        fn rows_decode_to_the_encoded_sums_and_add_up(
            rows in prop::collection::btree_map(0..2000_u32, sum(), 0..400),
            unit in prop_oneof![Just(1_u64), Just(52_631_578), any::<u32>().prop_map(u64::from)],
            times in 1..3_usize,
            in_order: bool,
        ) {
            let scale = |sum: i128| if sum.unsigned_abs() < 1 << 64 { sum * i128::from(unit) } else { sum };
            let rows: BTreeMap<u32, i128> = rows.into_iter().map(|(stack, sum)| (stack, scale(sum))).collect();
            let list: Vec<Row> = rows.iter().map(|(&stack, &sum)| (stack, sum)).collect();
            let unit = unit_of(list.iter().map(|row| row.1));
            let mut bytes = Vec::new();
            put_rows(&mut bytes, &list, unit, in_order);
            let mut got = read_all(&bytes, unit).unwrap();
            if !in_order {
                got.sort_unstable();
            }
            prop_assert_eq!(got, list.clone());
            let mut slots = SlotSums::default();
            slots.resize(2000);
            let total = list.iter().map(|row| row.1).sum();
            for _ in 0..times {
                prop_assert_eq!(Sums::read(&bytes, unit).unwrap().add_to(&mut slots, total), Some(()));
            }
            let mut got = Vec::new();
            slots.drain(|stack, sum| got.push((stack, sum)));
            let wanted: Vec<Row> = list.iter().map(|&(stack, sum)| (stack, sum * times as i128)).collect();
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn arbitrary_bytes_decode_to_rows_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(sums) = Sums::read(&bytes, 3) {
                let mut slots = SlotSums::default();
                slots.resize(100);
                let rows = sums.rows();
                prop_assert!(rows <= bytes.len() * BLOCK);
                let _read_or_not = (sums.add_to(&mut slots, 5), read_all(&bytes, 3));
            }
        }
    }

    #[test]
    fn a_stack_without_a_slot_is_refused() {
        let mut bytes = Vec::new();
        put_rows(&mut bytes, &[(10, 1)], 1, true);
        let mut slots = SlotSums::default();
        slots.resize(10);
        assert_eq!(Sums::read(&bytes, 1).unwrap().add_to(&mut slots, 1), None);
    }
}
