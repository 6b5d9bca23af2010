//! Tests of PromQL queries and of the JSON of their results.

use serde_json::{Value, json};

use super::*;

/// Checks the result of an instant query. `want` is pairs of labels and value, in the order of the result.
pub(super) fn check(promql: &str, want: &[(Value, &str)]) {
    let answer = Server::new(samples()).query(promql);
    assert_eq!(answer.status, StatusCode::OK, "{promql}: {}", answer.text());
    let want: Vec<Value> =
        want.iter().map(|(metric, value)| json!({"metric": metric, "value": [NOW_S, value]})).collect();
    let data = json!({"resultType": "vector", "result": want});
    assert_eq!(answer.json(), json!({"status": "success", "data": data}), "{promql}");
}

/// Checks that the result of a query is one number without labels.
fn check_number(promql: &str, want: &str) {
    check(promql, &[(json!({}), want)]);
}

pub(super) fn check_error(promql: &str, status: u16, words: &[&str]) {
    let answer = Server::new(samples()).query(promql);
    let shown: String = promql.chars().take(100).collect();
    assert_eq!(answer.status.as_u16(), status, "{shown}: {}", answer.text());
    let error = answer.json();
    assert_eq!(error["status"], "error", "{shown}");
    assert_eq!(error["errorType"], if status == 400 { "bad_data" } else { "execution" }, "{shown}");
    for word in words {
        assert!(error["error"].as_str().unwrap().contains(word), "{shown}: {error} has not {word:?}");
    }
}

#[test]
fn sums_over_time_are_exact_and_rates_are_cores() {
    let by_service = |a, b| [(json!({"service_name": "a"}), a), (json!({"service_name": "b"}), b)];
    check("sum by (service_name) (sum_over_time(process_cpu[5m]))", &by_service("2750000000", "3000000000"));
    check("sum by (service_name) (increase(process_cpu[5m]))", &by_service("2.75", "3"));
    check("sum by (service_name) (rate(process_cpu[5m]))", &by_service("0.009166666666666667", "0.01"));
    check_number("sum(sum_over_time(process_cpu[10m]))", "105750000000");
    // Values that are not in nanoseconds keep their unit.
    check_number("sum(rate(memory:alloc_space:bytes:space:bytes[1m]))", "11");
    check_number("sum(increase(memory:alloc_space:bytes:space:bytes[1m]))", "660");
}

#[test]
fn windows_exclude_their_start_and_include_their_end() {
    let check = |promql: &str, want: Option<&str>| {
        let answer = Server::new(samples()).query(promql).json();
        assert_eq!(answer["data"]["result"][0]["value"][1].as_str(), want, "{promql}: {answer}");
    };
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[5s]))", None);
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[5s1ms]))", Some("2000000000"));
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[10s] offset 5s))", Some("2000000000"));
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[10s1ms] offset 5s))", Some("2500000000"));
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[10s] offset 15s))", Some("500000000"));
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[1s] @ 1699999995))", Some("2000000000"));
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[1s] @ end() offset 5s))", Some("2000000000"));
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[1s] @ 1699999994.999))", None);
    check("sum(sum_over_time(process_cpu{service_name=\"a\"}[1s] offset -5s))", None);
}

#[test]
fn short_names_are_resolved_after_the_other_matchers() {
    let named = |kind: &str| json!({"__name__": kind, "__profile_type__": kind, "region": "eu", "service_name": "a"});
    check(
        "sum by (__profile_type__) (sum_over_time(process_cpu{service_name=\"b\"}[1m]))",
        &[(json!({"__profile_type__": CPU}), "3000000000")],
    );
    check("goroutine", &[(named(GOROUTINES), "5")]);
    check("{__name__=\"goroutine\"}", &[(named(GOROUTINES), "5")]);
    check("goroutine:goroutine:count::", &[(named(GOROUTINES), "5")]);
    check("process_cpu:samples:count:cpu:nanoseconds{region=\"eu\"}", &[(named(SAMPLES), "40")]);
    check("{__name__=~\"gorout.*\"}", &[(named(GOROUTINES), "5")]);
    check("no_such_name", &[]);
    check("process_cpu{region=\"mars\"}", &[]);
    check("sum(sum_over_time(no_such_name[5m]))", &[]);
    check("sum(sum_over_time(process_cpu:cpu:hours:cpu:hours[5m]))", &[]);
    check("{__name__!=\"goroutine:goroutine:count::\", __profile_type__=~\"gorou.*\"}", &[]);
    check(
        "memory{__profile_type__=~\".*:inuse_.*\", service_name=\"b\"} > 0",
        &[(json!({"__name__": IN_USE, "__profile_type__": IN_USE, "region": "us", "service_name": "b"}), "7")],
    );
    check_error("memory", 422, &["ambiguous", IN_USE, ALLOCATED]);
    check_error("sum(rate(memory[5m]))", 422, &["ambiguous", IN_USE, ALLOCATED]);
}

#[test]
fn a_selector_without_a_name_covers_all_types() {
    check(
        "sum by (__profile_type__) (increase({service_name=\"a\", \
         __profile_type__!~\".*:(inuse_.*|goroutines?):.*\"}[5m]))",
        &[
            (json!({"__profile_type__": ALLOCATED}), "660"),
            (json!({"__profile_type__": CPU}), "2.75"),
            (json!({"__profile_type__": SAMPLES}), "40"),
        ],
    );
    // Without the type in the grouping, values of one group are added, each in its own unit.
    check_number("sum(increase({__profile_type__=~\"process_cpu:.*\", service_name=\"a\"}[5m]))", "42.75");
    // One query can have points of gauges and of other types.
    check(
        "sum by (__profile_type__) (last_over_time({region=\"eu\"}[5m]))",
        &[
            (json!({"__profile_type__": GOROUTINES}), "5"),
            (json!({"__profile_type__": ALLOCATED}), "660"),
            (json!({"__profile_type__": IN_USE}), "30"),
            (json!({"__profile_type__": CPU}), "2000000000"),
            (json!({"__profile_type__": SAMPLES}), "40"),
        ],
    );
}

#[test]
fn points_are_ten_seconds_long_and_stamped_at_their_end() {
    // Service `a` has points 0, 10 and 20 s ago. Each point covers the 10 s before it.
    check("sum by (region) (process_cpu{region=\"eu\"})", &[(json!({"region": "eu"}), "2000000000")]);
    check("sum by (region) (process_cpu{region=\"eu\"} offset 1s)", &[(json!({"region": "eu"}), "500000000")]);
    check("sum(count_over_time(process_cpu{region=\"eu\"}[30s]))", &[(json!({}), "3")]);
    check("sum(count_over_time(process_cpu{region=\"eu\"}[20s]))", &[(json!({}), "2")]);
    check("sum(avg_over_time(process_cpu{region=\"eu\"}[30s]))", &[(json!({}), "916666666.6666666")]);
    check("sum(min_over_time(process_cpu{region=\"eu\"}[30s]))", &[(json!({}), "250000000")]);
    check("sum(max_over_time(process_cpu{region=\"eu\"}[30s]))", &[(json!({}), "2000000000")]);
    check("sum(last_over_time(process_cpu{region=\"eu\"}[10s] offset 20s))", &[(json!({}), "250000000")]);
    check("sum(max_over_time(process_cpu{region=\"eu\"}[5s] offset 2s))", &[]);
    // The lookback ends after five minutes.
    check("count(process_cpu{region=\"us\"} offset 5m)", &[(json!({}), "1")]);
    check("count(process_cpu{region=\"us\"} @ 1699999899)", &[(json!({}), "1")]);
    check("count(process_cpu{region=\"us\"} @ 1699999900)", &[]);
    check("count(process_cpu{region=\"us\"} offset 11m30s)", &[]);
    check("count(process_cpu{region=\"us\"} offset -5m)", &[]);
}

#[test]
fn gauges_have_points_at_their_samples() {
    let memory =
        |function: &str| format!("sum by (service_name) ({function}(memory:inuse_space:bytes:space:bytes[5m]))");
    let by_service = |a, b| [(json!({"service_name": "a"}), a), (json!({"service_name": "b"}), b)];
    check("sum by (service_name) (memory:inuse_space:bytes:space:bytes)", &by_service("30", "7"));
    check(&memory("last_over_time"), &by_service("30", "7"));
    check(&memory("avg_over_time"), &by_service("90", "7"));
    check(&memory("min_over_time"), &by_service("30", "7"));
    check(&memory("max_over_time"), &by_service("150", "7"));
    check(&memory("count_over_time"), &by_service("2", "1"));
    check("sum(memory:inuse_space:bytes:space:bytes offset 30s)", &[(json!({}), "150")]);
}

#[test]
fn gauges_are_never_added_up_over_time() {
    for function in ["sum_over_time", "rate", "increase"] {
        for selector in [IN_USE, "goroutine", "{region=\"eu\"}", "{__profile_type__=~\".*:inuse_space:.*\"}"] {
            check_error(&format!("{function}({selector}[5m])"), 422, &["gauge", function, "last_over_time"]);
            check_error(&format!("sum({function}({selector}[5m]))"), 422, &["gauge", function, "last_over_time"]);
        }
    }
}

#[test]
fn leaf_and_stack_labels_group_and_match_samples() {
    let by = |label: &str, pairs: &[(&str, &'static str)]| -> Vec<(Value, &'static str)> {
        pairs
            .iter()
            .map(|&(value, sum)| (if value.is_empty() { json!({}) } else { json!({label: value}) }, sum))
            .collect()
    };
    check(
        "sum by (leaf_function) (increase(process_cpu[5m]))",
        &by("leaf_function", &[("cold", "0.5"), ("hot", "5.25")]),
    );
    // A stack that has `hot` twice counts once.
    check(
        "sum by (stack_function) (increase(process_cpu[5m]))",
        &by("stack_function", &[("cold", "0.5"), ("hot", "5.25"), ("main", "5.75")]),
    );
    check(
        "sum by (leaf_function) (sum_over_time(memory:alloc_space:bytes:space:bytes[5m]))",
        &by("leaf_function", &[("", "60"), ("make", "600")]),
    );
    check(
        "sum by (stack_function) (sum_over_time(memory:alloc_space:bytes:space:bytes[5m]))",
        &by("stack_function", &[("", "60"), ("main", "600"), ("make", "600")]),
    );
    check("sum(increase(process_cpu{stack_function=~\"ho.\"}[5m]))", &[(json!({}), "5.25")]);
    check("sum(increase(process_cpu{stack_function!=\"hot\"}[5m]))", &[(json!({}), "0.5")]);
    check("sum(increase(process_cpu{leaf_function!~\"hot|cold\"}[5m]))", &[]);
    check("sum(sum_over_time(memory:alloc_space:bytes:space:bytes{stack_function=\"\"}[5m]))", &[(json!({}), "60")]);
    check("sum(sum_over_time(memory:alloc_space:bytes:space:bytes{leaf_function!=\"\"}[5m]))", &[(json!({}), "600")]);
    check("sum(increase(process_cpu{stack_function=\"main\", leaf_function=\"cold\"}[5m]))", &[(json!({}), "0.5")]);
    // If the query also groups by a matched label, only the values that match become groups.
    check(
        "sum by (stack_function) (increase(process_cpu{stack_function=~\"h.*\"}[5m]))",
        &by("stack_function", &[("hot", "5.25")]),
    );
    check(
        "sum by (leaf_function, stack_function) (increase(process_cpu{service_name=\"a\"}[20s]))",
        &[
            (json!({"leaf_function": "cold", "stack_function": "cold"}), "0.5"),
            (json!({"leaf_function": "cold", "stack_function": "main"}), "0.5"),
            (json!({"leaf_function": "hot", "stack_function": "hot"}), "2"),
            (json!({"leaf_function": "hot", "stack_function": "main"}), "2"),
        ],
    );
    check(
        "sum by (leaf_file, leaf_binary, leaf_line, leaf_frame_type) \
         (increase(process_cpu{leaf_function=\"cold\"}[5m]))",
        &[(
            json!({
                "leaf_file": "/src/app.rs", "leaf_binary": "/usr/bin/app",
                "leaf_line": "1", "leaf_frame_type": "native",
            }),
            "0.5",
        )],
    );
    check(
        "sum by (stack_frame_type) (increase(process_cpu{leaf_function=\"cold\"}[5m]))",
        &by("stack_frame_type", &[("native", "0.5")]),
    );
    check("sum(increase(process_cpu{stack_frame_type=\"native\", leaf_function=\"cold\"}[5m]))", &[(json!({}), "0.5")]);
    check("sum(increase(process_cpu{stack_frame_type=~\"jvm|cpython\"}[5m]))", &[]);
}

#[test]
fn labels_of_stacks_reach_below_functions_and_operators() {
    let hot = |value| [(json!({"leaf_function": "hot"}), value)];
    check("sum by (leaf_function) (2 * increase(process_cpu{leaf_function=\"hot\"}[5m]))", &hot("10.5"));
    check("max by (leaf_function) (increase(process_cpu{leaf_function=\"hot\"}[5m]))", &hot("3"));
    check("count by (leaf_function) (increase(process_cpu{leaf_function=\"hot\"}[5m]))", &hot("2"));
    check("topk(1, sum by (leaf_function) (increase(process_cpu[5m])))", &hot("5.25"));
    check(
        "sum by (leaf_function) (increase(process_cpu[5m])) / on () group_left sum(increase(process_cpu[5m])) > 0.5",
        &hot("0.9130434782608695"),
    );
    check(
        "sum by (thread_name) (sum without (service_name, region) (rate(process_cpu[10s])))",
        &[(json!({"thread_name": "t1"}), "0.4"), (json!({"thread_name": "t2"}), "0.1")],
    );
    // All groups are evaluated at the last point of the whole series, and not at their own last points.
    check("sum by (leaf_function) (process_cpu)", &hot("5000000000"));
    check(
        "sum by (leaf_function) (memory:inuse_space:bytes:space:bytes{service_name=\"a\"})",
        &[(json!({"leaf_function": "make"}), "30")],
    );
    check(
        "sum by (leaf_function) (min_over_time(memory:inuse_space:bytes:space:bytes{service_name=\"a\"}[5m]))",
        &[(json!({"leaf_function": "keep"}), "0"), (json!({"leaf_function": "make"}), "30")],
    );
    check(
        "sum by (leaf_function) (avg_over_time(memory:inuse_space:bytes:space:bytes{service_name=\"a\"}[5m]))",
        &[(json!({"leaf_function": "keep"}), "25"), (json!({"leaf_function": "make"}), "65")],
    );
}

#[test]
fn sample_attributes_are_labels() {
    check(
        "sum by (thread_name) (increase(process_cpu[5m]))",
        &[(json!({}), "0.25"), (json!({"thread_name": "t1"}), "4"), (json!({"thread_name": "t2"}), "1.5")],
    );
    check("sum(increase(process_cpu{thread_name=\"t2\"}[5m]))", &[(json!({}), "1.5")]);
    check("sum(increase(process_cpu{thread_name=\"\"}[5m]))", &[(json!({}), "0.25")]);
    check(
        "sum by (thread_name) (process_cpu{service_name=\"a\"})",
        &[(json!({"thread_name": "t1"}), "1000000000"), (json!({"thread_name": "t2"}), "1000000000")],
    );
}

#[test]
fn aggregations_match_prometheus() {
    let cpu = |operator: &str| format!("{operator}(increase(process_cpu[5m]))");
    check_number(&cpu("sum"), "5.75");
    check_number(&cpu("avg"), "2.875");
    check_number(&cpu("min"), "2.75");
    check_number(&cpu("max"), "3");
    check_number(&cpu("count"), "2");
    check(
        &cpu("sum without (__profile_type__, service_name)"),
        &[(json!({"region": "eu"}), "2.75"), (json!({"region": "us"}), "3")],
    );
    let both = [
        (json!({"__profile_type__": CPU, "region": "us", "service_name": "b"}), "3"),
        (json!({"__profile_type__": CPU, "region": "eu", "service_name": "a"}), "2.75"),
    ];
    check("topk(5, increase(process_cpu[5m]))", &both);
    check("topk(1.9, increase(process_cpu[5m]))", &both[..1]);
    check("topk(0, increase(process_cpu[5m]))", &[]);
    check("topk(-1, increase(process_cpu[5m]))", &[]);
    check("bottomk(1, increase(process_cpu[5m]))", &both[1..]);
    check("bottomk(2, increase(process_cpu[5m]))", &[both[1].clone(), both[0].clone()]);
    check("topk by (region) (1, increase(process_cpu[5m]))", &both);
    check_error("topk(NaN, increase(process_cpu[5m]))", 422, &["topk", "NaN"]);
    check("sum(nothing)", &[]);
    check("count(nothing)", &[]);
}

#[test]
fn arithmetic_and_comparisons_match_prometheus() {
    let b = |value| [(json!({"__profile_type__": CPU, "region": "us", "service_name": "b"}), value)];
    let rate = "increase(process_cpu{region=\"us\"}[5m])";
    for (expression, want) in [
        ("X + 1", "4"),
        ("1 - X", "-2"),
        ("X * -2", "-6"),
        ("X / 0", "+Inf"),
        ("-X / 0", "-Inf"),
        ("0 * X / 0", "NaN"),
        ("X % 2", "1"),
        ("-X % 2", "-1"),
        ("X ^ 2", "9"),
        ("2 ^ 3 ^ X * 0 + 1", "1"),
        ("-X ^ 2", "-9"),
        ("(X)", "3"),
        ("+X", "3"),
        ("X > 2", "3"),
        ("2 < X", "3"),
        ("X > bool 2", "1"),
        ("X < bool 2", "0"),
        ("X == 3", "3"),
        ("X != bool 3", "0"),
        ("X >= 3", "3"),
        ("X <= bool 2", "0"),
        ("X + X", "6"),
        ("X == X", "3"),
        ("X / on (service_name, region, __profile_type__) X", "1"),
    ] {
        check(&expression.replace('X', rate), &b(want));
    }
    check(&"X > 3".replace('X', rate), &[]);
    check(&"X < X".replace('X', rate), &[]);
    let of = |text: &str| Server::new(samples()).query(text).json()["data"].clone();
    for (text, want) in [
        ("1 + 2 * 3", "7"),
        ("2 ^ 3 ^ 2", "512"),
        ("7 % 4 == bool 3", "1"),
        ("-(1 + 1)", "-2"),
        ("NaN", "NaN"),
        ("1 / 0", "+Inf"),
    ] {
        assert_eq!(of(text), json!({"resultType": "scalar", "result": [NOW_S, want]}), "{text}");
    }
}

#[test]
fn names_are_dropped_when_they_no_longer_describe_the_value() {
    let labels = |name: bool| {
        let mut labels = json!({"__profile_type__": GOROUTINES, "region": "eu", "service_name": "a"});
        if name {
            labels["__name__"] = json!(GOROUTINES);
        }
        labels
    };
    for (text, name, want) in [
        ("goroutine", true, "5"),
        ("last_over_time(goroutine[5m])", true, "5"),
        ("goroutine > 1", true, "5"),
        ("topk(1, goroutine)", true, "5"),
        ("max_over_time(goroutine[5m])", false, "5"),
        ("goroutine * 1", false, "5"),
        ("goroutine > bool 1", false, "1"),
        ("-goroutine", false, "-5"),
        ("sum without () (goroutine)", false, "5"),
    ] {
        check(text, &[(labels(name), want)]);
    }
}

#[test]
fn vectors_match_one_to_one_or_as_requested() {
    let increase = "increase(process_cpu[5m])";
    let sides = |expression: &str| expression.replace('X', increase);
    check(
        &sides("sum by (region) (X) / on (region) X"),
        &[(json!({"region": "eu"}), "1"), (json!({"region": "us"}), "1")],
    );
    check(
        &sides("X - ignoring (region, __profile_type__) sum by (service_name) (X)"),
        &[(json!({"service_name": "a"}), "0"), (json!({"service_name": "b"}), "0")],
    );
    check(
        &sides("X / ignoring (region, service_name, __profile_type__) group_left () sum(X) > 0.5"),
        &[(json!({"__profile_type__": CPU, "region": "us", "service_name": "b"}), "0.5217391304347826")],
    );
    check(
        &sides("sum by (service_name) (X) * on (service_name) group_left (region) (X > 2.9)"),
        &[(json!({"service_name": "b", "region": "us"}), "9")],
    );
    check(
        &sides("(X > 2.9) * on (service_name) group_right (region) sum by (service_name) (X)"),
        &[(json!({"service_name": "b", "region": "us"}), "9")],
    );
    check(&sides("X * on (service_name) (X < 0)"), &[]);
    check_error(&sides("X / on () X"), 422, &["right", "group_left"]);
    check_error(&sides("X / on () sum(X)"), 422, &["left", "group_left"]);
    check_error(&sides("X + on () group_right () X"), 422, &["left"]);
    check_error(
        &sides(
            "sum without (region) (X) * on (__profile_type__) group_left (service_name) sum by (__profile_type__) (X)",
        ),
        422,
        &["labels"],
    );
}
