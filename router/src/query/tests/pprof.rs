//! Flame graphs as pprof: labels, period, comments, and the same stacks as in other formats.

use std::collections::BTreeMap;
use std::io::Read as _;

use prost::Message as _;
use proto::pprof::Profile;

use super::flamegraphs::ok;
use super::*;

pub(super) fn unpack(answer: &Answer) -> Profile {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(answer.body.as_slice()).read_to_end(&mut bytes).unwrap();
    Profile::decode(bytes.as_slice()).unwrap()
}

/// Returns the sum of each stack. A stack is a list of names, root first.
pub(super) fn folded_of(profile: &Profile) -> BTreeMap<Vec<String>, i64> {
    let text = |id: i64| profile.string_table[id as usize].clone();
    let functions: BTreeMap<u64, String> = profile.function.iter().map(|f| (f.id, text(f.name))).collect();
    let locations: BTreeMap<u64, _> = profile.location.iter().map(|location| (location.id, location)).collect();
    let mut out = BTreeMap::new();
    for sample in &profile.sample {
        let lines = sample.location_id.iter().flat_map(|id| &locations[id].line);
        let mut stack: Vec<String> = lines.map(|line| functions[&line.function_id].clone()).collect();
        stack.reverse();
        *out.entry(stack).or_default() += sample.value[0];
    }
    out
}

#[test]
fn pprof_and_folded_stacks_agree() {
    let server = Server::new(samples());
    let got = ok(&server, "process_cpu{service_name=\"a\"}", &[("format", "pprof")]);
    assert_eq!(got.kind, "application/octet-stream");
    let profile = unpack(&got);
    let text = |id: i64| profile.string_table[id as usize].as_str();
    let kinds = [profile.sample_type[0], profile.period_type.unwrap()].map(|kind| (text(kind.kind), text(kind.unit)));
    assert_eq!(kinds, [("cpu", "nanoseconds"); 2]);
    assert_eq!((profile.time_nanos, profile.duration_nanos), ((NOW_S - 300) * S, 300 * S));
    assert_eq!(profile.string_table[0], "");
    let stacks = folded_of(&profile);
    let written: BTreeMap<_, _> = ok(&server, "process_cpu{service_name=\"a\"}", &[("format", "folded")])
        .text()
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(stack, value)| (stack.split(';').map(str::to_owned).collect::<Vec<_>>(), value.parse::<i64>().unwrap()))
        .collect();
    assert_eq!(stacks, written);
    assert_eq!((profile.mapping.len(), text(profile.mapping[0].filename)), (1, "/usr/bin/app"));
    assert!(profile.mapping[0].has_functions && profile.mapping[0].has_line_numbers);
    assert_eq!((text(profile.function[0].filename), profile.function[0].start_line), ("/src/app.rs", 10));
}

/// Returns the labels and the value of each sample, sorted.
fn labels_of(profile: &Profile) -> Vec<(Vec<String>, i64)> {
    let text = |id: i64| profile.string_table[id as usize].as_str();
    let labels = |sample: &proto::pprof::Sample| {
        sample.label.iter().map(|label| format!("{}={}", text(label.key), text(label.text))).collect()
    };
    let mut all: Vec<_> = profile.sample.iter().map(|sample| (labels(sample), sample.value[0])).collect();
    all.sort();
    all
}

fn comments_of(profile: &Profile) -> Vec<String> {
    profile.comment.iter().map(|id| profile.string_table[*id as usize].clone()).collect()
}

#[test]
fn samples_of_a_pprof_have_their_attributes_and_labels_that_differ() {
    let server = Server::new(samples());
    let profile = unpack(&ok(&server, "process_cpu", &[("format", "pprof")]));
    let labels = |labels: &[&str]| labels.iter().map(|&label| label.to_owned()).collect::<Vec<_>>();
    let a = ["region=eu", "service_name=a"];
    let b = ["region=us", "service_name=b"];
    let second = 1_000_000_000;
    let with = |base: [&str; 2], thread: &str| {
        let thread = format!("thread_name={thread}");
        labels(&[base[0], base[1], thread.as_str()])
    };
    assert_eq!(
        labels_of(&profile),
        [
            (labels(&a), second / 4),
            (with(a, "t1"), second),
            (with(a, "t2"), second / 2),
            (with(a, "t2"), second),
            (with(b, "t1"), 3 * second),
        ]
    );
    assert!(comments_of(&profile).is_empty(), "{:?}", comments_of(&profile));
    // Labels change no frame and no weight.
    let written = ok(&server, "process_cpu", &[("format", "folded")]).text();
    for (stack, value) in folded_of(&profile) {
        assert!(written.contains(&format!("{} {value}\n", stack.join(";"))), "{stack:?} {value}: {written}");
    }
    // Labels that all series share are omitted.
    let one = unpack(&ok(&server, "process_cpu{service_name=\"a\"}", &[("format", "pprof")]));
    assert!(labels_of(&one).iter().all(|(labels, _)| labels.len() <= 1), "{:?}", labels_of(&one));
}

// Once, the greatest common divisor of all values was the period, and samples that matchers excluded were counted.
#[test]
fn the_period_of_a_pprof_is_the_mean_only_if_it_can_be_the_period() {
    let wall = "process_wall:wall:nanoseconds:wall:nanoseconds";
    let waits = "waits:wall:nanoseconds:contentions:count";
    let period = |profile_type: &str, values: &[i64], query: &str| {
        let sample = |(i, value): (usize, &i64)| {
            let function = format!("f{i}");
            Sample::new(profile_type, &[("service_name", "x")], NOW_S * S - S, &[&function], *value)
        };
        let server = Server::new(values.iter().enumerate().map(sample).collect());
        unpack(&ok(&server, query, &[("format", "pprof")])).period
    };
    for (profile_type, values, expected, why) in [
        (CPU, &[50, 50, 50][..], 50, "samples of equal weight"),
        (wall, &[50, 50], 50, "wall time"),
        (CPU, &[300], 0, "one row may stand for many samples"),
        (CPU, &[150, 50], 0, "rows of several samples"),
        (CPU, &[20, 30, 40], 0, "the mean divides their sum only"),
        (CPU, &[1, 2], 0, "the mean is no whole number"),
        (CPU, &[], 0, "no samples"),
        (waits, &[50, 50], 0, "values in another unit than the period"),
    ] {
        let query = if values.is_empty() { CPU } else { "{service_name=\"x\"}" };
        assert_eq!(period(profile_type, values, query), expected, "{why}");
    }
    assert_eq!(period(CPU, &[50; 4], "process_cpu{leaf_function=~\"f[01]\"}"), 0, "samples are excluded");
    assert_eq!(period(CPU, &[50; 4], "process_cpu{stack_function!=\"f0\"}"), 0, "samples are excluded");
}

#[test]
fn a_pprof_whose_labels_do_not_fit_has_a_comment() {
    let server = Server::new(samples());
    let profile = unpack(&ok(&server, "process_cpu", &[("format", "pprof"), ("max_nodes", "6")]));
    assert!(labels_of(&profile).iter().all(|(labels, _)| labels.is_empty()), "{:?}", labels_of(&profile));
    let comments = comments_of(&profile);
    assert!(comments[0].starts_with("no labels") && comments[0].contains("more than 6 nodes"), "{comments:?}");
    let sum: i64 = labels_of(&profile).iter().map(|(_, value)| value).sum();
    assert_eq!(sum, 5_750_000_000);
}

#[test]
fn a_pprof_without_raw_samples_has_labels_of_series() {
    let refuses_group_by = Some("thread_name".to_owned());
    let node = NaiveNode { refuses_group_by, ..NaiveNode::new(samples()) };
    let profile = unpack(&ok(&Server::of_node(node), "process_cpu", &[("format", "pprof")]));
    let labels: Vec<_> = labels_of(&profile).into_iter().flat_map(|(labels, _)| labels).collect();
    assert!(labels.contains(&"service_name=b".to_owned()), "{labels:?}");
    assert!(!labels.iter().any(|label| label.starts_with("thread_name")), "{labels:?}");
    let comments = comments_of(&profile);
    assert!(comments[0].contains("thread_name") && comments[0].contains("as the test wishes"), "{comments:?}");
}
