//! Aggregations over series.

use std::cmp::Ordering;

use crate::query::error::QueryError;
use crate::query::promql::expr::{Aggregation, Grouping};
use crate::query::promql::value::Series;
use crate::query::run::Cancelled;
use crate::query::selection::labels::{Labels, NAME_LABEL};

/// Aggregates series, which must be sorted by labels. `parameter` is the number k of `topk` and `bottomk` at each step.
pub(crate) fn aggregate(
    operator: Aggregation,
    parameter: &[f64],
    grouping: &Grouping,
    series: Vec<Series>,
    steps: usize,
    cancelled: &Cancelled,
) -> Result<Vec<Series>, QueryError> {
    // Groups of sorted series are often sorted already, and sorting them again then takes one comparison for each.
    let mut grouped = Vec::with_capacity(series.len());
    for one in series {
        cancelled.check()?;
        grouped.push((group_of(grouping, &one.labels), one));
    }
    grouped.sort_by(|a, b| a.0.cmp(&b.0));
    let mut rest = grouped.into_iter();
    let mut next = rest.next();
    let mut out = Vec::new();
    while let Some((labels, first)) = next.take() {
        cancelled.check()?;
        let mut members = vec![first];
        next = loop {
            match rest.next() {
                Some((of, member)) if of == labels => members.push(member),
                other => break other,
            }
        };
        if operator.selects() {
            out.extend(select(operator, parameter, members, steps, cancelled)?);
        } else {
            let values = (0..steps).map(|step| fold(operator, at(&members, step))).collect();
            out.push(Series { labels, values });
        }
    }
    Ok(out)
}

fn group_of(grouping: &Grouping, labels: &Labels) -> Labels {
    match grouping {
        Grouping::By(names) => labels.only(names),
        Grouping::Without(names) => {
            let names: Vec<String> = names.iter().cloned().chain([NAME_LABEL.to_owned()]).collect();
            labels.without(&names)
        }
    }
}

/// Returns the values of all series at a step.
fn at(members: &[Series], step: usize) -> impl Iterator<Item = f64> {
    members.iter().filter_map(move |member| member.values.get(step).copied().flatten())
}

/// Aggregates values to one value; `None` if there are no values.
fn fold(operator: Aggregation, mut values: impl Iterator<Item = f64>) -> Option<f64> {
    let first = values.next()?;
    Some(match operator {
        Aggregation::Min => {
            values.fold(first, |least, value| if value < least || least.is_nan() { value } else { least })
        }
        Aggregation::Max => values.fold(first, |most, value| if value > most || most.is_nan() { value } else { most }),
        Aggregation::Count => values.fold(1.0, |count, _| count + 1.0),
        Aggregation::Avg => {
            let (sum, count) = compensated_sum(first, values);
            sum / count
        }
        // `topk` and `bottomk` select series, and never come here.
        Aggregation::Sum | Aggregation::TopK | Aggregation::BottomK => compensated_sum(first, values).0,
    })
}

/// Returns the sum, corrected for rounding errors (Neumaier), and the number of values.
fn compensated_sum(first: f64, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut sum = first;
    let mut lost = 0.0;
    let mut count = 1.0;
    for value in values {
        let next: f64 = sum + value;
        if next.is_finite() {
            lost += if sum.abs() >= value.abs() { (sum - next) + value } else { (value - next) + sum };
        }
        sum = next;
        count += 1.0;
    }
    (if sum.is_finite() { sum + lost } else { sum }, count)
}

/// Selects the best k series of a group at each step, with unchanged labels. For equal values, smaller labels come
/// first.
fn select(
    operator: Aggregation,
    parameter: &[f64],
    mut members: Vec<Series>,
    steps: usize,
    cancelled: &Cancelled,
) -> Result<Vec<Series>, QueryError> {
    for step in 0..steps {
        cancelled.check()?;
        let parameter = parameter.get(step).copied().unwrap_or(0.0);
        if parameter.is_nan() || parameter.abs() >= i64::MAX as f64 {
            return Err(QueryError::BadParameter { operator: operator.name(), value: parameter });
        }
        let mut present: Vec<(usize, f64)> = members
            .iter()
            .enumerate()
            .filter_map(|(i, member)| Some((i, member.values.get(step).copied().flatten()?)))
            .collect();
        // The number is at least 0 and below 2^63, and its fraction is cut off.
        let kept = parameter.max(0.0) as usize;
        // Members are sorted by labels, so the smaller index is better. Of very many members, few are kept, so they
        // are not sorted.
        if kept < present.len() {
            present.select_nth_unstable_by(kept, |a, b| best_first(operator, a.1, b.1).then(a.0.cmp(&b.0)));
        }
        for &(i, _) in present.iter().skip(kept) {
            if let Some(value) = members.get_mut(i).and_then(|member| member.values.get_mut(step)) {
                *value = None;
            }
        }
    }
    members.retain(Series::has_values);
    Ok(members)
}

/// Compares values for `topk` and `bottomk`. NaN is last.
pub(crate) fn best_first(operator: Aggregation, a: f64, b: f64) -> Ordering {
    let by_value = if operator == Aggregation::BottomK { a.partial_cmp(&b) } else { b.partial_cmp(&a) };
    by_value.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_the_minimum_or_maximum_only_if_all_values_are() {
        let of = |operator, values: &[f64]| fold(operator, values.iter().copied());
        for operator in [Aggregation::Min, Aggregation::Max] {
            for values in [[f64::NAN, 2.0], [2.0, f64::NAN]] {
                assert_eq!(of(operator, &values), Some(2.0));
            }
            assert!(of(operator, &[f64::NAN]).unwrap().is_nan());
            assert_eq!(of(operator, &[]), None);
        }
        assert!(of(Aggregation::Sum, &[f64::NAN, 2.0]).unwrap().is_nan());
        assert_eq!(of(Aggregation::Count, &[f64::NAN, 2.0]), Some(2.0));
    }

    #[test]
    fn topk_and_bottomk_order_nan_last() {
        for (operator, want) in [(Aggregation::TopK, [3.0, 1.0]), (Aggregation::BottomK, [1.0, 3.0])] {
            let mut values = [f64::NAN, 1.0, f64::NAN, 3.0];
            values.sort_by(|a, b| best_first(operator, *a, *b));
            assert_eq!(values[..2], want);
            assert!(values[2].is_nan() && values[3].is_nan());
        }
    }

    proptest::proptest! {
        #[test]
        fn the_kept_series_are_the_first_of_all_in_sorted_order(
            values in proptest::collection::vec(proptest::option::weighted(0.8, -3..4_i8), 0..40),
            kept in 0..50_usize,
            is_bottom: bool,
        ) {
            let operator = if is_bottom { Aggregation::BottomK } else { Aggregation::TopK };
            // -3 stands for NaN, which equals no value.
            let value = |value: i8| if value == -3 { f64::NAN } else { f64::from(value) };
            let series = |(at, of): (usize, &Option<i8>)| Series {
                labels: Labels::new(vec![("pod".into(), format!("{at:02}").into())]),
                values: vec![of.map(value)],
            };
            let members: Vec<Series> = values.iter().enumerate().map(series).collect();
            let mut sorted: Vec<(Labels, f64)> =
                members.iter().filter_map(|one| Some((one.labels.clone(), one.values[0]?))).collect();
            sorted.sort_by(|a, b| best_first(operator, a.1, b.1));
            let mut wanted: Vec<Labels> = sorted.into_iter().take(kept).map(|(labels, _)| labels).collect();
            wanted.sort();
            let got = select(operator, &[kept as f64], members, 1, &Cancelled::default()).unwrap();
            proptest::prop_assert_eq!(got.into_iter().map(|one| one.labels).collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn sums_keep_small_values_beside_large_ones() {
        let sum = |values: &[f64]| fold(Aggregation::Sum, values.iter().copied()).unwrap();
        assert_eq!(sum(&[1e16, 1.0, -1e16]), 1.0);
        assert_eq!(sum(&[f64::INFINITY, 1.0]), f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
    }
}
