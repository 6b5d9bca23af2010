//! Which stacks are meant is decided by the shards, from sets of locations that the router names; and names are kept.

use proto::{Selection, StackDetail};

use super::*;

fn server_of(is_fickle: bool) -> (Server, Arc<NaiveNode>) {
    let node = Arc::new(NaiveNode { is_fickle, ..NaiveNode::new(samples()) });
    (Server::of(Arc::clone(&node)), node)
}

fn asked(node: &NaiveNode) -> Vec<Selection> {
    std::mem::take(&mut *node.selections.lock().unwrap())
}

/// The only value of an answer.
fn value(answer: &Answer) -> f64 {
    answer.json()["data"]["result"][0]["value"][1].as_str().unwrap_or("0").parse().unwrap()
}

fn folded(server: &Server, query: &str) -> Answer {
    let (start, end) = ((NOW_S - 300).to_string(), NOW_S.to_string());
    let parameters = [("query", query), ("start", &start), ("end", &end), ("format", "folded")];
    server.get("/api/v1/flamegraph", &parameters)
}

#[test]
fn a_query_by_name_ships_no_stacks_and_says_what_the_flame_graph_of_it_says() {
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
fn what_is_known_needs_no_definition_again() {
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
fn numbers_that_change_whenever_they_are_asked_for_are_an_error_that_says_so_and_hurt_nothing_else() {
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
fn points_without_a_stack_that_passes_count_as_points() {
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
fn more_conditions_than_a_shard_takes_are_refused() {
    let server = Server::new(samples());
    let conditions: Vec<String> = (0..40).map(|i| format!("stack_function!=\"f{i}\"")).collect();
    let answer = server.query(&format!("sum(rate(process_cpu{{{}}}[5m]))", conditions.join(",")));
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text());
    assert!(answer.text().contains("matchers on labels of stacks"), "{}", answer.text());
}
