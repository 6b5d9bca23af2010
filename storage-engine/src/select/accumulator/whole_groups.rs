//! Sums of series whose samples are all in one group each.
//!
//! The groups of a block have slots next to each other: one slot for each group and bucket, or for each group and pair.
//! So the series can be read in the order in which they are stored, whatever their groups are.

use proto::LabelSet;

use crate::encoding::slot_sums::SlotSums;
use crate::error::SelectError;
use crate::select::accumulator::sum_visitors::{Added, Slots, UNPASSED, WholeAdder, check_size};
use crate::select::accumulator::{Accumulator, Input, PartSum, SLOTS_MAX};
use crate::select::read::PartReader;
use crate::select::read::threads::{pieces, run};

/// Number of sums that get their groups while the lock of the partition is held without a break. This takes a few
/// milliseconds. In unit tests, few sums make several pieces.
const SUMS_PER_LOCK: usize = if cfg!(test) { 5 } else { 4096 };

/// Largest number of slots of the tables of all threads together, unless one table alone has more.
const TABLES_SLOTS_MAX: usize = 2 * SLOTS_MAX;

/// Sums by slot of the series that one thread reads.
#[derive(Debug, Default)]
pub(super) struct Tables {
    dense: SlotSums,
    /// Buckets that have samples, even if the stack filters exclude all of them. Filled only if there are filters.
    seen: SlotSums,
}

/// Block of groups whose slots are next to each other.
#[derive(Clone, Copy)]
struct Block<'a> {
    input: Input<'a>,
    slots: Slots,
    /// Number of groups of each block.
    groups: usize,
}

impl Block<'_> {
    /// Adds the samples of series to the slots of their groups. `series` has the code and the index of each series.
    /// Returns the numbers of the series that had samples, and the numbers of these samples and rows.
    fn add(
        self,
        series: &[(u32, u32)],
        reader: &mut PartReader<'_>,
        tables: &mut Tables,
    ) -> Result<(Vec<u32>, Added), SelectError> {
        let Self { input: Input { part, passing, .. }, slots, groups } = self;
        let per_group = slots.count();
        let Tables { dense, seen } = tables;
        dense.resize(groups * per_group);
        seen.resize(if passing.is_some() { groups * per_group } else { 0 });
        let mut with_samples = Vec::new();
        let mut all = Added::default();
        for (code, at) in series {
            let Some(series) = part.series.get(*at as usize) else { continue };
            let first = *code as usize % groups * per_group;
            dense.reach(first, per_group);
            seen.reach(first, per_group);
            let mut adder = WholeAdder { dense, slots, passing, seen, added: Added::default() };
            reader.read(series, &mut adder)?;
            let added = adder.added;
            all.samples += added.samples;
            all.rows += added.rows;
            if added.samples > 0 {
                with_samples.push(series.number);
            }
        }
        Ok((with_samples, all))
    }
}

impl Accumulator<'_> {
    /// Adds the samples of the series of one block of `per_block` groups to slots, regardless of the attributes of the
    /// samples. `of_block` has the code and the index of each series, ordered by series. A group counts against the
    /// limits only if it has samples. `readers` has the reader of each thread, and grows as needed.
    pub(super) fn add_whole<'a>(
        &mut self,
        input: Input<'a>,
        readers: &mut Vec<PartReader<'a>>,
        of_block: &[(u32, u32)],
        slots: Slots,
        per_block: usize,
        sums: &mut Vec<PartSum>,
    ) -> Result<(), SelectError> {
        let Input { part, passing, .. } = input;
        let per_group = slots.count();
        self.read_block(Block { input, slots, groups: per_block }, readers, of_block)?;
        let Some(Tables { dense, seen }) = self.tables.first_mut() else { return Ok(()) };
        let first = sums.len();
        let mut with_unpassed = None;
        let no_stack = |group, bucket: i64| PartSum { group, bucket, pair: UNPASSED, series: 0, sum: 0 };
        let split = |slot: u32| (slot / per_group as u32, slot % per_group as u32);
        sums.reserve(dense.used_max());
        dense.drain(|slot, sum| match (slots, split(slot)) {
            (Slots::Buckets(_), (group, bucket)) => {
                sums.push(PartSum { group, bucket: bucket.into(), pair: 0, series: 0, sum });
            }
            (Slots::Pairs(_), (group, pair)) if passing.is_none_or(|passing| passing.has(pair) == Some(true)) => {
                sums.push(PartSum { group, bucket: 0, pair, series: 0, sum });
            }
            (Slots::Pairs(_), (group, _)) => {
                let is_known = with_unpassed.replace(group) == Some(group);
                sums.extend((!is_known).then(|| no_stack(group, 0)));
            }
        });
        seen.drain(|slot, _| {
            let (group, bucket) = split(slot);
            sums.push(no_stack(group, bucket.into()));
        });
        // A series of each group, by the code of the group in its block.
        let mut members = vec![None; per_block];
        for (code, at) in of_block {
            members[*code as usize % per_block] = part.series.get(*at as usize);
        }
        let mut numbers = vec![None; per_block];
        let no_labels = LabelSet::default();
        for piece in sums.get_mut(first..).unwrap_or_default().chunks_mut(SUMS_PER_LOCK) {
            // The lock is released between pieces, because `apply` waits for it.
            let partition = part.partition.read();
            for sum in piece {
                let in_block = sum.group as usize;
                let number = match numbers[in_block] {
                    Some(number) => number,
                    None => {
                        let labels = members[in_block].and_then(|series| partition.labels(series.number));
                        let number =
                            self.groups.number_of_series(self.selection, labels.map_or(&no_labels, AsRef::as_ref));
                        check_size(0, &self.groups)?;
                        *numbers[in_block].insert(number)
                    }
                };
                sum.group = number;
            }
        }
        check_size(sums.len(), &self.groups)
    }

    /// Reads the series of a block on several threads. The sums are then in the first tables.
    fn read_block<'a>(
        &mut self,
        block: Block<'a>,
        readers: &mut Vec<PartReader<'a>>,
        of_block: &[(u32, u32)],
    ) -> Result<(), SelectError> {
        // Each thread has tables of its own.
        let table_slots = block.groups.saturating_mul(block.slots.count()).max(1);
        let pieces = pieces(of_block, (TABLES_SLOTS_MAX / table_slots).max(1));
        self.tables.resize_with(self.tables.len().max(pieces.len()), Tables::default);
        let missing = pieces.len().saturating_sub(readers.len());
        readers.extend((0..missing).map(|_| PartReader::new(block.input.view, block.input.part)));
        let with_tables = pieces.iter().zip(readers.iter_mut()).zip(&mut self.tables);
        let jobs = with_tables.map(|((piece, reader), tables)| move || block.add(piece, reader, tables)).collect();
        let mut read = run(jobs).into_iter().collect::<Result<Vec<_>, _>>()?;
        let tables = self.tables.get_mut(..pieces.len()).unwrap_or_default();
        if merge(tables).is_none()
            && let (Some(tables), Some(reader)) = (self.tables.first_mut(), readers.first_mut())
        {
            // Only damaged sums overflow 128 bits. One thread finds the damaged value, and leaves it out.
            read = vec![block.add(of_block, reader, tables)?];
        }
        for (with_samples, added) in read {
            self.with_samples.extend(with_samples);
            self.added.samples += added.samples;
            self.added.rows += added.rows;
        }
        Ok(())
    }
}

/// Moves the sums of all tables to the first one, of which there must be one. If a sum overflows, returns `None` and
/// clears all tables.
fn merge(tables: &mut [Tables]) -> Option<()> {
    let (first, others) = tables.split_first_mut()?;
    let merged = others.iter_mut().try_for_each(|other| {
        first.dense.take(&mut other.dense)?;
        first.seen.take(&mut other.seen)
    });
    if merged.is_none() {
        for Tables { dense, seen } in tables {
            dense.drain(|_, _| {});
            seen.drain(|_, _| {});
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use parking_lot::RwLock;
    use proptest::prelude::*;
    use proto::{Answer, Fold, Label, LabelSet, LocationSets, Samples, Selection, StackDetail, TenantId, Tier, Window};

    use super::*;
    use crate::database::key::PartitionKey;
    use crate::memory::partition::Partition;
    use crate::memory::tenant_dictionary::Pair;
    use crate::select::accumulator::tests::empty_store;
    use crate::select::gather::{Aggregate, Collector as _, Progress, Query, ReadSummary, gather};
    use crate::select::plan::{Interval, PartPlan, Tiers};
    use crate::select::view::View;

    const SERIES: u32 = 12;
    const PAIRS: u32 = 5;

    /// Returns the service of a series. Neighbouring series have different services, and two series have none.
    fn service(series: u32) -> Option<String> {
        (series % 6 != 5).then(|| format!("{}", series % 4))
    }

    /// Returns a partition with samples, each of a series, a time, a pair and a value.
    fn partition(samples: &[(u32, i64, u32, i64)]) -> Partition {
        let tenant = TenantId::default_tenant();
        let mut partition = Partition::new(PartitionKey::of(Tier::Minute, 0, 0, 1), 0);
        (1..PAIRS).for_each(|user| assert!(partition.add_pair(Pair { user, kernel: 0 }).1));
        for series in 0..SERIES {
            let of_service = service(series).map(|service| Label::new("service", service));
            let labels =
                LabelSet::new(of_service.into_iter().chain([Label::new("pod", format!("{series}"))]).collect());
            partition.add_series(labels.fingerprint(&tenant), || Arc::new(labels));
        }
        for &(series, time_ns, pair, value) in samples {
            let mut one = Samples::default();
            one.push(time_ns, pair, value, 0);
            partition.head.add(series, one, 1);
        }
        partition
    }

    #[test]
    fn tables_whose_sums_overflow_are_cleared() {
        let mut tables: [Tables; 3] = Default::default();
        for Tables { dense, seen } in &mut tables {
            dense.resize(3);
            seen.resize(3);
            assert_eq!((dense.add(1, i128::MAX / 2), dense.add(2, 7), seen.add(0, 0)), (Some(()), Some(()), Some(())));
        }
        assert_eq!(merge(&mut tables[..2]), Some(()));
        let mut sums = Vec::new();
        tables[0].dense.drain(|slot, sum| sums.push((slot, sum)));
        assert_eq!(sums, [(1, i128::MAX / 2 * 2), (2, 14)]);
        let [first, second, third] = &mut tables;
        for dense in [&mut first.dense, &mut second.dense] {
            assert_eq!((dense.add(1, i128::MAX / 2), dense.add(2, 7)), (Some(()), Some(())));
        }
        assert_eq!(third.dense.add(1, 2), Some(()));
        assert_eq!(merge(&mut tables), None);
        for Tables { dense, seen } in &mut tables {
            dense.drain(|slot, sum| panic!("slot {slot} has {sum}"));
            seen.drain(|slot, _| panic!("slot {slot} was seen"));
        }
    }

    #[test]
    fn blocks_of_any_size_give_the_sums_of_each_group() {
        let directory = tempfile::tempdir().unwrap();
        let store = empty_store(directory.path());
        let sample = (0..SERIES, 1..31_i64, 0..PAIRS, -2..50_i64);
        proptest!(ProptestConfig::with_cases(64), |(samples in prop::collection::vec(sample, 0..60), by_pair: bool)| {
            let windows = Window::between(if by_pair { &[0, 30] } else { &[0, 10, 20, 30] });
            let mut wanted: BTreeMap<(String, u32), i128> = BTreeMap::new();
            for &(series, time_ns, _, value) in &samples {
                let bucket = windows.iter().position(|window| time_ns <= window.end_ns).unwrap() as u32;
                *wanted.entry((service(series).unwrap_or_default(), bucket)).or_default() += i128::from(value);
            }
            let tenant = TenantId::default_tenant();
            let selection = Selection {
                tenant: tenant.clone(),
                matchers: Vec::new(),
                fold: Fold::Sum(windows.clone()),
                group_by: vec!["service".to_owned()],
                group_by_series: false,
                stacks: if by_pair { StackDetail::Full } else { StackDetail::None },
                locations: LocationSets::default(),
            };
            let query = Query {
                tenant: &tenant,
                matchers: &[],
                buckets: &windows,
                group_by: &selection.group_by,
                listed_label: None,
                by_series: false,
                aggregate: Aggregate::Sums,
                tiers: Tiers::RAW,
                needs_stacks: by_pair,
                is_wanted: &|| true,
            };
            let interval = |(bucket, of): (u32, &Window)| Interval { start_ns: of.start_ns, end_ns: of.end_ns, bucket };
            let raw = (0..).zip(&windows).map(interval);
            let plan = PartPlan { raw: raw.collect(), ..PartPlan::default() };
            let partition = partition(&samples);
            let part = gather(partition.key, Arc::new(RwLock::new(partition)), plan, &query);
            let view = View::new(None, store.database().snapshot(), &|| true);
            for slots_max in [1, 4, 7, 1000] {
                let mut accumulator = Accumulator::new(&selection, &[]);
                accumulator.slots_max = slots_max;
                prop_assert!(matches!(accumulator.add(&view, &part), Ok(Progress::Done)));
                let Answer { groups, cells, .. } = accumulator.finish(ReadSummary::default());
                let cell = |cell: &proto::answer::Cell| {
                    ((groups[cell.group as usize].get("service").to_owned(), cell.bucket), cell.sum)
                };
                prop_assert_eq!(cells.iter().map(cell).collect::<BTreeMap<_, _>>(), wanted.clone());
                prop_assert_eq!(cells.len(), wanted.len());
            }
        });
    }
}
