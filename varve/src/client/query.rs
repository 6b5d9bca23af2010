//! `varve query`: PromQL on the terminal.

use anyhow::Context as _;
use serde_json::Value;

use super::table::render;
use super::{Server, print};
use crate::command::QueryOptions;

pub(crate) fn run(options: &QueryOptions) -> anyhow::Result<()> {
    let mut parameters = vec![("query", options.promql.clone())];
    parameters.extend(options.time.clone().map(|time| ("time", time)));
    let body = Server::new(&options.server)?.get("/api/v1/query", &parameters)?;
    if options.format == "json" {
        return print(&format!("{}\n", body.trim_end()));
    }
    let answer: Value = serde_json::from_str(&body).context("the answer is not JSON")?;
    print(&table(&answer["data"]))
}

/// The result as a table: a column for each label that any series has, then the value.
fn table(data: &Value) -> String {
    if data["resultType"] == "scalar" {
        return format!("{}\n", data["result"][1].as_str().unwrap_or_default());
    }
    let empty = Vec::new();
    let result = data["result"].as_array().unwrap_or(&empty);
    if result.is_empty() {
        return "no series match\n".to_owned();
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
    render(&header, &rows)
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
        assert_eq!(table(&data), "service_name  zone  value\napi                   0.5\ndb            a        12\n");
        assert_eq!(table(&json!({"resultType": "scalar", "result": [1, "2"]})), "2\n");
        assert_eq!(table(&json!({"resultType": "vector", "result": []})), "no series match\n");
    }
}
