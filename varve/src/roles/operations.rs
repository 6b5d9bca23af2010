//! `/healthz`, `/ready` and `/metrics`, which every role serves.

mod exposition;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use router::auth::Auth;

use self::exposition::Exposition;

/// Function that returns `Ok` if the role is ready, and otherwise the reason why it is not.
pub(crate) type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Returns the routes of this module, for a port that also serves the HTTP API.
pub(crate) fn routes(readiness: Readiness, registry: Registry, auth: Auth) -> Router {
    router::api::beside(health(readiness).merge(metrics(registry, auth)))
}

/// Returns the routes of this module, for a port that serves nothing else.
pub(crate) fn alone(readiness: Readiness, registry: Registry, auth: Auth) -> Router {
    router::api::alone(routes(readiness, registry, auth))
}

/// Returns the routes `/healthz` and `/ready`, and the same routes under Prometheus' names. They need no token.
fn health(readiness: Readiness) -> Router {
    let alive = || get(|| async { "alive\n" });
    Router::new()
        .route("/healthz", alive())
        .route("/-/healthy", alive())
        .route("/ready", get(ready))
        .route("/-/ready", get(ready))
        .with_state(readiness)
}

/// Returns the route `/metrics`. A request needs the right to read, which `auth` checks.
fn metrics(registry: Registry, auth: Auth) -> Router {
    router::api::behind(auth, Router::new().route("/metrics", get(encoded)).with_state(Arc::new(registry)))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    match readiness() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => router::api::unavailable(reason),
    }
}

async fn encoded(State(registry): State<Arc<Registry>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Exposition::preferred(accept);
    let mut out = String::new();
    match text::encode(&mut out, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, format.content_type())], format.of_open_metrics(out)).into_response(),
        Err(fmt::Error) => router::api::unavailable("the metrics cannot be written: try again".to_owned()),
    }
}

/// Returns a registry with the metrics of the process itself.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics));
    registry
}

/// The metrics `process_*`, which programs with Prometheus metrics have by convention. The values are read from /proc
/// at each scrape.
#[derive(Debug)]
struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let statistics = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name of the process, in parentheses, may contain spaces. The fields after it may not.
        let fields: Vec<&str> = statistics.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let number = |field: usize| fields.get(field).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        let gauge = |encoder: &mut DescriptorEncoder<'_>, name, help, value: u64| {
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        gauge(
            &mut encoder,
            "process_resident_memory_bytes",
            "Resident memory",
            number(21) * system_value(libc::_SC_PAGESIZE),
        )?;
        gauge(&mut encoder, "process_threads", "Threads", number(17))?;
        let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        gauge(&mut encoder, "process_open_fds", "Open file descriptors", descriptors as u64)?;
        let ticks = system_value(libc::_SC_CLK_TCK).max(1);
        let seconds = ConstCounter::new((number(11) + number(12)) as f64 / ticks as f64);
        seconds.encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            "CPU time, user and system",
            None,
            seconds.metric_type(),
        )?)
    }
}

#[allow(unsafe_code, reason = "sysconf is a C call; libc has no safe form of it")]
fn system_value(name: libc::c_int) -> u64 {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).unwrap_or_default()
}
