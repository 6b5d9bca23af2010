//! Tests of refused queries, and of parameters other than the query.

use serde_json::json;

use super::promql::check_error;
use super::*;

#[test]
fn errors_name_the_unsupported_feature() {
    for (text, words) in [
        ("quantile_over_time(0.5, process_cpu[5m])", ["quantile_over_time", "last_over_time"]),
        ("abs(process_cpu)", ["abs", "rate"]),
        ("vector(1)", ["vector", "rate"]),
        ("time()", ["time", "rate"]),
        ("quantile(0.5, process_cpu)", ["quantile", "topk"]),
        ("stddev(process_cpu)", ["stddev", "topk"]),
        ("count_values(\"x\", process_cpu)", ["count_values", "topk"]),
        ("process_cpu and process_cpu", ["and", "=="]),
        ("process_cpu or process_cpu", ["or", "=="]),
        ("process_cpu unless process_cpu", ["unless", "=="]),
        ("process_cpu atan2 process_cpu", ["atan2", "=="]),
        ("process_cpu[5m]", ["range", "rate"]),
        ("rate(process_cpu[5m:1m])", ["subquery", "[5m]"]),
        ("max_over_time(rate(process_cpu[1m])[5m:1m])", ["subquery", "[5m]"]),
        ("\"text\"", ["string", "vectors"]),
        ("{region=\"eu\" or region=\"us\"}", ["or", "matchers"]),
        ("process_cpu + fill(0) process_cpu", ["fill", "group_left"]),
    ] {
        check_error(text, 422, &words);
    }
}

#[test]
fn invalid_queries_are_refused_with_a_reason() {
    for text in [
        "sum(",
        "rate(process_cpu[5m]",
        "no_such_function(process_cpu)",
        "process_cpu{a=~\"(\"}",
        "process_cpu{a=~\"x)|(y\"}",
        "process_cpu{leaf_function=~\"x)|(y\"}",
        "sum by (",
        "{}",
        "{a=~\".*\"}",
        "process_cpu{a!~\"(a{1000}){1000}\"}",
        "rate(process_cpu)",
        "sum(5)",
        "process_cpu[1e30]",
        "rate(process_cpu[1e30])",
        "process_cpu offset 1e30",
        "rate(process_cpu[0])",
        "rate(process_cpu[101y])",
        "process_cpu @ -1",
        "process_cpu @ 1e12",
        "1 > 2",
        "process_cpu > bool",
        "topk(process_cpu, process_cpu)",
        "rate(a[5m]) / on (x) group_left (x) b",
        "(",
        ")",
        "\u{0}",
        "é",
    ] {
        check_error(text, 400, &[]);
    }
    check_error("no_such_function(process_cpu)", 400, &["no_such_function"]);
}

#[test]
fn queries_that_are_too_large_are_refused_before_they_run() {
    for (text, word) in [
        (format!("{}a", "-".repeat(1_900)), "inside one another"),
        (format!("{}1{}", "(".repeat(1_900), ")".repeat(1_900)), "inside one another"),
        (format!("1{}", "+1".repeat(1_900)), "inside one another"),
        (format!("1{}", "^1".repeat(1_900)), "inside one another"),
        (format!("{}a{}", "sum(".repeat(200), ")".repeat(200)), "inside one another"),
        (format!("1{}", "+1".repeat(30_000)), "operators"),
        (format!("{}1{}", "(".repeat(30_000), ")".repeat(30_000)), "operators"),
        (format!("a{}", " UNLESS a".repeat(2_001)), "operators"),
        (format!("''{}", "or''".repeat(3_000)), "operators"),
        // These texts have a quote in a comment, or an escaped quote. The parser has escapes in back-quotes too.
        (format!("# don't\n1{}", "+1".repeat(30_000)), "operators"),
        (format!("# don't\r1{}", "+1".repeat(30_000)), "operators"),
        (format!("a{{b=`\\``,c=\"`\"}}{}", "+1".repeat(30_000)), "operators"),
        ("a".repeat(70_000), "bytes"),
        (format!("sum({})", vec!["a"; 60].join("+")), "selectors"),
        (format!("a{{{}}}", vec!["b=~\"c\""; 40].join(",")), "regular expressions"),
    ] {
        check_error(&text, 400, &[word]);
    }
}

// Once, each vector was limited, but not the memory of all vectors that a query held at one time.
#[test]
fn all_vectors_of_a_query_share_one_limit() {
    let services: Vec<String> = (0..16).map(|i| format!("s{i}")).collect();
    let sample = |name: &String| Sample::new(CPU, &[("service_name", name)], (NOW_S - 100) * S, &[], 1);
    let server = Server::new(services.iter().map(sample).collect());
    let start = (NOW_S - 10_999).to_string();
    let end = NOW_S.to_string();
    let ask = |selectors: usize| {
        let query = vec!["count(rate(process_cpu[5m]))"; selectors].join("+");
        let parameters = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", "1")];
        server.get("/api/v1/query_range", &parameters)
    };
    assert_eq!(ask(1).status, StatusCode::OK);
    let refused = ask(50);
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.text().contains("values (series x steps"), "{}", refused.text());
}

#[test]
fn posts_work_like_gets_and_limits_apply() {
    let server = Server::new(samples());
    let query = ("query", "increase(process_cpu[5m])");
    let time = NOW_S.to_string();
    let got = server.get("/api/v1/query", &[query, ("time", &time)]);
    let posted = server.post("/api/v1/query", &[query, ("time", &time)]);
    assert_eq!((got.status, &got.body), (posted.status, &posted.body));
    assert_eq!(got.kind, "application/json");
    assert!(got.server_timing.contains("shards;dur="), "{}", got.server_timing);
    let limited = server.get("/api/v1/query", &[query, ("time", &time), ("limit", "1")]).json();
    assert_eq!(limited["data"]["result"].as_array().unwrap().len(), 1);
    assert_eq!(limited["warnings"], json!(["results truncated due to limit"]));
    for parameters in [[query, ("limit", "x")], [query, ("time", "x")], [("query", ""), ("time", "1")]] {
        assert_eq!(server.get("/api/v1/query", &parameters).status, StatusCode::BAD_REQUEST, "{parameters:?}");
    }
    assert!(server.get("/api/v1/query", &[]).text().contains("query"));
}

#[test]
fn failed_shards_are_errors_of_their_kind() {
    for (code, status) in [
        (tonic::Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE),
        (tonic::Code::NotFound, StatusCode::SERVICE_UNAVAILABLE),
        (tonic::Code::ResourceExhausted, StatusCode::UNPROCESSABLE_ENTITY),
        (tonic::Code::InvalidArgument, StatusCode::BAD_REQUEST),
        (tonic::Code::Internal, StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let mut node = NaiveNode::new(samples());
        node.refuses = Some(code);
        let answer = Server::of_node(node).query("sum(rate(process_cpu[5m]))");
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.json()["status"], "error");
    }
}
