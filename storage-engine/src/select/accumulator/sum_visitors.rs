//! Visitors that add up the samples of a series.

use std::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{Samples, limits};

use crate::encoding::slot_sums::SlotSums;
use crate::error::SelectError;
use crate::select::grouping::{Grouping, Groups};
use crate::select::read::visitor::{Need, ReadSums, VisitError, Visitor};
use crate::select::stack_filter::Passing;
use crate::select::view::{PartView, View};

/// Meaning of the slots in a table of sums (one for each pair, or one for each bucket), and their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slots {
    Pairs(usize),
    Buckets(usize),
}

impl Slots {
    pub(crate) fn count(self) -> usize {
        let (Self::Pairs(count) | Self::Buckets(count)) = self;
        count
    }
}

/// Takes the place of the pair number for samples whose stack does not pass the filters. No pair has this number.
pub(crate) const UNPASSED: u32 = u32::MAX;

/// Sums by group, bucket (or time), and pair.
pub(crate) type Sparse = HashMap<(u32, i64, u32), i128, FixedState>;

/// Numbers of samples and rows that were added.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Added {
    pub(crate) samples: u64,
    /// Number of rows: sums of stacks, and samples that were read one by one.
    pub(crate) rows: u64,
}

/// Checks the number of cells and the memory of the groups against their limits.
pub(crate) fn check_size(cells: usize, groups: &Groups) -> Result<(), SelectError> {
    let cells_max = limits::QUERY_CELLS_MAX;
    let bytes_max = limits::QUERY_GROUP_BYTES_MAX;
    if groups.memory_bytes() > bytes_max {
        return Err(SelectError::TooManyGroups { bytes_max });
    }
    if cells > cells_max { Err(SelectError::TooLarge { cells_max }) } else { Ok(()) }
}

/// Visitor that adds all samples of a series, regardless of the attributes of the samples.
pub(crate) struct WholeAdder<'a> {
    pub(crate) dense: &'a mut SlotSums,
    pub(crate) slots: Slots,
    /// Pairs that pass the filters; `None` if all stacks pass. If each pair has a slot, all pairs are added, and the
    /// caller filters them when it drains the slots.
    pub(crate) passing: Option<&'a Passing>,
    /// Buckets that have samples, whether their stacks pass or not.
    pub(crate) seen: &'a mut SlotSums,
    pub(crate) added: Added,
}

impl WholeAdder<'_> {
    /// Adds the total of those samples of a bucket that pass the filters. `total` is `None` if no sample passes.
    /// Returns `None` if the bucket has no slot.
    fn add_passing(&mut self, bucket: u32, total: Option<i128>) -> Option<()> {
        self.seen.add(bucket, 0)?;
        total.map_or(Some(()), |total| self.dense.add(bucket, total))
    }
}

impl Visitor for WholeAdder<'_> {
    fn needs(&mut self, _first_ns: i64, _last_ns: i64) -> Need {
        Need::Sums
    }

    fn takes_totals(&self) -> bool {
        matches!((self.slots, self.passing), (Slots::Buckets(_), None))
    }

    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<(), VisitError> {
        self.added.samples += read.samples;
        let added = match (self.slots, self.passing) {
            (Slots::Pairs(_), _) => {
                self.added.rows += read.sums.rows() as u64;
                read.sums.add_to(self.dense, read.total)
            }
            (Slots::Buckets(_), None) => self.dense.add(bucket, read.total),
            (Slots::Buckets(_), Some(passing)) => {
                self.added.rows += read.sums.rows() as u64;
                let mut total = None;
                let read = read.sums.for_each(|pair, sum| {
                    if passing.has(pair)? {
                        total = Some(total.unwrap_or(0_i128).checked_add(sum)?);
                    }
                    Some(())
                });
                read.and_then(|()| self.add_passing(bucket, total))
            }
        };
        added.ok_or(VisitError::Damaged)
    }

    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<(), VisitError> {
        self.added.samples += rows.len() as u64;
        self.added.rows += rows.len() as u64;
        if let Slots::Buckets(_) = self.slots {
            let Some(passing) = self.passing else {
                return self.dense.add(bucket, sum_of(&samples.values[rows])).ok_or(VisitError::Damaged);
            };
            let mut total = None;
            for (&pair, &value) in samples.pairs[rows.clone()].iter().zip(&samples.values[rows]) {
                match passing.has(pair) {
                    Some(true) => total = Some(total.unwrap_or(0) + i128::from(value)),
                    Some(false) => {}
                    None => return Err(VisitError::Damaged),
                }
            }
            return self.add_passing(bucket, total).ok_or(VisitError::Damaged);
        }
        self.dense.add_each(&samples.pairs[rows.clone()], &samples.values[rows]).ok_or(VisitError::Damaged)
    }
}

/// Returns the sum of values. Sums the upper and the lower 32 bits separately, because SIMD then adds several 64-bit
/// numbers at a time.
fn sum_of(values: &[i64]) -> i128 {
    // SIMD shifts only unsigned numbers. So 2^63 is added to each value, and subtracted from the total.
    const SHIFTED: i64 = i64::MIN;
    let of_part = |values: &[i64]| {
        let (upper, lower) = values.iter().fold((0_u64, 0_u64), |(upper, lower), value| {
            let number = (value ^ SHIFTED).cast_unsigned();
            (upper.wrapping_add(number >> 32), lower.wrapping_add(number & u64::from(u32::MAX)))
        });
        (i128::from(upper) << 32) + i128::from(lower) + i128::from(SHIFTED) * values.len() as i128
    };
    // The sum of 2^31 numbers of 32 bits is below 2^64.
    values.chunks(1 << 31).map(of_part).sum()
}

/// Visitor that adds samples by their attributes or their times.
pub(crate) struct AttributeAdder<'a, 'q> {
    pub(crate) view: &'a View<'a>,
    pub(crate) part: &'a PartView,
    pub(crate) grouping: &'a mut Grouping<'q>,
    pub(crate) groups: &'a mut Groups,
    pub(crate) sparse: &'a mut Sparse,
    pub(crate) by_time: bool,
    pub(crate) keeps_stacks: bool,
    /// Pairs that pass the filters; `None` if all stacks pass.
    pub(crate) passing: Option<&'a Passing>,
    /// Time of the samples to add, in nanoseconds; `None` to add the samples of all times.
    pub(crate) last_ns: Option<i64>,
    pub(crate) added: Added,
}

impl AttributeAdder<'_, '_> {
    /// Adds a sum to a group, bucket and pair; returns `None` if there is no such pair.
    fn add(&mut self, group: u32, bucket: i64, pair: u32, sum: i128) -> Option<()> {
        let passes = self.passing.map_or(Some(true), |passing| passing.has(pair))?;
        let (pair, sum) = match (passes, self.keeps_stacks) {
            (true, true) => (pair, sum),
            (true, false) => (0, sum),
            (false, _) => (UNPASSED, 0),
        };
        *self.sparse.entry((group, bucket, pair)).or_default() += sum;
        Some(())
    }
}

impl Visitor for AttributeAdder<'_, '_> {
    fn needs(&mut self, first_ns: i64, last_ns: i64) -> Need {
        match self.last_ns {
            Some(only) if only < first_ns || last_ns < only => Need::Nothing,
            None if !self.by_time && !self.grouping.reads_attributes() => Need::Sums,
            _ => Need::Samples,
        }
    }

    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<(), VisitError> {
        if self.last_ns.is_some() && self.last_ns != read.last_ns {
            return Ok(());
        }
        // Windows are read as sums only if no sample has a requested attribute.
        let Some(group) = self.grouping.group(self.groups, None, 0) else { return Ok(()) };
        self.added.samples += read.samples;
        self.added.rows += read.sums.rows() as u64;
        let bucket = self.last_ns.unwrap_or(bucket.into());
        let read = read.sums.for_each(|pair, sum| {
            let known = (pair as usize) < self.part.known.pairs;
            if known { self.add(group, bucket, pair, sum) } else { None }
        });
        check_size(self.sparse.len(), self.groups)?;
        read.ok_or(VisitError::Damaged)
    }

    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<(), VisitError> {
        self.added.rows += rows.len() as u64;
        for row in rows {
            let time_ns = samples.times_ns[row];
            let set = samples.attribute_sets[row];
            let pair = samples.pairs[row];
            if set as usize >= self.part.known.attribute_sets || pair as usize >= self.part.known.pairs {
                return Err(VisitError::Damaged);
            }
            if self.last_ns.is_some_and(|last_ns| last_ns != time_ns) {
                continue;
            }
            let names = self.view.shared.as_ref().map(|shared| (shared, &self.part.partition));
            let Some(group) = self.grouping.group(self.groups, names, set) else { continue };
            let bucket = if self.by_time { time_ns } else { bucket.into() };
            self.add(group, bucket, pair, samples.values[row].into()).ok_or(VisitError::Damaged)?;
            self.added.samples += 1;
        }
        check_size(self.sparse.len(), self.groups)?;
        Ok(())
    }
}

/// Visitor that finds the last time at which a series has a sample, in nanoseconds since 1970.
pub(crate) struct LastTime(pub(crate) Option<i64>);

impl Visitor for LastTime {
    fn needs(&mut self, _first_ns: i64, last_ns: i64) -> Need {
        self.0 = self.0.max(Some(last_ns));
        Need::Nothing
    }

    fn sums(&mut self, _bucket: u32, read: &ReadSums<'_>) -> Result<(), VisitError> {
        self.0 = self.0.max(read.last_ns);
        Ok(())
    }

    fn samples(&mut self, _bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<(), VisitError> {
        self.0 = self.0.max(rows.last().map(|row| samples.times_ns[row]));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proto::{Fold, Label, LabelSet, Selection, TenantId};

    use super::*;

    #[test]
    fn groups_over_the_memory_budget_are_refused() {
        let fold = Fold::Sum(proto::Window::between(&[0, 1]));
        let tenant = TenantId::default_tenant();
        let stacks = proto::StackDetail::None;
        let locations = proto::LocationSets::default();
        let selection = Selection {
            tenant,
            matchers: Vec::new(),
            fold,
            group_by: Vec::new(),
            group_by_series: true,
            stacks,
            locations,
        };
        let mut groups = Groups::default();
        let value = "x".repeat(1 << 20);
        let group = |groups: &mut Groups, number: usize| {
            let labels = LabelSet::new(vec![Label::new("pod", format!("{number}{value}"))]);
            Grouping::new(&selection, &[], &labels).group(groups, None, 0)
        };
        let count = limits::QUERY_GROUP_BYTES_MAX >> 20;
        for number in 0..count - 1 {
            assert_eq!(group(&mut groups, number), Some(number as u32));
            assert_eq!(group(&mut groups, number), Some(number as u32), "known");
        }
        check_size(0, &groups).unwrap();
        group(&mut groups, count);
        assert!(matches!(check_size(0, &groups), Err(SelectError::TooManyGroups { .. })));
        let cells = check_size(limits::QUERY_CELLS_MAX + 1, &Groups::default());
        assert!(matches!(cells, Err(SelectError::TooLarge { .. })));
    }
}
