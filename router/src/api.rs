//! The HTTP and gRPC API, as documented in `docs/api.md`.

pub(crate) mod administration;
pub mod agent;
pub(crate) mod debuginfo;
pub(crate) mod error;
mod flamegraph;
mod not_found;
mod parameters;
mod prometheus;
mod prometheus_json;
pub mod push;
mod query_headers;
pub(crate) mod read;
pub mod time;
pub(crate) mod web_ui;

use axum::http::{Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, extract::Request, middleware::Next};
use symbol_store::SymbolStore;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, NotForContentType, Predicate};

use self::agent::AgentStatusSource;
use self::error::ApiError;
use self::not_found::{not_found, not_found_on_operations_port, not_found_on_otlp_port};
use crate::auth::{Auth, authenticate};
use crate::connection::reporting_bad_heads;
use crate::ingest::push::Pusher;
use crate::nodes::Nodes;
use crate::query::Reader;

/// The parts of the router that the API calls.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Connections to the nodes that hold the shards.
    pub nodes: Nodes,
    /// Receives pushes.
    pub pusher: Pusher,
    /// Serves queries.
    pub reader: Reader,
    /// Stores debug files.
    pub symbols: SymbolStore,
    /// Function that returns the status of the agent in this process.
    pub agent: AgentStatusSource,
    /// Method of authenticating requests.
    pub auth: Auth,
}

/// Returns all routes of the HTTP port except `/healthz`, `/ready` and `/metrics`.
pub fn routes(parts: Parts) -> Router {
    let api = Router::new()
        .merge(push::http::routes(parts.pusher))
        .merge(administration::routes(parts.nodes, parts.reader.clone()))
        .merge(read::routes(parts.reader))
        .merge(debuginfo::routes(parts.symbols))
        .merge(agent::routes(parts.agent))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(parts.auth, authenticate));
    // The files of the web UI hold no data, so they need no credential.
    reporting_bad_heads(beside(web_ui::routes()).merge(api)).layer(compression()).layer(from_fn(log))
}

/// Middleware that compresses responses for clients that accept compression, at the fastest level. The fastest level
/// shrinks a flame graph of 400 kB to a fifth in 2 ms, and the default level to a sixth in 8 ms. Responses that are
/// already compressed, such as pprof files, are not compressed again.
fn compression() -> CompressionLayer<impl Predicate> {
    let what = DefaultPredicate::new().and(NotForContentType::const_new("application/octet-stream"));
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(what)
}

/// Returns the route `POST /v1development/profiles` for the OTLP port.
pub fn otlp_routes(pusher: Pusher, auth: Auth) -> Router {
    let api = push::http::otlp_routes(pusher)
        .fallback(not_found_on_otlp_port)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(auth, authenticate));
    reporting_bad_heads(api).layer(from_fn(push::rpc_status::rewrite_errors)).layer(from_fn(log))
}

/// Prepares other routes to be merged with [`routes`]. A request with an unsupported method then gets an error in the
/// same form as from [`routes`].
pub fn beside(routes: Router) -> Router {
    routes.method_not_allowed_fallback(method_not_allowed)
}

/// Prepares the routes of a port that serves only `/healthz`, `/ready` and `/metrics`. All errors of the port have the
/// same form as those of [`routes`].
pub fn alone(routes: Router) -> Router {
    reporting_bad_heads(beside(routes).fallback(not_found_on_operations_port))
}

/// Returns the response (503) of a server that is not ready. `reason` is the text of the error.
#[must_use]
pub fn unavailable(reason: String) -> Response {
    ApiError::unavailable(reason).into_response()
}

/// Makes `routes` require the same credential as the API.
pub fn behind(auth: Auth, routes: Router) -> Router {
    routes.layer(from_fn_with_state(auth, authenticate))
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{} does not take {method}: see docs/api.md", uri.path()))
}

async fn log(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let began = std::time::Instant::now();
    let response = next.run(request).await;
    let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
    tracing::debug!(%method, path, status = response.status().as_u16(), milliseconds, "answered");
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt as _;
    use prometheus_client::registry::Registry;
    use tonic::transport::Endpoint;
    use tower::Service as _;

    use super::*;

    #[tokio::test]
    async fn an_unsupported_method_on_the_otlp_port_is_an_rpc_status() {
        let nodes =
            Nodes::remote(&transport::Dialer::plaintext(), vec![Endpoint::from_static("http://127.0.0.1:1")], None);
        let mut routes = otlp_routes(Pusher::new(nodes, &mut Registry::default()), Auth::open());
        let request = Request::get("/v1development/profiles").body(Body::empty()).unwrap();
        let response = routes.call(request).await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["allow"]), (405, &"POST".parse().unwrap()));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json["code"], i32::from(tonic::Code::Unimplemented));
        assert!(json["message"].as_str().unwrap().contains("does not take GET"), "{json}");
    }
}
