//! Measurements of the wide fleet: ingest, and queries whose cost depends on the number of series.

use std::path::Path;

use super::ingest::ingest;
use super::query::{Check, Query, check_count, check_whole_flamegraph, flamegraph_total, measure_each};
use super::sending::Sending;
use super::server::Measured;
use crate::generator::Workload;
use crate::report::Report;

/// Number of clients that send requests.
const CLIENTS: usize = 4;
/// Number of pods in the query for the pods with the most CPU time.
const TOP_PODS: usize = 10;

/// Measures ingest of the wide fleet; then the queries, right after an ingest and after a restart.
pub(crate) fn wide(varve: Measured<'_>, folder: &Path, workload: &Workload, report: &mut Report) -> anyhow::Result<()> {
    let ingest = |name: &str| ingest(varve, &folder.join(name), workload, Sending::Closed { clients: CLIENTS });
    let queried = ingest("queried")?;
    for figures in measure_each(queries(workload), &queried.server, workload)? {
        report.add("query", figures)?;
    }
    drop(queried);
    let (figures, mut server) = ingest("stopped")?.stop_and_finish(workload)?;
    report.add("ingest", figures)?;
    server.launch()?;
    for figures in measure_each(queries(workload), &server, workload)? {
        report.add("query after a restart", figures)?;
    }
    Ok(())
}

/// Returns the queries. Charts have one step, which is the minute of the workload, unless their name says otherwise.
fn queries(workload: &Workload) -> Vec<(Query, Check)> {
    let chart = |name: &str, query: &str, step: &str| {
        let parameters = vec![("query", query.to_owned()), ("step", step.to_owned())];
        Query::new(name, "/api/v1/query_range", parameters)
    };
    let top = format!("topk({TOP_PODS}, sum by (k8s_pod_name) (sum_over_time(process_cpu[1m])))");
    let by_service = "sum by (service_name) (sum_over_time(process_cpu[1m]))";
    let of_service = format!("process_cpu{{service_name={:?}}}", workload.service);
    let all_series = vec![("match[]", "process_cpu".to_owned())];
    vec![
        (chart("total", "sum(sum_over_time(process_cpu[1m]))", "60"), |answer, _workload| {
            check_count(&answer["data"]["result"], 1)
        }),
        (chart("total, 15 s steps", "sum(rate(process_cpu[15s]))", "15"), |answer, _workload| {
            check_count(&answer["data"]["result"], 1)
        }),
        (chart("sum by service", by_service, "60"), |answer, workload| {
            check_count(&answer["data"]["result"], workload.services)
        }),
        // Pods with equal sums may differ between two windows, so each window may have other pods.
        (chart("top pods", &top, "60"), |answer, _workload| check_count(&answer["data"]["result"], TOP_PODS)),
        (Query::new("label values", "/api/v1/label/k8s_pod_name/values", Vec::new()), |answer, workload| {
            check_count(&answer["data"], workload.pods)
        }),
        (Query::new("all series", "/api/v1/series", all_series), |answer, workload| {
            check_count(&answer["data"], workload.pods)
        }),
        (Query::flamegraph("flame graph of everything".to_owned(), "process_cpu".to_owned()), check_whole_flamegraph),
        (Query::flamegraph("flame graph of one service".to_owned(), of_service), |answer, _workload| {
            flamegraph_total(answer).map(drop)
        }),
    ]
}
