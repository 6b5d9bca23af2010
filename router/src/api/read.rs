//! Routes of all queries: the Prometheus API and flame graphs.

use axum::Router;

use super::{flamegraph, prometheus};
use crate::query::Reader;

/// Returns the routes of all queries. The tenant must be in the extensions of each request.
pub(crate) fn routes(reader: Reader) -> Router {
    prometheus::routes(reader.clone()).merge(flamegraph::routes(reader))
}
