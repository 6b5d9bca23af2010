//! Tenants of the cluster, as the meta group describes them: the tokens, and the limits on this router.
//!
//! Each router counts for itself, so n routers together allow n times each limit.
//!
//! Invariant: a refused request takes nothing of the budgets that all tenants share. A router that has lost the meta
//! group goes on with the last state that it knows.

mod bucket;
mod usage;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proto::TenantId;
use proto::limits::TENANTS_MAX;
use proto::meta::{Limits, State};
use tokio::sync::watch;
use tokio::time::timeout;

use self::usage::Usage;
pub(crate) use self::usage::{Exceeded, QueryShare};
use crate::nodes::Nodes;

/// Longest time that a request waits for the first state of the meta group.
const STATE_PATIENCE: Duration = Duration::from_secs(3);

/// The tenants of the cluster. Cheap to clone; all clones count together.
#[derive(Clone, Debug, Default)]
pub struct Tenants {
    /// The state of the meta group; `None` if this router has none, and all requests are of one tenant without limits.
    source: Option<Source>,
    usage: Arc<Mutex<HashMap<TenantId, Arc<Usage>>>>,
}

#[derive(Clone, Debug)]
struct Source {
    states: watch::Receiver<Arc<State>>,
    /// Nodes that are asked if no state is known yet.
    nodes: Option<Nodes>,
}

/// The state of the meta group is not known yet. The text says why.
#[derive(Debug)]
pub(crate) struct Unknown(pub(crate) String);

impl Tenants {
    /// Returns the tenants of the cluster of these nodes, which must be on the network.
    #[must_use]
    pub fn of_cluster(nodes: &Nodes) -> Self {
        let source = nodes.watch_cluster().map(|states| Source { states, nodes: Some(nodes.clone()) });
        Self { source, usage: Arc::default() }
    }

    /// Returns the tenants in the state that a node in this process publishes.
    #[must_use]
    pub fn of_node(states: watch::Receiver<Arc<State>>) -> Self {
        Self { source: Some(Source { states, nodes: None }), usage: Arc::default() }
    }

    /// Returns the last known state of the meta group; `None` if this router has no meta group. If none is known yet,
    /// asks the nodes for it if `asks` is true, and otherwise waits for it.
    ///
    /// # Errors
    /// [`Unknown`] with the error of the node that was asked, or with a constant text after [`STATE_PATIENCE`].
    pub(crate) async fn known_state(&self, asks: bool) -> Result<Option<Arc<State>>, Unknown> {
        let Some(source) = &self.source else { return Ok(None) };
        let known = Arc::clone(&source.states.borrow());
        if known.cluster.is_some() {
            return Ok(Some(known));
        }
        if asks && let Some(nodes) = &source.nodes {
            return nodes.cluster_state().await.map(Some).map_err(|error| Unknown(error.to_string()));
        }
        let mut states = source.states.clone();
        let known = timeout(STATE_PATIENCE, states.wait_for(|state| state.cluster.is_some())).await;
        match known {
            Ok(Ok(state)) => Ok(Some(Arc::clone(&state))),
            _ => Err(Unknown("the server does not know the cluster yet: try again in a moment".to_owned())),
        }
    }

    /// Returns the limits of a tenant. A tenant that the meta group does not know has none.
    pub(crate) fn limits(&self, tenant: &TenantId) -> Limits {
        let Some(source) = &self.source else { return Limits::default() };
        source.states.borrow().tenants.get(tenant).map(|tenant| tenant.policy.limits).unwrap_or_default()
    }

    /// Returns what a tenant uses.
    fn usage(&self, tenant: &TenantId) -> Arc<Usage> {
        let mut all = self.usage.lock();
        if let Some(usage) = all.get(tenant) {
            return Arc::clone(usage);
        }
        // Tenants that were deleted are forgotten. A tenant with limits is in the state, so there is room for it.
        if all.len() >= TENANTS_MAX
            && let Some(source) = &self.source
        {
            let state = Arc::clone(&source.states.borrow());
            all.retain(|tenant, _| state.tenants.contains_key(tenant));
        }
        Arc::clone(all.entry(tenant.clone()).or_default())
    }

    /// Checks before any part of a push is read that the tenant is within its rates.
    ///
    /// # Errors
    /// [`Exceeded`] if earlier pushes have used up the rate of samples or bytes.
    pub(crate) fn admit_push(&self, tenant: &TenantId) -> Result<(), Exceeded> {
        self.charge_push(tenant, 0)
    }

    /// Counts a push of `bytes` bytes after decompression. A push that begins within the rates is never too large for
    /// them: the next ones wait until it is paid off.
    ///
    /// # Errors
    /// [`Exceeded`] if earlier pushes have used up a rate. Nothing is counted then.
    pub(crate) fn charge_push(&self, tenant: &TenantId, bytes: u64) -> Result<(), Exceeded> {
        let limits = self.limits(tenant);
        if limits.samples_per_second_max.is_none() && limits.bytes_per_second_max.is_none() {
            return Ok(());
        }
        self.usage(tenant).charge(&limits, bytes, Instant::now())
    }

    /// Counts the samples of a push that [`Self::charge_push`] has accepted.
    pub(crate) fn charge_samples(&self, tenant: &TenantId, samples: u64) {
        let limits = self.limits(tenant);
        if limits.samples_per_second_max.is_some() {
            self.usage(tenant).take_samples(&limits, samples, Instant::now());
        }
    }

    /// Counts a query until the share is dropped.
    ///
    /// # Errors
    /// [`Exceeded`] if the tenant runs as many queries as it may.
    pub(crate) fn admit_query(&self, tenant: &TenantId) -> Result<QueryShare, Exceeded> {
        match self.limits(tenant).queries_at_once_max {
            None => Ok(QueryShare::default()),
            Some(max) => self.usage(tenant).admit_query(max),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
