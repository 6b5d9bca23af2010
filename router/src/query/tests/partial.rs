//! Tests of shards that do not answer, of stale reads, and of the read points of a query.

use proto::label::SERVICE_NAME_LABEL;
use serde_json::json;

use super::shards::{ManyShards, SERVICES, shard_of, uniform};
use super::*;

const SUM: &str = "sum by (service_name) (sum_over_time(process_cpu[5m]))";

fn node(shards: u16) -> ManyShards {
    let sample = |name| Sample::new(CPU, &[(SERVICE_NAME_LABEL, name)], NOW_S * S, &["f", "main"], 1);
    ManyShards::new(shards, &SERVICES.map(sample))
}

/// Returns the responses of all routes that read shards, with additional parameters.
fn all(server: &Server, more: &[(&str, &str)]) -> Vec<(&'static str, Answer)> {
    let (now, start) = (NOW_S.to_string(), (NOW_S - 100).to_string());
    let window = [("start", start.as_str()), ("end", now.as_str())];
    let ask = |name, path: &str, of: &[(&str, &str)]| (name, server.get(path, &[of, more].concat()));
    let graph =
        |name, format| ask(name, "/api/v1/flamegraph", &[window[0], window[1], ("query", CPU), ("format", format)]);
    let by_frame = "sum(sum_over_time(process_cpu{stack_function=\"f\"}[5m]))";
    vec![
        ask("query", "/api/v1/query", &[("query", SUM), ("time", &now)]),
        ask("frames", "/api/v1/query", &[("query", by_frame), ("time", &now)]),
        ask("range", "/api/v1/query_range", &[("query", SUM), window[0], window[1], ("step", "50")]),
        ask("series", "/api/v1/series", &[("match[]", "process_cpu"), window[0], window[1]]),
        ask("labels", "/api/v1/labels", &window),
        ask("values", "/api/v1/label/service_name/values", &window),
        ask("leaves", "/api/v1/label/leaf_function/values", &window),
        ask("types", "/api/v1/metadata", &window),
        graph("graph", "json"),
        graph("folded", "folded"),
        graph("pprof", "pprof"),
    ]
}

#[test]
fn a_response_without_some_shards_names_them_everywhere() {
    let placement = uniform(8);
    let lost = shard_of(&placement, "a");
    let slots: Vec<[u32; 2]> = (0..4096).filter(|slot| slot % 8 + 1 == lost).map(|slot| [slot; 2]).collect();
    // The shard has no leader when the query begins, or stops answering while the query runs.
    for is_late in [false, true] {
        let mut node = node(8);
        let shard = &mut node.shards[lost as usize - 1];
        shard.is_silent = !is_late;
        shard.refuses = is_late.then_some(tonic::Code::Unavailable);
        let server = Server::of(Arc::new(node));
        for (name, answer) in all(&server, &[]) {
            // Lists of series do not use the request that fails late.
            if is_late && ["series", "labels", "values", "types"].contains(&name) {
                assert_eq!((answer.status, answer.header("varve-partial")), (StatusCode::OK, ""), "{name}");
                continue;
            }
            assert_eq!(answer.status, StatusCode::OK, "{name}: {}", answer.text());
            let header = format!("shards={lost}; asked=8; answered=7");
            assert_eq!(answer.header("varve-partial"), header, "{name}");
            assert_eq!(answer.header("cache-control"), "no-store", "{name}");
            assert!(answer.server_timing.ends_with("asked;desc=\"7 of 8 shards answered\""), "{name}");
            if ["folded", "pprof"].contains(&name) {
                continue;
            }
            let body = answer.json();
            let shards = &body["shards"];
            assert_eq!((&shards["asked"], &shards["answered"]), (&json!(8), &json!(7)), "{name}");
            assert_eq!(shards["missing"][0]["shard"], lost, "{name}");
            assert_eq!(shards["missing"][0]["slots"], json!(slots), "{name}");
            let reason = shards["missing"][0]["reason"].as_str().unwrap();
            assert!(reason.contains("as the test wishes"), "{name}: {reason}");
            let warning = body["warnings"][0].as_str().unwrap();
            assert!(warning.starts_with(&format!("partial: shard {lost} did not answer")), "{name}: {warning}");
            assert!(warning.contains("512 slots"), "{name}: {warning}");
        }
        let found = server.query(SUM).json()["data"]["result"].as_array().unwrap().len();
        let here = SERVICES.iter().filter(|name| shard_of(&placement, name) != lost).count();
        assert!(0 < found && found == here && here < SERVICES.len());
    }
}

#[test]
fn a_caller_may_refuse_partial_responses() {
    let mut node = node(8);
    for lost in [1, 6] {
        node.shards[lost].is_silent = true;
    }
    let server = Server::of(Arc::new(node));
    for (name, answer) in all(&server, &[("partial", "refuse")]) {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{name}: {}", answer.text());
        let text = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(text.starts_with("2 of 8 shards did not answer: 2, 7; shard 2: no leader"), "{name}: {text}");
    }
    let bad = server.get("/api/v1/labels", &[("partial", "maybe")]);
    assert_eq!(bad.status, StatusCode::BAD_REQUEST, "{}", bad.text());
}

#[test]
fn a_query_of_which_no_shard_answers_is_an_error() {
    let mut node = node(8);
    node.shards.iter_mut().for_each(|shard| shard.is_silent = true);
    let lost = shard_of(&uniform(8), "a");
    let server = Server::of(Arc::new(node));
    for (name, answer) in all(&server, &[]) {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{name}: {}", answer.text());
        assert!(answer.text().contains("8 of 8 shards did not answer"), "{name}: {}", answer.text());
    }
    // A query for one service asks one shard.
    let one = server.query("process_cpu{service_name=\"a\"}").json();
    assert_eq!(one["error"], format!("shard {lost}: no leader, as the test wishes"));
}

#[test]
fn only_a_query_that_asks_a_silent_shard_is_partial() {
    let mut node = node(8);
    let lost = shard_of(&uniform(8), "a");
    node.shards[lost as usize - 1].is_silent = true;
    let server = Server::of(Arc::new(node));
    let other = SERVICES.iter().find(|name| shard_of(&uniform(8), name) != lost).unwrap();
    let answer = server.query(&format!("process_cpu{{service_name=\"{other}\"}}"));
    assert_eq!((answer.status, answer.header("varve-partial")), (StatusCode::OK, ""));
    assert_eq!(answer.json()["shards"], Value::Null, "whole responses do not depend on the placement");
    // A deletion needs every shard that it asks.
    let (start, end) = ("1600000000", "1800000000");
    let delete =
        |query: &str| server.post("/api/v1/delete", &[("query", query), ("start", start), ("end", end)]).status;
    assert_eq!(delete("{service_name=~\".+\"}"), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(delete(&format!("{{service_name=\"{other}\"}}")), StatusCode::OK);
}

#[test]
fn faults_other_than_silence_stay_errors() {
    for (code, status) in [
        (tonic::Code::InvalidArgument, StatusCode::BAD_REQUEST),
        (tonic::Code::ResourceExhausted, StatusCode::UNPROCESSABLE_ENTITY),
        (tonic::Code::Internal, StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let mut node = node(8);
        node.shards[3].refuses = Some(code);
        let answer = Server::of(Arc::new(node)).query(SUM);
        assert_eq!(answer.status, status, "{code}: {}", answer.text());
    }
}

#[test]
fn a_stale_response_states_the_greatest_age() {
    let mut node = node(4);
    for (shard, seconds) in node.shards.iter_mut().zip([0, 7, 3, 1]) {
        shard.staleness = Some(Duration::from_secs(seconds));
    }
    let server = Server::of(Arc::new(node));
    for (name, answer) in all(&server, &[("consistency", "stale")]) {
        assert_eq!(answer.status, StatusCode::OK, "{name}: {}", answer.text());
        assert_eq!(answer.header("varve-staleness"), "7.000", "{name}");
        if !["folded", "pprof"].contains(&name) {
            assert_eq!(answer.json()["shards"]["staleness_seconds"], 7.0, "{name}");
        }
    }
    for (name, answer) in all(&server, &[]) {
        assert_eq!(answer.header("varve-staleness"), "", "{name}");
    }
    let mut unknown = self::node(4);
    unknown.shards.iter_mut().skip(1).for_each(|shard| shard.staleness = Some(Duration::ZERO));
    let answer = Server::of(Arc::new(unknown)).get("/api/v1/labels", &[("consistency", "stale")]);
    assert_eq!(answer.header("varve-staleness"), "unknown");
    assert_eq!(answer.json()["shards"]["staleness_seconds"], Value::Null);
}

// The node checks that every read names a read point.
#[test]
fn all_reads_of_a_query_name_the_first_read_point_of_their_shard() {
    let node = Arc::new(node(4));
    let server = Server::of(Arc::clone(&node));
    let by_frame = "sum by (leaf_function) (sum_over_time(process_cpu{stack_function=\"f\"}[5m]))";
    let mut reads = Vec::new();
    // The second query knows the locations of the first one.
    for query in [by_frame, by_frame, "process_cpu + process_cpu", SUM] {
        let answer = server.query(query);
        assert_eq!(answer.status, StatusCode::OK, "{query}: {}", answer.text());
        for shard in &node.shards {
            let named = std::mem::take(&mut *shard.reads_at.lock().unwrap());
            assert!(!named.is_empty() && named.iter().all(|index| *index == named[0]), "{query}: {named:?}");
            reads.push(named.len());
        }
    }
    assert!(reads.iter().any(|reads| *reads > 2), "no query has several reads of one shard: {reads:?}");
}
