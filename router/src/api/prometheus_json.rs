//! Responses in the JSON of the Prometheus HTTP API: values are strings, and times are numbers of seconds.

use std::fmt::Write as _;

use super::time::format_time;
use crate::json::JsonText;
use crate::query::promql::aggregate::best_first;
use crate::query::promql::query::Evaluated;
use crate::query::promql::value::{Series, Value};
use crate::query::selection::coverage::Coverage;
use crate::query::selection::labels::Labels;

/// Warning in a response that was truncated to `limit` results.
const TRUNCATED: &str = "results truncated due to limit";

/// Estimated length of one point, in bytes: a time with fractions, and a value with all its digits.
const POINT_BYTES: usize = 48;

/// Writes a successful response with warnings. `truncated` is true if results beyond the limit were dropped.
///
/// Shards are only listed if some are missing, or if the response may be stale. Equal responses of clusters with
/// different numbers of shards are therefore equal byte for byte.
pub(crate) fn success(
    data: impl FnOnce(&mut JsonText),
    truncated: bool,
    of_data: Vec<String>,
    coverage: &Coverage,
) -> Vec<u8> {
    let mut out = JsonText::default();
    out.raw("{\"status\":\"success\",\"data\":");
    data(&mut out);
    if coverage.is_partial() || coverage.staleness.is_some() {
        out.raw(",\"shards\":");
        coverage.write(&mut out);
    }
    let mut warnings = coverage.warnings();
    warnings.extend(of_data);
    warnings.extend(truncated.then(|| TRUNCATED.to_owned()));
    if !warnings.is_empty() {
        out.raw(",\"warnings\":").list(&warnings, |out, warning| {
            out.text(warning);
        });
    }
    out.raw("}");
    out.into_bytes()
}

/// Truncates a list to `limit` items. Also returns whether the list was longer.
pub(crate) fn cut<T>(mut list: Vec<T>, limit: Option<usize>) -> (Vec<T>, bool) {
    let truncated = limit.is_some_and(|limit| list.len() > limit);
    list.truncate(limit.unwrap_or(usize::MAX));
    (list, truncated)
}

/// Writes the response to an instant query.
pub(crate) fn instant(evaluated: Evaluated, limit: Option<usize>) -> Vec<u8> {
    let time = format_time(evaluated.steps.0.first().copied().unwrap_or(0));
    let mut text = String::new();
    let vector = match evaluated.value {
        Value::Scalar(values) => {
            let value = values.first().copied().unwrap_or(f64::NAN);
            let scalar = |out: &mut JsonText| {
                out.raw("{\"resultType\":\"scalar\",\"result\":");
                point(out, &time, value, &mut text);
                out.raw("}");
            };
            return success(scalar, false, evaluated.missing.warnings(), &evaluated.coverage);
        }
        Value::Vector(series) => series,
    };
    let value = |series: Series| Some((series.labels, series.values.first().copied().flatten()?));
    let mut present: Vec<(Labels, f64)> = vector.into_iter().filter_map(value).collect();
    if let Some(operator) = evaluated.order {
        // The sort is stable: equal values stay sorted by labels.
        present.sort_by(|(_, a), (_, b)| best_first(operator, *a, *b));
    }
    let (present, truncated) = cut(present, limit);
    let vector = |out: &mut JsonText| {
        out.raw("{\"resultType\":\"vector\",\"result\":").list(&present, |out, (labels, value)| {
            out.raw("{\"metric\":").object(labels.iter()).raw(",\"value\":");
            point(out, &time, *value, &mut text);
            out.raw("}");
        });
        out.raw("}");
    };
    success(vector, truncated, evaluated.missing.warnings(), &evaluated.coverage)
}

/// Writes the response to a range query.
pub(crate) fn range(evaluated: Evaluated, limit: Option<usize>) -> Vec<u8> {
    let times: Vec<String> = evaluated.steps.0.iter().map(|&time| format_time(time)).collect();
    let series = match evaluated.value {
        Value::Scalar(values) => {
            vec![Series { labels: Labels::default(), values: values.into_iter().map(Some).collect() }]
        }
        Value::Vector(series) => series,
    };
    let present: Vec<Series> = series.into_iter().filter(|one| one.values.iter().any(Option::is_some)).collect();
    let (present, truncated) = cut(present, limit);
    let mut text = String::new();
    let matrix = |out: &mut JsonText| {
        let points: usize = present.iter().map(|one| one.values.iter().flatten().count()).sum();
        out.reserve(points * POINT_BYTES);
        out.raw("{\"resultType\":\"matrix\",\"result\":").list(&present, |out, one| {
            let points = one.values.iter().zip(&times).filter_map(|(value, time)| Some(((*value)?, time)));
            out.raw("{\"metric\":").object(one.labels.iter()).raw(",\"values\":");
            out.list(points, |out, (value, time)| point(out, time, value, &mut text)).raw("}");
        });
        out.raw("}");
    };
    success(matrix, truncated, evaluated.missing.warnings(), &evaluated.coverage)
}

/// Writes one point, such as `[1767225600.5,"0.25"]`. `text` is a buffer for the digits of the value; all points share
/// it.
fn point(out: &mut JsonText, time: &str, value: f64, text: &mut String) {
    text.clear();
    write_value(text, value);
    out.raw("[").raw(time).raw(",\"").raw(text).raw("\"]");
}

/// Writes a value with as few digits as identify it, as Go and Prometheus do. A magnitude below 1e-6, or of 1e21 and
/// more, is written with an exponent of at least two digits.
fn write_value(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else if value == 0.0 || (1e-6..1e21).contains(&value.abs()) {
        // Writing to a String cannot fail.
        let _infallible = write!(out, "{value}");
    } else {
        let start = out.len();
        let _infallible = write!(out, "{value:e}");
        let Some(e) = out.get(start..).and_then(|text| text.find('e')) else { return };
        let exponent = out.split_off(start + e + 1);
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent.as_str()), |digits| ('-', digits));
        let _infallible = write!(out, "{sign}{digits:0>2}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_prometheus_writes_them() {
        for (value, want) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1 + 0.2, "0.30000000000000004"),
            (123_456_789_012_345_680_000.0, "123456789012345680000"),
            (1e21, "1e+21"),
            (-1.5e300, "-1.5e+300"),
            (1e-6, "0.000001"),
            (1.25e-7, "1.25e-07"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            let mut text = "before ".to_owned();
            write_value(&mut text, value);
            assert_eq!(text, format!("before {want}"));
        }
    }
}
