//! Codes of series by the values of several labels, computed one label after another.
//!
//! Invariant: codes are dense and from 0 on, and their order is that of the refinements.

use crate::memory::interner::saturating_u32;

/// Largest size of a table for a refinement, in entries for each series. A larger table would take more memory and
/// time than sorting.
const TABLE_PER_SERIES: usize = 8;

/// A code for each of some series.
#[derive(Debug)]
pub(crate) struct Codes {
    pub(crate) codes: Vec<u32>,
    /// Number of codes. All codes are below.
    pub(crate) count: usize,
}

impl Codes {
    /// Returns the same code for all series.
    pub(crate) fn same(series: usize) -> Self {
        Self { codes: vec![0; series], count: series.min(1) }
    }

    /// Returns a different code for each series.
    pub(crate) fn distinct(series: usize) -> Self {
        Self { codes: (0..saturating_u32(series)).collect(), count: series }
    }

    /// Gives different codes to series that have different numbers. The order of the new codes is that of the old
    /// codes, then that of the numbers.
    pub(crate) fn refine(&mut self, numbers: &[u32]) {
        let width = numbers.iter().max().map_or(1, |max| *max as usize + 1);
        if self.count.saturating_mul(width) <= self.codes.len().saturating_mul(TABLE_PER_SERIES) {
            self.refine_with_table(numbers, width);
        } else {
            self.refine_by_sorting(numbers);
        }
    }

    /// The table has an entry for each combination of a code and a number.
    fn refine_with_table(&mut self, numbers: &[u32], width: usize) {
        let mut table = vec![0_u32; self.count * width];
        let entry = |code: u32, number: u32| code as usize * width + number as usize;
        for (code, number) in self.codes.iter().zip(numbers) {
            if let Some(is_used) = table.get_mut(entry(*code, *number)) {
                *is_used = 1;
            }
        }
        let mut count = 0;
        for entry in &mut table {
            count += std::mem::replace(entry, count);
        }
        for (code, number) in self.codes.iter_mut().zip(numbers) {
            *code = table.get(entry(*code, *number)).copied().unwrap_or_default();
        }
        self.count = count as usize;
    }

    fn refine_by_sorting(&mut self, numbers: &[u32]) {
        // The code so far in the upper half, and the number in the lower half.
        let joined = self.codes.iter().zip(numbers).map(|(code, number)| u64::from(*code) << 32 | u64::from(*number));
        let joined: Vec<u64> = joined.collect();
        let mut distinct = joined.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for (code, joined) in self.codes.iter_mut().zip(joined) {
            *code = saturating_u32(distinct.partition_point(|known| *known < joined));
        }
        self.count = distinct.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_table_and_sorting_give_the_same_codes(
            rows in prop::collection::vec((0..4_u32, prop_oneof![0..5_u32, 0..300_u32], 0..3_u32), 0..60),
        ) {
            let mut wanted: Vec<_> = rows.clone();
            wanted.sort_unstable();
            wanted.dedup();
            let wanted: Vec<u32> = rows.iter().map(|row| wanted.binary_search(row).unwrap() as u32).collect();
            let columns: [Vec<u32>; 3] = [
                rows.iter().map(|row| row.0).collect(),
                rows.iter().map(|row| row.1).collect(),
                rows.iter().map(|row| row.2).collect(),
            ];
            let with_table = |codes: &mut Codes, numbers: &[u32]| {
                codes.refine_with_table(numbers, numbers.iter().max().map_or(1, |max| *max as usize + 1));
            };
            type Refine<'a> = &'a dyn Fn(&mut Codes, &[u32]);
            let refinements: [Refine<'_>; 3] = [
                &with_table,
                &|codes, numbers| codes.refine_by_sorting(numbers),
                &|codes, numbers| codes.refine(numbers),
            ];
            for refine in refinements {
                let mut codes = Codes::same(rows.len());
                columns.iter().for_each(|numbers| refine(&mut codes, numbers));
                prop_assert_eq!(&codes.codes, &wanted);
                prop_assert_eq!(codes.count, wanted.iter().max().map_or(0, |max| *max as usize + 1));
            }
        }
    }
}
