//! Sums by stack of one series in one window: what a query over whole windows reads, and nothing else.
//!
//! ```text
//! | rows varint | form u8 | block ... |      each block: up to 128 rows, ascending by stack
//! form 0: | packed differences of stacks, less one | packed sums / unit |
//! form 1: | packed differences of stacks, less one | sum ... |              where a sum / unit is negative or over 32 bits
//! ```
//!
//! The unit, what all sums are multiples of, stands with whoever holds this, as do the number of samples and the total.

use super::packed::{BLOCK, Block, put_block, take_block};
use super::varint::{put, put_sum, take_length, take_sum};
use crate::dense::Dense;

const NARROW: u8 = 0;
const WIDE: u8 = 1;

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

/// Appends rows, ascending by stack, each stack once, all sums multiples of the unit.
pub(crate) fn put_rows(out: &mut Vec<u8>, rows: &[Row], unit: u64) {
    put(out, rows.len() as u64);
    let narrow = |&(_, sum): &Row| u32::try_from(sum / i128::from(unit)).ok();
    let is_narrow = rows.iter().all(|row| narrow(row).is_some());
    out.push(if is_narrow { NARROW } else { WIDE });
    let mut next = 0_u32;
    for rows in rows.chunks(BLOCK) {
        let (mut stacks, mut sums): (Block, Block) = ([0; BLOCK], [0; BLOCK]);
        for (i, row) in rows.iter().enumerate() {
            stacks[i] = row.0.wrapping_sub(next);
            sums[i] = narrow(row).unwrap_or_default();
            next = row.0.wrapping_add(1);
        }
        put_block(out, &stacks[..rows.len()]);
        if is_narrow {
            put_block(out, &sums[..rows.len()]);
        } else {
            rows.iter().for_each(|row| put_sum(out, row.1 / i128::from(unit)));
        }
    }
}

/// Rows as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums<'a> {
    rows: usize,
    is_narrow: bool,
    unit: u64,
    blocks: &'a [u8],
}

impl<'a> Sums<'a> {
    /// What [`put_rows`] appended, and nothing behind it.
    pub(crate) fn read(mut bytes: &'a [u8], unit: u64) -> Option<Self> {
        let rows = take_length(&mut bytes)?;
        let (&form, blocks) = bytes.split_first()?;
        // Two blocks of at least a byte each.
        let enough = rows.div_ceil(BLOCK) * 2 <= blocks.len() || (form == WIDE && rows <= blocks.len());
        (form <= WIDE && enough).then_some(Self { rows, is_narrow: form == NARROW, unit, blocks })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds every row to its stack's slot. `total` is of all rows. `None` if it cannot be read, or a stack has no slot.
    pub(crate) fn add_to(&self, dense: &mut Dense, total: i128) -> Option<()> {
        if !self.is_narrow || !dense.reserve(total) {
            return self.for_each(|stack, sum| dense.add(stack, sum));
        }
        let mut bytes = self.blocks;
        let (mut stacks, mut sums): (Block, Block) = ([0; BLOCK], [0; BLOCK]);
        let (mut left, mut next) = (self.rows, 0);
        while left > 0 {
            let count = left.min(BLOCK);
            take_block(&mut bytes, count, &mut stacks)?;
            take_block(&mut bytes, count, &mut sums)?;
            next = dense.add_block(&stacks[..count], &sums[..count], self.unit, next)?;
            left -= count;
        }
        bytes.is_empty().then_some(())
    }

    /// Every row in order, until the callback says `None`.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32, i128) -> Option<()>) -> Option<()> {
        let mut bytes = self.blocks;
        let (mut stacks, mut sums): (Block, Block) = ([0; BLOCK], [0; BLOCK]);
        let (mut left, mut next) = (self.rows, 0_u32);
        while left > 0 {
            let count = left.min(BLOCK);
            take_block(&mut bytes, count, &mut stacks)?;
            if self.is_narrow {
                take_block(&mut bytes, count, &mut sums)?;
            }
            for i in 0..count {
                let stack = next.checked_add(stacks[i])?;
                let sum = if self.is_narrow { i128::from(sums[i]) } else { take_sum(&mut bytes)? };
                visit(stack, sum.checked_mul(i128::from(self.unit))?)?;
                next = stack.wrapping_add(1);
                // Behind the last stack of 32 bits there is none.
                if next == 0 && (left > count || i + 1 < count) {
                    return None;
                }
            }
            left -= count;
        }
        bytes.is_empty().then_some(())
    }
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
        prop_oneof![8 => 0..40_i128, 2 => -5..5_i128, 1 => any::<i64>().prop_map(i128::from), 1 => any::<i128>().prop_map(|sum| sum / 4)]
    }

    proptest! {
        #[test]
        fn rows_come_back_and_add_up(
            rows in prop::collection::btree_map(0..2000_u32, sum(), 0..400),
            unit in prop_oneof![Just(1_u64), Just(52_631_578), any::<u32>().prop_map(u64::from)],
            times in 1..3_usize,
        ) {
            let scale = |sum: i128| if sum.unsigned_abs() < 1 << 64 { sum * i128::from(unit) } else { sum };
            let rows: BTreeMap<u32, i128> = rows.into_iter().map(|(stack, sum)| (stack, scale(sum))).collect();
            let list: Vec<Row> = rows.iter().map(|(&stack, &sum)| (stack, sum)).collect();
            let unit = unit_of(list.iter().map(|row| row.1));
            let mut bytes = Vec::new();
            put_rows(&mut bytes, &list, unit);
            prop_assert_eq!(read_all(&bytes, unit), Some(list.clone()));
            let mut dense = Dense::default();
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
                let mut dense = Dense::default();
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
        put_rows(&mut bytes, &[(10, 1)], 1);
        let mut dense = Dense::default();
        dense.resize(10);
        assert_eq!(Sums::read(&bytes, 1).unwrap().add_to(&mut dense, 1), None);
    }
}
