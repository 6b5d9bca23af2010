//! Sets of addresses, and the splitting of overlapping ranges into disjoint ones.

use std::cmp::Reverse;

/// A set of addresses as sorted, disjoint, non-empty ranges `start..end`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    ranges: Vec<(u64, u64)>,
}

impl Coverage {
    /// Returns the union of `ranges`, which may overlap and be in any order. Adjacent ranges are not merged, because
    /// adjacent sections must stay distinct.
    pub(super) fn new(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        ranges.dedup_by(|next, merged| {
            let overlaps = next.0 < merged.1;
            if overlaps {
                merged.1 = merged.1.max(next.1);
            }
            overlaps
        });
        Self { ranges }
    }

    /// Returns whether all of `start..end` is covered.
    pub(super) fn contains(&self, start: u64, end: u64) -> bool {
        self.at(start).is_some_and(|(_, covered_end)| start < end && end <= covered_end)
    }

    /// Returns the range of the set that contains `address`.
    pub(super) fn at(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        self.ranges.get(after.checked_sub(1)?).copied().filter(|(_, end)| address < *end)
    }

    /// Returns the parts of `start..end` that are not covered.
    pub(super) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.ranges.partition_point(|(_, covered_end)| *covered_end <= start);
        let mut gaps = Vec::new();
        let mut at = start;
        for (covered_start, covered_end) in self.ranges.iter().skip(first).take_while(|range| range.0 < end) {
            if at < *covered_start {
                gaps.push((at, *covered_start));
            }
            at = *covered_end;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }
}

/// Splits ranges `start..end`, which may overlap, into sorted disjoint ones. If several ranges contain an address, the
/// address belongs to the one with the highest start, and of those with the same start to the shortest.
pub(super) fn flatten<T: Clone>(mut ranges: Vec<(u64, u64, T)>) -> Vec<(u64, u64, T)> {
    // The sort is stable. Of two equal ranges, the later one in the caller's order is thus the inner one, and gets the
    // addresses.
    ranges.sort_by_key(|(start, end, _)| (*start, Reverse(*end)));
    let mut pieces = Vec::new();
    let mut open: Vec<(u64, u64, T)> = Vec::new();
    let mut at = 0;
    let mut emit = |at: &mut u64, end: u64, of: &T| {
        if *at < end {
            pieces.push((*at, end, of.clone()));
            *at = end;
        }
    };
    for range in ranges {
        while let Some((_, end, of)) = open.pop_if(|(_, end, _)| *end <= range.0) {
            emit(&mut at, end, &of);
        }
        if let Some((_, _, around)) = open.last() {
            emit(&mut at, range.0, around);
        }
        at = at.max(range.0);
        open.push(range);
    }
    while let Some((_, end, of)) = open.pop() {
        emit(&mut at, end, &of);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_belongs_to_the_range_that_begins_last_around_it(
            ranges in proptest::collection::vec((0_u64..60, 0_u64..30), 0..12),
        ) {
            let ranges: Vec<_> = (0..).zip(&ranges).map(|(i, (start, length))| (*start, start + length, i)).collect();
            let pieces = flatten(ranges.clone());
            prop_assert!(pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", pieces);
            for address in 0..100 {
                let around = |(start, end, _): &&(u64, u64, usize)| (*start..*end).contains(&address);
                let expected = ranges.iter().filter(around).max_by_key(|(start, end, i)| (*start, Reverse(*end), *i));
                let found: Vec<_> = pieces.iter().filter(around).map(|piece| piece.2).collect();
                prop_assert_eq!(found, expected.map(|range| range.2).into_iter().collect::<Vec<_>>(), "{}", address);
            }
        }
    }

    #[test]
    fn adjacent_ranges_stay_separate() {
        let coverage = Coverage::new(vec![(5, 7), (2, 5)]);
        assert!(coverage.contains(2, 5) && coverage.contains(5, 7) && !coverage.contains(4, 6));
        assert_eq!(coverage.gaps(0, 9), [(0, 2), (7, 9)]);
        assert_eq!((coverage.at(4), coverage.at(5)), (Some((2, 5)), Some((5, 7))));
    }

    #[test]
    fn gaps_and_coverage_agree_with_a_set_of_addresses() {
        let ranges = vec![(2, 4), (3, 6), (9, 9), (8, 10), (12, 13)];
        let coverage = Coverage::new(ranges.clone());
        let covered = |address: u64| ranges.iter().any(|(start, end)| (*start..*end).contains(&address));
        assert_eq!(coverage.ranges, [(2, 6), (8, 10), (12, 13)]);
        for start in 0..15 {
            assert_eq!(coverage.at(start).is_some(), covered(start));
            for end in start..15 {
                let gaps: Vec<u64> = coverage.gaps(start, end).into_iter().flat_map(|gap| gap.0..gap.1).collect();
                let expected: Vec<u64> = (start..end).filter(|address| !covered(*address)).collect();
                assert_eq!(gaps, expected, "{start}..{end}");
                assert_eq!(coverage.contains(start, end), start < end && expected.is_empty(), "{start}..{end}");
            }
        }
    }
}
