//! Tests for faults of other profiling databases. The comment before each test describes a fault, and the test shows
//! that varve does not have it.

use std::collections::BTreeMap;

use serde_json::json;
use tests::payload::otlp::{Frame, PERIOD_NS, Request, now_ns, stack};
use tests::payload::wire::{Value, decode, edit};
use tests::server::Varve;

const SECOND_NS: u64 = 1_000_000_000;

fn window(now: u64) -> (f64, f64) {
    (now as f64 / 1e9 - 600.0, now as f64 / 1e9 + 60.0)
}

// Pyroscope drops frames without a name from flame graphs, 20-40 % of the total, while series and pprof count them.
#[test]
fn frames_without_a_name_keep_their_weight_everywhere() {
    let varve = Varve::up();
    let now = now_ns();
    let native =
        |address| Frame::Native { build_id: "00112233445566778899".to_owned(), file: "/opt/app".to_owned(), address };
    let nameless = Frame::Named(vec![String::new()]);
    let request = Request::new("unnamed")
        .seen(vec![native(0x10), native(0x20)], vec![now])
        .seen(vec![native(0x30), "main".into()], vec![now + 1])
        .seen(vec![nameless, "main".into()], vec![now + 2])
        .seen(Vec::new(), vec![now + 3])
        .seen(stack(&["leaf", "main"]), vec![now + 4]);
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    let selector = "process_cpu{service_name=\"unnamed\"}";
    let want = i128::from(5 * PERIOD_NS);
    let folded = varve.folded(selector, window(now));
    assert_eq!(folded.values().sum::<i128>(), want, "{folded:?}");
    let graph = varve.flamegraph(selector, window(now), "json", 3).expect(200).json();
    assert_eq!(graph["total"].as_i64().map(i128::from), Some(want));
    let pprof = tests::payload::pprof::Profile::read(
        &varve.flamegraph(selector, window(now), "pprof", 1 << 20).expect(200).body,
    );
    let all = pprof.samples(&[]);
    assert_eq!(all.sums.values().sum::<i128>(), want);
    let at_s = now as f64 / 1e9 + 1.0;
    assert_eq!(varve.total(&format!("sum_over_time({selector}[5m])"), at_s), want as f64);
    let by_leaf = varve.total(&format!("sum(sum by (leaf_function) (sum_over_time({selector}[5m])))"), at_s);
    assert_eq!(by_leaf, want as f64);
}

// Pyroscope's truncation differs between two runs of one query, and 84 % of a service may end in "other".
#[test]
fn equal_queries_have_equal_bytes_and_pruning_keeps_heavy_stacks() {
    let mut varve = Varve::up();
    let now = now_ns();
    let mut request = Request::new("pruned");
    for i in 0..20_000_u64 {
        let names = [format!("leaf{i}"), format!("middle{}", i % 500), format!("root{}", i % 7)];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // A few stacks hold most of the weight.
        request = request.seen(stack(&names), (0..=200 / (i + 1)).map(|n| now - i * 1000 - n).collect());
    }
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    let selector = "process_cpu{service_name=\"pruned\"}";
    let asked: [(&str, u32); 4] = [("json", 1000), ("json", 50), ("folded", 500), ("pprof", 1000)];
    let answers = |varve: &Varve| {
        asked.map(|(format, nodes_max)| varve.flamegraph(selector, window(now), format, nodes_max).expect(200).body)
    };
    let first = answers(&varve);
    for _ in 0..5 {
        assert!(answers(&varve) == first, "two answers to one query differ");
    }
    varve.kill();
    varve.launch();
    assert!(answers(&varve) == first, "answers before and after a restart differ");
    let graph: serde_json::Value = serde_json::from_slice(&first[0]).unwrap();
    let names = graph["names"].as_array().unwrap();
    for heavy in ["leaf0", "leaf1", "leaf2"] {
        assert!(names.iter().any(|name| name == heavy), "{heavy} was pruned");
    }
    assert!(graph["pruned"]["nodes"].as_u64().unwrap() > 10_000 && graph["nodes"].as_array().unwrap().len() <= 1000);
}

// Pyroscope's series lose their last bucket.
#[test]
fn a_range_query_has_its_first_and_its_last_step() {
    let varve = Varve::up();
    let end = now_ns() / (10 * SECOND_NS) * 10 * SECOND_NS;
    let start = end - 300 * SECOND_NS;
    let times: Vec<u64> = (1..=300).map(|i| start + i * SECOND_NS).collect();
    assert_eq!(varve.push_otlp(&Request::new("buckets").seen(stack(&["f"]), times).bytes(), None).status, 200);
    let [start, end] = [start, end].map(|time| (time / SECOND_NS).to_string());
    let promql = "sum(sum_over_time(process_cpu{service_name=\"buckets\"}[10s]))";
    let parameters = [("query", promql), ("start", start.as_str()), ("end", end.as_str()), ("step", "10")];
    let answer = varve.get("/api/v1/query_range", &parameters).expect(200).json();
    let values = answer["data"]["result"][0]["values"].as_array().unwrap().clone();
    // The first of the 31 steps has no value, because its 10 s end before the first sample.
    assert_eq!(values.len(), 30, "{values:?}");
    let last = values.last().unwrap();
    assert_eq!(last[0].as_f64().unwrap().to_string(), end);
    let full = (10 * PERIOD_NS).to_string();
    assert!(values.iter().all(|value| value[1] == full.as_str()), "{values:?}");
    let points = varve
        .get(
            "/api/v1/query_range",
            &[("query", "sum(process_cpu{service_name=\"buckets\"})"), parameters[1], parameters[2], parameters[3]],
        )
        .expect(200)
        .json();
    let points = points["data"]["result"][0]["values"].as_array().unwrap().clone();
    assert_eq!(points.last().unwrap()[1], full.as_str(), "the last point of 10 s is whole: {points:?}");
}

// Pyroscope hides OTLP labels whose names have dots.
#[test]
fn resource_attributes_with_dots_are_labels() {
    let varve = Varve::up();
    let now = now_ns();
    for pod in ["one", "two"] {
        let request = Request::new("dots").with("k8s.pod.name", pod).with("deployment.environment.name", "prod");
        assert_eq!(varve.push_otlp(&request.seen(stack(&["f"]), vec![now]).bytes(), None).status, 200);
    }
    let labels = varve.get("/api/v1/labels", &[]).expect(200).json()["data"].clone();
    for name in ["k8s_pod_name", "deployment_environment_name", "service_name"] {
        assert!(labels.as_array().unwrap().iter().any(|label| label == name), "{labels}");
    }
    let values = varve.get("/api/v1/label/k8s_pod_name/values", &[]).expect(200).json();
    assert_eq!(values["data"], json!(["one", "two"]));
    let at_s = now as f64 / 1e9 + 1.0;
    let grouped = varve
        .query("sum by (k8s_pod_name) (sum_over_time(process_cpu{deployment_environment_name=\"prod\"}[5m]))", at_s);
    let grouped: BTreeMap<String, f64> =
        grouped.into_iter().map(|(mut labels, value)| (labels.remove("k8s_pod_name").unwrap(), value)).collect();
    assert_eq!(
        grouped,
        [("one", PERIOD_NS as f64), ("two", PERIOD_NS as f64)].map(|(pod, value)| (pod.to_owned(), value)).into()
    );
}

// Parca gives 70 % of leaf samples a wrong name, which is that of the preceding function in the function table.
#[test]
fn a_line_has_the_function_of_its_index_in_any_order_of_functions() {
    let varve = Varve::up();
    let now = now_ns();
    let names: Vec<String> = (0..50).map(|i| format!("function{i}")).collect();
    let mut request = Request::new("indices");
    for (i, name) in names.iter().enumerate().rev() {
        request = request.seen(stack(&[name, "main"]), (0..=i as u64).map(|n| now - n).collect());
    }
    // After each function, the table gets another function to which no line refers.
    let request = edit(&request.bytes(), &[2], &mut |dictionary| {
        let mut out = Vec::new();
        let mut functions = 0_u64;
        for (field, value) in dictionary {
            match (field, &value) {
                (3, Value::Bytes(bytes)) if !bytes.is_empty() => {
                    functions += 1;
                    out.extend([(3, value.clone()), (3, Value::from(&vec![(1, 1.into())]))]);
                }
                (2, Value::Bytes(location)) if !location.is_empty() => {
                    let moved = edit(location, &[3], &mut |line| {
                        let of = tests::payload::wire::number(&line, 1);
                        vec![(1, (of * 2 - 1).into())]
                    });
                    out.push((2, Value::Bytes(moved)));
                }
                _ => out.push((field, value)),
            }
        }
        assert_eq!(functions, 51);
        out
    });
    assert!(!decode(&request).is_empty());
    assert_eq!(varve.push_otlp(&request, None).status, 200);
    let got = varve.query(
        "sum by (leaf_function) (sum_over_time(process_cpu{service_name=\"indices\"}[5m]))",
        now as f64 / 1e9 + 1.0,
    );
    let got: BTreeMap<String, f64> =
        got.into_iter().map(|(mut labels, value)| (labels.remove("leaf_function").unwrap(), value)).collect();
    let want = names.iter().enumerate().map(|(i, name)| (name.clone(), ((i as u64 + 1) * PERIOD_NS) as f64)).collect();
    assert_eq!(got, want);
}
