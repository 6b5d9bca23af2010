//! Tests of queries over HTTP, against a node that evaluates requests over all samples one by one.

mod catalog;
mod epochs;
mod flamegraphs;
mod naive_node;
mod names;
mod oracle;
mod partial;
mod pprof;
mod promql;
mod properties;
mod random_answer;
mod ranges;
mod refusals;
mod shards;
pub(crate) mod symbols;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::{Extension, Router};
use prometheus_client::registry::Registry;
use proto::{Shards, TenantId};
use serde_json::Value;
use symbol_store::{Config, SymbolStore, convert::Converter, limits::Limits};
use tonic::Status;
use tower::ServiceExt as _;

use self::naive_node::{NaiveNode, Sample};
use crate::nodes::Nodes;
use crate::query::Reader;
use crate::query::naming::cache::NameCache;

/// Current time in these tests, in seconds since 1970: a multiple of ten.
const NOW_S: i64 = 1_700_000_000;
const S: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;

const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const SAMPLES: &str = "process_cpu:samples:count:cpu:nanoseconds";
const ALLOCATED: &str = "memory:alloc_space:bytes:space:bytes";
const IN_USE: &str = "memory:inuse_space:bytes:space:bytes";
const GOROUTINES: &str = "goroutine:goroutine:count::";

/// A server of the query API, over some samples.
struct Server {
    routes: Router,
    registry: Registry,
    _symbols: tempfile::TempDir,
}

/// A response of the query API: status, content type, body.
struct Answer {
    status: StatusCode,
    kind: String,
    server_timing: String,
    headers: axum::http::HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    /// Returns the value of a header, or "" if there is no such header.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Server {
    fn new(samples: Vec<Sample>) -> Self {
        Self::of_node(NaiveNode::new(samples))
    }

    fn of_node(node: NaiveNode) -> Self {
        Self::of(Arc::new(node))
    }

    fn of(node: Arc<impl Shards<Error = Status> + 'static>) -> Self {
        Self::with(node, None, None)
    }

    /// Starts a server. `names_bytes_max` replaces the limit on kept names. `converter` is a program that converts
    /// files of this host to symbol tables.
    fn with(
        node: Arc<impl Shards<Error = Status> + 'static>,
        names_bytes_max: Option<usize>,
        converter: Option<Converter>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let symbols = SymbolStore::open(Config {
            directory: directory.path().join("symbols"),
            host_files: converter.is_some(),
            converter: converter.unwrap_or(Converter { program: "/bin/false".into(), arguments: Vec::new() }),
            debug_directory: directory.path().join("debug").display().to_string(),
            bucket: None,
            limits: Limits::DEFAULT,
        });
        let mut registry = Registry::default();
        let mut reader = Reader::new(Nodes::local(node), symbols.unwrap(), &mut registry);
        if let Some(bytes_max) = names_bytes_max {
            registry = Registry::default();
            reader.names = NameCache::new(bytes_max, &mut registry);
        }
        let administration = crate::api::administration::routes(reader.nodes.clone(), reader.clone());
        let routes = crate::api::read::routes(reader).merge(administration);
        let routes = routes.layer(Extension(TenantId::default_tenant()));
        Self { routes, registry, _symbols: directory }
    }

    fn ask(&self, request: Request) -> Answer {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let response = self.routes.clone().oneshot(request).await.unwrap();
            let header =
                |name| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
            let kind = header(header::CONTENT_TYPE.as_str());
            let server_timing = header("server-timing");
            let status = response.status();
            let headers = response.headers().clone();
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec();
            Answer { status, kind, server_timing, headers, body }
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
        answer
    }

    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Answer {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        self.ask(Request::get(format!("{path}?{query}")).body(Body::empty()).unwrap())
    }

    fn post(&self, path: &str, parameters: &[(&str, &str)]) -> Answer {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.ask(request.body(Body::from(form)).unwrap())
    }

    /// Returns the value of a metric, from the metrics line that begins with `line`.
    fn metric(&self, line: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let value = text.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' ')).unwrap_or("0");
        value.parse().unwrap()
    }

    /// Returns the response to an instant query at `NOW_S`. Sends a form if the query is too long for a URL.
    fn query(&self, promql: &str) -> Answer {
        let parameters = [("query", promql), ("time", &NOW_S.to_string())];
        if promql.len() > 10_000 {
            self.post("/api/v1/query", &parameters)
        } else {
            self.get("/api/v1/query", &parameters)
        }
    }
}

/// Samples of most tests: two services, every kind of profile type, and unusual cases.
fn samples() -> Vec<Sample> {
    let a = [("service_name", "a"), ("region", "eu")];
    let b = [("service_name", "b"), ("region", "us")];
    let at = |ago_ms: i64| NOW_S * S - ago_ms * MS;
    let sample =
        |kind, labels: [_; 2], ago_ms, stack: &[&str], value| Sample::new(kind, &labels, at(ago_ms), stack, value);
    vec![
        sample(CPU, a, 5_000, &["hot", "main"], S).with("thread.name", "t1"),
        sample(CPU, a, 5_000, &["hot", "hot", "main"], S).with("thread.name", "t2"),
        sample(CPU, a, 15_000, &["cold", "main"], S / 2).with("thread.name", "t2"),
        sample(CPU, a, 25_000, &["hot", "main"], S / 4),
        sample(CPU, b, 5_000, &["hot", "main"], 3 * S).with("thread.name", "t1"),
        sample(CPU, b, 400_000, &["cold", "main"], 100 * S),
        sample(SAMPLES, a, 5_000, &["hot", "main"], 40),
        sample(ALLOCATED, a, 30_000, &["make", "main"], 600),
        sample(ALLOCATED, a, 31_000, &[], 60),
        sample(IN_USE, a, 70_000, &["make", "main"], 100),
        sample(IN_USE, a, 70_000, &["keep", "main"], 50),
        sample(IN_USE, a, 10_000, &["make", "main"], 30),
        sample(IN_USE, b, 20_000, &["make", "main"], 7),
        sample(GOROUTINES, a, 10_000, &["park", "main"], 5),
    ]
}
