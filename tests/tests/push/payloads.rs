//! Tests with payloads of real clients: the stored samples equal those of an independent decoder, and a repeated push
//! changes nothing.

use proto::Window;
use tests::grpc::{Sending, export};
use tests::payload::otlp::{moved, now_ns, requests_in};
use tests::payload::sample::{Folded, Multiset};
use tests::payload::{otlp_decoded, pprof};
use tests::server::Varve;
use tests::shared::payloads;
use tests::stored;

/// One push, and the samples that it must store.
struct Push {
    name: String,
    run: String,
    body: Body,
    want: Multiset,
}

enum Body {
    Otlp(Vec<u8>),
    Pprof(Vec<u8>, Vec<(String, String)>),
}

fn otlp_pushes(test: &str, newest_ns: u64) -> Vec<Push> {
    let of_file = |path: &std::path::PathBuf| {
        let push = |(i, request): (usize, Vec<u8>)| {
            let name = format!("{}#{i}", path.file_name().unwrap().to_str().unwrap());
            let run = format!("{name}-{newest_ns}");
            let body = moved(&request, ("run", &run), newest_ns);
            Push { want: otlp_decoded::read(&body), name, run, body: Body::Otlp(body) }
        };
        requests_in(path).into_iter().enumerate().map(push).collect::<Vec<_>>()
    };
    payloads(test, "otlp").iter().flat_map(of_file).collect()
}

fn pprof_pushes(test: &str, time_ns: u64) -> Vec<Push> {
    let of_file = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let run = format!("{name}-{time_ns}");
        let body = pprof::at_time(&std::fs::read(path).unwrap(), time_ns);
        let labels: Vec<(String, String)> = [("service_name", "payloads"), ("run", &run)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        Push { want: pprof::Profile::read(&body).samples(&labels), name, run, body: Body::Pprof(body, labels) }
    };
    payloads(test, "pprof").iter().map(of_file).collect()
}

impl Push {
    fn send(&self, varve: &Varve, key: Option<&str>) {
        let reply = match &self.body {
            Body::Otlp(body) => varve.push_otlp(body, key),
            Body::Pprof(body, labels) => {
                let label = format!("run={}", labels[1].1);
                varve.push_pprof(body, &[("service_name", &labels[0].1), ("label", &label)], key)
            }
        };
        assert_eq!(reply.status, 200, "{}: {}", self.name, reply.text());
        let said = reply.text();
        assert!(!said.contains("refused") && !said.contains("truncated"), "{}: {said}", self.name);
    }

    fn check(&self, varve: &Varve, when: &str) {
        // The window is from 2000 to the future, so that samples with wrong times are found, too.
        let window = Window { start_ns: proto::limits::TIME_MIN_NS, end_ns: i64::MAX / 2 };
        let got = stored::samples(varve, ("run", &self.run), window);
        got.assert_equals(&self.want, &format!("{} {when}", self.name));
    }
}

/// Sends each push four times: twice in a row, after `kill -9`, and after a clean restart. Checks that it is stored
/// once.
fn counts_once(pushes: &[Push], key: impl Fn(&Push) -> Option<String>) {
    let mut varve = Varve::up();
    for push in pushes {
        assert!(push.want.count > 0, "{} holds nothing", push.name);
        push.send(&varve, key(push).as_deref());
        push.check(&varve, "pushed once");
        push.send(&varve, key(push).as_deref());
        push.check(&varve, "pushed twice");
    }
    varve.kill();
    varve.launch();
    for push in pushes {
        push.check(&varve, "after kill -9");
        push.send(&varve, key(push).as_deref());
    }
    assert!(varve.terminate().success());
    varve.launch();
    for push in pushes {
        push.send(&varve, key(push).as_deref());
        push.check(&varve, "pushed a fourth time, after two restarts");
    }
}

#[test]
fn otlp_payloads_are_stored_exactly_and_count_once_by_key() {
    let test = "otlp_payloads_are_stored_exactly_and_count_once_by_key";
    counts_once(&otlp_pushes(test, now_ns()), |push| Some(push.run.clone()));
}

#[test]
fn otlp_payloads_count_once_by_content() {
    counts_once(&otlp_pushes("otlp_payloads_count_once_by_content", now_ns()), |_| None);
}

#[test]
fn pprof_payloads_are_stored_exactly_and_count_once_by_key() {
    let test = "pprof_payloads_are_stored_exactly_and_count_once_by_key";
    counts_once(&pprof_pushes(test, now_ns()), |push| Some(push.run.clone()));
}

#[test]
fn pprof_payloads_count_once_by_content() {
    counts_once(&pprof_pushes("pprof_payloads_count_once_by_content", now_ns()), |_| None);
}

#[test]
fn otlp_payloads_over_grpc_and_http_are_stored_alike() {
    let varve = Varve::up();
    for push in otlp_pushes("otlp_payloads_over_grpc_and_http_are_stored_alike", now_ns()) {
        let Body::Otlp(body) = &push.body else { panic!("an OTLP push") };
        for compression in
            [None, Some(tonic::codec::CompressionEncoding::Gzip), Some(tonic::codec::CompressionEncoding::Zstd)]
        {
            export(&varve.grpc, body, Sending { compression, ..Sending::default() }).unwrap();
            push.check(&varve, "over gRPC");
        }
        // Without a key, the content identifies a push, over any transport.
        push.send(&varve, None);
        push.check(&varve, "over gRPC and HTTP");
    }
}

#[test]
fn a_key_counts_once_over_any_transport_and_two_keys_twice() {
    use tests::payload::otlp::{PERIOD_NS, Request, stack};
    let varve = Varve::up();
    let now = now_ns();
    let body = Request::new("keys").seen(stack(&["leaf", "main"]), vec![now]).bytes();
    let total = || varve.total("sum_over_time(process_cpu{service_name=\"keys\"}[1h])", now as f64 / 1e9 + 1.0);
    for key in ["a", "b"] {
        assert_eq!(varve.push_otlp(&body, Some(key)).status, 200);
        export(&varve.grpc, &body, Sending { key: Some(key), ..Sending::default() }).unwrap();
    }
    assert_eq!(total(), 2.0 * PERIOD_NS as f64);
    assert_eq!(varve.push_otlp(&body, None).status, 200);
    assert_eq!(total(), 3.0 * PERIOD_NS as f64);
}

#[test]
fn pprof_downloads_have_the_stacks_that_were_pushed() {
    let varve = Varve::up();
    let now = now_ns();
    for push in pprof_pushes("pprof_downloads_have_the_stacks_that_were_pushed", now) {
        let Body::Pprof(body, _) = &push.body else { panic!("a pprof") };
        let profile = pprof::Profile::read(body);
        push.send(&varve, None);
        for (column, (id, scale)) in profile.profile_types().into_iter().enumerate() {
            let selector = format!("{{__profile_type__=\"{id}\",run=\"{}\"}}", push.run);
            let window = (now as f64 / 1e9 - 60.0, now as f64 / 1e9 + 60.0);
            let total: i128 =
                push.want.sums.iter().filter(|(s, _)| s.names["__profile_type__"] == id).map(|(_, v)| v).sum();
            for nodes_max in [1 << 20, 100] {
                check_tree(
                    &varve.flamegraph(&selector, window, "json", nodes_max).expect(200),
                    total,
                    nodes_max,
                    &push.name,
                );
            }
            let mut want = profile.folded(column);
            want.values_mut().for_each(|sum| *sum *= i128::from(scale));
            // Stacks with such frames cannot be compared: folded stacks replace characters that would break lines, and
            // give unnamed frames a name.
            let differs = |frame: &String| frame.is_empty() || frame.contains([';', '\n', '\r']);
            if !profile.is_symbolized() || want.keys().flatten().any(differs) {
                continue;
            }
            // Positive and negative values of a gauge may add up to 0.
            let mut folded = varve.folded(&selector, window);
            folded.retain(|_, sum| *sum != 0);
            assert_same(&folded, &want, &format!("{} {id}: folded", push.name));
            let download = varve.flamegraph(&selector, window, "pprof", 1 << 20).expect(200);
            let download = pprof::Profile::read(&download.body);
            assert_same(&download.folded(0), &want, &format!("{} {id}: pprof download", push.name));
        }
    }
}

/// Fails if a stack differs. The message has the first stack that differs.
fn assert_same(got: &Folded, want: &Folded, what: &str) {
    let differs = |stack: &&Vec<String>| got.get(*stack) != want.get(*stack);
    let wrong: Vec<_> = want.keys().chain(got.keys()).filter(differs).collect();
    let first = wrong.first().map(|stack| (stack, got.get(*stack), want.get(*stack)));
    assert!(wrong.is_empty(), "{what}: {} stacks differ; the first, got and wanted: {first:?}", wrong.len());
}

/// Checks a flame graph: parents come first, each total is the node's own value plus its children's, and pruning loses
/// nothing.
fn check_tree(reply: &tests::http::Reply, total: i128, nodes_max: u32, what: &str) {
    let graph = reply.json();
    let number = |value: &serde_json::Value| i128::from(value.as_i64().unwrap());
    let nodes = graph["nodes"].as_array().unwrap();
    assert_eq!((number(&graph["total"]), number(&nodes[0][3])), (total, total), "{what}");
    assert!(nodes.len() <= nodes_max as usize, "{what}: {} nodes, asked for {nodes_max}", nodes.len());
    let mut below = vec![0; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        let parent = number(&node[0]);
        assert!(parent < i as i128 && (parent >= 0) == (i > 0), "{what}: node {i} {node}");
        assert!(graph["names"].get(usize::try_from(number(&node[1])).unwrap()).is_some(), "{what}: node {i} {node}");
        if let Ok(parent) = usize::try_from(parent) {
            below[parent] += number(&node[3]);
        }
    }
    for (node, below) in nodes.iter().zip(below) {
        assert_eq!(number(&node[2]) + below, number(&node[3]), "{what}: self and children are not the total of {node}");
    }
}
