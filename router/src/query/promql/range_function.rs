//! Functions over ranges: the window of a leaf at each step, and the function's value in each window.
//!
//! Every window is `(start, end]`. Functions that are sums over time (`rate`, `increase`, `sum_over_time`) get sums
//! between the edges of the windows, so they are exact to the nanosecond. All other functions get points. A gauge has a
//! point at each time at which the series has samples. Other types have a point for each 10 s with samples, aligned to
//! 1970. The time of the point is the end of the 10 s.

use std::collections::VecDeque;

use proto::{Fold, ProfileType, Window};

use crate::query::error::QueryError;
use crate::query::limits::QUERY_BUCKETS_MAX;
use crate::query::promql::budget::Budget;
use crate::query::promql::expr::{At, Function, Leaf};
use crate::query::promql::fold::{Folded, Sums};
use crate::query::promql::value::{Series, Steps};
use crate::query::run::Cancelled;
use crate::query::selection::labels::NAME_LABEL;

/// Distance between the points of types that are not gauges, in nanoseconds.
const POINT_NS: i64 = 10 * 1_000_000_000;

/// Returns the window of a leaf at each step, in ascending order.
pub(crate) fn windows(leaf: &Leaf, steps: &Steps) -> Result<Vec<Window>, QueryError> {
    let first = steps.0.first().copied().unwrap_or(0);
    let last = steps.0.last().copied().unwrap_or(0);
    let window = |&step: &i64| {
        let at = match leaf.at {
            None => step,
            Some(At::Start) => first,
            Some(At::End) => last,
            Some(At::Time(time)) => time,
        };
        let end_ns = at.checked_sub(leaf.offset_ns)?;
        Some(Window { start_ns: end_ns.checked_sub(leaf.range_ns)?, end_ns })
    };
    let windows: Option<Vec<_>> = steps.0.iter().map(window).collect();
    windows.ok_or(QueryError::TimeOutOfRange { what: "the window" })
}

/// Returns the time range from the start of the first window to the end of the last.
pub(crate) fn span(windows: &[Window]) -> Window {
    let start_ns = windows.first().map_or(0, |window| window.start_ns);
    Window { start_ns, end_ns: windows.last().map_or(start_ns, |window| window.end_ns) }
}

/// Returns the fold that requests one sum between each two neighbouring edges of windows. Times in no window are not
/// requested.
pub(crate) fn fold_of_sums(windows: &[Window]) -> Fold {
    let mut edges: Vec<i64> = windows.iter().flat_map(|window| [window.start_ns, window.end_ns]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut pieces = Window::between(&edges);
    // Windows ascend, so only the first one that ends after a piece's start can contain it.
    let mut windows = windows.iter().peekable();
    pieces.retain(|piece| {
        while windows.next_if(|window| window.end_ns <= piece.start_ns).is_some() {}
        windows.peek().is_some_and(|window| window.start_ns <= piece.start_ns)
    });
    Fold::Sum(pieces)
}

/// Returns the fold with one bucket for each point; `None` if no point can be in a window.
pub(crate) fn fold_of_points(windows: &[Window]) -> Result<Option<Fold>, QueryError> {
    let mut points: Vec<Window> = Vec::new();
    for window in windows {
        // The window's first point ends after the window's start. So the 10 s of that point begin at the start, or less
        // than 10 s before it.
        let first = window.start_ns.div_euclid(POINT_NS) * POINT_NS;
        let last = window.end_ns.div_euclid(POINT_NS) * POINT_NS;
        let mut start_ns = points.last().map_or(first, |known| first.max(known.end_ns));
        while start_ns < last {
            if points.len() == QUERY_BUCKETS_MAX {
                return Err(QueryError::TooLarge { what: "points in time", max: QUERY_BUCKETS_MAX });
            }
            let end_ns = start_ns + POINT_NS;
            points.push(Window { start_ns, end_ns });
            start_ns = end_ns;
        }
    }
    Ok((!points.is_empty()).then_some(Fold::Sum(points)))
}

/// Returns the fold for a gauge's points.
pub(crate) fn fold_of_gauges(function: Function, windows: &[Window]) -> Fold {
    let only_last = matches!(function, Function::Instant | Function::LastOverTime);
    match (only_last, windows) {
        (true, [only]) => Fold::Last(*only),
        _ => Fold::Points(span(windows)),
    }
}

/// Returns the values of the leaf's function in each window. Drops series without a value in any window.
///
/// `budget` limits the size of the result.
pub(crate) fn evaluate(
    folded: &Folded,
    leaf: &Leaf,
    windows: &[Window],
    mut budget: Budget,
    cancelled: &Cancelled,
) -> Result<Vec<Series>, QueryError> {
    budget.take(folded.series.len())?;
    let function = leaf.function;
    let mut out: Vec<Series> = Vec::with_capacity(folded.series.len());
    for sums in &folded.series {
        cancelled.check()?;
        let Some(profile_type) = folded.types.get(sums.profile_type) else { continue };
        if function.is_linear() && profile_type.is_gauge() {
            let profile_type = Box::new(profile_type.clone());
            return Err(QueryError::GaugeSummed { function: function.name(), profile_type });
        }
        let values: Vec<Option<f64>> = if function.is_linear() {
            let scale = Scale::new(function, profile_type, leaf.range_ns);
            sums_in(&sums.sums, windows).map(|sum| sum.map(|sum| scale.apply(sum))).collect()
        } else {
            let points = folded.times.get(sums.times).map(Vec::as_slice).unwrap_or_default();
            points_in(function, sums, points, windows)
        };
        let labels = if function.keeps_name() {
            sums.labels.with(NAME_LABEL, &profile_type.to_string())
        } else {
            sums.labels.clone()
        };
        match out.last_mut() {
            // The grouping does not distinguish these profile types, so their values are added.
            Some(last) if last.labels == labels => add_values(&mut last.values, &values),
            _ => out.push(Series { labels, values }),
        }
    }
    out.retain(Series::has_values);
    Ok(out)
}

fn add_values(to: &mut [Option<f64>], from: &[Option<f64>]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = match (*to, *from) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

/// Conversion of a sum from the unit of the profile type to that of the result. Nanoseconds become seconds, except in
/// `sum_over_time`.
struct Scale {
    divisor: f64,
}

impl Scale {
    fn new(function: Function, profile_type: &ProfileType, range_ns: i64) -> Self {
        let is_time = profile_type.sample().unit == "nanoseconds";
        let divisor = match (function, is_time) {
            (Function::Rate, true) => range_ns as f64,
            (Function::Rate, false) => range_ns as f64 / 1e9,
            (Function::Increase, true) => 1e9,
            _ => 1.0,
        };
        Self { divisor }
    }

    fn apply(&self, sum: i128) -> f64 {
        sum as f64 / self.divisor
    }
}

/// Returns the range of indices of the items in a window. Items must be sorted by time.
fn inside<T>(window: Window, ascending: &[T], time: impl Fn(&T) -> i64) -> std::ops::Range<usize> {
    let start = ascending.partition_point(|item| time(item) <= window.start_ns);
    start..ascending.partition_point(|item| time(item) <= window.end_ns).max(start)
}

/// Returns the sum in each window; `None` for a window without sums.
fn sums_in(sums: &[(i64, i128)], windows: &[Window]) -> impl Iterator<Item = Option<i128>> {
    // Total of the sums before each one. A single window needs no such list.
    let mut before = Vec::new();
    if windows.len() > 1 {
        before.reserve_exact(sums.len() + 1);
        before.push(0_i128);
        let mut total = 0_i128;
        for (_, sum) in sums {
            total += sum;
            before.push(total);
        }
    }
    windows.iter().map(move |window| {
        let range = inside(*window, sums, |&(time, _)| time);
        if range.is_empty() {
            return None;
        }
        if before.is_empty() {
            return sums.get(range).map(|inside| inside.iter().map(|(_, sum)| sum).sum());
        }
        Some(before.get(range.end)? - before.get(range.start)?)
    })
}

/// Returns the value of a function in each window, computed from points. `points` are the times at which the stored
/// series has samples.
///
/// `series` may be a part of the stored series. If the part has no samples at a point, its value there is 0. If the
/// part has no samples in the whole window, it has no value in the window.
fn points_in(function: Function, series: &Sums, points: &[i64], windows: &[Window]) -> Vec<Option<f64>> {
    let sums = series.sums.as_slice();
    let counts = |window: &Window| inside(*window, points, |&time| time).len();
    let with_sum = windows.iter().zip(sums_in(sums, windows));
    match function {
        Function::AvgOverTime => {
            with_sum.map(|(window, sum)| sum.map(|sum| sum as f64 / counts(window).max(1) as f64)).collect()
        }
        Function::CountOverTime => with_sum.map(|(window, sum)| sum.map(|_| counts(window) as f64)).collect(),
        Function::MinOverTime => extremes(sums, windows, counts, |new, old| new <= old),
        Function::MaxOverTime => extremes(sums, windows, counts, |new, old| new >= old),
        _ => windows
            .iter()
            .map(|window| {
                let last_point = points.get(inside(*window, points, |&time| time).last()?)?;
                let (time, sum) = sums.get(inside(*window, sums, |&(time, _)| time).last()?)?;
                (time == last_point).then_some(*sum as f64)
            })
            .collect(),
    }
}

/// Returns the smallest or largest point of each window. Windows ascend, so each sum is added to `best` and removed
/// only once.
fn extremes(
    sums: &[(i64, i128)],
    windows: &[Window],
    counts: impl Fn(&Window) -> usize,
    replaces: impl Fn(i128, i128) -> bool,
) -> Vec<Option<f64>> {
    // Indices of sums that can still be the extreme of a later window, best first.
    let mut best: VecDeque<usize> = VecDeque::new();
    let mut entered = 0;
    let value = |index: usize| sums.get(index).map_or(0, |&(_, sum)| sum);
    windows
        .iter()
        .map(|window| {
            let range = inside(*window, sums, |&(time, _)| time);
            for index in entered.max(range.start)..range.end {
                while best.back().is_some_and(|&last| replaces(value(index), value(last))) {
                    best.pop_back();
                }
                best.push_back(index);
            }
            entered = entered.max(range.end);
            while best.front().is_some_and(|&first| first < range.start) {
                best.pop_front();
            }
            let extreme = value(*best.front()?);
            // A point at which this part of the series has no samples has the value 0, which may be the extreme.
            let has_zero = counts(window) > range.len();
            Some(if has_zero && replaces(0, extreme) { 0.0 } else { extreme as f64 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn window(start_s: i64, end_s: i64) -> Window {
        Window { start_ns: start_s * S, end_ns: end_s * S }
    }

    /// Returns the windows of a fold, and joins adjacent windows.
    fn runs(fold: Option<Fold>) -> Vec<(i64, i64)> {
        let Some(Fold::Sum(windows)) = fold else { return Vec::new() };
        let runs = windows.chunk_by(|before, next| before.end_ns == next.start_ns);
        runs.map(|run| (run[0].start_ns / S, run[run.len() - 1].end_ns / S)).collect()
    }

    fn points(windows: &[Window]) -> Vec<(i64, i64)> {
        let fold = fold_of_points(windows).unwrap();
        if let Some(Fold::Sum(points)) = &fold {
            assert!(
                points.iter().all(|point| point.start_ns % POINT_NS == 0 && point.end_ns - point.start_ns == POINT_NS)
            );
        }
        runs(fold)
    }

    #[test]
    fn points_begin_at_multiples_of_ten_seconds() {
        assert_eq!(points(&[window(0, 30)]), [(0, 30)]);
        assert_eq!(points(&[window(5, 34)]), [(0, 30)]);
        assert!(points(&[window(11, 19)]).is_empty());
        assert!(points(&[window(10, 19)]).is_empty());
        assert_eq!(points(&[window(10, 20)]), [(10, 20)]);
        assert_eq!(points(&[window(0, 20), window(10, 30)]), [(0, 30)]);
        assert_eq!(points(&[window(0, 20), window(100, 120)]), [(0, 20), (100, 120)]);
        assert_eq!(points(&[window(0, 20), window(15, 25), window(15, 25)]), [(0, 20)]);
        assert_eq!(points(&[window(0, 20), window(52, 58), window(60, 70)]), [(0, 20), (60, 70)]);
        assert_eq!(points(&[window(-15, 5)]), [(-20, 0)]);
    }

    #[test]
    fn too_many_points_are_refused() {
        assert!(fold_of_points(&[window(0, 11_000_000)]).is_err());
    }

    #[test]
    fn sums_are_split_at_the_edges_of_all_windows() {
        let fold = fold_of_sums(&[window(0, 20), window(10, 30)]);
        assert_eq!(fold, Fold::Sum(vec![window(0, 10), window(10, 20), window(20, 30)]));
    }

    #[test]
    fn nothing_between_separate_windows_is_requested() {
        let sums = |windows: &[Window]| runs(Some(fold_of_sums(windows)));
        assert_eq!(sums(&[window(0, 5), window(10, 15), window(20, 25)]), [(0, 5), (10, 15), (20, 25)]);
        assert_eq!(sums(&[window(0, 5), window(3, 8), window(20, 25)]), [(0, 8), (20, 25)]);
        assert_eq!(sums(&[window(0, 5), window(0, 5), window(5, 10), window(11, 16)]), [(0, 10), (11, 16)]);
    }

    #[test]
    fn one_window_has_the_same_sum_as_among_several() {
        let sums: Vec<(i64, i128)> = [(1, 5), (2, -3), (3, 9), (4, 2)].into();
        let windows: Vec<_> = (0..6)
            .flat_map(|start_ns| (0..4).map(move |length| Window { start_ns, end_ns: start_ns + length }))
            .collect();
        let of_several: Vec<_> = sums_in(&sums, &windows).collect();
        let of_one: Vec<_> = windows.iter().map(|window| sums_in(&sums, &[*window]).next().unwrap()).collect();
        assert_eq!(of_one, of_several);
        assert_eq!((of_one[0], of_one[3], of_one[23]), (None, Some(11), None));
    }

    #[test]
    fn overlapping_windows_have_their_own_extremes() {
        let sums: Vec<(i64, i128)> = [(1, 5), (2, -3), (3, 9), (4, 2), (5, 2), (6, 7)].into();
        let windows: Vec<_> = (0..6).map(|start| Window { start_ns: start, end_ns: start + 3 }).collect();
        let all = |window: &Window| inside(*window, &sums, |&(time, _)| time).len();
        let want = |pick: fn(&[i128]) -> i128| -> Vec<Option<f64>> {
            let values = |w: &Window| inside(*w, &sums, |&(time, _)| time).map(|i| sums[i].1).collect::<Vec<_>>();
            windows.iter().map(|window| Some(pick(&values(window)) as f64)).collect()
        };
        assert_eq!(extremes(&sums, &windows, all, |a, b| a <= b), want(|v| *v.iter().min().unwrap()));
        assert_eq!(extremes(&sums, &windows, all, |a, b| a >= b), want(|v| *v.iter().max().unwrap()));
    }
}
