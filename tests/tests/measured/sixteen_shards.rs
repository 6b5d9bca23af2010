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
const TIMES: u64 = 5;
const SAMPLES: u64 = (SERVICES * PODS * STACKS / PARTS) as u64 * TIMES;
/// Length of the window that the samples cover.
const WINDOW_NS: u64 = 900_000_000_000;
/// Time between two samples of a stack.
const DISTANCE_NS: u64 = WINDOW_NS / TIMES;
const RUNS: u64 = 31;
/// Time by which the window of a run is earlier than that of the run before, so that no response comes from a cache.
const SHIFT_NS: u64 = 1_300_000_000;
const QUERY_RATIO_MAX: f64 = 2.0;
/// Further time that a query may take with 16 shards, in milliseconds: the fixed cost of a call to each.
const CALLS_MS: f64 = 2.0;
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

/// Returns the time that a query takes, in milliseconds. Its window ends at `end_ns`.
fn query_ms(varve: &Varve, query: &Query, end_ns: u64) -> f64 {
    let [start, end] = [end_ns - WINDOW_NS, end_ns].map(|time_ns| format!("{:.9}", time_ns as f64 / 1e9));
    let window = [("start", start.as_str()), ("end", end.as_str())];
    let began = Instant::now();
    let reply = varve.get(query.path, &[query.parameters, &window].concat()).expect(200);
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    assert!(reply.body.len() > 50, "{}", reply.text());
    took_ms
}

#[test]
fn sixteen_shards_take_twice_the_time_and_half_more_memory_at_most() {
    let _alone = alone();
    let varves = SHARDS.map(|shards| Varve::start(Setup { shards, ..Setup::default() }));
    let end_ns = now_ns();
    for pod in 0..PODS {
        for service in 0..SERVICES {
            let body = request(service, pod, end_ns - WINDOW_NS);
            for varve in &varves {
                let reply = varve.push_otlp_as("application/x-protobuf", &[], &body).unwrap();
                assert_eq!(reply.status, 200, "{}", reply.text());
            }
        }
    }
    for varve in &varves {
        let total = varve.total("sum(sum_over_time(process_cpu[1h]))", end_ns as f64 / 1e9 + 1.0);
        assert_eq!(total, (SAMPLES * PERIOD_NS) as f64);
    }
    let mut figures = Map::new();
    let mut slow = Vec::new();
    for query in &QUERIES {
        let mut took_ms = [Vec::new(), Vec::new()];
        for run in 0..RUNS {
            for (varve, took_ms) in varves.iter().zip(&mut took_ms) {
                took_ms.push(query_ms(varve, query, end_ns - run * SHIFT_NS));
            }
        }
        let [one_ms, sixteen_ms] = took_ms.map(|mut took_ms| {
            took_ms.sort_by(f64::total_cmp);
            took_ms[took_ms.len() / 2]
        });
        if sixteen_ms > one_ms * QUERY_RATIO_MAX + CALLS_MS {
            slow.push(query.name);
        }
        let p50 = json!({"one_ms": one_ms, "sixteen_ms": sixteen_ms, "ratio": sixteen_ms / one_ms});
        figures.insert(query.name.to_owned(), p50);
    }
    let peaks_mib = [varves[0].peak_mib(), varves[1].peak_mib()];
    let memory_ratio = peaks_mib[1] as f64 / peaks_mib[0] as f64;
    figure(&json!({"suite": "sixteen_shards", "shards": SHARDS, "samples": SAMPLES, "peak_mib": peaks_mib,
        "memory_ratio": memory_ratio, "p50": figures}));
    assert!(slow.is_empty(), "these queries are slow over 16 shards: {slow:?}");
    assert!(memory_ratio <= MEMORY_RATIO_MAX, "{peaks_mib:?} MiB");
}
