//! Parts that all queries share: the shards, the symbol store, the cache of names, and the limit on concurrent queries.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use proto::{TenantId, limits};
use symbol_store::SymbolStore;
use tokio::sync::Semaphore;

use crate::auth::tenants::Tenants;
use crate::nodes::Nodes;
use crate::query::error::QueryError;
use crate::query::limits::NAMES_BYTES_MAX;
use crate::query::naming::cache::NameCache;
use crate::query::run::{ReadOptions, Run};

/// Runs queries. Cheap to clone; all clones share the limit on concurrent queries.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(crate) nodes: Nodes,
    pub(crate) symbols: SymbolStore,
    pub(crate) names: NameCache,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) tenants: Tenants,
}

impl Reader {
    /// Makes a reader of these shards and symbols. Adds its metrics to `registry`, with the prefix `varve_router`.
    #[must_use]
    pub fn new(nodes: Nodes, symbols: SymbolStore, registry: &mut Registry) -> Self {
        let slots = Arc::new(Semaphore::new(limits::QUERIES_AT_ONCE_MAX));
        let names = NameCache::new(NAMES_BYTES_MAX, registry);
        Self { nodes, symbols, names, slots, tenants: Tenants::default() }
    }

    /// Keeps the limits of these tenants.
    #[must_use]
    pub fn with_tenants(self, tenants: Tenants) -> Self {
        Self { tenants, ..self }
    }

    /// Starts a query of a tenant as soon as a slot is free. A query over the tenant's limit waits for no slot.
    ///
    /// # Errors
    /// Returns [`QueryError::Exceeded`] if the tenant runs as many queries as it may.
    pub(crate) async fn start(&self, tenant: &TenantId, options: ReadOptions) -> Result<Run, QueryError> {
        let share = self.tenants.admit_query(tenant)?;
        Ok(Run::start(&self.slots, options).await?.with_share(share))
    }
}
