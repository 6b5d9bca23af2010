//! Sums by stack of one series in one window: what a query over whole windows reads, and nothing else.
//!
//! ```text
//! | rows varint | form u8 | ... |
//! form 0: | stacks, ascending | sum / unit, in packed blocks |
//! form 1: | stacks, ascending | sum / unit ... |                    where one is negative or over 32 bits
//! form 2: | lists varint | ( sum / unit varint | rows varint | stacks, ascending ) ... | rows varint | the others, as form 0 |
//! ```
//!
//! Most stacks have the smallest sums there are, one or two samples: each of these sums has a list of its stacks, and no stack its
//! sum. The unit, what all sums are multiples of, stands with whoever holds this, as do the number of samples and the total.

use crate::encoding::ascending::{Ascending, put_ascending};
use crate::encoding::packed::{BLOCK, Block, put_block, take_block};
use crate::encoding::shares::{Minutes, ShareReader, Shares};
use crate::encoding::varint::{put, put_sum, take_length, take_sum, take_u32};
use crate::memory::slot_sums::SlotSums;

const IN_ORDER: u8 = 0;
const WIDE: u8 = 1;
const BY_SUM: u8 = 2;

/// Sums that may have a list of their stacks...
const LISTED_SUM_MAX: u32 = 8;
/// ...have one where it is at least so long, and no smaller share of all.
const LISTED_ROWS_MIN: usize = 32;
const LISTED_SHARE_MIN: usize = 16;

/// One stack's sum.
pub(crate) type Row = (u32, i128);

/// The largest number that all sums are multiples of; 1 if there is none.
pub(crate) fn unit_of(sums: impl Iterator<Item = i128>) -> u64 {
    let mut unit = 0_u64;
    for sum in sums {
        let (mut a, Ok(mut b)) = (unit, u64::try_from(sum.unsigned_abs())) else { return 1 };
        // Euclid; one step where the unit is found already.
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

/// Appends rows, ascending by stack, each stack once, all sums multiples of the unit. They are read in this order where
/// `in_order`, else in any.
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

/// Rows as they are stored; by default none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums<'a> {
    rows: usize,
    form: u8,
    unit: u64,
    bytes: &'a [u8],
    /// Of sums that minutes share.
    shares: Option<Shares<'a>>,
}

impl<'a> Sums<'a> {
    /// What [`put_rows`] appended, and nothing behind it.
    pub(crate) fn read(mut bytes: &'a [u8], unit: u64) -> Option<Self> {
        let rows = take_length(&mut bytes)?;
        let (&form, rest) = bytes.split_first()?;
        // A block of 128 stacks takes at least a byte.
        let is_possible = form <= BY_SUM && rows.div_ceil(BLOCK) <= rest.len() && unit > 0;
        is_possible.then_some(Self { rows, form, unit, bytes: rest, shares: None })
    }

    /// As [`Sums::read`], of minutes that share each sum.
    pub(crate) fn read_shared(bytes: &'a [u8], unit: u64, shares: Shares<'a>) -> Option<Self> {
        let sums = Self::read(bytes, unit).filter(|sums| sums.form != WIDE)?;
        Some(Self { shares: Some(shares), ..sums })
    }

    /// Of sums that minutes share, those of some minutes: what they have of each sum, where they have any.
    pub(crate) fn of_minutes(self, asked: Minutes) -> Self {
        Self { shares: self.shares.map(|shares| shares.of(asked)), ..self }
    }

    /// How many are read; those of some of the minutes that share them may be fewer.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds every row to its stack's slot. `total` is of all rows. `None` if it cannot be read, or a stack has no slot.
    pub(crate) fn add_to(&self, dense: &mut SlotSums, total: i128) -> Option<()> {
        if self.form == WIDE || !dense.reserve(total, self.rows()) {
            return self.for_each(|stack, sum| dense.add(stack, sum));
        }
        let unit = self.unit;
        self.for_each_block(|stacks, sums| match sums {
            BlockSums::Each(sums) => dense.add_block(stacks, sums, unit),
            BlockSums::All(sum) => dense.add_same(stacks, u64::from(sum).wrapping_mul(unit)),
        })
    }

    /// Every row, until the callback says `None`.
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
        let (mut block, mut left): (Block, usize) = ([0; BLOCK], self.rows);
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
        let Some(shares) = self.shares.filter(|shares| !shares.are_all_asked()) else {
            return self.for_each_whole_block(visit);
        };
        let mut shares = shares.reader();
        let (mut asked_stacks, mut parts): (Block, Block) = ([0; BLOCK], [0; BLOCK]);
        self.for_each_whole_block(|stacks, sums| {
            let count = asked(stacks, sums, &mut shares, (&mut asked_stacks, &mut parts))?;
            visit(&asked_stacks[..count], BlockSums::Each(&parts[..count]))
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
                let (mut block, mut left): (Block, usize) = ([0; BLOCK], count);
                while left > 0 {
                    let count = stacks.next_block(&mut block)?;
                    visit(&block[..count], BlockSums::All(sum))?;
                    left -= count;
                }
            }
            others = take_length(&mut bytes).filter(|&rest| rest == others)?;
        }
        let mut stacks = Ascending::take(&mut bytes, others)?;
        let (mut block, mut sums): (Block, Block) = ([0; BLOCK], [0; BLOCK]);
        while others > 0 {
            let count = stacks.next_block(&mut block)?;
            take_block(&mut bytes, count, &mut sums)?;
            visit(&block[..count], BlockSums::Each(&sums[..count]))?;
            others -= count;
        }
        bytes.is_empty().then_some(())
    }
}

/// Puts the stacks of which the minutes that are asked for have a part, and those parts, to the front of two blocks.
fn asked(
    stacks: &[u32],
    sums: BlockSums<'_>,
    shares: &mut ShareReader<'_>,
    (to_stacks, to_parts): (&mut Block, &mut Block),
) -> Option<usize> {
    let mut count = 0;
    for (i, &stack) in stacks.iter().enumerate() {
        let part = shares.part(match sums {
            BlockSums::Each(sums) => *sums.get(i)?,
            BlockSums::All(sum) => sum,
        })?;
        // What stays empty is written over.
        (*to_stacks.get_mut(count)?, *to_parts.get_mut(count)?) = (stack, part);
        count += usize::from(part > 0);
    }
    Some(count)
}

/// Sums of a block of stacks, divided by the unit.
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
        prop_oneof![20 => 1..3_i128, 8 => 0..40_i128, 1 => any::<i64>().prop_map(i128::from), 1 => any::<i128>().prop_map(|sum| sum / 4)]
    }

    proptest! {
        #[test]
        fn rows_come_back_and_add_up(
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
            let mut dense = SlotSums::default();
            dense.resize(2000);
            let total = list.iter().map(|row| row.1).sum();
            for _ in 0..times {
                prop_assert_eq!(Sums::read(&bytes, unit).unwrap().add_to(&mut dense, total), Some(()));
            }
            let mut got = Vec::new();
            dense.drain(|stack, sum| got.push((stack, sum)));
            let wanted: Vec<Row> = list.iter().map(|&(stack, sum)| (stack, sum * times as i128)).collect();
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn any_bytes_are_rows_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(sums) = Sums::read(&bytes, 3) {
                let mut dense = SlotSums::default();
                dense.resize(100);
                let rows = sums.rows();
                prop_assert!(rows <= bytes.len() * BLOCK);
                let _read_or_not = (sums.add_to(&mut dense, 5), read_all(&bytes, 3));
            }
        }
    }

    #[test]
    fn a_stack_without_a_slot_is_refused() {
        let mut bytes = Vec::new();
        put_rows(&mut bytes, &[(10, 1)], 1, true);
        let mut dense = SlotSums::default();
        dense.resize(10);
        assert_eq!(Sums::read(&bytes, 1).unwrap().add_to(&mut dense, 1), None);
    }
}
