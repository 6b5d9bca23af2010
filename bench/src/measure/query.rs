//! Queries over the 15 minutes, in the order of a person: each first one cold in its own caches, then 20 more.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{quantile, seconds};
use crate::client::Client;
use crate::generator::{PERIOD_NS, Workload};
use crate::report::rounded;
use crate::server::Server;

/// Of each query, after the cold one.
const RUNS: u64 = 20;
/// Each run asks for a window this much earlier than the one before, so that no answer is one that was given already.
const SHIFT_NS: u64 = 1_300_000_000;
const FLAMEGRAPH_NODES: &str = "8192";
const LABEL: &str = "k8s_pod_name";

struct Query {
    name: &'static str,
    path: &'static str,
    parameters: Vec<(&'static str, String)>,
    /// Looks at the answer for the whole 15 minutes.
    check: fn(&Value, &Workload) -> anyhow::Result<()>,
}

/// Figures of each query.
pub(crate) fn queries(server: &Server, workload: &Workload) -> anyhow::Result<Vec<Value>> {
    all(workload).iter().map(|query| query.measure(server, workload).with_context(|| query.name)).collect()
}

fn all(workload: &Workload) -> Vec<Query> {
    let flamegraph = |name, selector: String, check| {
        let parameters = vec![("query", selector), ("max_nodes", FLAMEGRAPH_NODES.to_owned())];
        Query { name, path: "/api/v1/flamegraph", parameters, check }
    };
    vec![
        flamegraph(
            "flame graph of one service",
            format!("process_cpu{{service_name={:?}}}", workload.service),
            check_flamegraph,
        ),
        flamegraph("flame graph of everything", "process_cpu".to_owned(), check_whole_flamegraph),
        Query {
            name: "series by pod, 15 s steps",
            path: "/api/v1/query_range",
            parameters: vec![
                ("query", "sum by (k8s_pod_name) (rate(process_cpu[1m]))".to_owned()),
                ("step", "15".to_owned()),
            ],
            check: |answer, workload| check_count(&answer["data"]["result"], workload),
        },
        Query {
            name: "label values",
            path: "/api/v1/label/k8s_pod_name/values",
            parameters: Vec::new(),
            check: |answer, workload| check_count(&answer["data"], workload),
        },
        Query {
            name: "label names",
            path: "/api/v1/labels",
            parameters: Vec::new(),
            check: |answer, _workload| {
                let names = answer["data"].as_array().context("no names")?;
                ensure!(names.iter().any(|name| name == LABEL), "{LABEL} is not there");
                Ok(())
            },
        },
    ]
}

impl Query {
    fn measure(&self, server: &Server, workload: &Workload) -> anyhow::Result<Value> {
        let client = Client::new();
        let ask = |shift_ns: u64| -> anyhow::Result<(f64, Vec<u8>)> {
            let [start, end] = [workload.start_ns, workload.end_ns].map(|time| seconds(time - shift_ns));
            let window = [("start", start.as_str()), ("end", end.as_str())];
            let own = self.parameters.iter().map(|(name, value)| (*name, value.as_str()));
            let parameters: Vec<_> = own.chain(window).collect();
            let began = Instant::now();
            let answer = client.get(&server.http, self.path, &parameters)?;
            Ok((began.elapsed().as_secs_f64() * 1e3, answer))
        };
        let (cold_ms, answer) = ask(0)?;
        (self.check)(&serde_json::from_slice(&answer)?, workload)?;
        let cpu_before_s = server.cpu_s()?;
        let mut took_ms = (1..=RUNS).map(|run| Ok(ask(run * SHIFT_NS)?.0)).collect::<anyhow::Result<Vec<f64>>>()?;
        let cpu_s = server.cpu_s()? - cpu_before_s;
        took_ms.sort_by(f64::total_cmp);
        Ok(json!({
            "query": self.name,
            "cold_ms": rounded(cold_ms),
            "p50_ms": quantile(&took_ms, 0.5),
            "p99_ms": quantile(&took_ms, 0.99),
            "cpu_ms_mean": rounded(cpu_s * 1e3 / RUNS as f64),
            "answer_bytes": answer.len(),
            "peak_rss_bytes": server.peak_rss_bytes()?,
        }))
    }
}

fn check_flamegraph(answer: &Value, _workload: &Workload) -> anyhow::Result<()> {
    let nodes = answer["nodes"].as_array().context("no nodes")?;
    let own: u64 = nodes.iter().filter_map(|node| node[2].as_u64()).sum();
    let total = answer["total"].as_u64().context("no total")?;
    ensure!(own == total && total > 0, "the nodes sum up to {own}, the total is {total}");
    Ok(())
}

fn check_whole_flamegraph(answer: &Value, workload: &Workload) -> anyhow::Result<()> {
    check_flamegraph(answer, workload)?;
    let want = workload.samples * PERIOD_NS;
    ensure!(answer["total"] == want, "the total is {}, it was sent {want}", answer["total"]);
    Ok(())
}

/// One for each pod.
fn check_count(list: &Value, workload: &Workload) -> anyhow::Result<()> {
    let count = list.as_array().context("no list")?.len();
    ensure!(count == workload.pods, "{count} in place of {}", workload.pods);
    Ok(())
}
