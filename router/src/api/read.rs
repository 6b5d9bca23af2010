//! Routes of all queries: Prometheus' API and flame graphs.

use axum::Router;

use super::{flamegraph, prometheus};
use crate::query::Reader;

/// The routes. The tenant must be in the request's extensions.
pub(crate) fn routes(reader: Reader) -> Router {
    prometheus::routes(reader.clone()).merge(flamegraph::routes(reader))
}
