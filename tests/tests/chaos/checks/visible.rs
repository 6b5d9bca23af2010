//! Queries of the samples of a workload, as routers return them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::Cluster;
use tests::http;
use tests::payload::otlp::now_ns;

use crate::workload::BLOCK;

/// Longest time for which a query waits for a response.
const PATIENCE: Duration = Duration::from_secs(20);

/// A router, and what its requests need.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    url: String,
    authorization: String,
    run: String,
}

impl Router {
    /// Returns all routers of a cluster, for queries of the samples of one run.
    pub(crate) fn all(cluster: &Cluster, run: &str) -> Vec<Self> {
        let authorization = format!("Bearer {}", cluster.token("read"));
        let of = |url| Self { url, authorization: authorization.clone(), run: run.to_owned() };
        cluster.routers("http").into_iter().map(of).collect()
    }

    /// Returns `data.result` of a complete response.
    ///
    /// # Errors
    /// There is no response, or an error, or a response that something is missing from.
    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Vec<Value>, String> {
        let url = format!("{}{path}?{}", self.url, http::encode(parameters));
        let headers = [("authorization", self.authorization.as_str())];
        let reply = http::request_within(PATIENCE, "GET", &url, &headers, None).map_err(|lost| lost.to_string())?;
        let json = reply.json();
        let has_warnings = json["warnings"].as_array().is_some_and(|warnings| !warnings.is_empty());
        if reply.status != 200 || json["status"] != "success" || has_warnings || json["partial"] == true {
            return Err(format!("{} {}", reply.status, reply.text().chars().take(300).collect::<String>()));
        }
        json["data"]["result"].as_array().cloned().ok_or_else(|| "no result".to_owned())
    }

    /// Returns the sum of the samples of each serial number of a service, from the block with this number on, and at
    /// most two blocks.
    pub(crate) fn blocks(&self, service: &str, first: usize) -> Result<BTreeMap<usize, f64>, String> {
        let selector = format!("run=\"{}\",service_name=\"{service}\",block=~\"{first}|{}\"", self.run, first + 1);
        let promql = format!("sum by (serial) (sum_over_time(process_cpu{{{selector}}}[4h]))");
        let time = format!("{:.3}", now_ns() as f64 / 1e9 + 1.0);
        let found = self.get("/api/v1/query", &[("query", &promql), ("time", &time), ("partial", "refuse")])?;
        let serial = |series: &Value| -> Option<(usize, f64)> {
            let serial = series["metric"]["serial"].as_str()?.parse().ok()?;
            Some((serial, series["value"][1].as_str()?.parse().ok()?))
        };
        found.iter().map(|series| serial(series).ok_or_else(|| format!("no serial number: {series}"))).collect()
    }

    /// Returns the sum of the samples of each serial number of a service.
    pub(crate) fn all_blocks(&self, service: &str, pushes: usize) -> Result<BTreeMap<usize, f64>, String> {
        let mut all = BTreeMap::new();
        for first in (0..pushes.div_ceil(BLOCK)).step_by(2) {
            all.extend(self.blocks(service, first)?);
        }
        Ok(all)
    }

    /// Returns the sum of all samples of each service in windows of `step_s` seconds. Windows that are shorter than a
    /// minute are read from samples, and whole minutes from sums of minutes where these exist.
    pub(crate) fn sums(&self, step_s: u64, since_s: u64) -> Result<BTreeMap<String, f64>, String> {
        let promql = format!("sum by (service_name) (sum_over_time(process_cpu{{run=\"{}\"}}[{step_s}s]))", self.run);
        let whole = |seconds: u64| (seconds / 60 * 60).to_string();
        let (start, end) = (whole(since_s), whole(now_ns() / 1_000_000_000 + 120));
        let step = step_s.to_string();
        let parameters =
            [("query", promql.as_str()), ("start", &start), ("end", &end), ("step", &step), ("partial", "refuse")];
        let found = self.get("/api/v1/query_range", &parameters)?;
        let sum = |series: &Value| -> Option<(String, f64)> {
            let values = series["values"].as_array()?.iter();
            let sum = values.map(|value| value[1].as_str()?.parse::<f64>().ok()).sum::<Option<f64>>()?;
            Some((series["metric"]["service_name"].as_str()?.to_owned(), sum))
        };
        found.iter().map(|series| sum(series).ok_or_else(|| format!("no sums: {series}"))).collect()
    }
}
