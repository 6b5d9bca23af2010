//! Answers of the engine and of the model in one form, so that they can be compared.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto::answer::{Missing, Unpassed};
use proto::selection::Operation;
use proto::{
    Answer, Dictionary, Fold, FramePlace, LabelSet, Location, LocationSets, Matcher, Selection, StackDetail, TenantId,
    Window,
};

use crate::rows::{Horizons, Row};
use crate::samples::{T0, time};

/// Sums by group, bucket (or time), and stack. A stack lists function names, root first.
pub type Sums = BTreeMap<(BTreeMap<String, String>, i64, Vec<String>), i128>;

/// A condition on stacks, by the names of their functions.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Frames of the stack whose functions are compared.
    pub place: FramePlace,
    /// True if the condition is negated: a stack with one of the functions does not meet it.
    pub is_negated: bool,
    /// Names of the functions that the condition looks for.
    pub functions: Vec<String>,
}

impl Condition {
    fn is_met(&self, row: &Row) -> bool {
        let named = |function: &String| self.functions.contains(function);
        let is_named = match self.place {
            FramePlace::Leaf => row.stack.last().is_some_and(named),
            FramePlace::Any => row.stack.iter().any(named),
        };
        is_named != self.is_negated
    }
}

/// The conditions that a stack must meet, and a percentage: the share of locations that the client already knows when
/// it makes its first request.
pub type Conditions = (Vec<Condition>, u32);

/// Generates conditions for a test case.
pub fn conditions() -> impl Strategy<Value = Conditions> {
    let functions = prop::sample::subsequence(vec!["main", "f0", "f1", "f2", "k0", "k1", "none"], 0..4);
    let condition = (any::<bool>(), any::<bool>(), functions).prop_map(|(leaf, is_negated, functions)| Condition {
        place: if leaf { FramePlace::Leaf } else { FramePlace::Any },
        is_negated,
        functions: functions.into_iter().map(str::to_owned).collect(),
    });
    (prop_oneof![Just(Vec::new()), prop::collection::vec(condition, 1..3)], 0..=100_u32)
}

/// Returns the name of the function at a location. Each location of the model has one function.
pub fn function_of(dictionary: &Dictionary, location: u32) -> &str {
    let Location::Lines { lines, .. } = &dictionary.locations[location as usize] else {
        panic!("all locations of the model have lines")
    };
    dictionary.strings.get(dictionary.functions[lines[0].function as usize].name)
}

/// Returns the sums of an answer. `known` holds the locations that the client knows already, and that the answer may
/// omit.
pub fn sums_of(answer: &Answer, selection: &Selection, known: &Dictionary) -> Sums {
    let mut out = Sums::new();
    let count = selection.locations.known.count;
    for cell in &answer.cells {
        let mut stack = Vec::new();
        let mut node = cell.node;
        while node != 0 {
            let location = answer.nodes[node as usize].location;
            let function = match location.checked_sub(count) {
                Some(own) => function_of(&answer.dictionary, own),
                None => function_of(known, location),
            };
            stack.insert(0, function.to_owned());
            node = answer.nodes[node as usize].parent;
        }
        let group = labels(&answer.groups[cell.group as usize]);
        let bucket = match selection.fold {
            Fold::Sum(_) => i64::from(cell.bucket),
            _ => answer.bucket_times_ns[cell.bucket as usize],
        };
        let before = out.insert((group, bucket, stack), cell.sum);
        assert!(before.is_none(), "a cell occurs twice");
    }
    out
}

/// Groups, each with a bucket or a time.
pub type GroupBuckets = BTreeSet<(BTreeMap<String, String>, i64)>;

/// Returns the groups and buckets that have samples, but no stack that meets the conditions.
pub fn unpassed_of(answer: &Answer, selection: &Selection) -> GroupBuckets {
    let group_bucket = |unpassed: &Unpassed| {
        let bucket = match selection.fold {
            Fold::Sum(_) => i64::from(unpassed.bucket),
            _ => answer.bucket_times_ns[unpassed.bucket as usize],
        };
        (labels(&answer.groups[unpassed.group as usize]), bucket)
    };
    answer.unpassed.iter().map(group_bucket).collect()
}

fn labels(group: &LabelSet) -> BTreeMap<String, String> {
    group.iter().map(|label| (label.name.to_string(), label.value.to_string())).collect()
}

fn attribute_or_label(row: &Row, name: &str) -> String {
    let attribute = || (name == "thread_name").then(|| row.thread.clone()).flatten();
    row.labels.get(name).cloned().or_else(attribute).unwrap_or_default()
}

fn accepts(matcher: &Matcher, value: &str) -> bool {
    let is_alternative = matcher.value.split('|').any(|alternative| alternative == value);
    match matcher.operation {
        Operation::Equal => value == matcher.value,
        Operation::NotEqual => value != matcher.value,
        Operation::Match => is_alternative,
        Operation::NotMatch => !is_alternative,
    }
}

/// Returns whether a sample may match the selection, judged only by the labels that no tier drops.
pub fn may_match(row: &Row, selection: &Selection) -> bool {
    let mut known = selection.matchers.iter().filter(|matcher| matcher.name == "service_name");
    known.all(|matcher| accepts(matcher, &row.labels["service_name"]))
}

/// Returns the sums that the model expects, without the samples that the answer reports as missing. Also returns the
/// groups and buckets that have samples, but no stack that meets the conditions.
pub fn model_sums(
    rows: &[Row],
    horizons: &Horizons,
    selection: &Selection,
    conditions: &[Condition],
    missing: &[Missing],
) -> (Sums, GroupBuckets) {
    let window = selection.fold.window();
    let in_window = |row: &&Row| {
        window.start_ns < row.time_ns && row.time_ns <= window.end_ns && !horizons.is_missing(row, missing)
    };
    let matches =
        |row: &&Row| selection.matchers.iter().all(|matcher| accepts(matcher, &attribute_or_label(row, &matcher.name)));
    let mut last: BTreeMap<&BTreeMap<String, String>, i64> = BTreeMap::new();
    for row in rows.iter().filter(in_window) {
        let time = last.entry(&row.labels).or_insert(row.time_ns);
        *time = row.time_ns.max(*time);
    }
    let mut out = Sums::new();
    let mut unpassed = GroupBuckets::new();
    let mut passed = GroupBuckets::new();
    for row in rows.iter().filter(in_window).filter(matches) {
        let bucket = match &selection.fold {
            Fold::Sum(windows) => {
                let inside = |window: &Window| window.start_ns < row.time_ns && row.time_ns <= window.end_ns;
                let Some(bucket) = windows.iter().position(inside) else { continue };
                bucket as i64
            }
            Fold::Last(_) if last[&row.labels] != row.time_ns => continue,
            Fold::Points(_) | Fold::Last(_) => row.time_ns,
        };
        let mut group: BTreeMap<String, String> =
            if selection.group_by_series { row.labels.clone() } else { BTreeMap::new() };
        for name in &selection.group_by {
            group.insert(name.clone(), attribute_or_label(row, name));
        }
        group.retain(|_, value| !value.is_empty());
        let stack = match selection.stacks {
            StackDetail::None => Vec::new(),
            StackDetail::Leaf => vec![row.stack.last().unwrap().clone()],
            StackDetail::Full => row.stack.clone(),
        };
        if conditions.iter().all(|condition| condition.is_met(row)) {
            passed.insert((group.clone(), bucket));
            *out.entry((group, bucket, stack)).or_default() += i128::from(row.value);
        } else {
            unpassed.insert((group, bucket));
        }
    }
    unpassed.retain(|group_bucket| !passed.contains(group_bucket));
    (out, unpassed)
}

/// Generates selections of all kinds, over a few days around [`T0`].
pub fn selection() -> impl Strategy<Value = Selection> {
    let matcher = (0..5_u8, 0..4_u8, 0..7_u8).prop_map(|(name, operation, value)| Matcher {
        name: ["service_name", "region", "thread_name", "missing", "zone"][usize::from(name)].to_owned(),
        operation: [Operation::Equal, Operation::NotEqual, Operation::Match, Operation::NotMatch]
            [usize::from(operation)],
        value: ["s0", "eu", "t1", "", "s1|s2", "t2|t3", "us|"][usize::from(value)].to_owned(),
    });
    let no_gauge = Matcher { name: "service_name".to_owned(), operation: Operation::NotEqual, value: "s3".to_owned() };
    let matchers =
        (prop::collection::vec(matcher, 0..3), prop::bool::weighted(0.7)).prop_map(move |(mut matchers, delta)| {
            matchers.extend(delta.then(|| no_gauge.clone()));
            matchers
        });
    let edges = prop::collection::btree_set(time(), 2..6);
    (matchers, edges, 0..6_u8, 0..5_u8, any::<bool>(), 0..3_i32).prop_map(
        |(matchers, edges, fold, group_by, group_by_series, stacks)| {
            let edges: Vec<i64> = edges.into_iter().map(|time| T0 + time).collect();
            let window = Window { start_ns: edges[0], end_ns: *edges.last().unwrap() };
            let windows = Window::between(&edges);
            let apart = windows.iter().copied().step_by(2).collect();
            let names: [&[&str]; 5] = [&[], &["thread_name"], &["region", "thread_name"], &["service_name"], &["zone"]];
            let whole = vec![window];
            Selection {
                tenant: TenantId::default_tenant(),
                matchers,
                fold: [
                    Fold::Sum(windows),
                    Fold::Sum(apart),
                    Fold::Points(window),
                    Fold::Last(window),
                    Fold::Sum(whole.clone()),
                    Fold::Sum(whole),
                ][usize::from(fold)]
                .clone(),
                group_by: names[usize::from(group_by)].iter().map(|&name| name.to_owned()).collect(),
                group_by_series,
                stacks: StackDetail::try_from(stacks).unwrap(),
                locations: LocationSets::default(),
            }
        },
    )
}
