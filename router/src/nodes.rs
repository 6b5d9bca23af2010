//! Calls from the router to the nodes that hold the shards.

mod cluster;
mod reading;
mod remote;
mod silent_shards;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::RwLock;
use proto::meta::State;
use proto::placement::Placement;
use proto::push_retries::PartFailure;
use proto::refusal::Refusal;
use proto::{
    AdministrationTask, Answer, Appended, Batch, BatchId, Consistency, Deleted, Deletion, KnownLocations, LocationPage,
    Selection, SeriesAnswer, SeriesQuery, Shards, TenantId, Tokens,
};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use transport::Dialer;

use self::cluster::Cluster;
pub(crate) use self::reading::{Point, Points, Reading};
use self::remote::{PATIENCE, Patience, Remote};

/// Maximum number of shards that work on one request at one time. A node has threads for about as many, and each may
/// send a large response.
const SHARDS_AT_ONCE_MAX: usize = 8;

/// All shards, and the node that holds them. Cheap to clone; all clones share the placement.
#[derive(Clone)]
pub struct Nodes {
    node: Node,
    /// Placement that the node returned last; `None` if it must be read.
    placement: Arc<RwLock<Option<Arc<Placement>>>>,
    /// Newest epoch that a node has named in a refusal.
    newest_epoch: Arc<AtomicU64>,
}

/// The nodes that hold the shards.
#[derive(Clone)]
enum Node {
    /// In this process.
    InProcess(Arc<dyn Shards<Error = Status>>),
    /// On the network.
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("placement", &*self.placement.read()).finish_non_exhaustive()
    }
}

/// The error of a call to a node. The code of the status determines whether a retry can succeed.
#[derive(Debug)]
pub struct NodesError {
    /// Number of the shard; `None` if the fault is not in one shard.
    shard: Option<u32>,
    status: Status,
}

impl fmt::Display for NodesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shard {
            Some(shard) => write!(f, "shard {shard}: {}", self.status.message()),
            None => f.write_str(self.status.message()),
        }
    }
}

impl std::error::Error for NodesError {}

impl NodesError {
    /// Code of the status that the node returned.
    pub(crate) fn code(&self) -> Code {
        self.status.code()
    }

    /// Returns whether the call failed because the shard does not hold a stack that the batch omits. The shard then
    /// stored nothing of the batch.
    pub(crate) fn is_dangling(&self) -> bool {
        self.code() == Code::Aborted
    }

    /// Returns the kind of the error of an append, for the decision about retries.
    pub(crate) fn part_failure(&self) -> PartFailure {
        match self.code() {
            _ if self.is_misplaced() => PartFailure::Misplaced,
            _ if self.is_dangling() => PartFailure::Dangling,
            Code::ResourceExhausted | Code::Unavailable => PartFailure::Temporary,
            _ => PartFailure::Lasting,
        }
    }

    /// Number of the shard that did not answer; `None` if there is an answer, or if the fault is not in one shard.
    /// Other shards may still answer the query.
    pub(crate) fn silent_shard(&self) -> Option<u32> {
        let is_silent = matches!(self.code(), Code::Unavailable | Code::DeadlineExceeded);
        self.shard.filter(|_| is_silent)
    }

    /// Text of the status, without the shard.
    pub(crate) fn reason(&self) -> &str {
        self.status.message()
    }

    /// Returns whether the call failed because the node has another placement.
    pub(crate) fn is_misplaced(&self) -> bool {
        matches!(self.code(), Code::FailedPrecondition | Code::NotFound)
    }
}

impl Nodes {
    /// Makes a connection to a node in this process.
    #[must_use]
    pub fn local(node: Arc<dyn Shards<Error = Status>>) -> Self {
        Self { node: Node::InProcess(node), placement: Arc::default(), newest_epoch: Arc::default() }
    }

    /// Makes connections to the nodes of a cluster. `seeds` are endpoints of some of its nodes, made by `dialer`; the
    /// others are found through them. Calls carry the first of `tokens`. Network connections are made on the first
    /// calls, and again after they break. Must be called in a tokio runtime.
    #[must_use]
    pub fn remote(dialer: &Dialer, seeds: Vec<Endpoint>, tokens: Option<&Tokens>) -> Self {
        Self::remote_with(dialer, seeds, tokens, PATIENCE)
    }

    fn remote_with(dialer: &Dialer, seeds: Vec<Endpoint>, tokens: Option<&Tokens>, patience: Patience) -> Self {
        let cluster = Cluster::new(dialer, seeds, tokens, patience);
        Self { node: Node::Cluster(cluster), placement: Arc::default(), newest_epoch: Arc::default() }
    }

    /// Returns true if a node has responded with the placement of the shards. Without it, every request fails.
    #[must_use]
    pub fn know_placement(&self) -> bool {
        match &self.node {
            Node::InProcess(_) => true,
            Node::Cluster(cluster) => cluster.knows_placement(),
        }
    }

    /// Returns a watcher of the state of the meta group, as far as this router knows it; `None` if the node is in this
    /// process.
    pub(crate) fn watch_cluster(&self) -> Option<watch::Receiver<Arc<State>>> {
        match &self.node {
            Node::InProcess(_) => None,
            Node::Cluster(cluster) => Some(cluster.watch()),
        }
    }

    /// Returns the last known state of the meta group. Asks the nodes for it if none is known.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the node that was asked last.
    pub(crate) async fn cluster_state(&self) -> Result<Arc<State>, NodesError> {
        let state = match &self.node {
            Node::InProcess(_) => Ok(Arc::default()),
            Node::Cluster(cluster) => cluster.state().await,
        };
        state.map_err(|status| NodesError { shard: None, status })
    }

    /// Returns the assignment of slots to shards. Reads it from the node on the first call, and again after the node
    /// has refused a call because its placement is another one.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the node.
    pub async fn placement(&self) -> Result<Arc<Placement>, NodesError> {
        let known = self.placement.read().clone();
        if let Some(known) = known {
            return Ok(known);
        }
        self.read_placement().await
    }

    /// Reads the assignment of slots to shards from the node.
    async fn read_placement(&self) -> Result<Arc<Placement>, NodesError> {
        let read = match &self.node {
            Node::InProcess(node) => node.placement().await,
            Node::Cluster(cluster) => cluster.placement(self.newest_epoch.load(Ordering::Relaxed)).await,
        };
        let read = Arc::new(read.map_err(|status| NodesError { shard: None, status })?);
        *self.placement.write() = Some(Arc::clone(&read));
        Ok(read)
    }

    /// Returns the error of a call to a shard. After an error that says that the node has another placement, the next
    /// request reads the placement again.
    fn refused(&self, shard: u32, status: Status) -> NodesError {
        let error = NodesError { shard: Some(shard), status };
        if error.is_misplaced() {
            *self.placement.write() = None;
        }
        if let Some(Refusal::Misplaced { epoch }) = Refusal::decode(error.status.details()) {
            self.newest_epoch.fetch_max(epoch, Ordering::Relaxed);
        }
        error
    }

    /// Returns the error of a query. A fault of the query itself is not in one shard, and its text must not depend on
    /// the placement.
    fn refused_query(&self, shard: u32, status: Status) -> NodesError {
        match status.code() {
            Code::InvalidArgument | Code::ResourceExhausted => NodesError { shard: None, status },
            _ => self.refused(shard, status),
        }
    }

    /// Appends batches to all their shards at the same time, and waits for every shard. Returns the result of each
    /// shard. After `Ok`, the batch is durable and visible to queries, and the response counts the samples that the
    /// shard skipped as too old.
    ///
    /// If the code of an error says that the batch itself is wrong, the batch was not stored. After any other code, it
    /// may have been stored, and may be sent again with the same ID.
    pub(crate) async fn append(
        &self,
        placement: &Placement,
        batches: impl IntoIterator<Item = (u32, Batch)>,
    ) -> Vec<(u32, Result<Appended, NodesError>)> {
        let epoch = placement.epoch();
        let calls = batches.into_iter().map(|(shard, batch)| async move {
            let appended = match &self.node {
                Node::InProcess(node) => node.append(shard, epoch, batch).await,
                Node::Cluster(cluster) => {
                    let batch = &batch;
                    let append = |node: Arc<Remote>| async move { node.append(shard, epoch, batch).await };
                    cluster.at_leader(shard, true, append).await
                }
            };
            (shard, appended.map_err(|status| self.refused(shard, status)))
        });
        join_all(calls).await
    }

    /// Returns whether a shard has stored a batch with this ID.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub(crate) async fn holds_batch(
        &self,
        placement: &Placement,
        shard: u32,
        tenant: &TenantId,
        id: BatchId,
    ) -> Result<bool, NodesError> {
        let epoch = placement.epoch();
        let holds = match &self.node {
            Node::InProcess(node) => node.holds_batch(shard, epoch, tenant.clone(), id).await,
            Node::Cluster(cluster) => {
                let holds = |node: Arc<Remote>| async move { node.holds_batch(shard, epoch, tenant, id).await };
                cluster.at_leader(shard, true, holds).await
            }
        };
        holds.map_err(|status| self.refused(shard, status))
    }

    /// Returns the state that later reads of the query see at least. The wait is bounded, and it is short if the shard
    /// has not answered lately.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub(crate) async fn read_point(
        &self,
        placement_epoch: u64,
        shard: u32,
        consistency: Consistency,
    ) -> Result<Point, NodesError> {
        let point = match &self.node {
            Node::InProcess(node) => {
                let state = node.read_point(shard, placement_epoch, consistency).await;
                state.map(|state| Point { state, node: None })
            }
            Node::Cluster(cluster) => cluster.read_point(shard, placement_epoch, consistency).await,
        };
        point.map_err(|status| self.refused(shard, status))
    }

    /// Returns the sums of samples that a selection requests from one shard.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub(crate) async fn select(
        &self,
        reading: &Reading,
        shard: u32,
        selection: Selection,
    ) -> Result<Answer, NodesError> {
        let answer = match &self.node {
            Node::InProcess(node) => node.select(shard, reading.at(shard), selection).await,
            Node::Cluster(cluster) => {
                let selection = &selection;
                let select = |node: Arc<Remote>| async move { node.select(reading, shard, selection.clone()).await };
                cluster.read(reading, shard, select).await
            }
        };
        let held = answer.and_then(|answer| reading.hold(answer.memory_bytes()).map(|()| answer));
        held.map_err(|status| self.refused_query(shard, status))
    }

    /// Returns a page of a tenant's locations in one shard. The page has only locations that the router does not know
    /// yet.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub(crate) async fn locations(
        &self,
        reading: &Reading,
        shard: u32,
        tenant: &TenantId,
        known: KnownLocations,
    ) -> Result<LocationPage, NodesError> {
        let page = match &self.node {
            Node::InProcess(node) => node.locations(shard, reading.at(shard), tenant.clone(), known).await,
            Node::Cluster(cluster) => {
                let locations = |node: Arc<Remote>| async move { node.locations(reading, shard, tenant, known).await };
                cluster.read(reading, shard, locations).await
            }
        };
        page.map_err(|status| self.refused_query(shard, status))
    }

    /// Returns the series of one shard that have samples in the window.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub(crate) async fn series(
        &self,
        reading: &Reading,
        shard: u32,
        query: &SeriesQuery,
    ) -> Result<SeriesAnswer, NodesError> {
        let answer = match &self.node {
            Node::InProcess(node) => node.series(shard, reading.at(shard), query.clone()).await,
            Node::Cluster(cluster) => {
                let series = |node: Arc<Remote>| async move { node.series(reading, shard, query).await };
                cluster.read(reading, shard, series).await
            }
        };
        let held = answer.and_then(|answer| reading.hold(answer.memory_bytes()).map(|()| answer));
        held.map_err(|status| self.refused_query(shard, status))
    }

    /// Deletes samples from some shards. Returns the total numbers of deleted samples and sums.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the first shard that fails. Other shards may have deleted samples.
    pub(crate) async fn delete(
        &self,
        placement_epoch: u64,
        shards: &[u32],
        deletion: &Deletion,
    ) -> Result<Deleted, NodesError> {
        let calls = shards.iter().map(|&shard| async move {
            let deleted = match &self.node {
                Node::InProcess(node) => node.delete(shard, placement_epoch, deletion.clone()).await,
                Node::Cluster(cluster) => {
                    let delete = |node: Arc<Remote>| async move { node.delete(shard, placement_epoch, deletion).await };
                    cluster.at_leader(shard, false, delete).await
                }
            };
            deleted.map_err(|status| self.refused(shard, status))
        });
        let mut all = Deleted::default();
        for Deleted { samples, windows } in in_order(calls.collect()).await? {
            all.samples += samples;
            all.windows += windows;
        }
        Ok(all)
    }

    /// Runs an administration task on all shards. Returns the number and report of each shard, in the order of the
    /// shards. A report is a JSON object.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the first shard that fails. Other shards may have finished the task.
    pub(crate) async fn administer(&self, task: AdministrationTask) -> Result<Vec<(u32, String)>, NodesError> {
        // A task does not name a placement, so the router reads which shards there are now.
        let shards = self.read_placement().await?.shards();
        let calls = shards.into_iter().map(|shard| async move {
            let report = match &self.node {
                Node::InProcess(node) => node.administer(shard, task).await,
                Node::Cluster(cluster) => {
                    let administer = |node: Arc<Remote>| async move { node.administer(shard, task).await };
                    cluster.at_leader(shard, false, administer).await
                }
            };
            report.map(|report| (shard, report)).map_err(|status| self.refused(shard, status))
        });
        in_order(calls.collect()).await
    }
}

/// Makes calls to several shards, at most [`SHARDS_AT_ONCE_MAX`] at one time. Returns the responses in the order of
/// the calls, and cancels the other calls after an error. The error is that of the first call that fails in this order,
/// so it does not depend on which call ends first.
pub(crate) async fn in_order<T, E>(calls: Vec<impl Future<Output = Result<T, E>>>) -> Result<Vec<T>, E> {
    futures::stream::iter(calls).buffered(SHARDS_AT_ONCE_MAX).try_collect().await
}

#[cfg(test)]
pub(crate) mod tests;
