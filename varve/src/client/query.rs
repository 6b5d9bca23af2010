//! `varve query`: PromQL on the terminal.

use anyhow::Context as _;
use serde_json::Value;

use super::output::print;
use super::printable::printable;
use super::server::{Read, Server};
use super::table::render;
use crate::command::{QueryOptions, Time};

pub(crate) fn run(options: &QueryOptions) -> anyhow::Result<()> {
    let time = options.time.unwrap_or_else(Time::now);
    let mut parameters = vec![("query", options.promql.clone()), ("time", time.to_string())];
    parameters.extend(options.read.parameters());
    let Read { body, shortfalls } = Server::new(&options.server)?.read("/api/v1/query", &parameters)?;
    shortfalls.iter().for_each(|shortfall| eprintln!("{shortfall}"));
    let body = String::from_utf8(body).context("the response is not UTF-8")?;
    if options.format == "json" {
        return print(&format!("{}\n", body.trim_end()));
    }
    let answer: Value = serde_json::from_str(&body).context("the response is not JSON")?;
    match table(&answer["data"]) {
        Some(table) => print(&table),
        None => print(&format!("no series match {} at {time}\n", printable(&options.promql))),
    }
}

/// Formats the result as a table: a column for each label that any series has, then the value. Returns `None` if there
/// are no series.
fn table(data: &Value) -> Option<String> {
    if data["resultType"] == "scalar" {
        return Some(format!("{}\n", data["result"][1].as_str().unwrap_or_default()));
    }
    let empty = Vec::new();
    let result = data["result"].as_array().unwrap_or(&empty);
    if result.is_empty() {
        return None;
    }
    let labels = |series: &Value| series["metric"].as_object().cloned().unwrap_or_default();
    let mut names: Vec<String> =
        result.iter().flat_map(|series| labels(series).into_iter().map(|(name, _)| name)).collect();
    names.sort();
    names.dedup();
    let row = |series: &Value| {
        let labels = labels(series);
        let mut cells: Vec<String> =
            names.iter().map(|name| labels.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()).collect();
        cells.push(series["value"][1].as_str().unwrap_or_default().to_owned());
        cells
    };
    let rows: Vec<Vec<String>> = result.iter().map(row).collect();
    let mut header: Vec<&str> = names.iter().map(String::as_str).collect();
    header.push("value");
    Some(render(&header, &rows))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_label_has_a_column() {
        let data = json!({"resultType": "vector", "result": [
            {"metric": {"service_name": "api"}, "value": [1, "0.5"]},
            {"metric": {"service_name": "db", "zone": "a"}, "value": [1, "12"]}]});
        assert_eq!(
            table(&data).unwrap(),
            "service_name  zone  value\napi                   0.5\ndb            a        12\n"
        );
        assert_eq!(table(&json!({"resultType": "scalar", "result": [1, "2"]})).unwrap(), "2\n");
        assert_eq!(table(&json!({"resultType": "vector", "result": []})), None);
    }
}
