//! Sums by small numbers, one slot for each: stacks of a partition, or buckets of time.
//!
//! Slots hold 64 bits, since that is fast; `bound` says how far any of them may be from zero, and before one could overflow all
//! are moved to 128 bits.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Dense {
    /// How many there are; `narrow` and `touched` stay as long as they were ever needed.
    slots: usize,
    narrow: Vec<i64>,
    /// What narrow slots had before they could have overflowed.
    wide: HashMap<u32, i128, FixedState>,
    /// A bit for each slot that anything was added to, be it zero.
    touched: Vec<u64>,
    bound: u64,
}

impl Dense {
    /// From now on there are so many slots; what was added to one that stays is kept.
    pub(crate) fn resize(&mut self, slots: usize) {
        self.slots = slots;
        if self.narrow.is_empty() {
            // Made zero by the system where it is first used.
            self.narrow = vec![0; slots];
            self.touched = vec![0; slots.div_ceil(64)];
        } else if slots > self.narrow.len() {
            self.narrow.resize(slots, 0);
            self.touched.resize(slots.div_ceil(64), 0);
        }
    }

    /// Makes sure that sums of values of one sign, up to `total` together, fit; `false` if they are too large for any slot.
    pub(crate) fn reserve(&mut self, total: i128) -> bool {
        let Some(total) = u64::try_from(total.unsigned_abs()).ok().filter(|&total| total <= i64::MAX.unsigned_abs())
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
        let Self { narrow, wide, .. } = self;
        for (slot, sum) in (0..).zip(narrow).filter(|(_, sum)| **sum != 0) {
            *wide.entry(slot).or_default() += i128::from(std::mem::take(sum));
        }
        self.bound = 0;
    }

    /// Adds to one slot; `None` if there is no such.
    pub(crate) fn add(&mut self, slot: u32, value: i128) -> Option<()> {
        let reserved = self.reserve(value);
        let index = slot as usize;
        let sum = self.narrow.get_mut(..self.slots)?.get_mut(index)?;
        if reserved {
            *sum += value as i64;
        } else {
            let wide = self.wide.entry(slot).or_default();
            *wide = wide.checked_add(value)?;
        }
        *self.touched.get_mut(index / 64)? |= 1 << (index % 64);
        Some(())
    }

    /// Adds `values[i] * unit`, whose sum was reserved, to `slots[i]`. `None` if there is no such slot.
    pub(crate) fn add_block(&mut self, slots: &[u32], values: &[u32], unit: u64) -> Option<()> {
        let sums = self.narrow.get_mut(..self.slots)?;
        for (&slot, &value) in slots.iter().zip(values) {
            let slot = slot as usize;
            let sum = sums.get_mut(slot)?;
            *sum = sum.wrapping_add(u64::from(value).wrapping_mul(unit).cast_signed());
            *self.touched.get_mut(slot / 64)? |= 1 << (slot % 64);
        }
        Some(())
    }

    /// Adds the same value, which was reserved, to all these slots. `None` if there is no such slot.
    pub(crate) fn add_same(&mut self, slots: &[u32], value: u64) -> Option<()> {
        let sums = self.narrow.get_mut(..self.slots)?;
        for &slot in slots {
            let slot = slot as usize;
            let sum = sums.get_mut(slot)?;
            *sum = sum.wrapping_add(value.cast_signed());
            *self.touched.get_mut(slot / 64)? |= 1 << (slot % 64);
        }
        Some(())
    }

    /// Gives every slot that anything was added to, ascending, and empties it.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(u32, i128)) {
        for (word, touched) in self.touched.iter_mut().enumerate() {
            let mut bits = std::mem::take(touched);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let sum = i128::from(std::mem::take(&mut self.narrow[slot]));
                let slot = u32::try_from(slot).unwrap_or(u32::MAX);
                let wide = if self.wide.is_empty() { 0 } else { self.wide.remove(&slot).unwrap_or_default() };
                visit(slot, sum + wide);
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
        let mut dense = Dense::default();
        dense.resize(3);
        for _ in 0..3 {
            assert_eq!(dense.add(0, i128::from(i64::MAX)), Some(()));
            assert_eq!(dense.add(1, i128::from(i64::MIN)), Some(()));
            assert_eq!(dense.add(1, i128::from(i64::MAX) * 100), Some(()));
        }
        assert_eq!(dense.add(2, 0), Some(()));
        assert_eq!(dense.add(3, 0), None);
        let mut got = Vec::new();
        dense.drain(|slot, sum| got.push((slot, sum)));
        let (min, max) = (i128::from(i64::MIN), i128::from(i64::MAX));
        assert_eq!(got, [(0, max * 3), (1, min * 3 + max * 300), (2, 0)]);
        dense.drain(|_, _| panic!("it was emptied"));
    }

    #[test]
    fn a_slot_of_an_earlier_larger_use_is_none() {
        let mut dense = Dense::default();
        dense.resize(100);
        assert_eq!(dense.add(99, 1), Some(()));
        dense.drain(|_, _| ());
        dense.resize(50);
        assert_eq!((dense.add(49, 1), dense.add(50, 1)), (Some(()), None));
        assert_eq!((dense.add_block(&[99], &[1], 1), dense.add_same(&[50], 1)), (None, None));
        let mut got = Vec::new();
        dense.drain(|slot, sum| got.push((slot, sum)));
        assert_eq!(got, [(49, 1)]);
    }
}
