//! Tests of the lists of series, labels and profile types.

use serde_json::{Value, json};

use super::*;

fn data(path: &str, parameters: &[(&str, &str)]) -> Value {
    let answer = Server::new(samples()).get(path, parameters);
    assert_eq!(answer.status, StatusCode::OK, "{path} {parameters:?}: {}", answer.text());
    answer.json()["data"].clone()
}

fn values(name: &str, parameters: &[(&str, &str)]) -> Value {
    data(&format!("/api/v1/label/{name}/values"), parameters)
}

#[test]
fn series_are_those_of_any_selector_each_once() {
    let b = json!([
        {"__name__": IN_USE, "__profile_type__": IN_USE, "region": "us", "service_name": "b"},
        {"__name__": CPU, "__profile_type__": CPU, "region": "us", "service_name": "b"},
    ]);
    assert_eq!(data("/api/v1/series", &[("match[]", "{region=\"us\"}")]), b);
    let twice = [("match[]", "process_cpu{service_name=\"b\"}"), ("match[]", "{service_name=\"b\"}")];
    assert_eq!(data("/api/v1/series", &twice), b);
    assert_eq!(data("/api/v1/series", &[("match[]", "process_cpu")]).as_array().unwrap().len(), 3);
    assert_eq!(data("/api/v1/series", &[("match[]", CPU)]).as_array().unwrap().len(), 2);
    assert_eq!(data("/api/v1/series", &[("match[]", "process")]), json!([]));
    assert_eq!(data("/api/v1/series", &[("match[]", "process_cpu:cpu")]), json!([]));
    assert_eq!(data("/api/v1/series", &[("match[]", "{thread_name=\"t2\"}")]).as_array().unwrap().len(), 1);
    let start = (NOW_S - 8).to_string();
    let recent = [("match[]", "{region=~\".+\"}"), ("start", start.as_str())];
    assert_eq!(data("/api/v1/series", &recent).as_array().unwrap().len(), 3);
    let cut = Server::new(samples()).get("/api/v1/series", &[("match[]", "{region=\"us\"}"), ("limit", "1")]).json();
    assert_eq!((cut["data"].as_array().unwrap().len(), cut["warnings"].as_array().unwrap().len()), (1, 1));
}

#[test]
fn series_need_a_selector_that_selects_series() {
    for parameters in [
        vec![],
        vec![("match[]", "{}")],
        vec![("match[]", "rate(process_cpu[5m])")],
        vec![("match[]", "process_cpu offset 5m")],
        vec![("match[]", "process_cpu{leaf_function=\"hot\"}")],
        vec![("match[]", "process_cpu"), ("start", "2"), ("end", "1")],
    ] {
        let answer = Server::new(samples()).get("/api/v1/series", &parameters);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{parameters:?}: {}", answer.text());
    }
    let many = vec![("match[]", "process_cpu"); 51];
    assert_eq!(Server::new(samples()).get("/api/v1/series", &many).status, StatusCode::BAD_REQUEST);
    assert_eq!(Server::new(samples()).get("/api/v1/series", &many[..50]).status, StatusCode::OK);
}

#[test]
fn label_names_are_those_of_series_and_samples() {
    let all = json!(["__name__", "__profile_type__", "region", "service_name", "thread_name"]);
    assert_eq!(data("/api/v1/labels", &[]), all);
    assert_eq!(data("/api/v1/labels", &[("match[]", "goroutine")]), all);
    let form = Server::new(samples()).post("/api/v1/labels", &[("limit", "1")]).json();
    assert_eq!(form["data"], json!(["__name__"]));
}

#[test]
fn label_values_are_those_of_series_samples_and_stacks() {
    assert_eq!(values("service_name", &[]), json!(["a", "b"]));
    assert_eq!(values("service_name", &[("match[]", "goroutine")]), json!(["a"]));
    assert_eq!(values("__name__", &[]), json!([GOROUTINES, ALLOCATED, IN_USE, CPU, SAMPLES]));
    assert_eq!(values("thread_name", &[]), json!(["t1", "t2"]));
    assert_eq!(values("thread_name", &[("match[]", "process_cpu{region=\"us\"}")]), json!(["t1"]));
    assert_eq!(values("leaf_function", &[("match[]", "process_cpu")]), json!(["cold", "hot"]));
    assert_eq!(values("stack_function", &[("match[]", "goroutine")]), json!(["main", "park"]));
    assert_eq!(values("service_name", &[("match[]", "{leaf_function=\"cold\"}")]), json!(["a", "b"]));
    assert_eq!(values("service_name", &[("match[]", "{leaf_function=\"park\"}")]), json!(["a"]));
    assert_eq!(values("__name__", &[("match[]", "{leaf_function=\"park\"}")]), json!([GOROUTINES]));
    assert_eq!(values("no_such_label", &[]), json!([]));
    let old = (NOW_S - 500).to_string();
    let end = (NOW_S - 300).to_string();
    assert_eq!(values("service_name", &[("start", &old), ("end", &end)]), json!(["b"]));
    assert_eq!(values("service_name", &[("end", "10")]), json!([]));
    let bad = Server::new(samples()).get("/api/v1/label/a-b/values", &[]);
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
}

// The attribute may be one of another service in the same shard, so an error would depend on the placement.
#[test]
fn values_of_a_dropped_attribute_are_missing_with_a_warning() {
    let refuses_group_by = Some("thread_name".to_owned());
    let node = NaiveNode { refuses_group_by, ..NaiveNode::new(samples()) };
    let listed = Server::of_node(node).get("/api/v1/label/thread_name/values", &[("match[]", "goroutine")]);
    assert_eq!((listed.status, &listed.json()["data"]), (StatusCode::OK, &json!([])), "{}", listed.text());
    let warning = listed.json()["warnings"][0].as_str().unwrap().to_owned();
    assert!(warning.contains("thread_name") && warning.contains("as the test wishes"), "{warning}");
}

#[test]
fn metadata_distinguishes_gauges_from_counters() {
    let all = data("/api/v1/metadata", &[]);
    assert_eq!(all.as_object().unwrap().len(), 5);
    let cpu = json!({CPU: [{"type": "counter", "unit": "nanoseconds", "help": "cpu of process_cpu profiles, \
        sampled by cpu in nanoseconds"}]});
    assert_eq!(data("/api/v1/metadata", &[("metric", CPU)]), cpu);
    let goroutines =
        json!({GOROUTINES: [{"type": "gauge", "unit": "count", "help": "goroutine of goroutine profiles"}]});
    assert_eq!(data("/api/v1/metadata", &[("metric", "goroutine")]), goroutines);
    assert_eq!(data("/api/v1/metadata", &[("limit", "2")]).as_object().unwrap().len(), 2);
}

#[test]
fn the_build_information_is_served() {
    let version = data("/api/v1/status/buildinfo", &[])["version"].clone();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

// Once, an empty flame graph and an empty result did not report that a list was incomplete.
#[test]
fn responses_report_that_a_list_was_incomplete() {
    let window = proto::Window { start_ns: (NOW_S - 60) * S, end_ns: NOW_S * S };
    let missing = proto::answer::Missing { window, finest: proto::Tier::Minute, is_damaged: false };
    let dropped_labels = proto::answer::DroppedLabel { tier: proto::Tier::Hour, name: "pod".to_owned() };
    let mut node = NaiveNode::default();
    node.list.missing.push(missing);
    node.list.dropped_labels.push(dropped_labels);
    let server = Server::of_node(node);
    let start = (NOW_S - 60).to_string();
    let end = NOW_S.to_string();
    let warnings = |path: &str, name: &str| -> Vec<String> {
        let parameters = [
            (name, "process_cpu{service_name=\"a\"}"),
            ("start", &start),
            ("end", &end),
            ("time", &end),
            ("step", "60"),
        ];
        let answer = server.get(path, &parameters).json();
        let texts = answer["warnings"].as_array().unwrap_or_else(|| panic!("{path}: {answer}"));
        texts.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    for (path, name) in [("/api/v1/flamegraph", "query"), ("/api/v1/query_range", "query"), ("/api/v1/query", "query")]
    {
        let told = warnings(path, name);
        assert!(told.len() == 1 && told[0].contains("only sums of minutes are kept"), "{path}: {told:?}");
    }
    for path in ["/api/v1/series", "/api/v1/labels", "/api/v1/label/pod/values"] {
        let told = warnings(path, "match[]");
        assert!(told.len() == 2 && told[1].contains("\"pod\""), "{path}: {told:?}");
    }
    // Values of another label are complete.
    assert_eq!(warnings("/api/v1/label/region/values", "match[]").len(), 1);
}
