//! Test of what 16 shards cost beside one: the same pushes go to both, and then the same queries, in turn.

use std::time::Instant;

use serde_json::{Map, json};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::{alone, figure};
use tests::server::{Setup, Varve};

const SHARDS: [u16; 2] = [1, 16];
const SERVICES: usize = 40;
const PODS: usize = 25;
/// Stacks of a service. Each pod has a fifth of them.
const STACKS: usize = 1000;
const PARTS: usize = 5;
const DEPTH: usize = 16;
/// Samples of each stack of a pod.
const TIMES: u64 = 10;
const SAMPLES: u64 = (SERVICES * PODS * STACKS / PARTS) as u64 * TIMES;
/// Length of the window that the samples cover.
const WINDOW_NS: u64 = 900_000_000_000;
/// Time between two samples of a stack.
const DISTANCE_NS: u64 = WINDOW_NS / TIMES;
const RUNS: u64 = 31;
/// Time by which the window of a run is earlier than that of the run before, so that no response comes from a cache.
const SHIFT_NS: u64 = 1_300_000_000;
/// Largest ratio of the times of a query, beside `SHARDS_MS`.
const RATIO_MAX: f64 = 2.0;
/// Fixed cost of 15 more calls to shards, in milliseconds. A response that takes two or three milliseconds is little
/// else.
const SHARDS_MS: f64 = 2.0;
const MEMORY_RATIO_MAX: f64 = 1.5;

/// A query without its window.
struct Query {
    name: &'static str,
    path: &'static str,
    parameters: &'static [(&'static str, &'static str)],
}

const QUERIES: [Query; 7] = [
    Query { name: "flamegraph_of_all", path: FLAMEGRAPH, parameters: &[("query", "process_cpu"), NODES_MAX] },
    Query {
        name: "flamegraph_of_one",
        path: FLAMEGRAPH,
        parameters: &[("query", "process_cpu{service_name=\"service-7\"}"), NODES_MAX],
    },
    Query {
        name: "rates_by_pod",
        path: CHART,
        parameters: &[("query", "sum by (k8s_pod_name) (rate(process_cpu[1m]))"), ("step", "15")],
    },
    Query { name: "total", path: CHART, parameters: &[("query", "sum(rate(process_cpu[1m]))"), ("step", "15")] },
    Query { name: "label_values", path: "/api/v1/label/k8s_pod_name/values", parameters: &[] },
    Query { name: "label_names", path: "/api/v1/labels", parameters: &[] },
    Query { name: "all_series", path: "/api/v1/series", parameters: &[("match[]", "process_cpu")] },
];
const FLAMEGRAPH: &str = "/api/v1/flamegraph";
const NODES_MAX: (&str, &str) = ("max_nodes", "8192");
const CHART: &str = "/api/v1/query_range";

/// Returns a push of a pod. The outermost frames of its stacks are those of all services.
fn request(service: usize, pod: usize, start_ns: u64) -> Vec<u8> {
    let name = format!("service-{service}");
    let mut request = Request::new(&name).with("k8s.pod.name", &format!("{name}-{pod}"));
    for number in (pod % PARTS..STACKS).step_by(PARTS) {
        let frame = |depth: usize| match depth {
            0..3 => format!("shared::frame_{depth}"),
            _ => format!("service_{service}::module_{depth}::function_{}", number >> (DEPTH - 1 - depth)),
        };
        let frames: Vec<String> = (0..DEPTH).rev().map(frame).collect();
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        let spread_ns = (number as u64 * 7_919_003 + pod as u64 * 104_729_011) % DISTANCE_NS;
        request = request.seen(stack(&frames), (0..TIMES).map(|i| start_ns + i * DISTANCE_NS + spread_ns).collect());
    }
    request.bytes()
}

/// Returns the text without the members that depend on the number of shards.
fn without_counts(mut text: String) -> String {
    for member in ["\"shards\":{", "\"windows_read\":{"] {
        if let Some(start) = text.find(member) {
            let length = text[start..].find('}').unwrap();
            text.replace_range(start..=start + length, "");
        }
    }
    text
}

/// Returns the time that a query takes, in milliseconds, and its response. Its window ends at `end_ns`.
fn run(varve: &Varve, query: &Query, end_ns: u64) -> (f64, String) {
    let [start, end] = [end_ns - WINDOW_NS, end_ns].map(|time_ns| format!("{:.9}", time_ns as f64 / 1e9));
    let window = [("start", start.as_str()), ("end", end.as_str())];
    let began = Instant::now();
    let reply = varve.get(query.path, &[query.parameters, &window].concat()).expect(200);
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    assert!(reply.body.len() > 50, "{}", reply.text());
    (took_ms, without_counts(String::from_utf8(reply.body).unwrap()))
}

/// Runs a query at both varves in turn, and checks that their responses are equal. Returns the median times, in
/// milliseconds.
fn p50_ms(varves: &[Varve; 2], query: &Query, end_ns: u64) -> [f64; 2] {
    let mut took_ms = [Vec::new(), Vec::new()];
    for number in 0..RUNS {
        let [one, sixteen] = varves.each_ref().map(|varve| run(varve, query, end_ns - number * SHIFT_NS));
        if let Some(at) = one.1.bytes().zip(sixteen.1.bytes()).position(|(one, sixteen)| one != sixteen) {
            let around = |text: &str| String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(200)..]).into_owned();
            let [one, sixteen] = [&one.1, &sixteen.1].map(|text| around(text).chars().take(400).collect::<String>());
            panic!("{}: the responses differ at {at}:\n{one}\n{sixteen}", query.name);
        }
        assert_eq!(one.1.len(), sixteen.1.len(), "{}: one response is a part of the other", query.name);
        took_ms[0].push(one.0);
        took_ms[1].push(sixteen.0);
    }
    took_ms.map(|mut took_ms| {
        took_ms.sort_by(f64::total_cmp);
        took_ms[took_ms.len() / 2]
    })
}

/// Pushes the same profiles to both varves.
fn push(varves: &[Varve; 2], end_ns: u64) {
    for pod in 0..PODS {
        for service in 0..SERVICES {
            let body = request(service, pod, end_ns - WINDOW_NS);
            for varve in varves {
                let reply = varve.push_otlp_as("application/x-protobuf", &[], &body).unwrap();
                assert_eq!(reply.status, 200, "{}", reply.text());
            }
        }
    }
    for varve in varves {
        let total = varve.total("sum(sum_over_time(process_cpu[1h]))", end_ns as f64 / 1e9 + 1.0);
        assert_eq!(total, (SAMPLES * PERIOD_NS) as f64);
    }
}

#[test]
fn sixteen_shards_give_equal_responses_and_cost_twice_as_much_at_most() {
    let _alone = alone();
    let varves = SHARDS.map(|shards| Varve::start(Setup { shards, ..Setup::default() }));
    let end_ns = now_ns();
    push(&varves, end_ns);
    let mut figures = Map::new();
    let mut slow = Vec::new();
    for query in &QUERIES {
        let [one_ms, sixteen_ms] = p50_ms(&varves, query, end_ns);
        let max_ms = one_ms * RATIO_MAX + SHARDS_MS;
        if sixteen_ms > max_ms {
            slow.push(query.name);
        }
        let ratio = sixteen_ms / one_ms;
        let p50 = json!({"one_ms": one_ms, "sixteen_ms": sixteen_ms, "ratio": ratio, "max_ms": max_ms});
        figures.insert(query.name.to_owned(), p50);
    }
    let peaks_mib = [varves[0].peak_mib(), varves[1].peak_mib()];
    let memory_ratio = peaks_mib[1] as f64 / peaks_mib[0] as f64;
    figure(&json!({"suite": "sixteen_shards", "shards": SHARDS, "samples": SAMPLES, "peak_mib": peaks_mib,
        "memory_ratio": memory_ratio, "p50": figures}));
    assert!(slow.is_empty(), "these queries are slow over 16 shards: {slow:?}");
    assert!(memory_ratio <= MEMORY_RATIO_MAX, "{peaks_mib:?} MiB");
}
