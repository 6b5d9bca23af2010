//! Tests of PromQL against a real server: metadata, matchers, windows, gauges and errors, over HTTP and on the
//! terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};
use tests::payload::otlp::{Frame, PERIOD_NS, Request, now_ns, stack};
use tests::payload::pprof;
use tests::server::{Processes, Setup, Varve};
use tests::shared::{payloads, varve_binary};

const SECOND_NS: u64 = 1_000_000_000;
/// Sum of the values of 100 samples, in nanoseconds.
const UNIT: f64 = 100.0 * PERIOD_NS as f64;

/// Pushes samples of two services in which `main` calls `hot` and `cold`. One service has 600 samples in `hot` and 100
/// in `cold`, the other 200 and 100. Returns the times of all samples.
fn two_services(varve: &Varve, now: u64) -> Vec<u64> {
    let mut all = Vec::new();
    for (service, hot) in [("a", 6), ("b", 2)] {
        let times = |count: u64, shift: u64| -> Vec<u64> {
            (0..count).map(|i| now - 60 * SECOND_NS + i * 10_000_000 + shift).collect()
        };
        let request = Request::new(&format!("promql-{service}")).with("region", &format!("eu-{service}"));
        let request =
            request.seen(stack(&["hot", "main"]), times(hot * 100, 0)).seen(stack(&["cold", "main"]), times(100, 1));
        assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
        all.extend(times(hot * 100, 0).into_iter().chain(times(100, 1)));
    }
    all
}

fn by(varve: &Varve, promql: &str, label: &str, at_s: f64) -> BTreeMap<String, f64> {
    varve
        .query(promql, at_s)
        .into_iter()
        .map(|(mut labels, value)| (labels.remove(label).unwrap_or_default(), value))
        .collect()
}

fn map(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
}

#[test]
fn all_four_kinds_of_matchers_select_series_and_labels() {
    let varve = Varve::up();
    let now = now_ns();
    two_services(&varve, now);
    let at_s = now as f64 / 1e9 + 1.0;
    let data =
        |path: &str, selector: &str| varve.get(path, &[("match[]", selector)]).expect(200).json()["data"].clone();
    assert_eq!(data("/api/v1/label/service_name/values", "process_cpu"), json!(["promql-a", "promql-b"]));
    let labels: BTreeSet<String> = serde_json::from_value(data("/api/v1/labels", "process_cpu")).unwrap();
    for name in ["service_name", "region", "__profile_type__"] {
        assert!(labels.contains(name), "{labels:?}");
    }
    assert_eq!(data("/api/v1/series", "process_cpu").as_array().unwrap().len(), 2);
    let metadata = varve.get("/api/v1/metadata", &[]).expect(200).json();
    let of_cpu = &metadata["data"]["process_cpu:cpu:nanoseconds:cpu:nanoseconds"][0];
    assert_eq!(
        (of_cpu["type"].as_str(), of_cpu["unit"].as_str()),
        (Some("counter"), Some("nanoseconds")),
        "{metadata}"
    );
    assert!(varve.get("/api/v1/status/buildinfo", &[]).expect(200).json()["data"]["version"].is_string());
    let matchers = [
        ("region=\"eu-a\"", 7.0),
        ("region!=\"eu-a\"", 3.0),
        ("region=~\"eu-[ab]\"", 10.0),
        ("region!~\"eu-.*\"", 0.0),
        ("missing=\"\"", 10.0),
        ("region=~\"eu\"", 0.0),
    ];
    for (matcher, want) in matchers {
        let total = varve.total(&format!("sum(sum_over_time(process_cpu{{{matcher}}}[10m]))"), at_s);
        assert_eq!(total, want * UNIT, "{matcher}");
    }
}

#[test]
fn rates_are_cores_and_functions_of_the_stacks_can_be_grouped_and_matched() {
    let varve = Varve::up();
    let now = now_ns();
    two_services(&varve, now);
    let at_s = now as f64 / 1e9 + 1.0;
    let cores = by(&varve, "sum by (service_name) (rate(process_cpu[5m]))", "service_name", at_s);
    let want = map(&[("promql-a", 700.0 * 0.05 / 300.0), ("promql-b", 300.0 * 0.05 / 300.0)]);
    assert!(
        cores.keys().eq(want.keys()) && cores.iter().all(|(name, value)| (value - want[name]).abs() < 1e-12),
        "{cores:?}"
    );
    let leaf = by(&varve, "topk(1, sum by (leaf_function) (sum_over_time(process_cpu[10m])))", "leaf_function", at_s);
    assert_eq!(leaf, map(&[("hot", 8.0 * UNIT)]));
    let stack = by(&varve, "sum by (stack_function) (sum_over_time(process_cpu[10m]))", "stack_function", at_s);
    assert_eq!(stack, map(&[("main", 10.0 * UNIT), ("hot", 8.0 * UNIT), ("cold", 2.0 * UNIT)]));
    let matched = varve.total("sum(sum_over_time(process_cpu{stack_function=~\"co.*\"}[10m]))", at_s);
    assert_eq!(matched, 2.0 * UNIT);
    let share = varve.total("sum(rate(process_cpu{leaf_function=\"hot\"}[5m])) / sum(rate(process_cpu[5m]))", at_s);
    assert!((share - 0.8).abs() < 1e-12, "{share}");
    let bottom = by(&varve, "bottomk(1, sum by (service_name) (increase(process_cpu[5m])))", "service_name", at_s);
    assert_eq!(bottom.keys().collect::<Vec<_>>(), ["promql-b"]);
    let without = varve.query("sum without (region, __profile_type__) (sum_over_time(process_cpu[10m]))", at_s);
    assert!(without.iter().all(|(labels, _)| labels.keys().eq(["service_name"])), "{without:?}");
}

/// Runs with one process, and again with a separate node. Queries and known locations then go over the network.
#[test]
fn a_chart_by_function_equals_the_flame_graphs_of_its_steps() {
    for processes in [Processes::One, Processes::Three] {
        let varve = Varve::start(Setup { processes, ..Setup::default() });
        let now = now_ns();
        two_services(&varve, now);
        let end_s = (now / SECOND_NS) as f64;
        for condition in
            ["stack_function=\"hot\"", "leaf_function!=\"hot\"", "stack_function!~\"c.*|x\"", "stack_function=\"x\""]
        {
            let selector = format!("process_cpu{{{condition}}}");
            let query = format!("sum(sum_over_time({selector}[10s]))");
            let start = (end_s - 70.0).to_string();
            let end = end_s.to_string();
            let parameters = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", "10")];
            let chart = varve.get("/api/v1/query_range", &parameters).expect(200).json();
            let points = chart["data"]["result"][0]["values"].as_array().cloned().unwrap_or_default();
            let point = |point: &Value| {
                (point[0].as_f64().unwrap() as i64, point[1].as_str().unwrap().parse::<f64>().unwrap() as i128)
            };
            let chart: BTreeMap<i64, i128> = points.iter().map(point).filter(|(_, sum)| *sum != 0).collect();
            let steps = (0..=7).map(|step| end_s - 70.0 + f64::from(step) * 10.0);
            let graph = |at_s: f64| {
                let stacks = varve.folded(&selector, (at_s - 10.0, at_s));
                (at_s as i64, stacks.values().sum::<i128>())
            };
            let graphs: BTreeMap<i64, i128> = steps.map(graph).filter(|(_, sum)| *sum != 0).collect();
            assert_eq!(chart, graphs, "{processes:?} {condition}");
            assert_eq!(graphs.is_empty(), condition.contains("=\"x\""), "{processes:?} {condition}");
        }
    }
}

#[test]
fn windows_exclude_their_start_and_include_their_end() {
    let varve = Varve::up();
    let now = now_ns() / SECOND_NS * SECOND_NS;
    let mut times = two_services(&varve, now);
    let edge = now - 200 * SECOND_NS;
    times.extend([edge, edge + 1, edge + 5 * SECOND_NS, edge + 5 * SECOND_NS + 1]);
    let request = Request::new("edges").seen(stack(&["edge"]), times[times.len() - 4..].to_vec());
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    for (end_ns, span_s) in [
        (now - 57 * SECOND_NS, 2),
        (now - 58 * SECOND_NS - 500_000_000, 60),
        (now - 120 * SECOND_NS, 30),
        (edge + 5 * SECOND_NS, 5),
        (edge, 5),
    ] {
        let inside = times.iter().filter(|&&time| end_ns - span_s * SECOND_NS < time && time <= end_ns).count();
        let end = format!("{}.{:09}", end_ns / SECOND_NS, end_ns % SECOND_NS);
        let promql = format!("sum(sum_over_time(process_cpu[{span_s}s]))");
        let reply = varve.get("/api/v1/query", &[("query", &promql), ("time", &end)]).expect(200).json();
        let value = reply["data"]["result"][0]["value"][1].as_str().unwrap_or("0").parse::<f64>().unwrap();
        assert_eq!(value, (inside as u64 * PERIOD_NS) as f64, "{span_s} s until {end}");
        let start = format!("{}.{:09}", end_ns / SECOND_NS - span_s, end_ns % SECOND_NS);
        let graph =
            varve.get("/api/v1/flamegraph", &[("query", "process_cpu"), ("start", &start), ("end", &end)]).expect(200);
        assert_eq!(graph.json()["total"], inside as u64 * PERIOD_NS, "flame graph of {span_s} s until {end}");
    }
}

#[test]
fn inlined_functions_are_frames_in_json_and_protobuf() {
    let varve = Varve::up();
    let now = now_ns();
    let inlined = Frame::Named(["innermost", "middle", "outer"].map(str::to_owned).into());
    let request = Request::new("frames").seen(vec![inlined, "main".into()], vec![now]);
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    let profile = json!({"sampleType": {"typeStrindex": 1, "unitStrindex": 2},
        "periodType": {"typeStrindex": 3, "unitStrindex": 4},
        "period": "50000000", "timeUnixNano": now.to_string(), "durationNano": "1000000000",
        "samples": [{"stackIndex": 1, "values": ["3"], "attributeIndices": [1]}]});
    let request = json!({
        "resourceProfiles": [{"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "frames"}}]},
            "scopeProfiles": [{"profiles": [profile]}]}],
        "dictionary": {"mappingTable": [{}], "linkTable": [{}],
            "attributeTable": [{}, {"keyStrindex": 7, "value": {"intValue": "42"}}],
            "stringTable": ["", "samples", "count", "cpu", "nanoseconds", "leaf", "main", "thread.id"],
            "functionTable": [{}, {"nameStrindex": 5}, {"nameStrindex": 6}],
            "locationTable": [{}, {"lines": [{"functionIndex": 1, "line": "1"}]},
                {"lines": [{"functionIndex": 2, "line": "2"}]}],
            "stackTable": [{}, {"locationIndices": [1, 2]}]}});
    let reply = varve.push_otlp_as("application/json", &[], request.to_string().as_bytes()).unwrap().expect(200);
    assert_eq!(reply.json(), json!({}));
    let window = (now as f64 / 1e9 - 60.0, now as f64 / 1e9 + 60.0);
    let want: BTreeMap<Vec<String>, i128> =
        [(&["main", "outer", "middle", "innermost"][..], 1), (&["main", "leaf"], 3)]
            .map(|(stack, count)| (stack.iter().map(|&name| name.to_owned()).collect(), count * i128::from(PERIOD_NS)))
            .into();
    assert_eq!(varve.folded("process_cpu{service_name=\"frames\"}", window), want);
    let thread = by(
        &varve,
        "sum by (thread_id) (sum_over_time(process_cpu{service_name=\"frames\"}[5m]))",
        "thread_id",
        window.1,
    );
    assert_eq!(thread, map(&[("", PERIOD_NS as f64), ("42", 3.0 * PERIOD_NS as f64)]));
}

#[test]
fn sample_attributes_can_be_grouped_and_matched_and_are_no_series() {
    let varve = Varve::up();
    let now = now_ns();
    let mut request =
        Request::new("threads").seen(stack(&["f", "main"]), vec![now]).seen(stack(&["g", "main"]), vec![now]);
    for (seen, thread) in request.samples.iter_mut().zip(["worker", "idle"]) {
        seen.attributes = vec![("thread.name".to_owned(), thread.to_owned()), ("thread.id".to_owned(), "7".to_owned())];
    }
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    let at_s = now as f64 / 1e9 + 1.0;
    let one = PERIOD_NS as f64;
    let threads = by(&varve, "sum by (thread_name) (sum_over_time(process_cpu[5m]))", "thread_name", at_s);
    assert_eq!(threads, map(&[("idle", one), ("worker", one)]));
    let functions = "sum by (leaf_function) (sum_over_time(process_cpu{thread_name=~\"wor.*\",thread_id=\"7\"}[5m]))";
    assert_eq!(by(&varve, functions, "leaf_function", at_s), map(&[("f", one)]));
    let series = varve.get("/api/v1/series", &[("match[]", "process_cpu")]).expect(200).json();
    assert_eq!(series["data"].as_array().unwrap().len(), 1);
    assert!(series["data"][0]["thread_name"].is_null(), "{series}");
    let window = (at_s - 60.0, at_s);
    let folded = varve.folded("process_cpu{thread_name=\"idle\"}", window);
    assert_eq!(folded.keys().collect::<Vec<_>>(), [&["main".to_owned(), "g".to_owned()]]);
}

#[test]
fn adding_gauges_over_time_is_an_error() {
    let varve = Varve::up();
    let now = now_ns();
    let heap = |value, time| {
        pprof::build(
            ("inuse_space".into(), "bytes".into()),
            Some((("space".into(), "bytes".into()), 524_288)),
            &[(&["alloc", "main"], value)],
            time,
        )
    };
    for (i, value) in [100, 300, 200].into_iter().enumerate() {
        let body = heap(value, now - (30 - 10 * i as u64) * SECOND_NS);
        assert_eq!(varve.push_pprof(&body, &[("service_name", "heap")], None).status, 200);
    }
    let at_s = now as f64 / 1e9;
    let id = "memory:inuse_space:bytes:space:bytes";
    for function in ["sum_over_time", "rate", "increase"] {
        let reply = varve
            .try_query(&format!("{function}({{__profile_type__=\"{id}\"}}[1h])"), at_s)
            .unwrap_err()
            .refused_with(&[400, 422]);
        assert!(reply.text().contains("gauge"), "{}", reply.text());
    }
    for (function, want) in [("last", 200.0), ("avg", 200.0), ("max", 300.0), ("min", 100.0)] {
        let got = varve.total(&format!("{function}_over_time(memory{{service_name=\"heap\"}}[1h])"), at_s);
        assert_eq!(got, want, "{function}_over_time");
    }
    let graph = varve
        .flamegraph(&format!("{{__profile_type__=\"{id}\"}}"), (at_s - 600.0, at_s), "json", 100)
        .expect(200)
        .json();
    assert_eq!((&graph["total"], &graph["gauge"]), (&json!(200), &json!(true)), "the last profile, not the sum");
    for path in payloads("adding_gauges_over_time_is_an_error", "pprof") {
        let bytes = pprof::at_time(&std::fs::read(&path).unwrap(), now);
        for (id, _) in pprof::Profile::read(&bytes).profile_types().into_iter().filter(|(id, _)| id.contains(":inuse_"))
        {
            assert_eq!(varve.push_pprof(&bytes, &[("service_name", "real-heap")], None).status, 200);
            let promql = format!("sum_over_time({{__profile_type__=\"{id}\",service_name=\"real-heap\"}}[1h])");
            let reply = varve.try_query(&promql, at_s + 1.0).unwrap_err();
            assert!(reply.text().contains("gauge"), "{id}: {}", reply.text());
        }
    }
}

#[test]
fn bad_queries_are_errors_that_name_what_is_wrong() {
    let varve = Varve::up();
    two_services(&varve, now_ns());
    let at_s = now_ns() as f64 / 1e9;
    let deep = format!("{}process_cpu{}", "(".repeat(30_000), ")".repeat(30_000));
    for promql in [
        "sum(",
        "rate(process_cpu[5m]",
        "no_such_function(process_cpu)",
        "process_cpu{a=~'('}",
        "",
        "sum by (",
        "{}",
        "process_cpu[5m]",
        "rate(process_cpu)",
        "stddev(process_cpu)",
        "process_cpu{a=~\"((a{1000}){1000}){1000}\"}",
    ] {
        let reply = varve.try_query(promql, at_s).unwrap_err().refused_with(&[400, 422]);
        assert!(reply.json()["errorType"].is_string(), "{promql}: {}", reply.text());
    }
    let form = format!("query={}", deep.replace('(', "%28").replace(')', "%29"));
    let url = format!("http://{}/api/v1/query", varve.http);
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let _refused =
        tests::http::request("POST", &url, &headers, Some(form.as_bytes())).unwrap().refused_with(&[400, 422]);
    for (promql, word) in [
        ("quantile_over_time(0.9, process_cpu[5m])", "quantile_over_time"),
        ("stddev(process_cpu)", "stddev"),
        ("max_over_time(rate(process_cpu[1m])[5m:1m])", "subquery"),
    ] {
        let reply = varve.try_query(promql, at_s).unwrap_err().refused_with(&[400, 422]);
        assert!(reply.text().contains(word) && reply.text().contains("supported"), "{promql}: {}", reply.text());
    }
    let flamegraphs: [&[(&str, &str)]; 5] = [
        &[("query", "process_cpu"), ("start", "10"), ("end", "1")],
        &[("query", "process_cpu"), ("start", "x"), ("end", "1")],
        &[],
        &[("query", "rate(process_cpu[5m])"), ("start", "1"), ("end", "2")],
        &[("query", "process_cpu"), ("start", "1"), ("end", "2"), ("format", "svg")],
    ];
    for parameters in flamegraphs {
        let _refused = varve.get("/api/v1/flamegraph", parameters).refused_with(&[400]);
    }
    let start = format!("{}", at_s - 1e9);
    let end = format!("{at_s}");
    let steps = [("query", "process_cpu"), ("start", &start), ("end", &end), ("step", "1")];
    let reply = varve.get("/api/v1/query_range", &steps).refused_with(&[400, 422]);
    assert!(reply.text().contains("11000") && reply.text().contains("step"), "{}", reply.text());
    let _refused = varve.get("/api/v1/nothing/here", &[]).refused_with(&[404]);
}

fn varve_cli(varve: &Varve, arguments: &[&str]) -> String {
    let endpoint = format!("http://{}", varve.http);
    let output = Command::new(varve_binary()).args(arguments).args(["--endpoint", &endpoint]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn table_folded_and_json_output_have_the_same_values() {
    let varve = Varve::up();
    two_services(&varve, now_ns());
    let promql = "sum by (service_name) (sum_over_time(process_cpu[10m]))";
    let table = varve_cli(&varve, &["query", promql]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [["service_name", "value"], ["promql-a", "35000000000"], ["promql-b", "15000000000"]], "{table}");
    let parsed: Value = serde_json::from_str(&varve_cli(&varve, &["query", promql, "--format", "json"])).unwrap();
    assert_eq!(parsed["data"]["result"].as_array().unwrap().len(), 2);

    let folded = varve_cli(&varve, &["flamegraph", "process_cpu", "--format", "folded"]);
    let mut lines: Vec<&str> = folded.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["main;cold 10000000000", "main;hot 40000000000"]);
    let graph: Value = serde_json::from_str(&varve_cli(&varve, &["flamegraph", "--format", "json"])).unwrap();
    assert_eq!(graph["total"], 50_000_000_000_u64);
    let table = varve_cli(&varve, &["flamegraph", "process_cpu{service_name=\"promql-a\"}"]);
    let row =
        |name: &str| table.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{table}")).to_owned();
    assert!(row("hot").contains("85.7 %") && row("main").contains("100.0 %"), "{table}");

    let output = Command::new(varve_binary())
        .args(["query", "sum(", "--endpoint", &format!("http://{}", varve.http)])
        .output()
        .unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("cannot be parsed"));
    let output = Command::new(varve_binary())
        .args(["query", "process_cpu", "--endpoint", "http://127.0.0.1:9"])
        .output()
        .unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("varve up"));
}
