//! Answers in the JSON of Prometheus' HTTP API: values are strings, times are numbers of seconds.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::time::format_time;
use crate::query::aggregate::best_first;
use crate::query::evaluate::Value;
use crate::query::labels::Labels;
use crate::query::reader::Evaluated;
use crate::query::window::Series;

/// What an answer says where it was cut to `limit`.
const TRUNCATED: &str = "results truncated due to limit";

/// A successful answer: `data` is JSON.
pub(crate) fn success(data: &str, truncated: bool) -> String {
    let warnings = if truncated { format!(",\"warnings\":[{}]", json!(TRUNCATED)) } else { String::new() };
    format!("{{\"status\":\"success\",\"data\":{data}{warnings}}}")
}

/// A list, cut to `limit`, and whether it was.
pub(crate) fn cut<T>(mut list: Vec<T>, limit: Option<usize>) -> (Vec<T>, bool) {
    let truncated = limit.is_some_and(|limit| list.len() > limit);
    list.truncate(limit.unwrap_or(usize::MAX));
    (list, truncated)
}

/// The answer of an instant query.
pub(crate) fn instant(evaluated: Evaluated, limit: Option<usize>) -> String {
    let time = format_time(evaluated.steps.0.first().copied().unwrap_or(0));
    let vector = match evaluated.value {
        Value::Scalar(values) => {
            let value = format_value(values.first().copied().unwrap_or(f64::NAN));
            return success(&format!("{{\"resultType\":\"scalar\",\"result\":[{time},\"{value}\"]}}"), false);
        }
        Value::Vector(series) => series,
    };
    let value = |series: Series| Some((series.labels, series.values.first().copied().flatten()?));
    let mut present: Vec<(Labels, f64)> = vector.into_iter().filter_map(value).collect();
    if let Some(operator) = evaluated.order {
        // Stable: equal values stay in the order of their labels.
        present.sort_by(|(_, a), (_, b)| best_first(operator, *a, *b));
    }
    let (present, truncated) = cut(present, limit);
    let results = present.iter().map(|(labels, value)| {
        format!("{{\"metric\":{},\"value\":[{time},\"{}\"]}}", metric(labels), format_value(*value))
    });
    success(&format!("{{\"resultType\":\"vector\",\"result\":[{}]}}", join(results)), truncated)
}

/// The answer of a range query.
pub(crate) fn range(evaluated: Evaluated, limit: Option<usize>) -> String {
    let times: Vec<String> = evaluated.steps.0.iter().map(|&time| format_time(time)).collect();
    let series = match evaluated.value {
        Value::Scalar(values) => {
            vec![Series { labels: Labels::default(), values: values.into_iter().map(Some).collect() }]
        }
        Value::Vector(series) => series,
    };
    let present: Vec<Series> = series.into_iter().filter(|one| one.values.iter().any(Option::is_some)).collect();
    let (present, truncated) = cut(present, limit);
    let results = present.iter().map(|one| {
        let points = one.values.iter().zip(&times).filter_map(|(value, time)| Some((*value.as_ref()?, time)));
        let points = points.map(|(value, time)| format!("[{time},\"{}\"]", format_value(value)));
        format!("{{\"metric\":{},\"values\":[{}]}}", metric(&one.labels), join(points))
    });
    success(&format!("{{\"resultType\":\"matrix\",\"result\":[{}]}}", join(results)), truncated)
}

/// Labels as an object.
pub(crate) fn metric(labels: &Labels) -> Json {
    Json::Object(labels.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>())
}

/// Texts with commas between them.
pub(crate) fn join(texts: impl Iterator<Item = String>) -> String {
    let mut out = String::new();
    for text in texts {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(&text);
    }
    out
}

/// A value as Go's shortest form, which Prometheus writes: an exponent of at least two digits below 1e-6 and from 1e21 on.
pub(crate) fn format_value(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value == 0.0 || (1e-6..1e21).contains(&value.abs()) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    let mut out = mantissa.to_owned();
    // Writing to a String cannot fail.
    let _infallible = write!(out, "e{sign}{digits:0>2}");
    out
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
            assert_eq!(format_value(value), want);
        }
    }
}
