//! The node, from opening to shutdown. The submodules handle requests, the supervision of replicas, upkeep, retention
//! and administration.

mod administration;
mod cluster;
mod hosted;
mod raft_log;
pub(crate) mod replica;
mod retention;
mod service;
mod shared;
mod stored_time;
mod supervise;
mod upkeep;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use proto::meta::{CLUSTER_METADATA, ClusterId};
use proto::wire::cluster_server::ClusterServer;
use proto::wire::node_server::NodeServer;
use proto::wire::snapshots_server::SnapshotsServer;
use proto::{Tokens, limits};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::{Request, Status};
use transport::Credentials;

use crate::config::Config;
use crate::consensus::GroupState as _;
use crate::error::{NodeError, ReplicaError};
use crate::node::hosted::State;
use crate::node::shared::{APPENDS_IN_FLIGHT_BYTES_MAX, Shared};
use crate::shard::snapshot::sender::{SentShard, SnapshotService};

/// Longest time that a shutdown waits for appends in flight.
const APPENDS_PATIENCE: Duration = Duration::from_secs(3);
/// Longest time that a shutdown then waits for the last flush, and until no thread uses the databases any more.
const CLOSE_PATIENCE: Duration = Duration::from_secs(7);
/// Interval at which a shutdown logs that it still waits for threads that use the databases.
const CLOSE_REPORT: Duration = Duration::from_secs(1);

/// Largest size of the fields beside a command or a state in a message of the service `Cluster`, in bytes.
const MESSAGE_HEAD_BYTES_MAX: usize = 64;

/// A node on an open data directory. It implements the gRPC service [`proto::wire::node_server::Node`] for remote
/// routers, and the trait [`proto::Shards`] for a router in this process.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// A shard that does not accept queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadyShard {
    /// Number of the shard.
    pub shard: u32,
    /// State of its replica: `starting`, `joining`, `failed`, `stopped`, or `cannot_commit` if most members do not
    /// respond.
    pub state: &'static str,
}

/// Error with which [`Node::serve`] ends: the listener failed.
#[derive(Debug, thiserror::Error)]
#[error("serving the node's gRPC: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

impl Node {
    /// Opens the data directory and the log, registers the node's metrics, and starts to open the replicas of all
    /// shards. [`Node::ready`] returns when all replicas serve. A replica that does not open fails alone.
    ///
    /// # Errors
    /// [`NodeError`]: an option is invalid; another process holds the directory; or the directory or the log cannot be
    /// used.
    pub async fn open(config: Config, registry: &mut Registry) -> Result<Arc<Self>, NodeError> {
        let shared = Shared::open(config, registry).await?;
        upkeep::watch_space(&shared);
        cluster::open_known(&shared).await?;
        let tasks = TaskTracker::new();
        upkeep::start(&shared, &tasks);
        Ok(Arc::new(Self { shared, tasks }))
    }

    /// Waits until the cluster has a placement, and every shard of this node has served. Never returns if a replica
    /// fails before that (see [`Node::failed`]).
    pub async fn ready(&self) {
        let mut states = self.shared.cluster.state.subscribe();
        let Ok(state) = states.wait_for(|state| !state.epochs.is_empty()).await.map(|state| Arc::clone(&state)) else {
            return;
        };
        for (shard, _identity) in self.shared.cluster.own_replicas(&state) {
            let hosted = self.shared.hosted_shard(shard).await;
            hosted.reached(|state| matches!(state, State::Serving(_)).then_some(())).await;
        }
    }

    /// Returns a watcher of the state of the meta group, as far as this node has applied it.
    #[must_use]
    pub fn watch_cluster(&self) -> watch::Receiver<Arc<proto::meta::State>> {
        self.shared.cluster.state.subscribe()
    }

    /// Returns true if the cluster has a placement, and all shards of this node accept queries and have a majority. A
    /// shard with a full disk does. So does a shard that repairs its files, because queries wait for the end of the
    /// repair. A shard whose replica is built again from the other members does not.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.unready_shards().is_empty()
    }

    /// Returns the shards that do not accept queries, by number. Shard 0 is the meta group, without whose state a node
    /// does not know the placement.
    #[must_use]
    pub fn unready_shards(&self) -> Vec<UnreadyShard> {
        let starting = |shard| UnreadyShard { shard, state: "starting" };
        let cluster = self.shared.cluster.state();
        let mut unready = Vec::new();
        // A state that does not name this data directory is older than the acceptance of the directory.
        if cluster.epochs.is_empty() || !self.shared.cluster.is_known(&cluster) {
            unready.push(starting(0));
        }
        let hosted = self.shared.shards();
        let own = self.shared.cluster.own_replicas(&cluster);
        unready.extend(own.into_keys().filter(|shard| !hosted.contains_key(shard)).map(starting));
        let states = hosted.into_iter().map(|(shard, hosted)| (shard, hosted.state()));
        unready.extend(states.filter_map(|(shard, state)| {
            let is_joining = || self.shared.cluster.is_replaced_here(&cluster, shard).then_some("joining");
            Some(UnreadyShard { shard, state: state.unready().or_else(is_joining)? })
        }));
        unready
    }

    /// Waits until the log or the member of the meta group has failed, or the replicas of all shards have failed for
    /// good, and returns the error. The process should report the error and exit. If only some replicas have failed,
    /// the other shards are served.
    pub async fn failed(&self) -> Arc<ReplicaError> {
        let log_failed = async {
            let error = self.shared.raft_log.failure().wait_for_final().await;
            // Nothing is served any more when this function returns.
            for hosted in self.shared.shards().into_values() {
                hosted.reached(|state| (!matches!(state, State::Serving(_) | State::ReadOnly(_))).then_some(())).await;
            }
            error
        };
        let mut meta = self.shared.cluster.failure.subscribe();
        let meta_failed = async {
            match meta.wait_for(Option::is_some).await.map(|error| error.clone()) {
                Ok(Some(error)) => error,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            error = log_failed => error,
            error = meta_failed => error,
            error = self.all_failed() => error,
        }
    }

    /// Waits until the replicas of all shards of this node have failed, and returns the last error.
    async fn all_failed(&self) -> Arc<ReplicaError> {
        let mut last = None;
        loop {
            let shards = self.shared.shards();
            for hosted in shards.values() {
                let failed = |state: &State| match state {
                    State::Failed(error) => Some(Arc::clone(error)),
                    _ => None,
                };
                tokio::select! {
                    biased;
                    error = hosted.reached(failed) => last = Some(error),
                    // The node gave up this replica.
                    () = hosted.closed.cancelled() => {}
                }
            }
            match last.take() {
                // No shard was added meanwhile.
                Some(error) if self.shared.shards().len() <= shards.len() => return error,
                _ => self.shared.hosted_more_than(shards.len()).await,
            }
        }
    }

    /// Serves remote routers until `shutdown` completes, and then finishes the requests that are in progress. With
    /// `tls`, only nodes, routers and administrators with a certificate of the same CA are served, and `tokens` are not
    /// used. Without `tls`, every request needs one of `tokens` if there are any.
    ///
    /// # Errors
    /// [`ServeError`] if the listener fails.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<Arc<Credentials>>,
        tokens: Option<Tokens>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let of_cluster = Arc::clone(&self.shared.peers);
        let peers = Arc::clone(&self.shared.peers);
        let peer_service = peers.service();
        let snapshots = SnapshotsServer::new(self.snapshots());
        let shutdown = async move {
            shutdown.await;
            peers.close();
        };
        let cluster = ClusterServer::from_arc(Arc::clone(&self))
            .max_decoding_message_size(limits::META_COMMAND_BYTES_MAX + MESSAGE_HEAD_BYTES_MAX)
            .max_encoding_message_size(limits::META_STATE_BYTES_MAX + MESSAGE_HEAD_BYTES_MAX);
        let service = NodeServer::from_arc(self)
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX);
        let guard = move |request: Request<()>| {
            check_cluster(&request, of_cluster.cluster())?;
            if transport::peer_role(&request)?.is_some() {
                return Ok(request);
            }
            let authorization = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
            match tokens.as_ref().map(|tokens| tokens.check(authorization)) {
                Some(Err(no_token)) => Err(Status::unauthenticated(no_token.to_string())),
                _ => Ok(request),
            }
        };
        // With TLS, only nodes may be members of Raft groups.
        let node_guard = {
            let guard = guard.clone();
            move |request: Request<()>| {
                transport::require_node(&request)?;
                guard(request)
            }
        };
        let data_guard = {
            let guard = guard.clone();
            move |request: Request<()>| {
                transport::refuse_admin(&request)?;
                guard(request)
            }
        };
        let incoming = transport::incoming(listener, tls);
        let services = Server::builder()
            .add_service(InterceptedService::new(service, data_guard))
            .add_service(InterceptedService::new(cluster, guard))
            .add_service(InterceptedService::new(peer_service, node_guard.clone()))
            .add_service(InterceptedService::new(snapshots, node_guard));
        Ok(services.serve_with_incoming_shutdown(incoming, shutdown).await?)
    }

    /// Returns the service that sends the snapshots of this node's shards.
    fn snapshots(&self) -> SnapshotService {
        let shared = Arc::clone(&self.shared);
        let find = move |shard| {
            let replica = shared.shard(shard)?.replica()?;
            let shard = Arc::clone(replica.shard());
            // The log is purged up to there at the most.
            let purged = shard.purgeable().position.map(|position| position.index);
            Some(SentShard { shard, purged })
        };
        SnapshotService::new(Arc::clone(&self.shared.leases), self.shared.peers.closed(), find)
    }

    /// Refuses new requests, finishes appends in flight, flushes, and closes the data directory's files.
    ///
    /// If the disk fails during the flush, unflushed entries are still in the log, and the next start applies them
    /// again.
    pub async fn shutdown(&self) {
        let shared = &self.shared;
        shared.stopping.cancel();
        let all = u32::try_from(APPENDS_IN_FLIGHT_BYTES_MAX).unwrap_or(u32::MAX);
        let in_flight = tokio::time::timeout(APPENDS_PATIENCE, shared.appends.acquire_many(all)).await;
        if in_flight.is_err() {
            tracing::warn!("appends were still in flight at the shutdown: their outcome is unknown to the senders");
        }
        // The replicas now flush in parallel and close. Then the log is closed.
        shared.closing.cancel();
        self.tasks.close();
        match tokio::time::timeout(CLOSE_PATIENCE, self.closed()).await {
            Ok(()) => shared.directory.release(),
            Err(_elapsed) => {
                tracing::warn!("the databases are still in use after {CLOSE_PATIENCE:?}: not closed in order")
            }
        }
    }
}

/// Checks the cluster that a router names in the metadata of a request. A router that does not know its cluster yet
/// names none.
///
/// # Errors
/// FAILED_PRECONDITION: the request is of another cluster.
fn check_cluster(request: &Request<()>, own: Option<ClusterId>) -> Result<(), Status> {
    match (own, request.metadata().get(CLUSTER_METADATA)) {
        (Some(own), Some(named)) if named.as_bytes() != own.to_string().as_bytes() => {
            Err(Status::failed_precondition(format!(
                "this node belongs to cluster {own}, and the request is of another cluster: correct --node-endpoint, \
                 or stop this node"
            )))
        }
        _ => Ok(()),
    }
}

impl Node {
    /// Waits until the replicas and the log are closed. Logs every [`CLOSE_REPORT`] that it still waits.
    async fn closed(&self) {
        while tokio::time::timeout(CLOSE_REPORT, self.tasks.wait()).await.is_err() {
            let queries = limits::QUERIES_AT_ONCE_MAX.saturating_sub(self.shared.queries.available_permits());
            tracing::info!(
                queries,
                "waiting for queries, flushes, compactions and administration that use the databases"
            );
        }
    }
}

impl Drop for Node {
    // Ends the upkeep of a node that is dropped without a shutdown.
    fn drop(&mut self) {
        self.shared.stopping.cancel();
        self.shared.closing.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::Retention;
    use crate::directory::DataDirectory;

    #[test]
    fn a_request_that_names_another_cluster_is_refused() {
        let mut request = Request::new(());
        let [own, other] = [7, 8].map(|number| Some(ClusterId(number)));
        assert!(check_cluster(&request, own).is_ok());
        request.metadata_mut().insert(CLUSTER_METADATA, ClusterId(7).to_string().parse().unwrap());
        assert!(check_cluster(&request, own).is_ok() && check_cluster(&request, None).is_ok());
        let status = check_cluster(&request, other).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().contains("cluster 00000000000000000000000000000008"), "{status}");
    }

    #[test]
    fn the_directory_is_locked_while_an_abandoned_open_runs() {
        let folder = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(86_400);
        let retention = Retention { raw: day, minutes: day, hours: day, days: day };
        let config = Config::new(folder.path().to_owned(), retention, 1 << 30);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            // Occupies the only blocking thread, so that opening has to wait for it.
            let (finish, finished) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || finished.recv());
            let mut registry = Registry::default();
            let opened = Node::open(config.clone(), &mut registry);
            let opened = tokio::time::timeout(Duration::from_millis(50), opened).await;
            assert!(opened.is_err(), "the open ended without a thread");
            let error = DataDirectory::open(folder.path()).expect_err("the directory is not locked");
            assert!(matches!(error, NodeError::Held { .. }), "{error}");
            finish.send(()).unwrap();
            busy.await.unwrap().unwrap();
        });
        // The abandoned work now opens and closes the databases. As long as they are open, the directory is held.
        runtime.block_on(async {
            let start = Instant::now();
            loop {
                match Node::open(config.clone(), &mut Registry::default()).await {
                    Ok(node) => return node.shutdown().await,
                    Err(NodeError::Held { .. }) => assert!(start.elapsed() < Duration::from_secs(20)),
                    Err(error) => panic!("{error}"),
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
