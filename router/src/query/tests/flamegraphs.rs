//! Tests of flame graphs in all formats.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::naive_node::Frame;
use super::pprof::{folded_of, unpack};
use super::*;

fn ask(server: &Server, query: &str, parameters: &[(&str, &str)]) -> Answer {
    let start = (NOW_S - 300).to_string();
    let end = NOW_S.to_string();
    let mut all = vec![("query", query), ("start", start.as_str()), ("end", end.as_str())];
    all.retain(|(name, _)| !parameters.iter().any(|(given, _)| given == name));
    all.extend(parameters);
    server.get("/api/v1/flamegraph", &all)
}

pub(super) fn ok(server: &Server, query: &str, parameters: &[(&str, &str)]) -> Answer {
    let answer = ask(server, query, parameters);
    assert_eq!(answer.status, StatusCode::OK, "{query} {parameters:?}: {}", answer.text());
    answer
}

#[test]
fn json_is_as_documented() {
    let got = ok(&Server::new(samples()), "process_cpu{service_name=\"a\"}", &[]);
    assert_eq!(got.kind, "application/json");
    let frame = json!({"file": "/src/app.rs", "line": 10, "binary": "/usr/bin/app", "type": "native"});
    let want = json!({
        "profile_type": CPU, "unit": "nanoseconds", "gauge": false,
        "total": 2_750_000_000_i64, "samples": 4, "series": 1,
        "names": ["total", "main", "hot", "cold"],
        "frames": [{}, frame, frame, frame],
        "nodes": [
            [-1, 0, 0, 2_750_000_000_i64], [0, 1, 0, 2_750_000_000_i64], [1, 2, 1_250_000_000, 2_250_000_000_i64],
            [2, 2, 1_000_000_000, 1_000_000_000], [1, 3, 500_000_000, 500_000_000],
        ],
        "symbolization": {"frames": 3, "named": 3, "unnamed": []},
        "shards": {"asked": 1, "answered": 1},
        "pruned": {"nodes": 0, "value": 0},
        "windows_read": {"raw": 0, "1m": 0, "1h": 0, "1d": 0},
        "names_pending": [],
        "warnings": [],
    });
    assert_eq!(got.json(), want);
}

#[test]
fn folded_stacks_are_lines_and_windows_are_exact() {
    let server = Server::new(samples());
    let got = ok(&server, "process_cpu{service_name=\"a\"}", &[("format", "folded")]);
    assert_eq!(got.kind, "text/plain; charset=utf-8");
    assert_eq!(got.text(), "main;hot 1250000000\nmain;hot;hot 1000000000\nmain;cold 500000000\n");
    for (start, end, want) in [
        ("1699999985", "1699999995", "main;hot 1000000000\nmain;hot;hot 1000000000\n"),
        ("1699999984.999999999", "1699999994.999999999", "main;cold 500000000\n"),
        ("2023-11-14T22:13:14.999999999Z", "2023-11-14T22:13:15Z", "main;hot 1000000000\nmain;hot;hot 1000000000\n"),
        ("1", "2", ""),
    ] {
        let parameters = [("format", "folded"), ("start", start), ("end", end)];
        assert_eq!(ok(&server, "process_cpu{service_name=\"a\"}", &parameters).text(), want, "({start}, {end}]");
    }
    // A stack without frames keeps its weight.
    let got = ok(&server, ALLOCATED, &[("format", "folded")]).text();
    assert_eq!(got, "[no stack] 60\nmain;make 600\n");
    let tree = ok(&server, ALLOCATED, &[]).json();
    assert_eq!(tree["nodes"][0], json!([-1, 0, 60, 660]));
}

#[test]
fn frames_of_interpreters_are_shown_or_folded_in_every_format() {
    let stack = ["spin", "_PyEval_EvalFrameDefault", "<module>", "_PyEval_EvalFrameDefault", "main"];
    let sample = |leaf: usize, value| Sample::new(CPU, &[("service_name", "a")], NOW_S * S, &stack[leaf..], value);
    let server = Server::new(vec![sample(0, 30), sample(1, 7)]);
    let folded = |parameters: &[(&str, &str)]| {
        let with = |format| [&[("format", format)], parameters].concat();
        let text = ok(&server, "process_cpu", &with("folded")).text();
        let profile = unpack(&ok(&server, "process_cpu", &with("pprof")));
        let of_pprof = folded_of(&profile).into_iter().map(|(stack, value)| format!("{} {value}\n", stack.join(";")));
        let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
        lines.sort();
        let mut of_pprof: Vec<String> = of_pprof.collect();
        of_pprof.sort();
        assert_eq!(lines, of_pprof);
        lines.concat()
    };
    let [shown, also_shown] = [folded(&[]), folded(&[("interpreter", "show")])];
    let outer = "main;_PyEval_EvalFrameDefault;<module>;_PyEval_EvalFrameDefault";
    assert_eq!(shown, format!("{outer} 7\n{outer};spin 30\n"));
    assert_eq!(shown, also_shown);
    // The value of the loop itself is that of the function that it runs.
    assert_eq!(folded(&[("interpreter", "fold")]), "main;<module> 7\nmain;<module>;spin 30\n");
    let tree = ok(&server, "process_cpu", &[("interpreter", "fold")]).json();
    assert_eq!(tree["names"], json!(["total", "main", "<module>", "spin"]));
    assert_eq!(tree["nodes"], json!([[-1, 0, 0, 37], [0, 1, 0, 37], [1, 2, 7, 37], [2, 3, 30, 30]]));
    let refused = ask(&server, "process_cpu", &[("interpreter", "hide")]);
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("it must be show or fold"), "{}", refused.text());
}

#[test]
fn gauges_show_the_last_profile_of_each_series() {
    let server = Server::new(samples());
    let query = "memory:inuse_space:bytes:space:bytes";
    assert_eq!(ok(&server, query, &[("format", "folded")]).text(), "main;make 37\n");
    let earlier = [("format", "folded"), ("end", "1699999960")];
    assert_eq!(ok(&server, query, &earlier).text(), "main;make 100\nmain;keep 50\n");
    assert_eq!(ok(&server, query, &[]).json()["gauge"], true);
}

#[test]
fn matchers_on_stacks_and_attributes_choose_stacks() {
    let server = Server::new(samples());
    let folded = |query: &str| ok(&server, query, &[("format", "folded")]).text();
    assert_eq!(folded("process_cpu{leaf_function=\"cold\"}"), "main;cold 500000000\n");
    assert_eq!(folded("process_cpu{stack_function!=\"hot\"}"), "main;cold 500000000\n");
    assert_eq!(folded("process_cpu{thread_name=\"t1\"}"), "main;hot 4000000000\n");
    assert_eq!(folded("process_cpu{stack_function=\"nothing\"}"), "");
    let total = ok(&server, "process_cpu{stack_function=\"nothing\"}", &[]).json();
    assert_eq!((total["total"].clone(), total["nodes"].clone()), (json!(0), json!([[-1, 0, 0, 0]])));
}

#[test]
fn a_selector_without_samples_gives_an_empty_flame_graph() {
    let server = Server::new(samples());
    for query in ["nothing", "process_cpu{region=\"mars\"}", CPU, "{region=\"eu\"}"] {
        let parameters = [("start", "1"), ("end", "2")];
        let empty = ok(&server, query, &parameters).json();
        assert_eq!(
            (&empty["total"], &empty["names"], &empty["nodes"]),
            (&json!(0), &json!(["total"]), &json!([[-1, 0, 0, 0]]))
        );
        let named = if query == CPU { CPU } else { "" };
        assert_eq!(empty["profile_type"], named);
        for format in ["folded", "pprof"] {
            ok(&server, query, &[parameters[0], parameters[1], ("format", format)]);
        }
    }
}

fn native(build_id: Option<&str>, file: &str, address: u64) -> Frame {
    Frame::Native { build_id: build_id.map(str::to_owned), file: file.to_owned(), address }
}

fn lines(names: &[&str]) -> Frame {
    Frame::Lines(names.iter().map(|&name| name.to_owned()).collect())
}

fn cpu_sample(stack: Vec<Frame>, value: i64) -> Sample {
    Sample { stack, ..Sample::new(CPU, &[("service_name", "x")], NOW_S * S - S, &[], value) }
}

// Once, frames without names were dropped with their weight, without a warning.
#[test]
fn frames_without_names_keep_their_weight_and_a_reason() {
    let main = || lines(&["main"]);
    let libc = Some("gnu:aabb");
    let other = Some("gnu:ccdd");
    let server = Server::new(vec![
        cpu_sample(vec![native(libc, "/usr/lib/libc.so.6", 0x29d90), main()], 5),
        cpu_sample(
            vec![native(libc, "/usr/lib/libc.so.6", 0x10), native(libc, "/usr/lib/libc.so.6", 0x29d90), main()],
            2,
        ),
        cpu_sample(vec![native(None, "/opt/app", 0x1), main()], 3),
        cpu_sample(vec![native(other, "", 0x2)], 1),
        cpu_sample(vec![native(None, "", 0x3)], 1),
    ]);
    assert_eq!(
        ok(&server, "process_cpu", &[("format", "folded")]).text(),
        "main;libc.so.6+0x29d90 5\nmain;libc.so.6+0x29d90;libc.so.6+0x10 2\nmain;app+0x1 3\n\
         [unknown]+0x3 1\ngnu:ccdd+0x2 1\n"
    );
    let tree = ok(&server, "process_cpu", &[]).json();
    assert_eq!(tree["total"], 12);
    let share = |reason: &str, binary: &str, build_id: &str, frames: i64, value: i64| {
        let texts = tree["symbolization"]["unnamed"].as_array().unwrap();
        let known = texts.iter().find(|known| known["binary"] == binary && known["build_id"] == build_id).unwrap();
        assert!(!known["text"].as_str().unwrap().is_empty());
        let want = json!({
            "reason": reason, "text": known["text"], "binary": binary, "build_id": build_id,
            "frames": frames, "value": value,
        });
        assert_eq!(*known, want);
    };
    // A stack with two such frames of libc counts once.
    share("no_debug_file", "/usr/lib/libc.so.6", "gnu:aabb", 2, 7);
    share("no_build_id", "/opt/app", "", 1, 3);
    share("no_debug_file", "", "gnu:ccdd", 1, 1);
    share("no_build_id", "", "", 1, 1);
    assert_eq!((&tree["symbolization"]["frames"], &tree["symbolization"]["named"]), (&json!(6), &json!(1)));
    let place = tree["names"].as_array().unwrap().iter().position(|name| name == "libc.so.6+0x10").unwrap();
    let unnamed = tree["symbolization"]["unnamed"].as_array().unwrap();
    let why = unnamed.iter().position(|known| known["build_id"] == "gnu:aabb").unwrap();
    let frame = json!({"binary": "/usr/lib/libc.so.6", "type": "native", "reason": "no_debug_file", "unnamed": why});
    assert_eq!(tree["frames"][place], frame);
    // Frames without names can be filtered and grouped like others.
    let grouped =
        server.query("sum by (leaf_function) (sum_over_time(process_cpu{leaf_binary=\"/opt/app\"}[5m]))").json();
    assert_eq!(grouped["data"]["result"][0]["metric"], json!({"leaf_function": "app+0x1"}));
    // In a pprof file, these frames have their address and build ID, for tools that have the mapped file.
    let profile = unpack(&ok(&server, "process_cpu", &[("format", "pprof")]));
    let location = profile.location.iter().find(|location| location.address == 0x29d90).unwrap();
    let mapping = &profile.mapping[location.mapping_id as usize - 1];
    assert!(location.line.is_empty() && !mapping.has_functions);
    assert_eq!(profile.string_table[mapping.build_id as usize], "aabb");
    assert_eq!(profile.sample.iter().map(|sample| sample.value[0]).sum::<i64>(), 12);
}

#[test]
fn a_frame_at_which_unwinding_stopped_has_the_reason() {
    let known = "[unwinding stopped here: native code: code in a mapping that cannot be unwound (error 4018)]";
    let unknown = "[unwinding stopped here: Go: a reason that this version does not know (error 9999)]";
    let server = Server::new(vec![
        cpu_sample(vec![lines(&["main"]), Frame::Abort(0xfb2)], 5),
        cpu_sample(vec![lines(&["main"]), Frame::Abort(9999)], 2),
    ]);
    let folded = ok(&server, "process_cpu", &[("format", "folded")]).text();
    assert_eq!(folded, format!("{known};main 5\n{unknown};main 2\n"));
    let tree = ok(&server, "process_cpu", &[]).json();
    let unnamed = tree["symbolization"]["unnamed"].as_array().unwrap();
    for (of, meaning) in unnamed.iter().zip(["does not know", "code in a mapping"]) {
        assert_eq!((&of["reason"], &of["frames"]), (&json!("unwinding_stopped"), &json!(1)));
        let text = of["text"].as_str().unwrap();
        assert!(text.contains("callers are missing") && text.contains(meaning), "{text}");
    }
    // Both frames have the same reason and no binary: the index distinguishes them.
    for (name, meaning) in [(known, "code in a mapping"), (unknown, "does not know")] {
        let place = tree["names"].as_array().unwrap().iter().position(|of| *of == name).unwrap();
        let why = usize::try_from(tree["frames"][place]["unnamed"].as_u64().unwrap()).unwrap();
        assert!(unnamed[why]["text"].as_str().unwrap().contains(meaning), "{tree}");
    }
    let grouped = server.query("sum by (stack_function) (sum_over_time(process_cpu[5m]))").json();
    assert!(grouped.to_string().contains(known), "{grouped}");
    let stacks = folded_of(&unpack(&ok(&server, "process_cpu", &[("format", "pprof")])));
    assert_eq!(stacks.get(&vec![known.to_owned(), "main".to_owned()]), Some(&5), "{stacks:?}");
}

#[test]
fn inlined_functions_are_frames_of_their_own() {
    let server = Server::new(vec![
        cpu_sample(vec![lines(&["innermost", "middle", "outer"]), lines(&["main"])], 5),
        cpu_sample(vec![lines(&["other", "outer"]), lines(&["main"])], 2),
    ]);
    let folded = ok(&server, "process_cpu", &[("format", "folded")]).text();
    assert_eq!(folded, "main;outer;middle;innermost 5\nmain;outer;other 2\n");
    let profile = unpack(&ok(&server, "process_cpu", &[("format", "pprof")]));
    assert_eq!(profile.location.iter().map(|location| location.line.len()).max(), Some(3));
    assert_eq!(folded_of(&profile).len(), 2);
    let leaf = server.query("sum by (leaf_function) (sum_over_time(process_cpu[5m]))").json();
    let metrics: Vec<_> =
        leaf["data"]["result"].as_array().unwrap().iter().map(|one| &one["metric"]["leaf_function"]).collect();
    assert_eq!(metrics, ["innermost", "other"]);
}

#[test]
fn folded_names_are_rewritten_and_equal_lines_merged() {
    let server = Server::new(vec![
        cpu_sample(vec![lines(&["a;b\nc"]), lines(&["<script>"])], 5),
        cpu_sample(vec![lines(&["a:b c"]), lines(&["<script>"])], 2),
    ]);
    assert_eq!(ok(&server, "process_cpu", &[("format", "folded")]).text(), "<script>;a:b c 7\n");
    assert_eq!(ok(&server, "process_cpu", &[]).json()["names"], json!(["total", "<script>", "a;b\nc", "a:b c"]));
}

#[test]
fn sums_beyond_64_bits_are_exact() {
    let server = Server::new((0..3).map(|_| cpu_sample(vec![lines(&["main"])], i64::MAX)).collect());
    let total = (i128::from(i64::MAX) * 3).to_string();
    assert_eq!(ok(&server, "process_cpu", &[("format", "folded")]).text(), format!("main {total}\n"));
    assert!(ok(&server, "process_cpu", &[]).text().contains(&format!("\"total\":{total},")));
    let refused = ask(&server, "process_cpu", &[("format", "pprof")]);
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[test]
fn the_order_of_samples_does_not_change_the_bytes() {
    let stacks = |i: i64| vec![lines(&[&format!("f{}", i % 7)]), lines(&[&format!("g{}", i % 5)]), lines(&["main"])];
    let mut all: Vec<_> = (0..70).map(|i| cpu_sample(stacks(i), 10)).collect();
    let bytes = |samples: &[Sample], format: &str, nodes: &str| {
        ok(&Server::new(samples.to_vec()), "process_cpu", &[("format", format), ("max_nodes", nodes)]).body
    };
    let all_bytes = |samples: &[Sample]| {
        [("json", "20"), ("json", "1000"), ("folded", "20"), ("pprof", "20"), ("pprof", "1000")]
            .map(|(format, nodes)| bytes(samples, format, nodes))
    };
    let first = all_bytes(&all);
    assert_eq!(first, all_bytes(&all));
    all.reverse();
    assert_eq!(first, all_bytes(&all));
}

#[test]
fn deep_stacks_are_whole_and_prunable() {
    let deep: Vec<Frame> = (0..4000).map(|i| lines(&[&format!("f{i}")])).collect();
    let server = Server::new(vec![cpu_sample(deep, 7)]);
    let tree = ok(&server, "process_cpu", &[]).json();
    assert_eq!(tree["nodes"].as_array().unwrap().len(), 4001);
    let tree = ok(&server, "process_cpu", &[("max_nodes", "10")]).json();
    assert_eq!(tree["nodes"].as_array().unwrap().len(), 10);
    assert_eq!(tree["pruned"], json!({"nodes": 3992, "value": 7}));
    assert_eq!(ok(&server, "process_cpu", &[("format", "folded")]).text().matches(';').count(), 3999);
}

// Other tools cannot request more nodes. Once, only 8192 nodes of a large program were left for them.
#[test]
fn folded_stacks_and_pprof_are_not_pruned_by_default() {
    let server = Server::new((0..9000).map(|i| cpu_sample(vec![lines(&[&format!("f{i}")])], 1)).collect::<Vec<_>>());
    assert_eq!(ok(&server, "process_cpu", &[]).json()["nodes"].as_array().unwrap().len(), 8192);
    let folded = |parameters: &[_]| ok(&server, "process_cpu", parameters).text().lines().count();
    assert_eq!(folded(&[("format", "folded")]), 9000);
    assert_eq!(folded(&[("format", "folded"), ("max_nodes", "10")]), 9);
    assert_eq!(unpack(&ok(&server, "process_cpu", &[("format", "pprof")])).sample.len(), 9000);
}

#[test]
fn stacks_pruned_to_a_single_node_are_other() {
    let server = Server::new(samples());
    let one = |format: &'static str| ok(&server, ALLOCATED, &[("format", format), ("max_nodes", "1")]);
    assert_eq!(one("folded").text(), "[no stack] 60\n(other) 600\n");
    let want = BTreeMap::from([(vec!["(other)".to_owned()], 600), (Vec::new(), 60)]);
    assert_eq!(folded_of(&unpack(&one("pprof"))), want);
    assert_eq!(one("json").json()["nodes"], json!([[-1, 0, 660, 660]]));
}

#[test]
fn invalid_requests_are_refused() {
    let server = Server::new(samples());
    for parameters in [
        [("query", "process_cpu"), ("start", "10"), ("end", "1")],
        [("query", "process_cpu"), ("start", "10"), ("end", "10")],
        [("query", "process_cpu"), ("start", "x"), ("end", "1")],
        [("query", "process_cpu"), ("start", "now+1h"), ("end", "1")],
        [("query", ""), ("start", "1"), ("end", "2")],
        [("query", "{}"), ("start", "1"), ("end", "2")],
        [("query", "rate(process_cpu[5m])"), ("start", "1"), ("end", "2")],
        [("query", "process_cpu offset 5m"), ("start", "1"), ("end", "2")],
        [("format", "svg"), ("start", "1"), ("end", "2")],
        [("max_nodes", "0"), ("start", "1"), ("end", "2")],
        [("max_nodes", "1048577"), ("start", "1"), ("end", "2")],
        [("max_nodes", "-1"), ("start", "1"), ("end", "2")],
    ] {
        let answer = ask(&server, "process_cpu", &parameters);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{parameters:?}: {}", answer.text());
        assert_eq!(answer.json()["errorType"], "bad_data");
    }
    assert_eq!(server.get("/api/v1/flamegraph", &[]).status, StatusCode::BAD_REQUEST);
    let several = ask(&server, "{region=\"us\"}", &[]);
    assert_eq!(several.status, StatusCode::UNPROCESSABLE_ENTITY);
    let text = several.json()["error"].clone();
    assert!(text.as_str().unwrap().contains(CPU) && text.as_str().unwrap().contains(IN_USE), "{text}");
    let ambiguous: Value = ask(&server, "memory", &[]).json();
    assert!(ambiguous["error"].as_str().unwrap().contains("ambiguous"));
}
