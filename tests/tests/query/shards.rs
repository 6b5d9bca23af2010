//! Test of responses over 1, 4, 16 and 64 shards: equal pushes get equal responses, before and after the data is sealed
//! and rolled up, and a query for one service reads only its shard.

use std::path::Path;
use std::process::Command;

use tests::http::request;
use tests::payload::generated::{Defect, FRAMES, LABELS, Layout, Profile, Seen, Shape, otlp};
use tests::payload::otlp::{Frame, Request, now_ns};
use tests::payload::otlp_json;
use tests::payload::pprof;
use tests::payload::profilers::PROFILERS;
use tests::payload::wire::{decode, encode};
use tests::program::Program;
use tests::server::{Setup, Varve};
use tests::shared::varve_binary;

const SOURCE: &str = "#include <stdint.h>
static volatile uint64_t sink;
__attribute__((noinline, noipa)) uint64_t named_function(uint64_t x) { return sink += x * 3; }
int main(void) { return (int)named_function(1); }
";

const SECOND_NS: u64 = 1_000_000_000;
/// Times of the pushes before the end of the queries, in seconds: in memory, in other partitions, and in other days.
const AGES_S: [u64; 5] = [30, 1000, 3 * 3600, 9 * 3600, 50 * 3600];
const SERVICES: usize = 20;

/// Returns a profile whose values, stacks and times follow from its number.
fn profile(number: usize) -> Profile {
    let profiler = &PROFILERS[number % PROFILERS.len()];
    let value = |i: usize| i64::try_from((number * 31 + i * 17) % 90 + 1).unwrap();
    let byte = |i: usize, below: u8| u8::try_from(i % usize::from(below)).unwrap();
    let seen = |i: usize| Seen {
        stack: (0..i % 6).map(|depth| byte(number * 5 + i * depth, FRAMES)).collect(),
        values: (0..profiler.sample_types.len()).map(|column| value(i + column)).collect(),
        label: byte(i, LABELS),
        seconds_before: (0..=u32::try_from(i % 3).unwrap()).map(|k| k * 41).collect(),
    };
    let shape = [Shape::Value, Shape::Timestamps, Shape::Both][number % 3];
    Profile { profiler, defect: Defect::None, shape, samples: (0..8).map(seen).collect() }
}

/// Pushes profiles of many services in every format, and frames of a program. The last time is before `end_ns`.
fn push(varve: &Varve, end_ns: u64, program: &Path) {
    for (number, age_s) in (0..SERVICES).flat_map(|i| AGES_S.iter().enumerate().map(move |(j, age)| (i + 7 * j, age))) {
        let service = format!("service-{}", number % SERVICES);
        let time_ns = end_ns - age_s * SECOND_NS - number as u64 * 1_000_003;
        let resources = [vec![profile(number), profile(number + 3)], vec![profile(number)]];
        let request = |layout| encode(&otlp(layout, &service, "", &resources, time_ns));
        let reply = match number % 5 {
            0 => varve.push_otlp(&request(Layout::V1_8), None),
            1 => varve.push_otlp(&request(Layout::V1_9), None),
            2 => varve.push_otlp(&request(Layout::Newest), None),
            3 => {
                let body = otlp_json::of_request(&decode(&request(Layout::Newest)));
                varve.push_otlp_as("application/json", &[], &body).unwrap()
            }
            _ => {
                let body = pprof::gzip(&profile(number).pprof("", time_ns));
                varve.push_pprof(&body, &[("service_name", &service), ("label", "region=eu")], None)
            }
        };
        assert_eq!(reply.status, 200, "{service}: {}", reply.text());
    }
    let build_id = Program::build_id(program);
    let (address, _) = Program::symbol(program, "named_function");
    for service in ["service-1", "service-2", "native"] {
        let leaf = Frame::Native { build_id: build_id.clone(), file: "/opt/app".to_owned(), address: address + 4 };
        let times = (1..4).map(|i| end_ns - i * 7 * SECOND_NS).collect();
        let request = Request::new(service).with("region", "us").seen(vec![leaf, "main".into()], times);
        assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    }
    let endpoint = format!("http://{}", varve.http);
    let upload = Command::new(varve_binary()).arg("upload").arg(program).args(["--endpoint", &endpoint]).output();
    assert!(upload.unwrap().status.success());
}

/// ID of the profile type for which `$cpu` stands in queries and selectors. Several pushed types are a `process_cpu`.
const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

/// Queries of every kind. Some of them are errors.
const QUERIES: [&str; 25] = [
    "$cpu",
    "sum(rate($cpu[5m]))",
    "sum by (service_name) (sum_over_time($cpu[3d]))",
    "topk(3, sum by (service_name) (rate($cpu[1h])))",
    "topk(5, count_over_time($cpu[3d]))",
    "bottomk by (region) (1, sum by (region, service_name) (increase($cpu[1d])))",
    "sum by (resource, profiler_name) (sum_over_time({service_name=~\".+\",__profile_type__!~\".*inuse.*\"}[3d]))",
    "sum by (leaf_function) (rate($cpu[1d]))",
    "sum by (stack_function, stack_binary) (sum_over_time($cpu[3d]))",
    "sum(sum_over_time($cpu{stack_function=~\"named.*|f1.*\"}[3d]))",
    "sum by (service_name) (sum_over_time($cpu{stack_function=\"named_function\"}[3d]))",
    "sum by (service_name) (sum_over_time($cpu{leaf_function!~\"f.*\"}[3d]))",
    "goroutine",
    "last_over_time(memory:inuse_space:bytes:space:bytes[3d])",
    "max by (service_name) (avg_over_time(goroutine[1d]))",
    "count(goroutine) + sum(goroutine)",
    "goroutine / on () group_left sum(goroutine)",
    "sum by (service_name) (rate($cpu{service_name=~\"service-1|service-2\"}[1h]))",
    "$cpu{service_name=\"service-3\"}",
    "process_cpu",
    "memory",
    "sum(sum_over_time({service_name=~\".+\"}[3d]))",
    "rate(goroutine[5m])",
    "no_such_profile",
    "sum($cpu",
];

/// Selectors of flame graphs and of lists.
const SELECTORS: [&str; 8] = [
    "$cpu",
    "goroutine",
    "memory:inuse_space:bytes:space:bytes",
    "wall",
    "$cpu{service_name=~\"service-1|service-2|native\"}",
    "$cpu{stack_function=~\"f.*\"}",
    "$cpu{stack_function=\"named_function\"}",
    "{service_name=\"service-5\"}",
];

/// Returns the body without the members that depend on the number of shards.
fn without_counts(body: &[u8]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(body).into_owned();
    for member in ["\"shards\":{", "\"windows_read\":{"] {
        if let Some(start) = text.find(member) {
            let length = text[start..].find('}').unwrap();
            text.replace_range(start..=start + length, "");
        }
    }
    // A gzipped pprof is no text, and has none of these members.
    if text.contains(char::REPLACEMENT_CHARACTER) { body.to_vec() } else { text.into_bytes() }
}

/// Returns the responses to requests of every kind: the request, the status, and the body without counts of shards.
fn responses(varve: &Varve, end_ns: u64) -> Vec<(String, u16, Vec<u8>)> {
    let mut all = Vec::new();
    let mut ask = |path: &str, parameters: &[(&str, &str)]| {
        let with_cpu = |(name, value): &(_, &str)| (*name, value.replace("$cpu", CPU));
        let parameters: Vec<(&str, String)> = parameters.iter().map(with_cpu).collect();
        let parameters: Vec<(&str, &str)> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let reply = varve.get(path, &parameters);
        all.push((format!("{path} {parameters:?}"), reply.status, without_counts(&reply.body)));
    };
    let end = (end_ns / SECOND_NS).to_string();
    let starts = [7200, 60 * 3600].map(|ago_s| (end_ns / SECOND_NS - ago_s).to_string());
    for query in QUERIES {
        ask("/api/v1/query", &[("query", query), ("time", &end)]);
        for (start, step) in starts.iter().zip(["60", "7200"]) {
            ask("/api/v1/query_range", &[("query", query), ("start", start), ("end", &end), ("step", step)]);
        }
    }
    for selector in SELECTORS {
        let window = [("start", starts[1].as_str()), ("end", &end)];
        for (format, nodes_max) in [("json", "8192"), ("json", "12"), ("folded", "100000"), ("pprof", "100000")] {
            let parameters = [("query", selector), window[0], window[1], ("format", format), ("max_nodes", nodes_max)];
            ask("/api/v1/flamegraph", &parameters);
        }
        ask("/api/v1/series", &[("match[]", selector), window[0], window[1]]);
        ask("/api/v1/labels", &[("match[]", selector), window[0], window[1]]);
        for name in ["service_name", "region", "resource", "__name__", "__profile_type__", "leaf_function"] {
            ask(&format!("/api/v1/label/{name}/values"), &[("match[]", selector), window[0], window[1]]);
        }
    }
    for path in ["/api/v1/metadata", "/api/v1/labels", "/api/v1/label/service_name/values", "/api/v1/nothing"] {
        ask(path, &[]);
    }
    all
}

fn assert_equal(one: &[(String, u16, Vec<u8>)], other: &[(String, u16, Vec<u8>)], what: &str) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        let text = |body: &[u8]| String::from_utf8_lossy(&body[..body.len().min(4000)]).into_owned();
        assert!(one == other, "{what}: {}\n{} {}\n{} {}", one.0, one.1, text(&one.2), other.1, text(&other.2));
    }
}

/// Checks the number of shards that the query of a service reads, in JSON and in the header.
fn assert_one_is_asked(varve: &Varve, end_ns: u64) {
    let window_s = ((end_ns / SECOND_NS - 7200) as f64, (end_ns / SECOND_NS) as f64);
    let shards = u64::from(varve.setup.shards);
    for (selector, asked) in [("goroutine{service_name=\"service-1\"}", 1), ("goroutine", shards)] {
        let reply = varve.flamegraph(selector, window_s, "json", 100).expect(200);
        assert_eq!(reply.json()["shards"], serde_json::json!({"asked": asked, "answered": asked}), "{selector}");
        let query = format!("count({selector})");
        let reply = varve.get("/api/v1/query", &[("query", &query)]).expect(200);
        let said = format!("asked;desc=\"{asked} of {asked} shards answered\"");
        assert!(reply.header("server-timing").contains(&said), "{}", reply.header("server-timing"));
    }
}

#[test]
fn responses_are_equal_over_1_4_16_and_64_shards() {
    let end_ns = now_ns() / SECOND_NS * SECOND_NS;
    let program = Program::compile("app", SOURCE, &["-O2"]);
    let mut all: Vec<Varve> = Vec::new();
    let mut before = Vec::new();
    for shards in [1, 4, 16, 64] {
        let varve = Varve::start(Setup { shards, ..Setup::default() });
        push(&varve, end_ns, &program.path);
        let responses = responses(&varve, end_ns);
        let is_empty = |(_, status, body): &&(String, u16, Vec<u8>)| {
            let text = String::from_utf8_lossy(body);
            *status != 200 || ["\"result\":[]", "\"data\":[]"].iter().any(|list| text.contains(list))
        };
        let empty: Vec<&String> = responses.iter().filter(is_empty).map(|(request, ..)| request).collect();
        assert!((1..responses.len() / 3).contains(&empty.len()), "{} of {}: {empty:#?}", empty.len(), responses.len());
        if before.is_empty() {
            before = responses;
        } else {
            assert_equal(&before, &responses, &format!("{shards} shards"));
        }
        assert_one_is_asked(&varve, end_ns);
        all.push(varve);
    }
    for varve in &mut all {
        let url = format!("http://{}/api/v1/admin/compact", varve.http);
        assert_eq!(request("POST", &url, &[], Some(b"")).unwrap().status, 200);
        // After a restart, nothing is in memory.
        assert!(varve.terminate().success(), "{}", varve.said());
        varve.launch();
        let what = format!("{} shards, sealed", varve.setup.shards);
        assert_equal(&before, &responses(varve, end_ns), &what);
    }
}
