//! Requests to a running varve.

use std::collections::BTreeMap;

use proto::placement::FIRST_DATA_SHARD;
use serde_json::Value;

use crate::http::{self, Lost, Reply};
use crate::payload::pprof::gzip;
use crate::server::Varve;

/// Labels of a series, by name.
pub type Labels = BTreeMap<String, String>;

impl Varve {
    fn headers<'a>(&'a self, more: &[(&'a str, &'a str)], token: &'a Option<String>) -> Vec<(&'a str, &'a str)> {
        let authorization = token.as_deref().map(|token| ("authorization", token));
        more.iter().copied().chain(authorization).collect()
    }

    fn send(&self, method: &str, url: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Result<Reply, Lost> {
        let token = self.setup.token.as_ref().map(|token| format!("Bearer {token}"));
        http::request(method, url, &self.headers(headers, &token), body)
    }

    /// Sends a GET request to the HTTP port.
    #[must_use]
    pub fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Reply {
        let url = format!("http://{}{path}?{}", self.http, http::encode(parameters));
        self.send("GET", &url, &[], None).unwrap_or_else(|lost| panic!("GET {path}: {lost}"))
    }

    /// Pushes an export request, gzipped.
    ///
    /// # Errors
    /// There was no response.
    pub fn try_push_otlp(&self, body: &[u8], key: Option<&str>) -> Result<Reply, Lost> {
        let mut headers = vec![("content-encoding", "gzip")];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        self.push_otlp_as("application/x-protobuf", &headers, &gzip(body))
    }

    /// Pushes an export request, gzipped.
    #[must_use]
    pub fn push_otlp(&self, body: &[u8], key: Option<&str>) -> Reply {
        self.try_push_otlp(body, key).unwrap_or_else(|lost| panic!("push: {lost}"))
    }

    /// Posts a body, as it is, to the OTLP/HTTP port.
    ///
    /// # Errors
    /// There was no response.
    pub fn push_otlp_as(&self, content_type: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Reply, Lost> {
        let headers: Vec<_> = [("content-type", content_type)].into_iter().chain(headers.iter().copied()).collect();
        self.send("POST", &format!("http://{}/v1development/profiles", self.otlp), &headers, Some(body))
    }

    /// Pushes a pprof. `parameters` may contain `service_name`, `name` and `label`.
    #[must_use]
    pub fn push_pprof(&self, body: &[u8], parameters: &[(&str, &str)], key: Option<&str>) -> Reply {
        let url = format!("http://{}/api/v1/push?{}", self.http, http::encode(parameters));
        let headers: Vec<_> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
        self.send("POST", &url, &headers, Some(body)).unwrap_or_else(|lost| panic!("push: {lost}"))
    }

    /// Returns the series of an instant query.
    ///
    /// # Errors
    /// The response of the server, if it is an error.
    pub fn try_query(&self, promql: &str, at_s: f64) -> Result<Vec<(Labels, f64)>, Reply> {
        let reply = self.get("/api/v1/query", &[("query", promql), ("time", &format!("{at_s:.9}"))]);
        let json = reply.json();
        if reply.status != 200 || json["status"] != "success" {
            return Err(reply);
        }
        let series = json["data"]["result"].as_array().unwrap_or(&Vec::new()).iter().map(series_of).collect();
        Ok(series)
    }

    /// Returns the series of an instant query.
    #[must_use]
    pub fn query(&self, promql: &str, at_s: f64) -> Vec<(Labels, f64)> {
        self.try_query(promql, at_s).unwrap_or_else(|reply| panic!("{promql}: {} {}", reply.status, reply.text()))
    }

    /// Returns the sum of an instant query's values.
    #[must_use]
    pub fn total(&self, promql: &str, at_s: f64) -> f64 {
        self.query(promql, at_s).iter().map(|(_, value)| value).sum()
    }

    /// Returns a flame graph of the window `(start, end]`.
    #[must_use]
    pub fn flamegraph(&self, selector: &str, window_s: (f64, f64), format: &str, nodes_max: u32) -> Reply {
        let [start, end] = [window_s.0, window_s.1].map(|time| format!("{time:.9}"));
        let nodes_max = nodes_max.to_string();
        let parameters =
            [("query", selector), ("start", &start), ("end", &end), ("format", format), ("max_nodes", &nodes_max)];
        self.get("/api/v1/flamegraph", &parameters)
    }

    /// Returns the sum of each stack in the window `(start, end]`. A stack is the list of its names, root first.
    #[must_use]
    pub fn folded(&self, selector: &str, window_s: (f64, f64)) -> BTreeMap<Vec<String>, i128> {
        parse_folded(&self.flamegraph(selector, window_s, "folded", 1 << 20).expect(200).text())
    }

    /// Returns the sum of all values of a metric, whatever their labels; `None` if the server has no such metric.
    #[must_use]
    pub fn metric(&self, address: &str, name: &str) -> Option<f64> {
        let reply = http::request("GET", &format!("http://{address}/metrics"), &[], None).unwrap();
        let text = reply.text();
        let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let values: Vec<f64> =
            text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Returns the values of a metric of a node by the number of the shard, without the meta group.
    #[must_use]
    pub fn metric_by_shard(&self, address: &str, name: &str) -> BTreeMap<u32, f64> {
        let text = http::request("GET", &format!("http://{address}/metrics"), &[], None).unwrap().text();
        let of_shard = |line: &str| {
            let (shard, value) = line.strip_prefix(name)?.strip_prefix("{shard=\"")?.split_once("\"} ")?;
            Some((shard.parse().ok()?, value.parse().ok()?))
        };
        text.lines().filter_map(of_shard).filter(|(shard, _)| *shard >= FIRST_DATA_SHARD).collect()
    }
}

/// Parses folded stacks: lines `root;...;leaf value`.
#[must_use]
pub fn parse_folded(text: &str) -> BTreeMap<Vec<String>, i128> {
    let mut out: BTreeMap<Vec<String>, i128> = BTreeMap::new();
    for line in text.lines() {
        let (stack, value) = line.rsplit_once(' ').expect("a stack and a value");
        *out.entry(stack.split(';').map(str::to_owned).collect()).or_default() += value.parse::<i128>().unwrap();
    }
    out
}

pub(crate) fn series_of(series: &Value) -> (Labels, f64) {
    let labels = series["metric"].as_object().unwrap().iter();
    let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    (labels, series["value"][1].as_str().unwrap().parse().unwrap())
}
