//! Tests of `/metrics` in both formats, and of the paths that Prometheus' tools use for health checks.

use std::collections::{BTreeMap, BTreeSet};

use tests::http::{Reply, request};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::server::{Processes, Setup, Varve};

fn metrics(address: &str, accept: Option<&str>) -> Reply {
    let headers: Vec<_> = accept.map(|accept| ("accept", accept)).into_iter().collect();
    request("GET", &format!("http://{address}/metrics"), &headers, None).unwrap().expect(200)
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !text.is_empty() && text.chars().all(is_part) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses a line with a sample. Returns its name, labels and value.
fn sample(line: &str) -> (&str, Vec<(String, String)>, f64) {
    let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}")));
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(mut inside) = rest.strip_prefix('{') {
        while !inside.starts_with('}') {
            let (label, after) = inside.split_once("=\"").unwrap_or_else(|| panic!("a label without a value: {line}"));
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let mut value = String::new();
            let mut characters = after.char_indices();
            let end = loop {
                match characters.next().unwrap_or_else(|| panic!("a value that does not end: {line}")) {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match characters.next().unwrap().1 {
                        'n' => '\n',
                        escaped @ ('"' | '\\') => escaped,
                        other => panic!("\\{other} is no escape: {line}"),
                    }),
                    (_, character) => value.push(character),
                }
            };
            labels.push((label.to_owned(), value));
            inside = after[end + 1..].trim_start_matches(',');
        }
        rest = &inside[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no space before the value: {line}"));
    let value = value.parse().unwrap_or_else(|_| panic!("not one value and nothing behind it: {line}"));
    (name, labels, value)
}

/// Checks a response of `/metrics` by the rules of the text format 0.0.4. Returns the type of each metric.
fn check_text(text: &str) -> BTreeMap<String, String> {
    let mut types = BTreeMap::new();
    let mut helps = BTreeSet::new();
    let mut samples: BTreeSet<(String, Vec<(String, String)>)> = BTreeSet::new();
    let mut current = String::new();
    let mut finished = BTreeSet::new();
    assert!(text.ends_with('\n'), "the last line has no end");
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
            assert!(is_name(name) && !text.is_empty() && helps.insert(name.to_owned()), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap_or_else(|| panic!("no type: {line}"));
            assert!(["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind), "{line}");
            assert_eq!(types.insert(name.to_owned(), kind.to_owned()), None, "a second {line}");
            finished.insert(std::mem::replace(&mut current, name.to_owned()));
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "neither HELP nor TYPE nor a sample: {line:?}");
            let (name, labels, value) = sample(line);
            assert!(name.starts_with(&current) && !finished.contains(&current), "not of {current}, before it: {line}");
            let suffix = &name[current.len()..];
            let suffixes: &[&str] = match types[&current].as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "summary" => &["", "_sum", "_count"],
                _ => &[""],
            };
            assert!(suffixes.contains(&suffix), "{line} is no sample of a {}", types[&current]);
            assert!(suffix != "_bucket" || labels.iter().any(|(label, _)| label == "le"), "{line}");
            assert!(types[&current] != "counter" || (value >= 0.0 && name.ends_with("_total")), "{line}");
            assert!(samples.insert((name.to_owned(), labels)), "twice: {line}");
        }
    }
    assert!(types.keys().eq(helps.iter()), "help without type, or type without help");
    types
}

#[test]
fn metrics_are_text_by_default_and_openmetrics_where_it_is_preferred() {
    let varve = Varve::up();
    let body = Request::new("metrics").seen(stack(&["f", "main"]), vec![now_ns()]).bytes();
    assert_eq!(varve.push_otlp(&body, None).status, 200);
    for accept in [None, Some("*/*"), Some("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.1")] {
        let reply = metrics(&varve.http, accept);
        assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8", "{accept:?}");
        let types = check_text(&reply.text());
        for (name, kind) in [
            ("varve_router_pushes_total", "counter"),
            ("varve_node_log_sync_seconds", "histogram"),
            ("process_resident_memory_bytes", "gauge"),
        ] {
            assert_eq!(types.get(name).map(String::as_str), Some(kind), "{types:#?}");
        }
    }
    // Value of the header `Accept` that Prometheus sends.
    let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
        application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
        text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let reply = metrics(&varve.http, Some(prometheus));
    assert_eq!(reply.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = reply.text();
    assert!(text.ends_with("# EOF\n") && text.contains("# TYPE varve_router_pushes counter\n"), "{text}");
    for format in [None, Some(prometheus)] {
        let pushes = metrics(&varve.http, format).text();
        assert!(pushes.contains("varve_router_pushes_total{format=\"otlp\"} 1\n"), "{pushes}");
    }
}

#[test]
fn health_has_the_paths_of_prometheus_in_every_role() {
    let varve = Varve::start(Setup { processes: Processes::Three, ..Setup::default() });
    for address in [&varve.http, &varve.operations[0]] {
        for (path, same) in [("/-/healthy", "/healthz"), ("/-/ready", "/ready")] {
            let ask = |path: &str| request("GET", &format!("http://{address}{path}"), &[], None).unwrap().expect(200);
            assert_eq!(ask(path).text(), ask(same).text());
        }
        check_text(&metrics(address, None).text());
    }
}
