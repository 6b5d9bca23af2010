//! Sums by slot. A slot stands for one stack of a partition, or for one bucket of time.
//!
//! Slots hold 64 bits, because 64-bit additions are fast. `bound` is an upper bound of the absolute value of every
//! slot. Before a slot could overflow, all sums are moved to 128 bits.

use std::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Number of slots in a group. Draining skips the groups to which nothing was added.
const GROUP: usize = 64;

/// Number of bits of the largest values that are added in 64 bits. Millions of such values fit before all sums must be
/// moved to 128 bits. Larger values are added in 128 bits at once.
const LARGE_BITS: u32 = 40;

/// Sums by slot, in 64 bits while they fit.
#[derive(Debug, Default)]
pub(crate) struct SlotSums {
    /// Current number of slots; `narrow`, `groups` and `zeros` keep the largest length ever needed.
    slots: usize,
    /// Slots that additions can reach. The first of them is slot 0 of an addition.
    reachable: Range<usize>,
    narrow: Vec<i64>,
    /// Sums in 128 bits: large values, and sums that were moved from `narrow` before it could overflow.
    wide: HashMap<u32, i128, FixedState>,
    /// For each group of slots: not 0 if anything was added to one of them. This is a byte, so it can be set without
    /// being read.
    groups: Vec<u8>,
    /// One bit for each slot. It is set if something was added to the slot that may have left its sum at 0.
    zeros: Vec<u64>,
    bound: u64,
}

impl SlotSums {
    /// Sets the number of slots, and lets additions reach all of them. The sums of slots that remain are kept.
    pub(crate) fn resize(&mut self, slots: usize) {
        self.slots = slots;
        self.reachable = 0..slots;
        if self.narrow.is_empty() {
            // Allocated as zeros, so the system provides each page only on first use.
            self.narrow = vec![0; slots];
            self.groups = vec![0; slots.div_ceil(GROUP)];
            self.zeros = vec![0; slots.div_ceil(GROUP)];
        } else if slots > self.narrow.len() {
            self.narrow.resize(slots, 0);
            self.groups.resize(slots.div_ceil(GROUP), 0);
            self.zeros.resize(slots.div_ceil(GROUP), 0);
        }
    }

    /// Lets additions reach only the `count` slots from `first` on. Slot 0 of an addition is then slot `first`.
    pub(crate) fn reach(&mut self, first: usize, count: usize) {
        let end = first.saturating_add(count).min(self.slots);
        self.reachable = first.min(end)..end;
    }

    /// Prepares the 64-bit slots for `values` values of one sign that add up to `total`. Returns `false` if the values
    /// are too large. The caller then adds each value separately, so that a few large values do not move all sums
    /// repeatedly.
    pub(crate) fn reserve(&mut self, total: i128, values: usize) -> bool {
        let is_small = total.unsigned_abs() <= (values as u128) << LARGE_BITS;
        let Some(total) =
            u64::try_from(total.unsigned_abs()).ok().filter(|&total| is_small && total <= i64::MAX.unsigned_abs())
        else {
            return false;
        };
        if self.bound + total > i64::MAX.unsigned_abs() {
            self.spill();
        }
        self.bound += total;
        true
    }

    fn spill(&mut self) {
        let Self { narrow, wide, zeros, .. } = self;
        for (slot, sum) in (0_u32..).zip(narrow).filter(|(_, sum)| **sum != 0) {
            *wide.entry(slot).or_default() += i128::from(std::mem::take(sum));
            let slot = slot as usize;
            if let Some(zeros) = zeros.get_mut(slot / GROUP) {
                *zeros |= 1 << (slot % GROUP);
            }
        }
        self.bound = 0;
    }

    /// Adds to one slot; `None` if the slot does not exist.
    pub(crate) fn add(&mut self, slot: u32, value: i128) -> Option<()> {
        let reserved = self.reserve(value, 1);
        let index = self.reachable.start + slot as usize;
        let sum = self.narrow.get_mut(..self.reachable.end)?.get_mut(index)?;
        if reserved {
            *sum += value as i64;
        } else {
            let wide = self.wide.entry(u32::try_from(index).ok()?).or_default();
            *wide = wide.checked_add(value)?;
        }
        self.note_zero(index)
    }

    /// Adds `values[i]` to `slots[i]`; `None` if a slot does not exist.
    pub(crate) fn add_each(&mut self, slots: &[u32], values: &[i64]) -> Option<()> {
        // The bitwise OR of all values is at least as large as each of them, and negative if one is negative.
        let (bits, least, total) = values.iter().fold((0, i64::MAX, 0_i64), |(bits, least, total), &value| {
            (bits | value, least.min(value), total.wrapping_add(value))
        });
        let is_small = (0..1 << LARGE_BITS).contains(&bits) && values.len() < 1 << (63 - LARGE_BITS);
        if !is_small || least < 1 || !self.reserve(total.into(), values.len()) {
            return slots.iter().zip(values).try_for_each(|(&slot, &value)| self.add(slot, value.into()));
        }
        let first = self.reachable.start;
        let sums = self.narrow.get_mut(self.reachable.clone())?;
        let groups = self.groups.as_mut_slice();
        for (&slot, &value) in slots.iter().zip(values) {
            let sum = sums.get_mut(slot as usize)?;
            *sum = sum.wrapping_add(value);
            *groups.get_mut((first + slot as usize) / GROUP)? = 1;
        }
        Some(())
    }

    /// Records that the sum of a slot may be 0 after an addition.
    fn note_zero(&mut self, slot: usize) -> Option<()> {
        *self.groups.get_mut(slot / GROUP)? = 1;
        *self.zeros.get_mut(slot / GROUP)? |= 1 << (slot % GROUP);
        Some(())
    }

    /// Adds `values[i] * unit` to `slots[i]`; `None` if a slot does not exist. The total must be reserved before.
    pub(crate) fn add_block(&mut self, slots: &[u32], values: &[u32], unit: u64) -> Option<()> {
        let first = self.reachable.start;
        let sums = self.narrow.get_mut(self.reachable.clone())?;
        let groups = self.groups.as_mut_slice();
        let mut is_any_zero = false;
        for (&slot, &value) in slots.iter().zip(values) {
            let sum = sums.get_mut(slot as usize)?;
            *sum = sum.wrapping_add(u64::from(value).wrapping_mul(unit).cast_signed());
            *groups.get_mut((first + slot as usize) / GROUP)? = 1;
            is_any_zero |= value == 0;
        }
        if is_any_zero {
            let zeros = slots.iter().zip(values).filter(|(_, value)| **value == 0);
            zeros.map(|(slot, _)| first + *slot as usize).try_for_each(|slot| self.note_zero(slot))?;
        }
        Some(())
    }

    /// Adds one value to all these slots; `None` if a slot does not exist. The total must be reserved before.
    pub(crate) fn add_same(&mut self, slots: &[u32], value: u64) -> Option<()> {
        if value == 0 {
            return slots.iter().try_for_each(|&slot| self.add(slot, 0));
        }
        let first = self.reachable.start;
        let sums = self.narrow.get_mut(self.reachable.clone())?;
        let groups = self.groups.as_mut_slice();
        for &slot in slots {
            let sum = sums.get_mut(slot as usize)?;
            *sum = sum.wrapping_add(value.cast_signed());
            *groups.get_mut((first + slot as usize) / GROUP)? = 1;
        }
        Some(())
    }

    /// Moves all sums of another table here; `None` if it has more slots than this one, or if a sum overflows.
    pub(crate) fn take(&mut self, other: &mut Self) -> Option<()> {
        if other.slots > self.slots {
            return None;
        }
        if self.bound.saturating_add(other.bound) > i64::MAX.unsigned_abs() {
            self.spill();
            other.spill();
        }
        self.bound += std::mem::take(&mut other.bound);
        let theirs = other.narrow.chunks_mut(GROUP).zip(&mut other.groups).zip(&mut other.zeros);
        let ours = self.narrow.chunks_mut(GROUP).zip(&mut self.groups).zip(&mut self.zeros);
        for (((to, noted), zeros), ((from, of_other), zeros_of_other)) in ours.zip(theirs) {
            if std::mem::take(of_other) != 0 {
                *noted = 1;
                *zeros |= std::mem::take(zeros_of_other);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = to.wrapping_add(std::mem::take(from)));
            }
        }
        for (slot, sum) in other.wide.drain() {
            let wide = self.wide.entry(slot).or_default();
            *wide = wide.checked_add(sum)?;
        }
        Some(())
    }

    /// Returns an upper bound of the number of slots to which something was added.
    pub(crate) fn used_max(&self) -> usize {
        self.groups.iter().filter(|noted| **noted != 0).count() * GROUP
    }

    /// Calls `visit` with the sum of every slot that was added to, ascending, and clears the slots.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(u32, i128)) {
        let Self { narrow, wide, groups, zeros, .. } = self;
        let of_groups = narrow.chunks_mut(GROUP).zip(groups).zip(zeros).enumerate();
        for (group, ((sums, noted), zeros)) in of_groups.filter(|(_, ((_, noted), _))| **noted != 0) {
            *noted = 0;
            let mut bits = std::mem::take(zeros);
            for (slot, &sum) in sums.iter().enumerate() {
                bits |= u64::from(sum != 0) << slot;
            }
            while bits != 0 {
                let index = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let sum = sums.get_mut(index).map(std::mem::take).unwrap_or_default();
                let slot = u32::try_from(group * GROUP + index).unwrap_or(u32::MAX);
                let before = if wide.is_empty() { 0 } else { wide.remove(&slot).unwrap_or_default() };
                visit(slot, i128::from(sum) + before);
            }
        }
        self.bound = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_beyond_64_bits_are_exact() {
        let mut slots = SlotSums::default();
        slots.resize(3);
        for _ in 0..3 {
            assert_eq!(slots.add(0, i128::from(i64::MAX)), Some(()));
            assert_eq!(slots.add(1, i128::from(i64::MIN)), Some(()));
            assert_eq!(slots.add(1, i128::from(i64::MAX) * 100), Some(()));
        }
        assert_eq!(slots.add(2, 0), Some(()));
        assert_eq!(slots.add(3, 0), None);
        let mut got = Vec::new();
        slots.drain(|slot, sum| got.push((slot, sum)));
        let min = i128::from(i64::MIN);
        let max = i128::from(i64::MAX);
        assert_eq!(got, [(0, max * 3), (1, min * 3 + max * 300), (2, 0)]);
        slots.drain(|_, _| panic!("the slots were cleared"));
    }

    #[test]
    fn slots_above_the_current_number_do_not_exist() {
        let mut slots = SlotSums::default();
        slots.resize(100);
        assert_eq!(slots.add(99, 1), Some(()));
        slots.drain(|_, _| ());
        slots.resize(50);
        assert_eq!((slots.add(49, 1), slots.add(50, 1)), (Some(()), None));
        assert_eq!((slots.add_block(&[99], &[1], 1), slots.add_same(&[50], 1)), (None, None));
        let mut got = Vec::new();
        slots.drain(|slot, sum| got.push((slot, sum)));
        assert_eq!(got, [(49, 1)]);
    }

    #[test]
    fn additions_reach_only_their_slots() {
        let mut slots = SlotSums::default();
        slots.resize(300);
        slots.reach(100, 50);
        assert_eq!((slots.add(49, 1), slots.add(50, 1)), (Some(()), None));
        assert_eq!(slots.add(7, i128::from(i64::MAX) * 4), Some(()));
        assert_eq!((slots.add_each(&[0, 9], &[3, 4]), slots.add_each(&[50], &[3])), (Some(()), None));
        assert_eq!((slots.add_same(&[1], 6), slots.add_same(&[50], 6)), (Some(()), None));
        assert_eq!((slots.add_block(&[2, 3], &[0, 1], 5), slots.add_block(&[50], &[1], 5)), (Some(()), None));
        slots.reach(290, 50);
        assert_eq!((slots.add(9, 2), slots.add(10, 2)), (Some(()), None));
        let mut got = Vec::new();
        slots.drain(|slot, sum| got.push((slot, sum)));
        let large = i128::from(i64::MAX) * 4;
        assert_eq!(got, [(100, 3), (101, 6), (102, 0), (103, 5), (107, large), (109, 4), (149, 1), (299, 2)]);
    }

    #[test]
    fn slots_whose_values_add_up_to_zero_are_visited() {
        let mut slots = SlotSums::default();
        slots.resize(200);
        assert!(slots.reserve(7, 2));
        assert_eq!(slots.add_block(&[3, 70], &[0, 1], 7), Some(()));
        assert_eq!(slots.add_same(&[130], 0), Some(()));
        // 5 is added, then subtracted.
        assert!(slots.reserve(5, 1));
        assert_eq!((slots.add_same(&[199], 5), slots.add(199, -5)), (Some(()), Some(())));
        let mut got = Vec::new();
        assert_eq!(slots.used_max(), 4 * GROUP);
        slots.drain(|slot, sum| got.push((slot, sum)));
        assert_eq!((got.as_slice(), slots.used_max()), ([(3, 0), (70, 7), (130, 0), (199, 0)].as_slice(), 0));
        // A slot whose sum was moved to 128 bits.
        assert!(slots.reserve(i64::MAX.into(), 1 << 23));
        assert_eq!(slots.add_same(&[9], i64::MAX as u64), Some(()));
        assert!(slots.reserve(1, 1));
        got.clear();
        slots.drain(|slot, sum| got.push((slot, sum)));
        assert_eq!(got, [(9, i64::MAX.into())]);
    }

    #[test]
    fn values_of_samples_are_added_exactly() {
        let mut slots = SlotSums::default();
        slots.resize(100);
        assert_eq!(slots.add_each(&[3, 70, 3], &[5, 6, 7]), Some(()));
        assert_eq!(slots.add_each(&[3, 71, 72], &[-12, 0, 1 << 50]), Some(()));
        assert_eq!((slots.add_each(&[100], &[1]), slots.add_each(&[100], &[0])), (None, None));
        let mut got = Vec::new();
        slots.drain(|slot, sum| got.push((slot, sum)));
        assert_eq!(got, [(3, 0), (70, 6), (71, 0), (72, 1 << 50)]);
    }

    #[test]
    fn sums_of_several_tables_add_up() {
        let mut tables: [SlotSums; 3] = Default::default();
        for (at, table) in tables.iter_mut().enumerate() {
            table.resize(200);
            table.reach(100, 100);
            let value = at as i128 + 1;
            assert_eq!((table.add(5, value), table.add(6 + at as u32, 0)), (Some(()), Some(())));
            assert_eq!(table.add(50, i128::from(i64::MAX) * value), Some(()));
            // Each of the tables fits 64 bits, and their sum does not.
            assert!(table.reserve(1 << 62, 1 << 23));
            assert_eq!((table.add_same(&[60], 1 << 62), table.wide.len()), (Some(()), 1));
        }
        let [first, others @ ..] = &mut tables;
        assert!(others.iter_mut().all(|other| first.take(other) == Some(())));
        let mut got = Vec::new();
        first.drain(|slot, sum| got.push((slot, sum)));
        let large = i128::from(i64::MAX) * 6;
        assert_eq!(got, [(105, 6), (106, 0), (107, 0), (108, 0), (150, large), (160, 3 << 62)]);
        others.iter_mut().for_each(|other| other.drain(|_, _| panic!("the sums were moved")));
        others[0].resize(201);
        assert_eq!(first.take(&mut others[0]), None, "more slots");
        first.resize(200);
        others[0].resize(200);
        assert_eq!((first.add(7, i128::MAX), others[0].add(7, 1 << 70)), (Some(()), Some(())));
        assert_eq!(first.take(&mut others[0]), None, "overflow");
    }

    // Two values of 2^62 used to move all sums, so a push of millions of them took minutes.
    #[test]
    fn large_values_do_not_move_the_sums() {
        let mut slots = SlotSums::default();
        slots.resize(10);
        assert_eq!(slots.add(3, 7), Some(()));
        for _ in 0..1000 {
            assert_eq!(slots.add(4, 1 << 62), Some(()));
            assert!(!slots.reserve(1 << 62, 1000));
        }
        assert_eq!(slots.bound, 7);
        let mut got = Vec::new();
        slots.drain(|slot, sum| got.push((slot, sum)));
        assert_eq!(got, [(3, 7), (4, 1000 << 62)]);
    }
}
