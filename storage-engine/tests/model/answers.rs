//! Answers of the engine and of the model, in one form.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proto::selection::{Missing, Operation};
use proto::{Answer, Fold, Location, Matcher, Selection, StackDetail, TenantId, Window};

use super::samples::{T0, time};
use super::world::Row;

/// (group, bucket or time, root-first stack) to sum.
pub(crate) type Sums = BTreeMap<(BTreeMap<String, String>, i64, Vec<String>), i128>;

pub(crate) fn sums_of(answer: &Answer, selection: &Selection) -> Sums {
    let mut out = Sums::new();
    for cell in &answer.cells {
        let mut stack = Vec::new();
        let mut node = cell.node;
        while node != 0 {
            let Location::Lines { lines, .. } =
                &answer.dictionary.locations[answer.nodes[node as usize].location as usize]
            else {
                panic!("all locations of the model have lines")
            };
            let function = answer.dictionary.functions[lines[0].function as usize];
            stack.insert(0, answer.dictionary.strings.get(function.name).to_owned());
            node = answer.nodes[node as usize].parent;
        }
        let group =
            answer.groups[cell.group as usize].iter().map(|label| (label.name.clone(), label.value.clone())).collect();
        let bucket = match selection.fold {
            Fold::Sum(_) => i64::from(cell.bucket),
            _ => answer.bucket_times_ns[cell.bucket as usize],
        };
        let before = out.insert((group, bucket, stack), cell.sum);
        assert!(before.is_none(), "a cell is there twice");
    }
    out
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

/// Whether a sample may match, by the labels of its series that no tier drops.
pub(crate) fn may_match(row: &Row, selection: &Selection) -> bool {
    let mut known = selection.matchers.iter().filter(|matcher| matcher.name == "service_name");
    known.all(|matcher| accepts(matcher, &row.labels["service_name"]))
}

/// What the model answers, without times that are said to be missing.
pub(crate) fn model_sums(rows: &[Row], selection: &Selection, missing: &[Missing]) -> Sums {
    let window = selection.fold.window();
    let is_missing =
        |time: i64| missing.iter().any(|missing| missing.window.start_ns < time && time <= missing.window.end_ns);
    let in_window =
        |row: &&Row| window.start_ns < row.time_ns && row.time_ns <= window.end_ns && !is_missing(row.time_ns);
    let matches =
        |row: &&Row| selection.matchers.iter().all(|matcher| accepts(matcher, &attribute_or_label(row, &matcher.name)));
    let mut last: BTreeMap<&BTreeMap<String, String>, i64> = BTreeMap::new();
    for row in rows.iter().filter(in_window) {
        let time = last.entry(&row.labels).or_insert(row.time_ns);
        *time = row.time_ns.max(*time);
    }
    let mut out = Sums::new();
    for row in rows.iter().filter(in_window).filter(matches) {
        let bucket = match &selection.fold {
            Fold::Sum(edges) => {
                edges.windows(2).position(|edge| edge[0] < row.time_ns && row.time_ns <= edge[1]).unwrap() as i64
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
        *out.entry((group, bucket, stack)).or_default() += i128::from(row.value);
    }
    out
}

pub(crate) fn selection() -> impl Strategy<Value = Selection> {
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
    (matchers, edges, 0..5_u8, 0..5_u8, any::<bool>(), 0..3_i32).prop_map(
        |(matchers, edges, fold, group_by, group_by_series, stacks)| {
            let edges: Vec<i64> = edges.into_iter().map(|time| T0 + time).collect();
            let window = Window { start_ns: edges[0], end_ns: *edges.last().unwrap() };
            let names: [&[&str]; 5] = [&[], &["thread_name"], &["region", "thread_name"], &["service_name"], &["zone"]];
            let whole = vec![window.start_ns, window.end_ns];
            Selection {
                tenant: TenantId::default_tenant(),
                matchers,
                fold: [
                    Fold::Sum(edges),
                    Fold::Points(window),
                    Fold::Last(window),
                    Fold::Sum(whole.clone()),
                    Fold::Sum(whole),
                ][usize::from(fold)]
                .clone(),
                group_by: names[usize::from(group_by)].iter().map(|&name| name.to_owned()).collect(),
                group_by_series,
                stacks: StackDetail::try_from(stacks).unwrap(),
            }
        },
    )
}
