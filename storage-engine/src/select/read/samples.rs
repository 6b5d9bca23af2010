//! Passes samples to a visitor, sorted by time. Each call passes samples of one interval of the plan.

use std::ops::Range;

use proto::Samples;

use crate::encoding::sums::Sums;
use crate::memory::run::Run;
use crate::select::plan::Interval;
use crate::select::read::visitor::{ReadSums, VisitError, Visitor};

/// Passes the samples of a run as [`visit_sorted`] does, or only their totals if the visitor needs no more.
pub(super) fn visit_run(intervals: &[Interval], run: &Run, visitor: &mut impl Visitor) -> Result<(), VisitError> {
    let Some(value) = run.value().filter(|_| visitor.takes_totals()) else {
        return visit_sorted(intervals, run, 0..run.len(), visitor);
    };
    let (first_ns, last_ns) = run.times_ns();
    let from = intervals.partition_point(|interval| interval.end_ns < first_ns);
    // Most intervals begin at the end of the previous one.
    let mut last_end_ns = i64::MIN;
    let mut last_end = 0;
    for &Interval { start_ns, end_ns, bucket } in intervals[from..].iter().take_while(|next| next.start_ns < last_ns) {
        let start = match start_ns {
            _ if start_ns < first_ns => 0,
            _ if start_ns == last_end_ns => last_end,
            _ => count_up_to(&run.times_ns, start_ns),
        };
        let end = if last_ns <= end_ns { run.len() } else { count_up_to(&run.times_ns, end_ns) };
        last_end_ns = end_ns;
        last_end = end;
        if start < end {
            let samples = (end - start) as u64;
            let total = i128::from(samples) * i128::from(value);
            let read = ReadSums { samples, total, last_ns: None, sums: Sums::default() };
            visitor.sums(bucket, &read)?;
        }
    }
    Ok(())
}

/// Passes samples, sorted by time, to the visitor with their buckets.
pub(super) fn visit_sorted(
    intervals: &[Interval],
    samples: &Samples,
    rows: Range<usize>,
    visitor: &mut impl Visitor,
) -> Result<(), VisitError> {
    let times = &samples.times_ns[rows.clone()];
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return Ok(()) };
    let from = intervals.partition_point(|interval| interval.end_ns < first);
    let mut start = 0;
    for interval in intervals[from..].iter().take_while(|interval| interval.start_ns < last) {
        // Most runs are inside one interval.
        if first <= interval.start_ns {
            start += count_up_to(&times[start..], interval.start_ns);
        }
        let end =
            if last <= interval.end_ns { times.len() } else { start + count_up_to(&times[start..], interval.end_ns) };
        if start < end {
            let rows = rows.start + start..rows.start + end;
            visitor.samples(interval.bucket, samples, rows)?;
        }
        start = end;
    }
    Ok(())
}

/// Returns the number of times that are at or before `time_ns`. `times` ascends.
///
/// Samples are spread about evenly, so the search starts at the expected position. A binary search would wait for
/// memory at each step.
fn count_up_to(times: &[i64], time_ns: i64) -> usize {
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return 0 };
    if time_ns < first {
        return 0;
    }
    if last <= time_ns {
        return times.len();
    }
    let part = (i128::from(time_ns) - i128::from(first)) * times.len() as i128 / (i128::from(last) - i128::from(first));
    let guess = usize::try_from(part).unwrap_or_default().min(times.len() - 1);
    // The count is in `low..=high`.
    let mut low = 1;
    let mut high = times.len() - 1;
    let mut step = 4;
    if times[guess] <= time_ns {
        low = guess + 1;
        while low + step < high && times[low + step] <= time_ns {
            low += step + 1;
            step *= 2;
        }
        high = high.min(low + step);
    } else {
        high = guess;
        while low + step < high && time_ns < times[high - step] {
            high -= step;
            step *= 2;
        }
        low = low.max(high.saturating_sub(step));
    }
    low + times[low..high].partition_point(|&time| time <= time_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counting_times_matches_a_binary_search(
            gaps in prop::collection::vec(prop_oneof![8 => 0..100_i64, 1 => 0..1_000_000_i64], 0..300),
            from in prop_oneof![Just(i64::MIN / 2), Just(0)],
            offset in -10..40_000_i64,
        ) {
            let times: Vec<i64> = gaps.iter().scan(from, |time, gap| { *time += gap; Some(*time) }).collect();
            let near = times.iter().flat_map(|&time| [time - 1, time, time + 1]);
            for time in near.chain([from + offset, i64::MIN, i64::MAX]) {
                prop_assert_eq!(count_up_to(&times, time), times.partition_point(|&at| at <= time));
            }
        }
    }
}
