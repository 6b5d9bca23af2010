//! Property tests with random samples, windows and steps. Results must equal direct sums over the samples.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::naive_node::Frame;
use super::*;

/// Time of the earliest sample, in seconds since 1970.
const T_S: i64 = 1_699_999_000;

fn any_sample() -> impl Strategy<Value = Sample> {
    let stack = proptest::collection::vec(proptest::collection::vec(0_u8..4, 1..3), 0..5);
    (0_i64..200_000, 0_usize..3, 0_usize..4, stack, 0_i64..1_000_000_000_000, 0_u8..3).prop_map(
        |(at_ms, service, kind, stack, value, thread)| {
            let kind = [CPU, SAMPLES, ALLOCATED, IN_USE][kind];
            let service = ["a", "b", "c"][service];
            // Many samples are at whole seconds, which can be edges of windows.
            let time_ns = T_S * S + if at_ms % 3 == 0 { at_ms / 1000 * S } else { at_ms * MS + at_ms };
            let mut sample = Sample::new(kind, &[("service_name", service)], time_ns, &[], value);
            let lines = |names: Vec<u8>| Frame::Lines(names.into_iter().map(|name| format!("f{name}")).collect());
            sample.stack = stack.into_iter().map(lines).collect();
            if thread > 0 { sample.with("thread.name", &format!("t{thread}")) } else { sample }
        },
    )
}

fn any_samples() -> impl Strategy<Value = Vec<Sample>> {
    proptest::collection::vec(any_sample(), 0..40)
}

/// Returns the names of a stack's frames, leaf first.
fn names(sample: &Sample) -> Vec<&str> {
    let mut names = Vec::new();
    for frame in &sample.stack {
        let Frame::Lines(lines) = frame else { panic!("there is no other") };
        names.extend(lines.iter().map(String::as_str));
    }
    names
}

/// Returns the values of a label for a sample. The sample is in the group of each value.
fn values<'a>(sample: &'a Sample, label: &str) -> Vec<&'a str> {
    let mut values = match label {
        "leaf_function" => names(sample).into_iter().take(1).collect(),
        "stack_function" => names(sample),
        _ => vec![sample.value_of(label)],
    };
    values.sort_unstable();
    values.dedup();
    if values.is_empty() { vec![""] } else { values }
}

/// Sums the samples in `(start, end]` for each value of a label. Skips values without samples.
fn by_hand(samples: &[Sample], kind: &str, label: &str, start_ns: i64, end_ns: i64) -> BTreeMap<String, i128> {
    let mut sums = BTreeMap::new();
    for sample in samples {
        if sample.value_of("__profile_type__") == kind && start_ns < sample.time_ns && sample.time_ns <= end_ns {
            for value in values(sample, label) {
                *sums.entry(value.to_owned()).or_default() += i128::from(sample.value);
            }
        }
    }
    sums
}

/// For each value of a label, returns the series of a response as pairs of time and value.
fn by_label(answer: &Answer, label: &str) -> BTreeMap<String, Vec<(f64, f64)>> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let pair = |pair: &Value| (pair[0].as_f64().unwrap(), pair[1].as_str().unwrap().parse().unwrap());
    let series = answer.json()["data"]["result"].as_array().unwrap().clone();
    series
        .iter()
        .map(|one| {
            let name = one["metric"][label].as_str().unwrap_or_default().to_owned();
            (name, one["values"].as_array().unwrap().iter().map(pair).collect())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn sums_and_rates_match_direct_sums(
        samples in any_samples(),
        label in prop::sample::select(vec!["service_name", "thread_name", "leaf_function", "stack_function"]),
        kind in prop::sample::select(vec![CPU, ALLOCATED]),
        (start_s, step_s, steps) in (0_i64..200, 1_i64..40, 1_i64..8),
        window_ms in prop::sample::select(vec![1_i64, 1000, 7000, 10_000, 60_000, 300_000]),
        function in prop::sample::select(vec!["sum_over_time", "rate", "increase"]),
        pushed_down in any::<bool>(),
    ) {
        let server = Server::new(samples.clone());
        let times: Vec<i64> = (0..steps).map(|i| T_S + start_s + i * step_s).collect();
        let leaf = format!("{function}({kind}[{window_ms}ms])");
        // The factor keeps the sum from being computed in the shards.
        let query = format!("sum by ({label}) ({}{leaf})", if pushed_down { "" } else { "1 * " });
        let start = times[0].to_string();
        let end = times.last().unwrap().to_string();
        let step = step_s.to_string();
        let parameters = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", &step)];
        let got = by_label(&server.get("/api/v1/query_range", &parameters), label);
        let mut want: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for time in times {
            for (value, sum) in by_hand(&samples, kind, label, time * S - window_ms * MS, time * S) {
                let window_s = window_ms as f64 / 1000.0;
                let seconds = if kind == CPU && function != "sum_over_time" { 1e9 } else { 1.0 };
                let per = if function == "rate" { window_s } else { 1.0 };
                want.entry(value).or_default().push((time as f64, sum as f64 / seconds / per));
            }
        }
        prop_assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
        for (value, points) in want {
            let got = &got[&value];
            prop_assert_eq!(got.len(), points.len());
            for (got, want) in got.iter().zip(points) {
                prop_assert_eq!(got.0, want.0);
                prop_assert!((got.1 - want.1).abs() <= want.1.abs() * 1e-14, "{} {:?} {:?}", value, got, want);
            }
        }
    }

    #[test]
    fn points_equal_direct_sums_over_the_samples(
        samples in any_samples(),
        kind in prop::sample::select(vec![CPU, IN_USE]),
        (start_s, step_s, steps) in (0_i64..200, 1_i64..40, 1_i64..8),
        window_s in prop::sample::select(vec![1_i64, 7, 10, 25, 60, 300]),
        function in prop::sample::select(vec!["last", "min", "max", "avg", "count"]),
    ) {
        let server = Server::new(samples.clone());
        let times: Vec<i64> = (0..steps).map(|i| T_S + start_s + i * step_s).collect();
        let query = format!("{function}_over_time({kind}[{window_s}s])");
        let start = times[0].to_string();
        let end = times.last().unwrap().to_string();
        let step = step_s.to_string();
        let parameters = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", &step)];
        let got = by_label(&server.get("/api/v1/query_range", &parameters), "service_name");
        let mut want: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for time in times {
            let mut points: BTreeMap<String, BTreeMap<i64, i128>> = BTreeMap::new();
            for sample in samples.iter().filter(|sample| sample.value_of("__profile_type__") == kind) {
                let ten = 10 * S;
                let stamp = if kind == CPU { (sample.time_ns + ten - 1).div_euclid(ten) * ten } else { sample.time_ns };
                if (time - window_s) * S < stamp && stamp <= time * S {
                    let series = points.entry(sample.value_of("service_name").to_owned()).or_default();
                    *series.entry(stamp).or_default() += i128::from(sample.value);
                }
            }
            for (series, points) in points {
                let values: Vec<f64> = points.values().map(|&value| value as f64).collect();
                let value = match function {
                    "last" => *values.last().unwrap(),
                    "min" => values.iter().copied().fold(f64::INFINITY, f64::min),
                    "max" => values.iter().copied().fold(0.0, f64::max),
                    "avg" => points.values().sum::<i128>() as f64 / values.len() as f64,
                    _ => values.len() as f64,
                };
                want.entry(series).or_default().push((time as f64, value));
            }
        }
        prop_assert_eq!(got, want);
    }

    #[test]
    fn flame_graphs_have_the_weight_of_the_samples(
        samples in any_samples(),
        (start_s, length_s) in (0_i64..200, 1_i64..200),
        nodes_max in 1_usize..40,
        filter in prop::sample::select(vec![
            "", "stack_function=\"f1\"", "stack_function!~\"f[12]\"", "leaf_function=\"f0\"", "thread_name!=\"t1\"",
        ]),
    ) {
        let server = Server::new(samples.clone());
        let start = T_S + start_s;
        let end = T_S + start_s + length_s;
        let passes = |sample: &&Sample| {
            let names = names(sample);
            let is_in_window = start * S < sample.time_ns && sample.time_ns <= end * S;
            sample.value_of("__profile_type__") == CPU && is_in_window && match filter {
                "" => true,
                "thread_name!=\"t1\"" => sample.value_of("thread_name") != "t1",
                "leaf_function=\"f0\"" => names.first() == Some(&"f0"),
                "stack_function=\"f1\"" => names.contains(&"f1"),
                _ => !names.iter().any(|name| ["f1", "f2"].contains(name)),
            }
        };
        let mut want: BTreeMap<String, i128> = BTreeMap::new();
        for sample in samples.iter().filter(passes).filter(|sample| sample.value > 0) {
            let stack: Vec<&str> = names(sample).into_iter().rev().collect();
            let line = if stack.is_empty() { "[no stack]".to_owned() } else { stack.join(";") };
            *want.entry(line).or_default() += i128::from(sample.value);
        }
        let query = format!("process_cpu{{{filter}}}");
        let nodes = nodes_max.to_string();
        let start = start.to_string();
        let end = end.to_string();
        let ask = |format: &str, nodes: &str| {
            let kind = format!("{CPU}{{{filter}}}");
            // The full ID is used, because a short name selects nothing if there is no sample.
            let query = if want.is_empty() { &kind } else { &query };
            let parameters =
                [("query", query.as_str()), ("start", &start), ("end", &end), ("format", format), ("max_nodes", nodes)];
            server.get("/api/v1/flamegraph", &parameters)
        };
        let lines = |answer: &Answer| -> BTreeMap<String, i128> {
            let parsed = |line: &str| {
                line.rsplit_once(' ').map(|(stack, value)| (stack.to_owned(), value.parse().unwrap()))
            };
            answer.text().lines().map(|line| parsed(line).unwrap()).collect()
        };
        prop_assert_eq!(&lines(&ask("folded", "1000000")), &want);
        let total: i128 = want.values().sum();
        prop_assert_eq!(lines(&ask("folded", &nodes)).values().sum::<i128>(), total);
        let tree = ask("json", &nodes).json();
        let nodes = tree["nodes"].as_array().unwrap();
        prop_assert!(nodes.len() <= nodes_max);
        let number = |node: &Value, i: usize| node[i].as_i64().unwrap();
        let mut below = vec![0; nodes.len()];
        for (i, node) in nodes.iter().enumerate().skip(1) {
            let parent = usize::try_from(number(node, 0)).unwrap();
            prop_assert!(parent < i && (number(node, 1) as usize) < tree["names"].as_array().unwrap().len());
            below[parent] += number(node, 3);
        }
        for (node, below) in nodes.iter().zip(below) {
            prop_assert_eq!(number(node, 2) + below, number(node, 3));
        }
        prop_assert_eq!(i128::from(number(&nodes[0], 3)), total);
        prop_assert_eq!(tree["names"].as_array().unwrap().len(), tree["frames"].as_array().unwrap().len());
    }
}
