//! Tests of selecting stacks by name: the router sends sets of locations to the shards, and keeps the names.

use std::time::Instant;

use proto::{BuildId, Selection, StackDetail};

use super::naive_node::Frame;
use super::*;

fn server_of(is_fickle: bool) -> (Server, Arc<NaiveNode>) {
    let node = Arc::new(NaiveNode { is_fickle, ..NaiveNode::new(samples()) });
    (Server::of(Arc::clone(&node)), node)
}

fn asked(node: &NaiveNode) -> Vec<Selection> {
    std::mem::take(&mut *node.selections.lock().unwrap())
}

/// Returns the only value in a response.
fn value(answer: &Answer) -> f64 {
    answer.json()["data"]["result"][0]["value"][1].as_str().unwrap_or("0").parse().unwrap()
}

fn folded(server: &Server, query: &str) -> Answer {
    let start = (NOW_S - 300).to_string();
    let end = NOW_S.to_string();
    let parameters = [("query", query), ("start", &start), ("end", &end), ("format", "folded")];
    server.get("/api/v1/flamegraph", &parameters)
}

#[test]
fn queries_by_name_fetch_no_stacks_and_match_the_flame_graph() {
    let (server, node) = server_of(false);
    for condition in
        ["stack_function=\"hot\"", "leaf_function!~\"h.*\"", "stack_file=~\".*app.rs\",leaf_function=\"cold\""]
    {
        let selector = format!("process_cpu{{{condition}}}");
        let lines = folded(&server, &selector).text();
        let whole: f64 = lines.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
        assert!(whole > 0.0, "{condition}");
        asked(&node);
        let sum = value(&server.query(&format!("sum(sum_over_time({selector}[5m]))")));
        assert_eq!(sum, whole, "{condition}");
        for selection in asked(&node) {
            assert_eq!(selection.stacks, StackDetail::None, "{condition}");
            assert_eq!(selection.locations.filters.len(), condition.split(',').count());
        }
    }
}

#[test]
fn known_locations_are_not_defined_again() {
    let (server, node) = server_of(false);
    let want = folded(&server, "process_cpu").text();
    assert_eq!(asked(&node)[0].locations.known.count, 0);
    for _ in 0..2 {
        assert_eq!(folded(&server, "process_cpu").text(), want);
        let known = asked(&node)[0].locations.known;
        assert!(known.generation == 7 && known.count > 3, "{known:?}");
    }
}

#[test]
fn locations_that_are_always_renumbered_are_an_error() {
    let (server, node) = server_of(true);
    let (steady, _) = server_of(false);
    for _ in 0..3 {
        assert_eq!(folded(&server, "process_cpu").text(), folded(&steady, "process_cpu").text());
    }
    asked(&node);
    let answer = folded(&server, "process_cpu{stack_function=\"hot\"}");
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text());
    assert!(answer.text().contains("try again"), "{}", answer.text());
    assert!(asked(&node).len() <= crate::query::limits::NAMING_ROUNDS_MAX);
}

#[test]
fn points_without_matching_stacks_count_as_points() {
    let server = Server::new(samples());
    let count = |selector: &str| value(&server.query(&format!("count_over_time({IN_USE}{{{selector}}}[5m])")));
    let all = count("");
    assert!(all > 1.0);
    assert_eq!(
        count("stack_function=\"keep\""),
        all,
        "the series has as many points, whatever part of them is looked at"
    );
    assert_eq!(count("stack_function=\"nothing\""), 0.0, "no series");
}

#[test]
fn too_many_matchers_on_stacks_are_refused() {
    let server = Server::new(samples());
    let conditions: Vec<String> = (0..40).map(|i| format!("stack_function!=\"f{i}\"")).collect();
    let answer = server.query(&format!("sum(rate(process_cpu{{{}}}[5m]))", conditions.join(",")));
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text());
    assert!(answer.text().contains("matchers on labels of stacks"), "{}", answer.text());
}

const BY_NAME: [&str; 3] = [
    "sum(sum_over_time(process_cpu{stack_function=\"hot\"}[5m]))",
    "sum by (leaf_function) (sum_over_time(process_cpu{leaf_function!=\"cold\"}[5m]))",
    "sum(sum_over_time(process_cpu{stack_function!~\"h.*\"}[5m]))",
];

#[test]
fn names_too_large_to_be_kept_give_the_same_results() {
    let node = Arc::new(NaiveNode::new(samples()));
    let small = Server::with(Arc::clone(&node), Some(1), None);
    let whole = Server::of(Arc::clone(&node));
    for _ in 0..2 {
        for query in BY_NAME {
            assert_eq!(small.query(query).text(), whole.query(query).text(), "{query}");
        }
        assert_eq!(folded(&small, "process_cpu").text(), folded(&whole, "process_cpu").text());
    }
    assert!(small.metric("varve_router_names_evicted_total{reason=\"too_large\"}") >= 6.0);
    assert!(small.metric("varve_router_names_bytes") < 1000.0 && whole.metric("varve_router_names_bytes") > 1000.0);
    assert_eq!(whole.metric("varve_router_names_evicted_total{reason=\"too_large\"}"), 0.0);
    // Without matchers on stacks, the router with the small cache does not load locations first.
    asked(&node);
    folded(&small, "process_cpu");
    assert_eq!(asked(&node)[0].locations.known.count, 0);
}

#[test]
fn queries_by_name_survive_a_renumbering() {
    let (server, node) = server_of(false);
    let answers = || BY_NAME.map(|query| server.query(query).text());
    let before = answers();
    assert!(before.iter().all(|answer| answer.contains("value")), "{before:?}");
    for renumbered in 1..3 {
        node.renumber();
        assert_eq!(answers(), before);
        let evicted = server.metric("varve_router_names_evicted_total{reason=\"renumbered\"}");
        assert_eq!(evicted, f64::from(renumbered), "once, and not for each query");
    }
}

/// Returns the path of a program of this host, and its build ID.
fn a_program() -> (String, String) {
    let path = std::env::current_exe().unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let id = host_files::elf::ElfImage::read(&file).unwrap().gnu_build_id.unwrap();
    (path.display().to_string(), BuildId::Gnu(id).to_string())
}

// Once, responses by name were missing names without a warning, for up to a second.
#[test]
fn queries_by_name_report_symbol_tables_being_made() {
    let (path, build_id) = a_program();
    let mut native = samples();
    native[0].stack[0] = Frame::Native { build_id: Some(build_id), file: path.clone(), address: 0x1000 };
    // The conversion waits until this pipe is opened.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let wait = format!("exec cat {} >/dev/null", pipe.display());
    let slow = Converter { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), wait] };
    let server = Server::with(Arc::new(NaiveNode::new(native)), None, Some(slow));
    let by_name = "sum(sum_over_time(process_cpu{stack_function=\"hot\"}[5m]))";
    let values = [("match[]", "process_cpu{stack_function!=\"x\"}"), ("start", "0")];
    let answers = || {
        [
            server.query(by_name).json()["warnings"].clone(),
            server.query("sum by (leaf_function) (sum_over_time(process_cpu[5m]))").json()["warnings"].clone(),
            server.get("/api/v1/label/leaf_function/values", &values).json()["warnings"].clone(),
            flamegraph(&server, "process_cpu{stack_function=\"hot\"}").json()["warnings"].clone(),
        ]
    };
    for warnings in answers() {
        let text = warnings[0].as_str().unwrap_or_default();
        assert!(text.contains(&path) && text.contains("symbol table is being built"), "{warnings}");
    }
    let pending = || flamegraph(&server, "process_cpu{stack_function=\"hot\"}").json()["names_pending"].clone();
    assert_eq!(pending(), serde_json::json!([path]), "for programs, once for each file");
    std::fs::File::options().write(true).open(&pipe).unwrap();
    let ended = Instant::now();
    let nothing_lacks = |warnings: &Value| warnings.as_array().is_none_or(Vec::is_empty);
    while !answers().iter().all(nothing_lacks) {
        assert!(ended.elapsed() < Duration::from_secs(60), "it goes on saying so");
    }
    assert_eq!(pending(), serde_json::json!([]));
}

fn flamegraph(server: &Server, query: &str) -> Answer {
    let start = (NOW_S - 300).to_string();
    let end = NOW_S.to_string();
    server.get("/api/v1/flamegraph", &[("query", query), ("start", &start), ("end", &end)])
}
