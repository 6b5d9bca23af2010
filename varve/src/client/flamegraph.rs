//! `varve flamegraph`: a flame graph in a terminal or a file.

use std::collections::HashMap;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::destination::Destination;
use super::printable::printable;
use super::server::{Read, Server};
use super::table::render;
use crate::command::{FlamegraphOptions, Time};

/// Default limit on the rows of the table.
const ROWS_DEFAULT: usize = 30;

/// Largest number of nodes of a flame graph from which a table is made. The limit is high, because the pruning of nodes
/// would lose functions.
const TABLE_NODES: usize = 1 << 20;

pub(crate) fn run(options: &FlamegraphOptions) -> anyhow::Result<()> {
    let end = options.end.unwrap_or_else(Time::now);
    let start = options.start.unwrap_or_else(|| end.before(options.range));
    if start.0 >= end.0 {
        bail!("the window from {start} to {end} is empty: --start must be before --end");
    }
    let format = options.format.as_str();
    let output = Destination::open(options.output.as_deref(), format == "pprof")?;
    let nodes = if format == "table" { Some(TABLE_NODES) } else { options.limit };
    let mut parameters = vec![
        ("query", options.selector.clone()),
        ("start", start.to_string()),
        ("end", end.to_string()),
        ("format", if format == "table" { "json" } else { format }.to_owned()),
        ("interpreter", options.interpreter.clone()),
    ];
    parameters.extend(options.read.parameters());
    parameters.extend(nodes.map(|nodes| ("max_nodes", nodes.to_string())));
    let Read { mut body, shortfalls } = Server::new(&options.server)?.read("/api/v1/flamegraph", &parameters)?;
    shortfalls.iter().for_each(|shortfall| eprintln!("{shortfall}"));
    let nothing = || format!("no samples match {} from {start} to {end}\n", printable(&options.selector));
    match format {
        "table" => {
            let tree: Value = serde_json::from_slice(&body).context("the response is not JSON")?;
            let table = table(&tree, options.limit.unwrap_or(ROWS_DEFAULT));
            body = table.context("the response is not a flame graph")?.unwrap_or_else(nothing).into_bytes();
        }
        // Other tools read folded stacks from stdout, so the message goes to stderr.
        "folded" if body.is_empty() => eprint!("{}", nothing()),
        "json" if !body.ends_with(b"\n") => body.push(b'\n'),
        _ => {}
    }
    output.write(&body)
}

/// Returns a table of functions, sorted by self value. The columns are the self value and its share, the total value
/// and its share, and the name. In the total of a recursive function, each value counts once. Returns `None` if the
/// response is not a flame graph, and `Some(None)` if the flame graph has no samples.
fn table(tree: &Value, rows_max: usize) -> Option<Option<String>> {
    let nodes: Vec<[i128; 4]> = tree["nodes"]
        .as_array()?
        .iter()
        .map(|node| {
            let number = |i: usize| node[i].as_number().and_then(|number| number.as_i128());
            Some([number(0)?, number(1)?, number(2)?, number(3)?])
        })
        .collect::<Option<_>>()?;
    let names: Vec<&str> = tree["names"].as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
    let total = nodes.first()?[3];
    if total == 0 {
        return Some(None);
    }
    let mut sums: HashMap<i128, (i128, i128)> = HashMap::new();
    for node in nodes.iter().skip(1) {
        let sum = sums.entry(node[1]).or_default();
        sum.0 += node[2];
        if !is_below_itself(&nodes, node) {
            sum.1 += node[3];
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(name, (own, whole))| (-own, -whole, name));
    let share = |value: i128| format!("{:.1} %", value as f64 * 100.0 / total as f64);
    let rows: Vec<Vec<String>> = sums
        .iter()
        .take(rows_max)
        .map(|&(name, (own, whole))| {
            let name = usize::try_from(name).ok().and_then(|name| names.get(name)).copied().unwrap_or_default();
            vec![own.to_string(), share(own), whole.to_string(), share(whole), name.to_owned()]
        })
        .collect();
    let unit = printable(tree["unit"].as_str().unwrap_or_default());
    let left_out = sums.len().saturating_sub(rows_max);
    let mut out = render(&["self", "", "total", "", "function"], &rows);
    out.push_str(&format!("{total} {unit} in all, {left_out} more functions\n"));
    Some(Some(out))
}

/// Returns true if a caller of this node has the node's name.
fn is_below_itself(nodes: &[[i128; 4]], node: &[i128; 4]) -> bool {
    let mut parent = node[0];
    while let Some(caller) = usize::try_from(parent).ok().and_then(|parent| nodes.get(parent)) {
        if caller[1] == node[1] {
            return true;
        }
        parent = caller[0];
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn recursion_counts_once_in_a_functions_total() {
        let tree = json!({"unit": "count", "names": ["total", "a", "b"],
            "nodes": [[-1, 0, 0, 10], [0, 1, 2, 10], [1, 2, 3, 8], [2, 1, 5, 5]]});
        let table = table(&tree, 10).unwrap().unwrap();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["7", "70.0", "%", "10", "100.0", "%", "a"]);
        assert_eq!(rows[2], ["3", "30.0", "%", "8", "80.0", "%", "b"]);
    }
}
