//! Queries over the time of a workload, in the order in which a user makes them. Each query runs once with cold
//! caches, and then 20 more times with earlier windows.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::client::Client;
use super::server::Server;
use super::totals::seconds;
use crate::generator::{PERIOD_NS, Workload};
use crate::report::{quantile, rounded};

/// Number of runs of each query after the cold run.
const RUNS: u64 = 20;
/// Time by which the window of a run is earlier than the window of the run before, in nanoseconds. Windows differ so
/// that no result comes from a cache.
const SHIFT_NS: u64 = 1_300_000_000;
const FLAMEGRAPH_NODES: &str = "8192";
const LABEL: &str = "k8s_pod_name";

/// A query without its window. `measure` runs it with several windows.
pub(crate) struct Query {
    name: String,
    path: &'static str,
    parameters: Vec<(&'static str, String)>,
}

/// Function that checks the response for the whole time of a workload.
pub(crate) type Check = fn(&Value, &Workload) -> anyhow::Result<()>;

/// Runs the queries of a user over a mix of 15 minutes; returns the figures of each.
pub(crate) fn queries(server: &Server, workload: &Workload) -> anyhow::Result<Vec<Value>> {
    measure_each(all(workload), server, workload)
}

/// Runs queries over the whole time of a workload, and checks their responses. Returns the figures of each.
pub(crate) fn measure_each(
    queries: Vec<(Query, Check)>,
    server: &Server,
    workload: &Workload,
) -> anyhow::Result<Vec<Value>> {
    let measure = |(query, check): (Query, Check)| {
        let (figures, answer) = query.measure(server, workload.start_ns, workload.end_ns)?;
        check(&answer, workload).with_context(|| query.name.clone())?;
        Ok(figures)
    };
    queries.into_iter().map(measure).collect()
}

fn all(workload: &Workload) -> Vec<(Query, Check)> {
    let flamegraph = |name: &str, selector: String| Query::flamegraph(name.to_owned(), selector);
    let of_service = format!("process_cpu{{service_name={:?}}}", workload.service);
    let rate = "sum by (k8s_pod_name) (rate(process_cpu[1m]))".to_owned();
    vec![
        (flamegraph("flame graph of one service", of_service), |answer, _workload| flamegraph_total(answer).map(drop)),
        (flamegraph("flame graph of everything", "process_cpu".to_owned()), check_whole_flamegraph),
        (
            Query::new(
                "series by pod, 15 s steps",
                "/api/v1/query_range",
                vec![("query", rate), ("step", "15".to_owned())],
            ),
            |answer, workload| check_count(&answer["data"]["result"], workload.pods),
        ),
        (Query::new("label values", "/api/v1/label/k8s_pod_name/values", Vec::new()), |answer, workload| {
            check_count(&answer["data"], workload.pods)
        }),
        (Query::new("label names", "/api/v1/labels", Vec::new()), |answer, _workload| {
            let names = answer["data"].as_array().context("no names")?;
            ensure!(names.iter().any(|name| name == LABEL), "{LABEL} is not there");
            Ok(())
        }),
    ]
}

impl Query {
    pub(crate) fn new(name: &str, path: &'static str, parameters: Vec<(&'static str, String)>) -> Self {
        Self { name: name.to_owned(), path, parameters }
    }

    /// Returns the query of a flame graph, as the web UI sends it.
    pub(crate) fn flamegraph(name: String, selector: String) -> Self {
        let parameters = vec![("query", selector), ("max_nodes", FLAMEGRAPH_NODES.to_owned())];
        Self { name, path: "/api/v1/flamegraph", parameters }
    }

    /// Runs the query with this window, and then with earlier windows of equal length. Returns the figures and the
    /// first response.
    ///
    /// # Errors
    /// A request failed, or the first response is not JSON.
    pub(crate) fn measure(&self, server: &Server, start_ns: u64, end_ns: u64) -> anyhow::Result<(Value, Value)> {
        let client = Client::new();
        let ask = |shift_ns: u64| -> anyhow::Result<(f64, Vec<u8>)> {
            let [start, end] = [start_ns, end_ns].map(|time| seconds(time - shift_ns));
            let window = [("start", start.as_str()), ("end", end.as_str())];
            let own = self.parameters.iter().map(|(name, value)| (*name, value.as_str()));
            let parameters: Vec<_> = own.chain(window).collect();
            let began = Instant::now();
            let answer = client.get(&server.http, self.path, &parameters).with_context(|| self.name.clone())?;
            Ok((began.elapsed().as_secs_f64() * 1e3, answer))
        };
        let (cold_ms, answer) = ask(0)?;
        let cpu_before_s = server.cpu_s()?;
        let mut took_ms = (1..=RUNS).map(|run| Ok(ask(run * SHIFT_NS)?.0)).collect::<anyhow::Result<Vec<f64>>>()?;
        let cpu_s = server.cpu_s()? - cpu_before_s;
        took_ms.sort_by(f64::total_cmp);
        let figures = json!({
            "query": self.name,
            "cold_ms": rounded(cold_ms),
            "p50_ms": quantile(&took_ms, 0.5),
            "p99_ms": quantile(&took_ms, 0.99),
            "cpu_ms_mean": rounded(cpu_s * 1e3 / RUNS as f64),
            "answer_bytes": answer.len(),
            "peak_rss_bytes": server.peak_rss_bytes()?,
        });
        Ok((figures, serde_json::from_slice(&answer)?))
    }
}

/// Returns the total of a flame graph. Checks that the values of the nodes add up to the total.
pub(crate) fn flamegraph_total(answer: &Value) -> anyhow::Result<u64> {
    let nodes = answer["nodes"].as_array().context("no nodes")?;
    let own: u64 = nodes.iter().filter_map(|node| node[2].as_u64()).sum();
    let total = answer["total"].as_u64().context("no total")?;
    ensure!(own == total && total > 0, "the nodes sum up to {own}, the total is {total}");
    Ok(total)
}

pub(crate) fn check_whole_flamegraph(answer: &Value, workload: &Workload) -> anyhow::Result<()> {
    let total = flamegraph_total(answer)?;
    let want = workload.samples * PERIOD_NS;
    ensure!(total == want, "the total is {total}, it was sent {want}");
    Ok(())
}

/// Checks the number of entries of a list in a response.
pub(crate) fn check_count(list: &Value, wanted: usize) -> anyhow::Result<()> {
    let count = list.as_array().context("no list")?.len();
    ensure!(count == wanted, "{count} in place of {wanted}");
    Ok(())
}
