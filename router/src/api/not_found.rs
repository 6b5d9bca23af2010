//! Errors for paths that do not exist. Each error names paths to use instead, also if the path belongs to a protocol
//! that is not supported.

use axum::http::Uri;

use super::error::ApiError;

/// Prefixes of the paths of unsupported profiling protocols, each with the name of its protocol.
const FOREIGN: [(&str, &str); 9] = [
    ("/ingest", "Pyroscope's ingest API"),
    ("/push.v1.PusherService/", "Pyroscope's push API"),
    ("/querier.v1.QuerierService/", "Pyroscope's query API"),
    ("/pyroscope/", "Pyroscope's query API"),
    ("/buildid/", "debuginfod"),
    ("/parca.", "Parca's API"),
    ("/api/parca.", "Parca's API"),
    ("/api/v1/write", "Prometheus remote write"),
    ("/api/v1/read", "Prometheus remote read"),
];

const SUPPORTED: &str = "push pprof to /api/v1/push, or OTLP to port 4317 (gRPC) or 4318 (HTTP); see docs/api.md";

/// Returns the error of a path that does not exist on the HTTP port.
pub(crate) async fn not_found(uri: Uri) -> ApiError {
    let path = uri.path();
    let foreign = FOREIGN.iter().find(|(prefix, _)| path.starts_with(prefix));
    let text = match foreign {
        Some((_, protocol)) => format!("{protocol} ({path}) is not supported yet: {SUPPORTED}"),
        None if path.starts_with("/v1development/") || path.starts_with("/v1/") => {
            format!("{path} is not on this port: send OTLP profiles to --otlp-http-listen, port 4318 by default")
        }
        None => format!("there is nothing at {path}: docs/api.md lists all paths, for example /api/v1/query"),
    };
    ApiError::not_found(text)
}

/// Returns the error of a path that does not exist on the OTLP/HTTP port.
pub(crate) async fn not_found_on_otlp_port(uri: Uri) -> ApiError {
    ApiError::not_found(format!(
        "{} does not exist on this port, which serves only OTLP profiles at /v1development/profiles; \
         queries and the web UI are on --http-listen, port 4040 by default; see docs/api.md",
        uri.path()
    ))
}

/// Returns the error of a path that does not exist on a port that serves only the state of the process.
pub(crate) async fn not_found_on_operations_port(uri: Uri) -> ApiError {
    ApiError::not_found(format!(
        "{} does not exist on this port, which serves only /healthz, /ready and /metrics; queries and the \
         web UI are on --http-listen of `varve up` or `varve router`, port 4040 by default",
        uri.path()
    ))
}
