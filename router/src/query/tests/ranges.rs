//! Tests of range queries, with the values at every step.

use proto::Fold;
use serde_json::{Value, json};

use super::*;

fn range(promql: &str, start: &str, end: &str, step: &str) -> Answer {
    let parameters = [("query", promql), ("start", start), ("end", end), ("step", step)];
    Server::new(samples()).get("/api/v1/query_range", &parameters)
}

/// Checks a range query. `want` are its series, each as labels and points. A point is the seconds before `NOW_S`, and a
/// value.
fn check_range(promql: &str, ago: (i64, i64), step: &str, want: Value) {
    let start = NOW_S - ago.0;
    let end = NOW_S - ago.1;
    let answer = range(promql, &start.to_string(), &end.to_string(), step).json();
    assert_eq!(answer["data"]["resultType"], "matrix", "{answer}");
    let ago = |time: &Value| (NOW_S as f64 - time.as_f64().unwrap()).to_string();
    let pairs = |one: &Value| {
        let values = one["values"].as_array().unwrap().iter();
        values.map(|pair| json!([ago(&pair[0]), pair[1]])).collect::<Vec<_>>()
    };
    let result = answer["data"]["result"].as_array().unwrap().iter();
    let result: Vec<Value> = result.map(|one| json!([one["metric"], pairs(one)])).collect();
    assert_eq!(json!(result), want, "{promql}");
}

#[test]
fn ranges_have_a_value_at_each_step_that_has_samples() {
    check_range(
        "sum(sum_over_time(process_cpu[10s]))",
        (20, 0),
        "10",
        json!([[{}, [["20", "250000000"], ["10", "500000000"], ["0", "5000000000"]]],]),
    );
    // Windows that overlap, and windows with gaps between them.
    check_range(
        "sum(increase(process_cpu[20s]))",
        (20, 0),
        "5s",
        json!([[{}, [["20", "0.25"], ["15", "0.75"], ["10", "0.75"], ["5", "5.5"], ["0", "5.5"]]],]),
    );
    check_range(
        "sum(increase(process_cpu[1s]))",
        (25, 0),
        "10s",
        json!([[{}, [["25", "0.25"], ["15", "0.5"], ["5", "5"]]],]),
    );
    check_range("sum(increase(process_cpu[10s] @ end()))", (10, 0), "10", json!([[{}, [["10", "5"], ["0", "5"]]]]));
    check_range(
        "sum(increase(process_cpu[10s] @ start()))",
        (10, 0),
        "10",
        json!([[{}, [["10", "0.5"], ["0", "0.5"]]]]),
    );
    check_range("1 + 1", (10, 0), "5", json!([[{}, [["10", "2"], ["5", "2"], ["0", "2"]]]]));
}

#[test]
fn ranges_over_points_and_operators_have_values_at_their_steps() {
    check_range(
        "sum by (region) (process_cpu{region=\"eu\"})",
        (40, 0),
        "10",
        json!([
            [{"region": "eu"}, [["20", "250000000"], ["10", "500000000"], ["0", "2000000000"]]],
        ]),
    );
    check_range(
        "sum(max_over_time(process_cpu{region=\"eu\"}[20s]))",
        (20, 0),
        "10",
        json!([[{}, [["20", "250000000"], ["10", "500000000"], ["0", "2000000000"]]],]),
    );
    check_range(
        "sum(memory:inuse_space:bytes:space:bytes{region=\"eu\"})",
        (80, 0),
        "10",
        json!([[
            {},
            [
                ["70", "150"],
                ["60", "150"],
                ["50", "150"],
                ["40", "150"],
                ["30", "150"],
                ["20", "150"],
                ["10", "30"],
                ["0", "30"]
            ]
        ],]),
    );
    check_range(
        "sum by (leaf_function) (memory:inuse_space:bytes:space:bytes{region=\"eu\"})",
        (20, 0),
        "10",
        json!([
            [{"leaf_function": "keep"}, [["20", "50"]]],
            [{"leaf_function": "make"}, [["20", "100"], ["10", "30"], ["0", "30"]]],
        ]),
    );
    check_range(
        "topk(1, sum by (leaf_function) (increase(process_cpu[10s])))",
        (10, 0),
        "10",
        json!([
            [{"leaf_function": "cold"}, [["10", "0.5"]]],
            [{"leaf_function": "hot"}, [["0", "5"]]],
        ]),
    );
    check_range("sum(increase(process_cpu[1s])) > 1", (25, 0), "10s", json!([[{}, [["5", "5"]]]]));
    check_range(
        "sum(increase(process_cpu{region=\"eu\"}[20s])) - sum(increase(process_cpu{region=\"us\"}[20s]))",
        (10, 0),
        "10",
        json!([[{}, [["0", "-0.5"]]],]),
    );
    check_range("nothing", (10, 0), "10", json!([]));
}

#[test]
fn invalid_ranges_are_refused() {
    let now = NOW_S.to_string();
    for (start, end, step) in [
        (now.as_str(), "1", "1"),
        ("1", now.as_str(), "1"),
        (now.as_str(), now.as_str(), "0"),
        (now.as_str(), now.as_str(), "-1"),
        ("x", now.as_str(), "1"),
        ("-5", now.as_str(), "1"),
        ("", now.as_str(), "1"),
        (now.as_str(), "", "1"),
        (now.as_str(), now.as_str(), ""),
        (now.as_str(), "99999999999", "1"),
        (now.as_str(), now.as_str(), "x"),
    ] {
        let answer = range("process_cpu", start, end, step);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{start} {end} {step}: {}", answer.text());
        assert_eq!(answer.json()["errorType"], "bad_data");
    }
    assert_eq!(range("1", "0", "10999", "1").status, StatusCode::OK);
    assert_eq!(range("1", "0", "11000", "1").status, StatusCode::BAD_REQUEST);
    assert!(range("1", "0", "11000", "1").text().contains("11000"));
}

#[test]
fn times_outside_of_what_64_bits_hold_are_refused() {
    let at = |time: &str| {
        let parameters = [("query", "sum(rate(process_cpu[5m] offset -1y))"), ("time", time)];
        Server::new(samples()).get("/api/v1/query", &parameters)
    };
    assert_eq!(at("9223372036").status, StatusCode::BAD_REQUEST);
    assert_eq!(at("9000000000").status, StatusCode::OK);
}

// Once, if steps were longer than the range, data between the windows was read, and reported as missing.
#[test]
fn nothing_between_windows_is_requested() {
    for function in ["rate", "sum_over_time", "avg_over_time", "max_over_time"] {
        let node = Arc::new(NaiveNode::new(samples()));
        let server = Server::of(Arc::clone(&node));
        let start = (NOW_S - 300).to_string();
        let end = NOW_S.to_string();
        let query = format!("sum({function}(process_cpu[20s]))");
        let parameters = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", "100")];
        assert_eq!(server.get("/api/v1/query_range", &parameters).status, StatusCode::OK);
        let selections = node.selections.lock().unwrap();
        let Fold::Sum(windows) = &selections[0].fold else { panic!("{function}") };
        let asked: i64 = windows.iter().map(|window| (window.end_ns - window.start_ns) / S).sum();
        assert_eq!(asked, 4 * 20, "{function}");
    }
}
