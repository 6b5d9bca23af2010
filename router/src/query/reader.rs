//! Parts that all queries share: the shards, the symbol store, the cache of names, and the limit on concurrent queries.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use proto::limits;
use symbol_store::SymbolStore;
use tokio::sync::Semaphore;

use crate::nodes::Nodes;
use crate::query::limits::NAMES_BYTES_MAX;
use crate::query::naming::cache::NameCache;

/// Runs queries. Cheap to clone; all clones share the limit on concurrent queries.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(crate) nodes: Nodes,
    pub(crate) symbols: SymbolStore,
    pub(crate) names: NameCache,
    pub(crate) slots: Arc<Semaphore>,
}

impl Reader {
    /// Makes a reader of these shards and symbols. Adds its metrics to `registry`, with the prefix `varve_router`.
    #[must_use]
    pub fn new(nodes: Nodes, symbols: SymbolStore, registry: &mut Registry) -> Self {
        let slots = Arc::new(Semaphore::new(limits::QUERIES_AT_ONCE_MAX));
        Self { nodes, symbols, names: NameCache::new(NAMES_BYTES_MAX, registry), slots }
    }
}
